// Every command of hearth. Help, manual pages and completion are made from this table and the commands' own.
#include "cli/commands.h"

const Command hearth_commands[] = {
    {"bench", "what this machine can do: training steps, single operations", cmd_bench},
    {"plan", "what a run needs, how long it takes, what holds it back: before it starts", cmd_plan},
    {"calc", "any number a training engineer derives by hand, with its formula", cmd_calc},
    {"data", "text to token shards: prepare, estimate, inspect, mix, pull, synth", cmd_data},
    {"config", "every configuration key, or what a config file resolves to", cmd_config},
    {"preflight", "a short real run: micro-batch search, predicted against measured", cmd_preflight},
    {"train", "train a model, or go on where a run stopped", cmd_train},
    {"report", "runs as one page: curves, where the time went, what each change brought", cmd_report},
    {"runs", "what has been trained: list, compare, export as CSV, free disk", cmd_runs},
    {"serve", "runs in a browser while they train: live curves, compare, the planner", cmd_serve},
    {"sample", "text from a trained model", cmd_sample},
    {"eval", "loss, perplexity and bits per byte on token shards", cmd_eval},
    {"export", "a run as a Hugging Face directory", cmd_export},
    {"man", "manual pages, made from the same tables as --help", cmd_man},
    {"completion", "a script for bash or zsh that completes hearth's commands", cmd_completion},
    {"complete", NULL, cmd_complete},
};
const int hearth_command_count = sizeof hearth_commands / sizeof hearth_commands[0];
