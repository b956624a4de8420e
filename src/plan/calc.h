// The registry behind `hearth calc`: every quantity with its inputs, formula, convention and the function that computes
// it.
//
// A row is written once and serves the value, the checks, the formula with numbers, the list and the errors. The
// functions work in base units (bytes, seconds, FLOP/s, fractions); a row names the unit of each input and of the
// result ("GB", "ms",
// "%") and calc.c converts.
#pragma once

#include "base/status.h"
#include "base/text.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { CALC_INPUTS_MAX = 12, CALC_RULES_MAX = 3 };

typedef enum CalcKind {
    CALC_NUMBER = 1, // zero or more
    CALC_POSITIVE,   // more than zero
    CALC_WHOLE,      // a whole number, zero or more
    CALC_COUNT,      // a whole number, one or more
    CALC_FRACTION,   // more than zero, at most one
    CALC_CHOICE,     // one of a few words
    CALC_OVERFLOWS,  // a trace of steps, T = overflow, F = none
} CalcKind;

typedef struct CalcChoice {
    const char *name;
    double value;        // what the function gets
    const char *formula; // what stands for it in the formula, itself a template; NULL: the value
} CalcChoice;

typedef struct CalcInput {
    const char *name;
    const char *unit; // "" for a plain number
    CalcKind kind;
    const char *meaning;
    const char *fallback;      // the value when it is not given, as text; NULL: it must be given
    const CalcChoice *choices; // of CALC_CHOICE, ended by a NULL name
    double max, min;           // beyond what the kind says; 0: none
} CalcInput;

typedef struct CalcQuantity CalcQuantity;

typedef struct CalcArgs { // inputs in the order of the row
    const CalcQuantity *quantity;
    double given[CALC_INPUTS_MAX]; // in the units of the row
    double base[CALC_INPUTS_MAX];  // in base units; the value of a choice
    const char *text[CALC_INPUTS_MAX];
} CalcArgs;

// What must hold between inputs.
typedef enum CalcRuleKind {
    CALC_RULE_NONE,
    CALC_RULE_DIVIDES, // b divides a
    CALC_RULE_DIVIDES_EITHER,
    CALC_RULE_AT_MOST, // a <= b
    CALC_RULE_DIFFER,
} CalcRuleKind;

typedef struct CalcRule {
    CalcRuleKind kind;
    const char *a, *b; // inputs; b may be a product: "tp*pp*cp"
} CalcRule;

// A function of 1..6 doubles that takes the inputs in the order of the row, or one that takes them all. The macro keeps
// the type of the function, so that calc.c calls it through the type it has.
typedef struct CalcFunction {
    void (*call)(void);
    int arity;
} CalcFunction;
enum { CALC_ARITY_ARGS = -1, CALC_ARITY_TEXT = -2 }; // double f(const CalcArgs *), char *f(const CalcArgs *)

#define CALC_CALL(f)                                                                                              \
    {                                                                                                             \
        (void (*)(void))(f),                                                                                      \
            _Generic(&(f), double (*)(double) : 1, double (*)(double, double) : 2,                                \
                     double (*)(double, double, double) : 3, double (*)(double, double, double, double) : 4,      \
                     double (*)(double, double, double, double, double) : 5,                                      \
                     double (*)(double, double, double, double, double, double) : 6, double (*)(const CalcArgs *) \
                     : CALC_ARITY_ARGS, char *(*)(const CalcArgs *)                                               \
                     : CALC_ARITY_TEXT)                                                                           \
    }

struct CalcQuantity {
    const char *name;
    const char *summary; // one line
    const char *unit;
    CalcInput inputs[CALC_INPUTS_MAX];
    CalcRule rules[CALC_RULES_MAX];
    CalcFunction function;
    const char *formula; // arithmetic in the units of the row, with {input} placeholders
    const char *convention;
    const char *note;                                          // "" when there is nothing to warn of
    const char *(*remark)(const CalcArgs *args, double value); // a note that depends on the numbers, or NULL
};

typedef struct CalcSubject {
    const char *name;
    const CalcQuantity *quantities;
    int count;
} CalcSubject;

extern const CalcSubject *const calc_subjects[];
extern const int calc_subject_count;

const CalcQuantity *calc_find(const char *name); // NULL when there is none
int calc_input_count(const CalcQuantity *quantity);
double calc_arg(const CalcArgs *args, const char *name); // in base units; for the functions of rows that take CalcArgs

typedef struct CalcResult {
    const CalcQuantity *quantity;
    double value;
    char *text;       // of quantities whose value is a shape or a split, else NULL
    char *expression; // the formula with names
    char *numbers;    // the formula with numbers
    char *note;       // NULL when there is none
} CalcResult;

// Each word is "name=value", in any order. Usage errors name the expected inputs.
Status calc_evaluate(CalcResult *result, const char *quantity, const char *const *words, int count);
void calc_result_free(CalcResult *result);

// ---- the other way round (calc_solve.c) -----------------------------------------------------------------------------

typedef struct CalcSolution {
    const CalcInput *input; // the one that was found
    double found;           // in the unit of the row
    char *note;             // NULL, or why the result is not quite what was asked for
    CalcResult result;      // with it
} CalcSolution;

// Finds the one input that `words` leave open (not given and without a default, or "name=?") such that the quantity is
// `value`. The smallest of several; of a whole number, the nearest.
Status calc_solve(CalcSolution *solution, const char *quantity, const char *value, const char *const *words, int count);
void calc_solution_free(CalcSolution *solution);

// ---- what evaluating and solving share ------------------------------------------------------------------------------

Status calc_name(const CalcQuantity **quantity, const char *name); // an unknown one: with the nearest
// Reads words and puts defaults; left_open (NULL: none may be) becomes the index of the one input without a value.
Status calc_read(CalcArgs *args, const CalcQuantity *quantity, const char *const *words, int count, int *left_open);
double calc_base(const CalcInput *input, double given);               // from the unit of the row to the base unit
double calc_call(const CalcArgs *args);                               // the quantity, in the unit of its row
Status calc_with_inputs(Status status, const CalcQuantity *quantity); // an error ends with what the quantity takes

// calc_text.c: results and lists for people and for programs.
char *calc_number_text(double value);                 // fewest digits that read back as the same double; malloc'd
char *calc_inputs_text(const CalcQuantity *quantity); // "M_GB (GB, > 0), N (whole, >= 1), ..."; malloc'd
void calc_result_text(TextBuffer *out, const CalcResult *result);
json_t *calc_result_json(const CalcResult *result);
void calc_solution_text(TextBuffer *out, const CalcSolution *solution);
json_t *calc_solution_json(const CalcSolution *solution); // that of the result, with "solved", "found" and "found_unit"
char *calc_json_text(const json_t *root);                 // numbers with full precision; malloc'd
// Quantities whose name, subject or summary contains `word` (NULL: all); the name of one quantity shows its inputs.
Status calc_list_text(TextBuffer *out, const char *word);
Status calc_list_json(json_t **root, const char *word);
