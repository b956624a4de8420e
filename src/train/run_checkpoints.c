// A run's checkpoints: when they are written, and where they go when the run directory cannot take the last one.
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "train/run_internal.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

Status run_open_writer(Run *run, const char *folder, bool async) {
    const Config *config = run->config;
    const Trainer *trainer = &run->trainer;
    CheckpointPolicy policy = {.keep_last = config->checkpoint.keep_last,
                               .keep_every = config->checkpoint.keep_every,
                               .keep_best = config->checkpoint.keep_best,
                               .async = async || (run->world && run->world->size > 1)}; // settle_writer waits
    return checkpoint_writer_open(&run->writer, folder, &trainer->model->layout, &policy, ranks_rank(&trainer->ranks),
                                  ranks_size(&trainer->ranks));
}

void run_poll_writer(Run *run, bool wait) {
    int64_t done;
    Status status = checkpoint_poll(run->writer, wait, &done);
    if (done >= 0) {
        run->kept_at = run->saved_at;
        status_free(run->save_failure);
        run->save_failure = NULL;
    }
    if (!status) return;
    log_warn("checkpoint failed: %s\ntraining goes on", status_text(status)); // heard with watch.terminal = "off" too
    status_free(run->save_failure);
    run->save_failure = status;
}

// Somebody may have removed the run directory; metrics from here on go to a new file.
static void restore_directory(Run *run) {
    bool missing;
    if (!run->first) return;
    Status status = run_directory_restore(run->directory, &run->trainer, &missing);
    if (missing)
        log_warn("the files of %s are gone: %s", run->directory, status ? status_text(status) : "they are made again");
    if (missing && !status) {
        Recorder *again;
        status = run_open_recorder(run, &again);
        if (!status) {
            run_hear_recorder(run);
            recorder_close(run->recorder);
            run->recorder = again;
            run_note_state(run, RUN_RUNNING, NULL);
        }
    }
    status_free(status);
}

// Waits for the write under way, on all ranks together: none waits for the disk of another inside of a collective,
// whose limit is not meant for that. All ranks then know whether it failed anywhere: a rank whose own part is on disk
// must not be missing when the others try again.
static void settle_writer(Run *run) {
    World *world = run->world;
    if (!world || world->size == 1) {
        run_poll_writer(run, true);
        return;
    }
    double(*all)[2] = xmalloc((size_t)world->size * sizeof *all);
    int failed = -1;
    for (bool busy = true; busy;) {
        bool mine = checkpoint_is_busy(run->writer); // asked first: if not, its outcome is there
        run_poll_writer(run, false);
        world_gather_doubles(world, (double[]){mine, run->save_failure != NULL}, 2, all[0]);
        busy = false;
        for (int rank = 0; rank < world->size; rank++) { // rank 0 fails with any other
            busy |= all[rank][0] != 0;
            if (all[rank][1] != 0) failed = rank;
        }
        if (mine && failed >= 0) checkpoint_give_up(run->writer, failed);
        if (busy) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    if (failed >= 0 && !run->save_failure)
        run->save_failure = status_runtime("rank %d did not write its part of the checkpoint", failed);
    free(all);
}

static Status write_checkpoint(Run *run) {
    restore_directory(run);
    if (run->recorder) recorder_flush(run->recorder); // a run that goes on from here has the lines of all steps before
    settle_writer(run); // checkpoint_save would wait as well, and the outcome of this one must not be lost
    status_free(run->save_failure);
    run->save_failure = NULL;
    TRY(checkpoint_save(run->writer, run->trainer.model, run->trainer.step, trainer_state(&run->trainer)));
    run->saved_step = run->trainer.step;
    run->saved_at = clock_seconds();
    if (!run->config->checkpoint.async) settle_writer(run);
    return NULL;
}

Status run_save_checkpoint(Run *run) {
    return run->saved_step == run->trainer.step ? NULL : write_checkpoint(run);
}

static char *rescue_path(const Run *run) {
    char *name = text_format("hearth-rescue-%s-%ld", path_name(run->directory), (long)getpid());
    char *path = path_join(run->rescue ? run->rescue : dir_temporary(), name);
    free(name);
    return path;
}

// The last checkpoint, where the run directory cannot take it: rather somewhere else than nowhere. Ranks of several
// hosts share no temporary folder.
static void rescue_checkpoint(Run *run) {
    World *world = run->world;
    if (!run->save_failure || (world && world->local_size < world->size && !run->rescue)) return;
    char *path = run->first ? rescue_path(run) : NULL;
    ranks_broadcast_text(world, &path, 0);
    CheckpointWriter *own = run->writer;
    Status cause = run->save_failure;
    run->save_failure = run_open_writer(run, path, false);
    if (world) run->save_failure = world_share(world, run->save_failure); // and the directory is there for all
    if (!run->save_failure)
        run->save_failure =
            checkpoint_save(run->writer, run->trainer.model, run->trainer.step, trainer_state(&run->trainer));
    if (!run->save_failure) settle_writer(run);
    if (run->save_failure) {
        log_warn("the last checkpoint could not be written to %s either: %s", path, status_message(run->save_failure));
        status_free(run->save_failure);
        status_free(dir_remove(path));
        run->save_failure = cause;
    } else {
        long long step = (long long)run->trainer.step;
        run->save_failure =
            status_hint(status_runtime("%s\nit was written to %s/step-%lld instead", status_message(cause), path, step),
                        "put it where it belongs, then --resume goes on from it: mv %s/step-%lld %s/", path, step,
                        run->checkpoints);
        status_free(cause);
    }
    if (run->writer != own) checkpoint_writer_close(run->writer);
    run->writer = own;
    free(path);
}

Status run_wait_for_last(Run *run) {
    settle_writer(run);
    if (!run->save_failure) return NULL;
    TRY(write_checkpoint(run));
    settle_writer(run);
    rescue_checkpoint(run);
    return NULL;
}

Status run_save_before_end(Run *run, Status cause) {
    Status status = run_save_checkpoint(run);
    if (!status) status = run_wait_for_last(run);
    if (status) log_warn("no checkpoint before the end: %s", status_text(status));
    status_free(status);
    return cause;
}

// The step before the first skipped one may be what ruined the weights; a checkpoint is good when a later step was
// accepted.
Status run_too_many_skips(Run *run) {
    const Trainer *trainer = &run->trainer;
    int64_t accepted = trainer->step - trainer->guard.skipped_in_row, good = -1, *steps = NULL;
    int count = 0;
    run_poll_writer(run, true);
    TRY(checkpoint_steps(run->checkpoints, &steps, &count));
    for (int i = 0; i < count; i++)
        if (steps[i] < accepted) good = steps[i];
    free(steps);
    if (run->first) TRY(checkpoint_set_aside(run->checkpoints, good));
    Status status =
        status_runtime("%lld steps in a row were skipped: their loss or gradient norm was not finite or too large",
                       (long long)trainer->guard.skipped_in_row);
    if (good < 0)
        return status_hint(status,
                           "there is no checkpoint from before that (those in %s are set aside as damaged-step-N); "
                           "start another run with a lower optimizer.lr or longer schedule.warmup_steps",
                           run->checkpoints);
    return status_hint(
        status,
        "last good checkpoint: %s/step-%lld (later ones are set aside as damaged-step-N); lower optimizer.lr and "
        "--resume goes on from it",
        run->checkpoints, (long long)good);
}
