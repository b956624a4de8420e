// Evaluates one quantity of the registry: reads "name=value" words, converts units, checks limits, calls the function
// and puts the numbers into the formula.
#include "plan/calc.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// --- units ----------------------------------------------------------------------------------------------------------

typedef struct Unit {
    const char *name;
    double times, over; // base = value * times / over; two whole factors keep 5 % = 5/100 correctly rounded
    bool scaled;        // a multiple is part of the unit, so 7B in it would be read two ways
} Unit;

static const Unit units[] = {
    {"B", 1, 1, true},
    {"MB", 1e6, 1, true},
    {"GB", 1e9, 1, true},
    {"GB each way", 1e9, 1, true},
    {"MiB", 1048576, 1, true},
    {"GiB", 1073741824, 1, true},
    {"GB/s", 1e9, 1, true},
    {"billion params", 1e9, 1, true},
    {"TFLOP", 1e12, 1, true},
    {"TFLOP/s", 1e12, 1, true},
    {"TFLOP/s/GPU", 1e12, 1, true},
    {"PF-days", 8.64e19, 1, true},
    {"GHz", 1e9, 1, true},
    {"us", 1, 1e6, true},
    {"ms", 1, 1e3, true},
    {"s", 1, 1, true},
    {"min", 60, 1, true},
    {"h", 3600, 1, true},
    {"d", 86400, 1, true},
    {"month", 2592000, 1, true},
    {"%", 1, 100, true},
};

static Unit unit_of(const char *name) {
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(units[i].name, name) == 0) return units[i];
    return (Unit){name, 1, 1, false}; // tokens, params, steps, USD, ...: what is counted is the unit
}

// --- looking up -----------------------------------------------------------------------------------------------------

const CalcQuantity *calc_find(const char *name) {
    for (int s = 0; s < calc_subject_count; s++)
        for (int i = 0; i < calc_subjects[s]->count; i++)
            if (strcmp(calc_subjects[s]->quantities[i].name, name) == 0) return &calc_subjects[s]->quantities[i];
    return NULL;
}

int calc_input_count(const CalcQuantity *quantity) {
    int count = 0;
    while (count < CALC_INPUTS_MAX && quantity->inputs[count].name)
        count++;
    return count;
}

static int input_index(const CalcQuantity *quantity, const char *name, size_t length) {
    int count = calc_input_count(quantity);
    for (int i = 0; i < count; i++)
        if (strlen(quantity->inputs[i].name) == length && strncmp(quantity->inputs[i].name, name, length) == 0)
            return i;
    return -1;
}

double calc_arg(const CalcArgs *args, const char *name) {
    int index = input_index(args->quantity, name, strlen(name));
    assert(index >= 0);
    return args->base[index];
}

static Status unknown_quantity(const char *name) {
    int count = 0;
    for (int s = 0; s < calc_subject_count; s++)
        count += calc_subjects[s]->count;
    const char **names = xmalloc((size_t)count * sizeof *names);
    int n = 0;
    for (int s = 0; s < calc_subject_count; s++)
        for (int i = 0; i < calc_subjects[s]->count; i++)
            names[n++] = calc_subjects[s]->quantities[i].name;
    const char *nearest = text_nearest(name, names, (size_t)n);
    free(names);
    Status status = status_usage("unknown quantity \"%s\"", name);
    if (!nearest) return status_hint(status, "hearth calc --list [word] names all of them");
    return status_hint(status, "did you mean %s? hearth calc --list [word] names all of them", nearest);
}

Status calc_name(const CalcQuantity **quantity, const char *name) {
    *quantity = calc_find(name);
    return *quantity ? NULL : unknown_quantity(name);
}

Status calc_with_inputs(Status status, const CalcQuantity *quantity) {
    char *inputs = calc_inputs_text(quantity);
    status = status_hint(status, "%s takes %s", quantity->name, inputs);
    free(inputs);
    return status;
}

static Status unknown_input(const CalcQuantity *quantity, const char *name, size_t length) {
    const char *names[CALC_INPUTS_MAX];
    int count = calc_input_count(quantity);
    for (int i = 0; i < count; i++)
        names[i] = quantity->inputs[i].name;
    char *given = text_copy_n(name, length);
    const char *nearest = text_nearest(given, names, (size_t)count);
    Status status = nearest ? status_usage("%s has no input \"%s\"; did you mean %s?", quantity->name, given, nearest)
                            : status_usage("%s has no input \"%s\"", quantity->name, given);
    free(given);
    return status;
}

