// Everything that a run has before its first step: configuration, lock, directory, logs, trainer, writers.
#include "base/file.h"
#include "base/leftovers.h"
#include "base/log.h"
#include "train/histograms.h"
#include "train/kernel_choices.h"
#include "train/run_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say_damaged(void *context, const char *message) {
    (void)context;
    log_warn("%s", message);
}

Status run_read_config(Config *config, const Run *run, char **checkpoint, const RunOptions *options) {
    const char *directory = run->directory;
    char *own = directory ? path_join(directory, "config.toml") : NULL, *folder = NULL;
    Status status = config_read(config, options->config ? options->config : own, options->sets, options->set_count);
    free(own);
    TRY(status);
    if (directory && !options->config && run->first) run_directory_check_config(directory);
    status = ranks_agree_config(run->world, config);
    int64_t step;
    if (!status && directory && run->first) {
        folder = path_join(directory, "checkpoints");
        status = checkpoint_find(folder, checkpoint, &step, say_damaged, NULL);
        free(folder);
    }
    if (!status) ranks_broadcast_text(run->world, checkpoint, 0);
    if (!status && *checkpoint) { // the shape comes from the checkpoint: the preset or HF directory may be gone
        char *shape = path_join(*checkpoint, "config.json");
        config->model.config = arena_copy(&config->arena, shape, strlen(shape));
        config->model.preset = config->model.init = "";
        free(shape);
    }
    if (status) config_free(config);
    return status;
}

Status run_lock(Run *run) {
    char *path = path_join(run->directory, ".lock");
    Status status = file_lock(&run->lock, path, run->directory);
    free(path);
    if (!status) leftovers_remove(run->directory, ".tmp-");           // of a run that was killed
    if (status && status_code(status) != STATUS_USAGE) return status; // not in use: it cannot be written
    return status_hint(status, "wait for that run to end, or stop it with Ctrl-C or SIGTERM");
}

// What this process says, for who is not at its terminal. A run goes on without it.
static void open_log(const Run *run) {
    char *path = path_join(run->directory, "log.txt");
    status_free(log_set_file(path));
    free(path);
}

// On demand, of every rank but the first, which has the terminal: where it is, its steps, and how it ends.
static void open_rank_log(const Run *run) {
    const Trainer *trainer = &run->trainer;
    const World *world = run->world;
    const Mesh *mesh = &trainer->ranks.mesh;
    const MeshPlace *place = &trainer->ranks.place;
    char *logs = path_join(run->directory, "logs"), *path = text_format("%s/rank-%d.log", logs, world->rank);
    Status status = dir_make(logs);
    if (!status) status = log_set_file(path);
    if (status) log_warn("no log of this rank: %s", status_text(status));
    status_free(status);
    log_file(
        "rank %d of %d: process %d on %s, %s; data %d of %d, context %d of %d, tensor %d of %d, stage %d of %d; %lld "
        "bytes",
        world->rank, world->size, (int)getpid(), world->hosts[world->rank], trainer->ops->device, place->dp, mesh->dp,
        place->cp, mesh->cp, place->tp, mesh->tp, place->pp, mesh->pp, (long long)trainer->model->layout.total_bytes);
    free(path);
    free(logs);
}

Status run_open(Run *run, const RunOptions *options, const char *checkpoint) {
    const Config *config = run->config;
    if (!options->resume && run->first) TRY(run_directory_choose(config, options, &run->directory));
    ranks_broadcast_text(run->world, &run->directory, 0);
    TRY(trainer_open_ranks(&run->trainer, config, run->world));
    if (!options->resume && run->first) {
        TRY(run_directory_create(run->directory, &run->trainer));
        TRY(run_lock(run));
    }
    if (run->world) world_barrier(run->world); // the directory is there
    if (run->first) open_log(run);
    if (config->watch.log_ranks && !run->first) open_rank_log(run);
    run->checkpoints = path_join(run->directory, "checkpoints");
    TRY(run_open_writer(run, run->checkpoints, config->checkpoint.async));
    if (options->resume) TRY(run_resume(run, checkpoint));
    TRY(kernel_choices_settle(&run->trainer, run->directory));
    if (!run->first) return NULL;
    Status status = histograms_check(&run->trainer);
    if (!status) status = run_open_recorder(run, &run->recorder);
    if (status || !options->resume) return status;
    Status kept = run_directory_update(run->directory, &run->trainer, checkpoint != NULL);
    if (kept) log_warn("the settings of this --resume are not kept for the next one: %s", status_text(kept));
    status_free(kept);
    return NULL;
}
