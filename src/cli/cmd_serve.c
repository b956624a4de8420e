// hearth serve: runs in a browser while they train.
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/report_prepare.h"
#include "serve/http.h"
#include "serve/site.h"
#include "train/prediction.h"

#include <stdlib.h>

enum { PORT_USUAL = 8420 };

static void prepare(ReportRun *run, void *hardware) {
    report_prepare(run, hardware);
}

static Status serve_folder(const char *folder, const ServeOptions *options) {
    ServeSite *site = NULL;
    Hardware hardware;
    TRY(prediction_hardware(&hardware, NULL, false));
    Status status = serve_site_open(&site, folder, prepare, &hardware);
    if (!status) status = serve_run(site, options);
    serve_site_close(site);
    hardware_free(&hardware);
    return status;
}

Status cmd_serve(int argc, char **argv) {
    const char *bind = "127.0.0.1", *token = NULL;
    int64_t port = PORT_USUAL;
    ArgList words;
    bool helped;
    const Arg args[] = {
        {"--port", ARG_INT, &port, "N", "where to listen (default: 8420; 0: any that is free)"},
        {"--bind", ARG_TEXT, &bind, "ADDR", "the address to listen at (default: 127.0.0.1, this machine alone)"},
        {"--token", ARG_TEXT, &token, "T",
         "what clients must know (default: made and printed where --bind is not "
         "this machine alone)"},
    };
    const ArgCommand command = {
        "hearth serve [FOLDER] [--port N] [--bind ADDR] [--token T]",
        "Shows the runs of a folder (default: runs) in a browser: live curves, where the time of a step goes, alarms, "
        "logs,\nruns against each other, and the planner. It only reads. Ctrl-C ends it.",
        args,
        ARG_COUNT(args),
        0,
        1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped && (port < 0 || port > 65535)) status = status_usage("--port is from 0 to 65535");
    if (!status && !helped)
        status = serve_folder(words.count ? words.items[0] : "runs",
                              &(ServeOptions){.bind = bind, .port = (int)port, .token = token});
    free(words.items);
    return status;
}