// --- reading values -------------------------------------------------------------------------------------------------

// A number, with K, M, B or T for counts. The suffix is read as an exponent, so that 15.6T is the double nearest
// to 15.6e12.
static Status read_number(const CalcInput *input, const char *text, double *value) {
    static const char suffixes[] = "KkMBT";
    static const int exponents[] = {3, 3, 6, 9, 12};
    size_t length = strlen(text);
    char number[128];
    const char *suffix = length > 1 ? strchr(suffixes, text[length - 1]) : NULL;
    if (length + sizeof "e12" > sizeof number) return status_usage("%s takes a number, not \"%s\"", input->name, text);
    if (suffix)
        snprintf(number, sizeof number, "%.*se%d", (int)length - 1, text, exponents[suffix - suffixes]);
    else
        memcpy(number, text, length + 1);
    bool hexadecimal = strpbrk(number, "xX") != NULL; // strtod reads it, but nobody means it
    if (hexadecimal || !text_to_double(number, value) || !isfinite(*value))
        return status_usage("%s takes a number, not \"%s\"", input->name, text);
    bool scaled = unit_of(input->unit).scaled || input->kind == CALC_FRACTION;
    if (suffix && scaled)
        return status_usage("%s=%s: %c is a suffix for counts, and %s is in %s; write the plain number", input->name,
                            text, *suffix, input->name, *input->unit ? input->unit : "parts of one");
    return NULL;
}

static Status check_limits(const CalcInput *input, double value) {
    const char *name = input->name;
    char *shown = calc_number_text(value);
    Status status = NULL;
    bool whole = value == floor(value);
    if (value < 0)
        status = status_usage("%s=%s must not be negative", name, shown);
    else if (input->kind != CALC_NUMBER && input->kind != CALC_WHOLE && value == 0)
        status = status_usage("%s must not be zero", name);
    else if (input->kind == CALC_FRACTION && value > 1)
        status = status_usage("%s=%s is a fraction, at most 1 (0.4 for 40 %%)", name, shown);
    else if ((input->kind == CALC_WHOLE || input->kind == CALC_COUNT) && !whole)
        status = status_usage("%s=%s must be a whole number", name, shown);
    else if ((input->max > 0 && value > input->max) || value < input->min) {
        char *limit = calc_number_text(value < input->min ? input->min : input->max);
        status = status_usage("%s=%s must be at %s %s", name, shown, value < input->min ? "least" : "most", limit);
        free(limit);
    }
    free(shown);
    return status;
}

// The words of a choice in any case; yes, no, 1 and 0 for true and false; 2.0 for a choice called 2.
static bool choice_is(const CalcChoice *choice, const char *text) {
    static const char *const spellings[][2] = {{"1", "true"}, {"0", "false"}, {"yes", "true"}, {"no", "false"}};
    if (strcasecmp(choice->name, text) == 0) return true;
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++)
        if (strcasecmp(spellings[i][0], text) == 0 && strcmp(spellings[i][1], choice->name) == 0) return true;
    double named, given;
    return text_to_double(choice->name, &named) && text_to_double(text, &given) && named == given;
}

static Status read_choice(const CalcInput *input, const char *text, double *value) {
    for (const CalcChoice *choice = input->choices; choice->name; choice++)
        if (choice_is(choice, text)) {
            *value = choice->value;
            return NULL;
        }
    TextBuffer words = {0};
    for (const CalcChoice *choice = input->choices; choice->name; choice++)
        text_buffer_format(&words, "%s%s", choice == input->choices ? "" : ", ", choice->name);
    Status status = status_usage("%s=%s is none of: %s", input->name, text, words.data);
    text_buffer_free(&words);
    return status;
}

static Status read_overflows(const CalcInput *input, const char *text) {
    if (*text && text[strspn(text, "TFtf")] == 0) return NULL;
    return status_usage("%s=%s must be a trace of T (overflow) and F (none), such as FFTF", input->name, text);
}

