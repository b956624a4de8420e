#include "cli/args.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const HelpVisitor *args_help_visitor;

bool arg_takes_next(const Arg *arg) {
    return arg->kind != ARG_FLAG && arg->kind != ARG_INT_IF_GIVEN;
}

void args_print_help(const ArgCommand *command) {
    if (args_help_visitor) {
        args_help_visitor->command(args_help_visitor->context, command);
        return;
    }
    printf("usage: %s\n\n%s\n", command->usage, command->summary);
    if (command->arg_count) printf("\noptions:\n");
    for (int i = 0; i < command->arg_count; i++) {
        const Arg *arg = &command->args[i];
        char left[64];
        if (arg->kind == ARG_INT_IF_GIVEN)
            snprintf(left, sizeof left, "%s[=%s]", arg->name, arg->value_name);
        else
            snprintf(left, sizeof left, "%s%s%s", arg->name, arg->kind == ARG_FLAG ? "" : " ",
                     arg->kind == ARG_FLAG ? "" : arg->value_name);
        printf("  %-26s %s\n", left, arg->help);
    }
}

static Status unknown_option(const ArgCommand *command, const char *name) {
    const char **known = xmalloc((size_t)(command->arg_count + 1) * sizeof *known);
    for (int i = 0; i < command->arg_count; i++)
        known[i] = command->args[i].name;
    const char *nearest = text_nearest(name, known, (size_t)command->arg_count);
    Status status = status_usage("unknown option %s", name);
    status = nearest ? status_hint(status, "did you mean %s? usage: %s", nearest, command->usage)
                     : status_hint(status, "usage: %s", command->usage);
    free(known);
    return status;
}

static Status store(const Arg *arg, const char *text) {
    switch (arg->kind) {
    case ARG_FLAG: *(bool *)arg->value = true; return NULL;
    case ARG_TEXT: *(const char **)arg->value = text; return NULL;
    case ARG_INT_IF_GIVEN:
        if (!text) {
            *(int64_t *)arg->value = ARG_NO_VALUE;
            return NULL;
        } // else as:
        // fall through
    case ARG_INT:
        if (text_to_int64(text, arg->value)) return NULL;
        return status_usage("%s takes a whole number, not \"%s\"", arg->name, text);
    case ARG_DOUBLE:
        if (text_to_double(text, arg->value)) return NULL;
        return status_usage("%s takes a number, not \"%s\"", arg->name, text);
    case ARG_LIST: {
        ArgList *list = arg->value;
        list->items = xrealloc(list->items, (size_t)(list->count + 1) * sizeof *list->items);
        list->items[list->count++] = text;
        return NULL;
    }
    }
    return NULL;
}

static const Arg *option_find(const ArgCommand *command, const char *word, size_t length) {
    for (int i = 0; i < command->arg_count; i++)
        if (strlen(command->args[i].name) == length && strncmp(command->args[i].name, word, length) == 0)
            return &command->args[i];
    return NULL;
}

// Two options that set the same thing are two names of it: which of the two is meant?
static Status check_one_name(const ArgCommand *command, const Arg *arg, const bool *given) {
    for (int i = 0; i < command->arg_count; i++)
        if (given[i] && command->args[i].value == arg->value && &command->args[i] != arg)
            return status_usage("%s and %s are two names of one option: give one of them", command->args[i].name,
                                arg->name);
    return NULL;
}

static Status parse(const ArgCommand *command, int argc, char **argv, ArgList *words, bool *helped, bool *given) {
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (only_words || word[0] != '-' || !word[1]) {
            words->items[words->count++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_words = true;
            continue;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            args_print_help(command);
            *helped = true;
            return NULL;
        }
        const char *equals = strchr(word, '=');
        size_t length = equals ? (size_t)(equals - word) : strlen(word);
        const Arg *arg = option_find(command, word, length);
        if (!arg) return unknown_option(command, word);
        if (arg->kind == ARG_FLAG && equals) return status_usage("%s takes no value", arg->name);
        const char *text = equals ? equals + 1 : NULL;
        if (arg_takes_next(arg) && !text) {
            if (i + 1 >= argc) return status_usage("%s needs a value (%s)", arg->name, arg->value_name);
            text = argv[++i];
            if (option_find(command, text, strcspn(text, "=")))
                return status_hint(
                    status_usage("%s needs a value (%s), and %s is another option", arg->name, arg->value_name, text),
                    "a value that looks so is written %s=%s", arg->name, text);
        }
        TRY(check_one_name(command, arg, given));
        given[arg - command->args] = true;
        TRY(store(arg, text));
    }
    if (words->count < command->words_min || (command->words_max >= 0 && words->count > command->words_max))
        return status_hint(status_usage(words->count < command->words_min ? "too few arguments" : "too many arguments"),
                           "usage: %s (--help says more)", command->usage);
    return NULL;
}

Status args_parse(const ArgCommand *command, int argc, char **argv, ArgList *words, bool *helped) {
    *words = (ArgList){xcalloc((size_t)argc + 1, sizeof *words->items), 0};
    *helped = false;
    bool *given = xcalloc((size_t)command->arg_count + 1, sizeof *given);
    Status status = parse(command, argc, argv, words, helped, given);
    free(given);
    if (status) { // so that a caller may return the error at once
        free(words->items);
        *words = (ArgList){0};
    }
    return status;
}
