// hearth config: what can be configured, and what a file resolves to.
#include "base/text.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "model/config.h"
#include "train/setup.h"

#include <stdlib.h>
#include <string.h>

static void print_presets(void) {
    for (int i = 0; i < model_preset_count(); i++) {
        ModelConfig model;
        char total[32], active[32];
        status_free(model_preset(&model, model_preset_name(i)));
        ModelParameters parameters = model_parameters(&model);
        printf("%-18s %-20s %8s parameters, %8s active\n", model_preset_name(i), model_arch_name(model.arch),
               text_count(total, (double)parameters.total), text_count(active, (double)parameters.active));
    }
}

// The model's shape as a run directory states it. Where only the data can tell the vocabulary, and it is not there yet,
// that key stays 0.
static Status resolve_model(Config *config) {
    ModelConfig model;
    int64_t vocab = setup_data_vocab(config);
    TRY(setup_model(config, vocab ? vocab : 1, &model));
    if (!vocab && model.vocab == 1) model.vocab = (int)config->model.vocab;
    setup_resolve(config, &model);
    return NULL;
}

static Status print_resolved(const char *path, const ArgList *sets) {
    Config config;
    TRY(config_read(&config, path, sets->items, sets->count));
    Status status = resolve_model(&config);
    if (!status) {
        TextBuffer text = {0};
        config_write(&config, &text);
        fwrite(text.data, 1, text.length, stdout);
        text_buffer_free(&text);
    }
    config_free(&config);
    return status;
}

static Status check_section(const char *name) {
    if (config_section_name(name)) return NULL;
    const char **known = xmalloc((size_t)config_section_count * sizeof *known);
    for (int i = 0; i < config_section_count; i++)
        known[i] = config_sections[i].name;
    const char *nearest = text_nearest(name, known, (size_t)config_section_count);
    Status status = status_usage("there is no section \"%s\"", name);
    char *list = text_join(known, (size_t)config_section_count);
    status = nearest ? status_hint(status, "did you mean %s? There are %s", nearest, list)
                     : status_hint(status, "there are %s", list);
    free(list);
    free(known);
    return status;
}

Status cmd_config(int argc, char **argv) {
    ArgList sets = {0}, words;
    bool helped, presets = false;
    const Arg args[] = {
        {"--set", ARG_LIST, &sets, "SECTION.KEY=VALUE", "override one key"},
        {"--presets", ARG_FLAG, &presets, NULL, "list the built-in models"},
    };
    const ArgCommand command = {
        "hearth config [CONFIG.toml] [--set SECTION.KEY=VALUE]... | --presets | --help [SECTION]",
        "Prints a configuration with all its defaults filled in, and checks it.\n"
        "Without a file: every key with its type, default, range and meaning.",
        args,
        ARG_COUNT(args),
        0,
        1};
    // --help is the reference of all keys here, for one section when a word follows.
    if (!args_help_visitor && argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        if (argc > 2) TRY(check_section(argv[2]));
        printf("usage: %s\n\n", command.usage);
        config_print_help(stdout, argc > 2 ? argv[2] : NULL);
        return NULL;
    }
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        if (presets)
            print_presets();
        else if (words.count || sets.count)
            status = print_resolved(words.count ? words.items[0] : NULL, &sets);
        else
            config_print_help(stdout, NULL);
    }
    free(words.items);
    free(sets.items);
    return status;
}
