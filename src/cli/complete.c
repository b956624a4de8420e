// hearth complete WORD...: what the last word may become, for the scripts of `hearth completion`. The other words say
// which command and option it belongs to. Each line is a word and, after a tab, its meaning; ":files", ":files .toml"
// and ":folders" ask the shell for its own. Commands and options come from their tables, as --help prints them.
#include "base/text.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "model/config.h"
#include "plan/calc.h"
#include "train/config.h"
#include "train/prediction.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Completing {
    char **words; // behind "hearth"
    int count;    // the last one is the one to complete
    int at;       // first word that the command in question has not had
    bool done;    // a sub-command has answered
} Completing;

static void offer(const char *typed, const char *before, const char *word, const char *meaning) {
    if (strncmp(typed, word, strlen(typed)) == 0) printf("%s%s\t%s\n", before, word, meaning);
}

static void offer_choices(const char *typed, const char *before, const char *choices) { // "a|b|c"
    for (const char *next; *choices; choices = next) {
        size_t length = strcspn(choices, "|");
        char *word = text_format("%.*s", (int)length, choices);
        if (length) offer(typed, before, word, "");
        free(word);
        next = choices + length + (choices[length] == '|');
    }
}

static void offer_presets(const char *typed, const char *before) {
    for (int i = 0; i < model_preset_count(); i++)
        offer(typed, before, model_preset_name(i), "model");
}

static void offer_commands(const char *typed, const char *before) {
    for (int i = 0; i < hearth_command_count; i++)
        if (hearth_commands[i].summary) offer(typed, before, hearth_commands[i].name, hearth_commands[i].summary);
}

static void offer_quantities(const char *typed, const char *before) {
    for (int s = 0; s < calc_subject_count; s++)
        for (int i = 0; i < calc_subjects[s]->count; i++)
            offer(typed, before, calc_subjects[s]->quantities[i].name, calc_subjects[s]->quantities[i].summary);
}

// ---- the hardware catalogue, this machine's measured entries included -----------------------------------------------

