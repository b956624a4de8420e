// hearth report: runs as one page that opens anywhere.
#include "base/file.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/report_prepare.h"
#include "train/prediction.h"
#include "watch/report.h"

#include <stdlib.h>

enum { RUNS_MOST = 64 };

static Status read_runs(ReportRun *runs, const ArgList *words, const char *hardware_file) {
    Hardware hardware;
    Status status = NULL;
    for (int i = 0; i < words->count && !status; i++)
        status = run_read(&runs[i].record, words->items[i]);
    if (!status) status = prediction_hardware(&hardware, hardware_file, false);
    if (status) return status;
    for (int i = 0; i < words->count; i++)
        report_prepare(&runs[i], &hardware);
    hardware_free(&hardware);
    return NULL;
}

static Status make_report(const ArgList *words, const char *path, const char *hardware_file) {
    if (words->count > RUNS_MOST) return status_usage("a report takes at most %d runs", RUNS_MOST);
    ReportRun *runs = xcalloc((size_t)words->count, sizeof *runs);
    char *own = path ? NULL : path_join(words->items[0], "report.html");
    Status status = read_runs(runs, words, hardware_file);
    if (!status) {
        TextBuffer page = {0};
        report_write(runs, words->count, &page);
        status = file_write_atomic(path ? path : own, page.data, page.length);
        if (!status) printf("wrote %s\n", path ? path : own);
        text_buffer_free(&page);
    }
    for (int i = 0; i < words->count; i++)
        run_record_free(&runs[i].record);
    free(own);
    free(runs);
    return status;
}

Status cmd_report(int argc, char **argv) {
    const char *path = NULL, *hardware = NULL;
    ArgList words;
    bool helped;
    const Arg args[] = {
        {"-o", ARG_TEXT, &path, "FILE", "where to write the page (default: report.html in the first run)"},
        {"--hardware", ARG_TEXT, &hardware, "FILE", "more or other hardware, as for `hearth plan`: prices and power"},
    };
    const ArgCommand command = {
        "hearth report RUN... [-o FILE]",
        "Writes one HTML page about a run: curves, where the time of a step went, predicted against measured, "
        "figures,\n"
        "configuration and environment. Of several runs: what each change brought against the run before it.",
        args,
        ARG_COUNT(args),
        1,
        -1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) status = make_report(&words, path, hardware);
    free(words.items);
    return status;
}