static Status read_input(const CalcInput *input, const char *text, CalcArgs *args, int index) {
    args->text[index] = text;
    if (!*text) return status_usage("%s has no value", input->name);
    if (input->kind == CALC_OVERFLOWS) return read_overflows(input, text);
    if (input->kind == CALC_CHOICE) {
        TRY(read_choice(input, text, &args->given[index]));
        args->base[index] = args->given[index];
        return NULL;
    }
    TRY(read_number(input, text, &args->given[index]));
    TRY(check_limits(input, args->given[index]));
    args->base[index] = calc_base(input, args->given[index]);
    return NULL;
}

Status calc_read(CalcArgs *args, const CalcQuantity *quantity, const char *const *words, int count, int *left_open) {
    *args = (CalcArgs){.quantity = quantity};
    int inputs = calc_input_count(quantity), open_count = 0;
    for (int w = 0; w < count; w++) {
        const char *equals = strchr(words[w], '=');
        if (!equals) return status_usage("\"%s\" is not of the form name=value", words[w]);
        int index = input_index(quantity, words[w], (size_t)(equals - words[w]));
        if (index < 0) return unknown_input(quantity, words[w], (size_t)(equals - words[w]));
        if (args->text[index]) return status_usage("%s is given twice", quantity->inputs[index].name);
        if (left_open && strcmp(equals + 1, "?") == 0) {
            args->text[index] = "?";
            *left_open = index;
            open_count++;
            continue;
        }
        TRY(read_input(&quantity->inputs[index], equals + 1, args, index));
    }
    TextBuffer missing = {0};
    Status status = NULL;
    for (int i = 0; i < inputs && !status; i++) {
        const CalcInput *input = &quantity->inputs[i];
        if (args->text[i]) continue;
        if (input->fallback)
            status = read_input(input, input->fallback, args, i);
        else {
            text_buffer_format(&missing, "%s%s", missing.length ? ", " : "", input->name);
            if (left_open) *left_open = i;
            open_count++;
        }
    }
    if (!status && left_open && open_count != 1)
        status = open_count ? status_usage("one input can be found, and %d are open%s%s", open_count,
                                           missing.length ? ": " : "", missing.length ? missing.data : "")
                            : status_hint(status_usage("%s and all of its inputs are given", quantity->name),
                                          "leave out the input to find, or write name=?");
    if (missing.length && !status && !left_open) status = status_usage("%s needs %s", quantity->name, missing.data);
    text_buffer_free(&missing);
    return status;
}

double calc_base(const CalcInput *input, double given) {
    Unit unit = unit_of(input->unit);
    return given * unit.times / unit.over;
}

// --- rules between inputs -------------------------------------------------------------------------------------------

// The value of "tp" or "tp*pp*cp".
static double product_of_inputs(const CalcQuantity *quantity, const CalcArgs *args, const char *names) {
    double value = 1;
    for (const char *name = names; *name;) {
        size_t length = strcspn(name, "*");
        int index = input_index(quantity, name, length);
        assert(index >= 0);
        value *= args->given[index];
        name += length + (name[length] == '*');
    }
    return value;
}

static Status check_rule(const CalcQuantity *quantity, const CalcRule *rule, const CalcArgs *args) {
    double a = product_of_inputs(quantity, args, rule->a), b = product_of_inputs(quantity, args, rule->b);
    bool divides = fmod(a, b) == 0;
    char *shown_a = calc_number_text(a), *shown_b = calc_number_text(b);
    Status status = NULL;
    switch (rule->kind) {
    case CALC_RULE_NONE: break;
    case CALC_RULE_DIVIDES:
        if (!divides)
            status = status_usage("%s=%s cannot be divided evenly by %s=%s", rule->a, shown_a, rule->b, shown_b);
        break;
    case CALC_RULE_DIVIDES_EITHER:
        if (!divides && fmod(b, a) != 0)
            status =
                status_usage("%s=%s and %s=%s: one must divide the other evenly", rule->a, shown_a, rule->b, shown_b);
        break;
    case CALC_RULE_AT_MOST:
        if (a > b) status = status_usage("%s=%s must not be more than %s=%s", rule->a, shown_a, rule->b, shown_b);
        break;
    case CALC_RULE_DIFFER:
        if (a == b)
            status = status_usage("%s and %s are both %s; the formula divides by their difference", rule->a, rule->b,
                                  shown_a);
        break;
    }
    free(shown_a);
    free(shown_b);
    return status;
}

// --- the formula ----------------------------------------------------------------------------------------------------