#define OFFER_HARDWARE(function, list)                                                 \
    static void function(const char *typed, const char *before) {                      \
        Hardware hardware;                                                             \
        Status status = prediction_hardware(&hardware, NULL, true);                    \
        for (int i = 0; !status && i < hardware.list##_count; i++)                     \
            offer(typed, before, hardware.list##s[i].name, hardware.list##s[i].title); \
        if (!status) hardware_free(&hardware);                                         \
        status_free(status);                                                           \
    }
OFFER_HARDWARE(offer_gpus, gpu)
OFFER_HARDWARE(offer_nodes, node)
OFFER_HARDWARE(offer_clusters, cluster)

// ---- section.key=value ----------------------------------------------------------------------------------------------

static void offer_value_of_key(const ConfigKey *key, const char *typed, const char *before) {
    if (strcmp(key->section, "model") == 0 && strcmp(key->key, "preset") == 0)
        offer_presets(typed, before);
    else if (key->type == CONFIG_CHOICE)
        offer_choices(typed, before, key->choices);
    else if (key->type == CONFIG_BOOL)
        offer_choices(typed, before, "true|false");
    else if (key->type == CONFIG_TEXT || key->type == CONFIG_TEXTS)
        printf(":files\n");
}

static void offer_keys(const char *typed, const char *before) {
    const char *equals = strchr(typed, '=');
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        char *name = text_format("%s.%s=", key->section, key->key);
        if (!equals) {
            offer(typed, before, name, key->help);
        } else if (strncmp(typed, name, strlen(name)) == 0) {
            char *with_key = text_format("%s%s", before, name);
            offer_value_of_key(key, equals + 1, with_key);
            free(with_key);
        }
        free(name);
    }
}

// ---- values of options, and words -----------------------------------------------------------------------------------

typedef struct Offering {
    const char *name;
    void (*offer)(const char *typed, const char *before);
    const char *shell; // or what the shell knows
} Offering;

static const Offering of_options[] = {
    {"--gpu", offer_gpus, NULL},
    {"--node", offer_nodes, NULL},
    {"--cluster", offer_clusters, NULL},
    {"--model", offer_presets, ":folders"},
};

// By the word that stands for a value in an option's help or in a command's usage line; the first that is there.
static const Offering of_words[] = {
    {"KEY=VALUE", offer_keys, NULL},   {"QUANTITY", offer_quantities, NULL},
    {"COMMAND", offer_commands, NULL}, {"PRESET", offer_presets, ":files .toml"},
    {"CONFIG", NULL, ":files .toml"},  {"FOLDER", NULL, ":folders"},
    {"RUN", NULL, ":folders"},         {"DIR", NULL, ":folders"},
    {"DATASET", NULL, ":files"},       {"INPUT", NULL, ":files"},
    {"FILE", NULL, ":files"},          {"PATH", NULL, ":files"},
    {"REPOSITORY", NULL, NULL},        {"NAME", NULL, NULL},
};

static void make_offer(const Offering *offering, const char *typed, const char *before) {
    if (offering->offer) offering->offer(typed, before);
    if (offering->shell) puts(offering->shell);
}

static bool offer_by_word(const char *text, const char *typed, const char *before) {
    for (size_t i = 0; i < sizeof of_words / sizeof of_words[0]; i++)
        if (strstr(text, of_words[i].name)) {
            make_offer(&of_words[i], typed, before);
            return true;
        }
    return false;
}

// A usage line also names options and, behind them, their values: those are not words of the command.
static void offer_words(const char *usage, const char *typed) {
    char *words = text_copy(usage), *rest = words, *word;
    TextBuffer own = {0};
    for (bool value = false; (word = strsep(&rest, " ")); value = strstr(word, "--") || strcmp(word, "[-o") == 0)
        if (!value) text_buffer_format(&own, "%s ", word);
    if (!offer_by_word(own.data, typed, "")) puts(":files");
    text_buffer_free(&own);
    free(words);
}

// The words that a configuration key of the same name takes: --precision, --reduce-dtype.
static void offer_by_key(const char *option, const char *typed, const char *before) {
    char *name = text_copy(option + strspn(option, "-"));
    for (char *c = name; *c; c++)
        if (*c == '-') *c = '_';
    for (int i = 0; i < config_key_count; i++)
        if (strcmp(config_keys[i].key, name) == 0 && config_keys[i].type == CONFIG_CHOICE) {
            offer_choices(typed, before, config_keys[i].choices);
            break;
        }
    free(name);
}

static void offer_value(const Arg *arg, const char *typed, const char *before) {
    for (size_t i = 0; i < sizeof of_options / sizeof of_options[0]; i++)
        if (strcmp(arg->name, of_options[i].name) == 0) {
            make_offer(&of_options[i], typed, before);
            return;
        }
    if (strchr(arg->value_name, '|'))
        offer_choices(typed, before, arg->value_name);
    else if (!offer_by_word(arg->value_name, typed, before))
        offer_by_key(arg->name, typed, before);
}

static void offer_options(const ArgCommand *command, const char *typed) {
    for (int i = 0; i < command->arg_count; i++)
        offer(typed, "", command->args[i].name, command->args[i].help);
    offer(typed, "", "--help", "what the command does, and its options");
}

// Behind a quantity come its inputs.
static void offer_inputs(const Completing *completing, const char *typed) {
    const CalcQuantity *quantity = calc_find(completing->words[completing->at]);
    for (int i = 0; quantity && i < calc_input_count(quantity); i++) {
        char *name = text_format("%s=", quantity->inputs[i].name);
        offer(typed, "", name, quantity->inputs[i].meaning);
        free(name);
    }
}

static const Arg *arg_named(const ArgCommand *command, const char *word) {
    size_t length = strcspn(word, "=");
    for (int i = 0; i < command->arg_count; i++)
        if (strlen(command->args[i].name) == length && strncmp(command->args[i].name, word, length) == 0)
            return &command->args[i];
    return NULL;
}

static void complete_command(void *context, const ArgCommand *command) {
    Completing *completing = context;
    if (completing->done) return;
    const char *typed = completing->words[completing->count - 1], *equals = strchr(typed, '=');
    const Arg *waiting = NULL; // an option whose value comes next
    for (int i = completing->at; i < completing->count - 1; i++) {
        const char *word = completing->words[i];
        const Arg *arg = waiting ? NULL : arg_named(command, word);
        waiting = arg && arg_takes_next(arg) && !strchr(word, '=') ? arg : NULL;
    }
    if (waiting) {
        offer_value(waiting, typed, "");
    } else if (typed[0] == '-' && equals && arg_named(command, typed)) {
        char *before = text_format("%.*s=", (int)(equals - typed), typed);
        offer_value(arg_named(command, typed), equals + 1, before);
        free(before);
    } else if (typed[0] == '-') {
        offer_options(command, typed);
    } else if (command->words_max != 0) {
        bool first = completing->at == completing->count - 1;
        if (!first && strstr(command->usage, "QUANTITY"))
            offer_inputs(completing, typed);
        else
            offer_words(command->usage, typed);
    }
}

static void complete_group(void *context, const char *program, const char *summary, const Command *table, int count) {
    (void)program, (void)summary;
    Completing *completing = context;
    const char *word = completing->words[completing->at];
    bool last = completing->at == completing->count - 1;
    for (int i = 0; i < count; i++) {
        if (!table[i].summary) continue;
        if (last) {
            offer(word, "", table[i].name, table[i].summary);
        } else if (strcmp(word, table[i].name) == 0) {
            completing->at++;
            command_describe(&table[i]);
            completing->done = true;
            return;
        }
    }
    if (last && word[0] == '-') offer(word, "", "--help", "the commands");
}

// bash takes "a=b" apart into three words.
static void join_at_equals(Completing *completing, int count, char **words) {
    bool joining = false;
    completing->words = xcalloc((size_t)count + 1, sizeof *completing->words);
    for (int i = 0; i < count; i++) {
        bool equals = strcmp(words[i], "=") == 0;
        if (completing->count && (equals || joining)) {
            char **last = &completing->words[completing->count - 1], *joined = text_format("%s%s", *last, words[i]);
            free(*last);
            *last = joined;
        } else {
            completing->words[completing->count++] = text_copy(words[i]);
        }
        joining = equals;
    }
}

Status cmd_complete(int argc, char **argv) {
    Completing completing = {0};
    HelpVisitor visitor = {complete_group, complete_command, &completing};
    if (argc < 2) return status_usage("hearth complete takes the words of a command line");
    join_at_equals(&completing, argc - 1, argv + 1);
    args_help_visitor = &visitor;
    complete_group(&completing, "hearth", "", hearth_commands, hearth_command_count);
    args_help_visitor = NULL;
    for (int i = 0; i < completing.count; i++)
        free(completing.words[i]);
    free(completing.words);
    return NULL;
}
