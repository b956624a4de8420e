// Going on with a run: where it is, from which step, and what has changed since.
#include "base/file.h"
#include "base/log.h"
#include "train/run_internal.h"

#include <math.h>
#include <stdlib.h>

Status run_resume_directory(const RunOptions *options, char **directory) {
    *directory = NULL;
    if (!options->resume) return NULL;
    if (options->directory) {
        *directory = text_copy(options->directory);
        char *own = path_join(*directory, "config.toml");
        bool found = options->config ? file_is_directory(*directory) : file_exists(own);
        free(own);
        if (found) return NULL;
        Status status = file_is_directory(*directory)
                            ? status_usage("%s is not a run directory: it has no config.toml", *directory)
                            : status_usage("there is no run directory %s", *directory);
        free(*directory);
        return status;
    }
    if (!options->config)
        return status_hint(status_usage("--resume needs to know which run"),
                           "hearth train --resume --run DIR, or CONFIG --resume");
    Config config;
    TRY(config_read(&config, options->config, options->sets, options->set_count));
    Status status = run_directory_find(&config, directory);
    config_free(&config);
    return status;
}

// The run's config.toml is of the process before; a checkpoint may be older than that.
static void warn_changes(const Run *run, const char *checkpoint) {
    Config before;
    TextBuffer changes = {0};
    char *path = path_join(run->directory, "config.toml");
    Status status = config_read(&before, path, NULL, 0);
    if (!status) {
        config_differences(&before, &run->trainer.resolved, &changes);
        config_free(&before);
    }
    log_warn("%s was written with other settings%s%s; the run goes on with the new ones", checkpoint,
             changes.length ? ": " : " than config.toml has now", changes.length ? changes.data : "");
    status_free(status);
    text_buffer_free(&changes);
    free(path);
}

// cosine and wsd end with the last step, so another length is another rate from here on.
static void warn_learning_rate(const Trainer *trainer) {
    const Schedule *before = &trainer->schedule_before, *now = &trainer->schedule;
    int64_t next = trainer->step + 1;
    double was = schedule_lr(before, next), is = schedule_lr(now, next);
    if (before->total_steps == now->total_steps || before->kind != now->kind || fabs(is - was) <= 1e-9 * was) return;
    log_warn("the run is %lld steps long now and was %lld, and the %s schedule ends with its last step: the learning "
             "rate of step %lld is %.4g, where it was to be %.4g\nto train on at the old rate: --set "
             "schedule.kind=constant --set optimizer.lr=%.4g --set optimizer.lr_rescale=none; schedule.kind = "
             "\"wsd\" is made for runs that are made longer before they decay",
             (long long)now->total_steps, (long long)before->total_steps, trainer->config->schedule.kind,
             (long long)next, is, was, was);
}

Status run_resume(Run *run, const char *checkpoint) {
    if (!checkpoint && !run->first) return NULL;
    if (!checkpoint) {
        char *moved;
        TRY(run_directory_restart(run->directory, &moved));
        log_warn("%s holds no checkpoint yet: starting again with the first step%s%s", run->directory,
                 moved ? "; the metrics of the steps before are kept as " : "", moved ? path_name(moved) : "");
        free(moved);
        return NULL;
    }
    bool same_config, same_data;
    TRY(trainer_restore(&run->trainer, checkpoint, &same_config, &same_data));
    run->saved_step = run->trainer.step;
    if (!run->first) return NULL;
    if (!same_config) warn_changes(run, checkpoint);
    warn_learning_rate(&run->trainer);
    if (!same_data)
        log_warn("the training data has changed since %s: the run goes on at the same place of the new data",
                 checkpoint);
    TRY(checkpoint_set_aside(run->checkpoints, run->trainer.step));
    checkpoint_writer_prune(run->writer); // what the process before had no time to; this checkpoint is the newest now
    return NULL;
}

bool run_has_ended(const Run *run) {
    const Trainer *trainer = &run->trainer;
    if (!trainer->total_steps || trainer->step < trainer->total_steps) return false;
    if (!run->config->eval.at_end || !trainer->val.windows) return true;
    char *path = path_join(run->directory, "metrics.jsonl");
    bool evaluated = metrics_has_full_eval(path, trainer->step);
    free(path);
    return evaluated;
}
