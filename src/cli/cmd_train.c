// hearth train: a run, from a config file or from where it stopped.
#include "base/range.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/launch.h"
#include "train/run.h"

#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>

enum { PROFILE_STEPS = 3, PROFILE_STEPS_MOST = 1000 }; // most: as of profile.active

// Started by mpirun or srun, this process is one of several ranks. A failure of one ends all, with its message.
static Status train_ranks(RunOptions *options, int *stopped_by) {
    World *world;
    TRY(launch_open_world(&world));
    options->world = world;
    Status status = run_train(options, stopped_by);
    if (status && world->size > 1) world_abort(world, status);
    world_close(world);
    return status;
}

Status cmd_train(int argc, char **argv) {
    RunOptions options = {0};
    ArgList sets = {0}, words;
    bool helped, launched = false;
    int stopped_by = 0, code = 0;
    int64_t ranks = 0;
    const Arg args[] = {
        {"--set", ARG_LIST, &sets, "SECTION.KEY=VALUE", "override one key; may be given many times"},
        {"--run", ARG_TEXT, &options.directory, "DIR",
         "the run directory (default: train.runs / the date and the config's name)"},
        {"--ranks", ARG_INT, &ranks, "N",
         "start N ranks on this machine (under mpirun or srun they are there already)"},
        {"--rescue", ARG_TEXT, &options.rescue, "DIR",
         "where the last checkpoint goes when the run directory cannot take it (default: TMPDIR or /tmp)"},
        {"--profile", ARG_INT_IF_GIVEN, &options.profile, "STEPS",
         "write a timeline of so many steps (default: 3) and where their time went to RUN/profile"},
        {"--resume", ARG_FLAG, &options.resume, NULL, "go on from the newest complete checkpoint"},
    };
    const ArgCommand command = {
        "hearth train CONFIG.toml [--set SECTION.KEY=VALUE]... [--run DIR] [--ranks N] [--profile] | hearth train "
        "--resume "
        "--run DIR",
        "Trains a model. `hearth config --help` explains every key. SIGINT, SIGTERM and SIGHUP write a checkpoint "
        "first,\n"
        "and the program then exits with 130, 143 or 129; --resume continues at any time, also after a crash, with the "
        "same\n"
        "numbers.",
        args,
        ARG_COUNT(args),
        0,
        1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        options.config = words.count ? words.items[0] : NULL;
        if (options.profile == ARG_NO_VALUE) options.profile = PROFILE_STEPS;
        options.sets = sets.items;
        options.set_count = sets.count;
        if (!options.config && !options.resume)
            status = status_hint(status_usage("hearth train needs a config file"), "usage: %s", command.usage);
        else
            status = check_number("--profile", (double)options.profile, 0, PROFILE_STEPS_MOST);
        if (!status) status = launch_ranks(ranks, &launched, &code);
        if (!status && !launched) status = train_ranks(&options, &stopped_by);
    }
    free(words.items);
    free(sets.items);
    if (!helped && fflush(stdout)) __fpurge(stdout); // a run is in its files: nobody has to listen
    if (!helped) clearerr(stdout);
    if (!status && launched) exit(code);
    if (!status && stopped_by) exit(128 + stopped_by); // as a shell would say: not at its end
    return status;
}
