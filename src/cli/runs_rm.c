// hearth runs rm: frees what runs take on the disk, after saying what that would be.
#include "base/file.h"
#include "base/io.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/runs_commands.h"
#include "train/checkpoint.h"
#include "watch/run_summary.h"

#include <stdlib.h>
#include <string.h>

typedef struct Removal {
    char **paths;
    size_t count;
    int64_t bytes;
    int *locks; // of the runs, so that none is resumed in the middle
    int lock_count;
} Removal;

static void removal_add(Removal *removal, char *path) { // takes the path
    int64_t bytes = directory_bytes(path);
    char size[32];
    printf("%10s  %s\n", text_gib(size, (double)bytes), path);
    removal->paths = xrealloc(removal->paths, (removal->count + 1) * sizeof *removal->paths);
    removal->paths[removal->count++] = path;
    removal->bytes += bytes;
}

static bool step_stays(int64_t step, const int64_t *steps, int count, int64_t newest, int64_t best) {
    if (best >= 0) return step == best;
    for (int i = 0; i < count; i++)
        if (steps[i] == step) return count - i <= newest;
    return false;
}

// Checkpoints that do not stay, those that were set aside, and what unfinished writes left.
static Status add_checkpoints(Removal *removal, const char *run, const char *keep) {
    char *folder = path_join(run, "checkpoints"), **names = NULL;
    size_t name_count = 0;
    int64_t *steps = NULL, newest = 1, best = -1;
    int count = 0;
    Status status = NULL;
    if (!file_is_directory(folder)) goto done;
    TRY_GOTO(checkpoint_steps(folder, &steps, &count), done);
    if (strcmp(keep, "best") == 0) {
        TRY_GOTO(checkpoint_best(folder, &best), done);
        if (best < 0 && count) {
            status = status_hint(status_usage("no checkpoint of %s has a validation loss", run), "--keep last");
            goto done;
        }
    } else if (strcmp(keep, "last") != 0) {
        text_to_int64(keep, &newest);
    }
    TRY_GOTO(dir_list(&names, &name_count, folder), done);
    for (size_t i = 0; i < name_count; i++) {
        int64_t step;
        bool is = text_starts_with(names[i], "step-") && text_to_int64(names[i] + strlen("step-"), &step);
        if (!is || !step_stays(step, steps, count, newest, best)) removal_add(removal, path_join(folder, names[i]));
    }
done:
    if (names) names_free(names, name_count);
    free(steps);
    free(folder);
    return status;
}

static Status add_run(Removal *removal, const char *run, const char *keep) {
    if (!file_is_directory(run)) return status_usage("there is no run directory %s", run);
    if (!run_directory_is(run))
        return status_hint(status_usage("%s is not a run directory: it has no config.toml", run),
                           "hearth runs rm removes runs and nothing else");
    char *path = path_join(run, ".lock");
    removal->locks = xrealloc(removal->locks, (size_t)(removal->lock_count + 1) * sizeof *removal->locks);
    Status status = file_lock(&removal->locks[removal->lock_count], path, run);
    free(path);
    if (status) return status_hint(status, "a run that is being trained is not removed; stop it first");
    removal->lock_count++;
    if (keep) return add_checkpoints(removal, run, keep);
    char *whole = text_copy(run);
    while (strlen(whole) > 1 && text_ends_with(whole, "/"))
        whole[strlen(whole) - 1] = 0;
    removal_add(removal, whole);
    return NULL;
}

// Renamed first: what a crash leaves in the middle must not look like a whole checkpoint or run.
static Status remove_path(const char *path) {
    char *folder = path_directory(path), *trash = text_format("%s/.removing-%s", folder, path_name(path));
    Status status = dir_remove(trash);
    if (!status && io_rename(path, trash) != 0) status = status_errno("cannot rename %s", path);
    if (!status) status = dir_remove(trash);
    free(folder);
    free(trash);
    return status;
}

static Status removal_do(const Removal *removal) {
    for (size_t i = 0; i < removal->count; i++)
        TRY(remove_path(removal->paths[i]));
    return NULL;
}

static Status check_keep(const char *keep) {
    int64_t count;
    if (!keep || strcmp(keep, "last") == 0 || strcmp(keep, "best") == 0) return NULL;
    if (text_to_int64(keep, &count) && count >= 0) return NULL;
    return status_usage("--keep is last, best or a number of checkpoints, not \"%s\"", keep);
}

Status runs_rm(int argc, char **argv) {
    const char *keep = NULL;
    ArgList words;
    bool helped, yes = false;
    const Arg args[] = {
        {"--keep", ARG_TEXT, &keep, "WHICH",
         "keep the run and this of its checkpoints: last, best, or the newest N (0: none)"},
        {"--yes", ARG_FLAG, &yes, NULL, "remove; without it the command only says what it would remove"},
    };
    const ArgCommand command = {"hearth runs rm RUN... [--keep last|best|N] [--yes]",
                                "Frees what runs take on the disk: the whole run, or with --keep all checkpoints but "
                                "those (metrics, settings and logs stay). Says first what that is; nothing is removed "
                                "without --yes, and no run that is being trained.",
                                args,
                                ARG_COUNT(args),
                                1,
                                -1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        Removal removal = {0};
        char size[32];
        status = check_keep(keep);
        for (int i = 0; i < words.count && !status; i++)
            status = add_run(&removal, words.items[i], keep);
        if (!status && yes) status = removal_do(&removal);
        if (!status)
            printf("%10s  %s%s\n", text_gib(size, (double)removal.bytes), yes ? "freed" : "would be freed",
                   yes || !removal.count ? "" : "; --yes removes them");
        for (int i = 0; i < removal.lock_count; i++)
            file_unlock(&removal.locks[i]);
        if (removal.paths) names_free(removal.paths, removal.count);
        free(removal.locks);
    }
    free(words.items);
    return status;
}
