// hearth runs: what has been trained, newest first; and the keys of metrics.jsonl.
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/runs_commands.h"
#include "watch/document.h"
#include "watch/metrics_table.h"
#include "watch/run_summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct RunList {
    RunSummary *runs;
    size_t count;
} RunList;

static int newest_first(const void *a, const void *b) {
    double x = ((const RunSummary *)a)->changed, y = ((const RunSummary *)b)->changed;
    return (x < y) - (x > y);
}

static Status add_run(RunList *list, const char *path) {
    list->runs = xrealloc(list->runs, (list->count + 1) * sizeof *list->runs);
    TRY(run_summary_read(&list->runs[list->count], path));
    list->count++;
    return NULL;
}

// The folder is a run itself, or has runs in it.
static Status read_runs(RunList *list, const char *folder) {
    char **names;
    size_t count;
    if (run_directory_is(folder)) return add_run(list, folder);
    if (!file_is_directory(folder))
        return status_hint(status_usage("there is no folder %s", folder),
                           "hearth runs FOLDER lists the runs of another; train.runs says where runs go");
    TRY(dir_list(&names, &count, folder));
    Status status = NULL;
    for (size_t i = 0; i < count && !status; i++) {
        char *path = path_join(folder, names[i]);
        if (run_directory_is(path)) status = add_run(list, path);
        free(path);
    }
    names_free(names, count);
    if (list->count) qsort(list->runs, list->count, sizeof *list->runs, newest_first);
    return status;
}

static char *or_dash(char *out, double value, const char *format) {
    if (isnan(value))
        strcpy(out, "-");
    else
        snprintf(out, 32, format, value);
    return out;
}

static void print_text(const RunList *list, const char *folder) {
    Document *document = document_create("runs");
    document_section(document, folder, "llrrrrrrrr",
                     "run\tstate\ttokens\tloss\tvalidation\ttok/s\tMFU\tlast line\tsize\talarms");
    for (size_t i = 0; i < list->count; i++) {
        const RunSummary *run = &list->runs[i];
        char tokens[32], loss[32], val[32], speed[32], mfu[32], age[32], size[32];
        document_row(document, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s ago\t%s\t%s%.0lld", run->name,
                     run_state_name(run->state), text_count(tokens, (double)run->tokens),
                     or_dash(loss, run->loss, "%.4f"), or_dash(val, run->val_loss, "%.4f"),
                     isnan(run->tok_s) ? "-" : text_grouped(speed, (int64_t)llround(run->tok_s)),
                     or_dash(mfu, 100 * run->mfu, "%.1f%%"),
                     text_duration(age, fmax(0, (double)time(NULL) - run->changed)), text_gib(size, (double)run->size),
                     run->alarms ? "" : "-", (long long)run->alarms);
    }
    if (!list->count) document_note(document, "no runs in %s: looked for are " RUNS_LOOKED_FOR, folder);
    for (size_t i = 0; i < list->count; i++)
        if (list->runs[i].message)
            document_note(document, "%s: %.*s", list->runs[i].name, (int)strcspn(list->runs[i].message, "\n"),
                          list->runs[i].message);
    TextBuffer text = {0};
    document_text(document, &text);
    fputs(text.data, stdout);
    text_buffer_free(&text);
    document_free(document);
}

static void print_json(const RunList *list) {
    json_t *all = json_array();
    for (size_t i = 0; i < list->count; i++)
        json_array_append_new(all, run_summary_json(&list->runs[i]));
    json_dumpf(all, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(all);
}

static Status runs_list(int argc, char **argv) {
    ArgList words;
    bool helped, json = false;
    const Arg args[] = {{"--json", ARG_FLAG, &json, NULL, "as JSON, for programs"}};
    const ArgCommand command = {
        "hearth runs [FOLDER] [--json]\n"
        "       hearth runs compare A B...          what differs in their settings, and what it did\n"
        "       hearth runs csv RUN > FILE          metrics as a table\n"
        "       hearth runs rm RUN... [--keep ...]  free disk\n"
        "       hearth runs keys                    what the keys of metrics.jsonl mean",
        "Lists the runs of a folder (default: runs), the newest first. loss is the mean of the last 20 steps, tok/s "
        "and MFU "
        "are medians.",
        args,
        ARG_COUNT(args),
        0,
        1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        RunList list = {0};
        const char *folder = words.count ? words.items[0] : "runs";
        status = read_runs(&list, folder);
        if (!status && json) print_json(&list);
        if (!status && !json) print_text(&list, folder);
        for (size_t i = 0; i < list.count; i++)
            run_summary_free(&list.runs[i]);
        free(list.runs);
    }
    free(words.items);
    return status;
}

Status runs_keys(int argc, char **argv) {
    ArgList words;
    bool helped;
    const ArgCommand command = {
        "hearth runs keys",
        "Prints the tables of docs/metrics.md: every key of metrics.jsonl, its unit, its curve in "
        "TensorBoard and what it means.",
        NULL,
        0,
        0,
        0};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        TextBuffer table = {0};
        metrics_table_markdown(&table);
        fputs(table.data, stdout);
        text_buffer_free(&table);
    }
    free(words.items);
    return status;
}

Status cmd_runs(int argc, char **argv) {
    static const Command commands[] = {{"compare", "what differs in their settings, and what it did", runs_compare},
                                       {"csv", "metrics as a table", runs_csv},
                                       {"keys", "what the keys of metrics.jsonl mean", runs_keys},
                                       {"rm", "free disk", runs_rm}};
    enum { COUNT = sizeof commands / sizeof *commands };
    if (args_help_visitor && argc == 2) // it is both: a list of commands, and a command
        args_help_visitor->group(args_help_visitor->context, "hearth runs", "", commands, COUNT);
    for (size_t i = 0; argc > 1 && i < COUNT; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    return runs_list(argc, argv);
}
