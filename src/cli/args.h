// Command-line arguments of one command: a table of options, positional words, and --help made from both.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct Command;

typedef enum ArgKind {
    ARG_FLAG,
    ARG_TEXT,
    ARG_INT,
    ARG_DOUBLE,
    ARG_LIST,
    ARG_INT_IF_GIVEN, // "--profile" and "--profile=3": without a value it becomes ARG_NO_VALUE
} ArgKind;

#define ARG_NO_VALUE INT64_MIN

typedef struct ArgList {
    const char **items;
    int count;
} ArgList;

typedef struct Arg {
    const char *name; // "--seq"; "--seq 512" and "--seq=512" both work
    ArgKind kind;
    void *value;            // bool *, const char **, int64_t *, double *, ArgList *; keeps its value when not given
    const char *value_name; // "S" in the help
    const char *help;
} Arg;

typedef struct ArgCommand {
    const char *usage;   // "hearth bench step --model NAME [options]"
    const char *summary; // a sentence or a few
    const Arg *args;
    int arg_count;
    int words_min, words_max; // positional words; words_max < 0: any number
} ArgCommand;

bool arg_takes_next(const Arg *arg); // its value is the next word, unless "=" is in this one

// argv[0] is skipped. Positional words go to *words (borrowed from argv; free the array with free()). On --help prints
// it and sets *helped. Words after "--" are positional. Errors are usage errors with the nearest option named.
Status args_parse(const ArgCommand *command, int argc, char **argv, ArgList *words, bool *helped);
void args_print_help(const ArgCommand *command);

// Whoever wants to know what a command is has it asked for --help, and hears of it instead of the terminal. What a
// visitor is told is there only while it is told.
typedef struct HelpVisitor {
    void (*group)(void *context, const char *program, const char *summary, const struct Command *table, int count);
    void (*command)(void *context, const ArgCommand *command);
    void *context;
} HelpVisitor;
extern const HelpVisitor *args_help_visitor; // NULL: help is printed

#define ARG_COUNT(args) ((int)(sizeof(args) / sizeof((args)[0])))