static const CalcChoice *choice_of(const CalcInput *input, double value) {
    for (const CalcChoice *choice = input->choices; choice->name; choice++)
        if (choice->value == value) return choice;
    return NULL;
}

// Fills {input} placeholders with names or numbers. A choice brings its own piece of formula, which is filled in too.
static void fill_template(TextBuffer *out, const char *pattern, const CalcQuantity *quantity, const CalcArgs *args,
                          bool numbers) {
    for (const char *at = pattern; *at; at++) {
        if (*at != '{') {
            text_buffer_add(out, at, 1);
            continue;
        }
        size_t length = strcspn(at + 1, "}");
        int index = input_index(quantity, at + 1, length);
        assert(index >= 0 && at[1 + length] == '}');
        const CalcInput *input = &quantity->inputs[index];
        const CalcChoice *choice = input->kind == CALC_CHOICE ? choice_of(input, args->given[index]) : NULL;
        if (choice && choice->formula) {
            fill_template(out, choice->formula, quantity, args, numbers);
        } else if (!numbers) {
            text_buffer_add(out, at + 1, length);
        } else if (input->kind == CALC_OVERFLOWS) {
            text_buffer_format(out, "%s", args->text[index]);
        } else {
            char *number = calc_number_text(args->given[index]);
            text_buffer_format(out, "%s", number);
            free(number);
        }
        at += length + 1;
    }
}

// --- evaluation -----------------------------------------------------------------------------------------------------

static double call_function(CalcFunction function, const CalcArgs *args) {
    const double *x = args->base;
    switch (function.arity) {
    case 1: return ((double (*)(double))function.call)(x[0]);
    case 2: return ((double (*)(double, double))function.call)(x[0], x[1]);
    case 3: return ((double (*)(double, double, double))function.call)(x[0], x[1], x[2]);
    case 4: return ((double (*)(double, double, double, double))function.call)(x[0], x[1], x[2], x[3]);
    case 5: return ((double (*)(double, double, double, double, double))function.call)(x[0], x[1], x[2], x[3], x[4]);
    case 6:
        return ((double (*)(double, double, double, double, double, double))function.call)(x[0], x[1], x[2], x[3], x[4],
                                                                                           x[5]);
    case CALC_ARITY_ARGS: return ((double (*)(const CalcArgs *))function.call)(args);
    }
    assert(!"arity of a registry row");
    return NAN;
}

double calc_call(const CalcArgs *args) {
    Unit unit = unit_of(args->quantity->unit);
    return call_function(args->quantity->function, args) * unit.over / unit.times;
}

static char *join_notes(const char *note, const char *remark) {
    if (!remark) return note && *note ? text_copy(note) : NULL;
    return note && *note ? text_format("%s; %s", remark, note) : text_copy(remark);
}

static Status evaluate_quantity(CalcResult *result, const CalcQuantity *quantity, const char *const *words, int count) {
    CalcArgs args;
    TRY(calc_read(&args, quantity, words, count, NULL));
    for (int r = 0; r < CALC_RULES_MAX && quantity->rules[r].kind; r++)
        TRY(check_rule(quantity, &quantity->rules[r], &args));
    const char *remark = NULL;
    char *text = NULL;
    double value = NAN;
    if (quantity->function.arity == CALC_ARITY_TEXT) {
        text = ((char *(*)(const CalcArgs *))quantity->function.call)(&args);
    } else {
        value = calc_call(&args);
        if (!isfinite(value)) return status_usage("%s is too large for a number with these inputs", quantity->name);
        if (quantity->remark) remark = quantity->remark(&args, value);
    }
    TextBuffer expression = {0}, numbers = {0};
    fill_template(&expression, quantity->formula, quantity, &args, false);
    fill_template(&numbers, quantity->formula, quantity, &args, true);
    *result = (CalcResult){quantity, value, text, expression.data, numbers.data, join_notes(quantity->note, remark)};
    return NULL;
}

Status calc_evaluate(CalcResult *result, const char *name, const char *const *words, int count) {
    *result = (CalcResult){0};
    const CalcQuantity *quantity;
    TRY(calc_name(&quantity, name));
    return calc_with_inputs(evaluate_quantity(result, quantity, words, count), quantity);
}

void calc_result_free(CalcResult *result) {
    free(result->text);
    free(result->expression);
    free(result->numbers);
    free(result->note);
    *result = (CalcResult){0};
}
