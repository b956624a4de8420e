// The loop around the trainer's steps: metrics, validation, checkpoints, and when it ends.
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "train/evaluate.h"
#include "train/histograms.h"
#include "train/kernel_choices.h"
#include "train/run_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

static bool step_is_due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

static Status take_validation_loss(Run *run, bool full) {
    Trainer *trainer = &run->trainer;
    Evaluation evaluation;
    if (!trainer->val.windows) return NULL;
    TRY(evaluate_samples(trainer->model, &trainer->val, full ? 0 : (uint64_t)run->config->eval.windows, &evaluation));
    if (!full) {
        trainer->val_loss = evaluation.loss;
        trainer->val_step = trainer->step;
    }
    if (!run->first) return NULL;
    progress_evaluation(&run->progress, trainer->step, &evaluation);
    recorder_evaluation(run->recorder, trainer->step, trainer->tokens, &evaluation);
    return NULL;
}

static bool reached_end(const Run *run) {
    const Trainer *trainer = &run->trainer;
    if (trainer->total_steps && trainer->step >= trainer->total_steps) return true;
    double hours = run->config->train.hours;
    return hours > 0 && clock_seconds() - trainer->started >= hours * 3600;
}

static double thread_cpu_seconds(void) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

// Hands the step over to who writes it down, and shows it.
static void watch_step(Run *run, MetricsStep *metrics) {
    double began = thread_cpu_seconds();
    if (run->first) {
        metrics->checkpoint_age = clock_seconds() - run->kept_at;
        recorder_step(run->recorder, metrics);
        run_hear_recorder(run);
    }
    progress_step(&run->progress, metrics);
    run->watch_cpu += thread_cpu_seconds() - began;
    if (run->first && step_is_due(run->config->watch.histograms, metrics->step))
        histograms_take(&run->trainer, run->recorder);
}

static Status after_step(Run *run, MetricsStep *metrics) {
    const Config *config = run->config;
    Trainer *trainer = &run->trainer;
    watch_step(run, metrics);
    if (!run->first && step_is_due(config->watch.print_every, metrics->step))
        log_file("step %lld: loss %.4f, norm %.4g, %.3f s, %.1f %% of it waiting for other ranks, %.1f %% for data%s",
                 (long long)metrics->step, metrics->loss, metrics->grad_norm, metrics->seconds,
                 100 * metrics->comm_wait, 100 * metrics->data_wait, metrics->skipped ? "; skipped" : "");
    kernel_choices_keep(trainer, run->directory, &run->choices_kept);
    bool warm = metrics->step - run->progress.first_step > config->watch.warmup_steps;
    exposed_step(&run->exposed, trainer, metrics, warm);
    if (warm) {
        run->speed_tokens += metrics->tokens_per_second * metrics->seconds;
        run->speed_seconds += metrics->seconds;
        // The prediction is of the full batch, and of a step that nobody takes apart to time its parts.
        if (metrics->grad_accum == trainer->batch.grad_accum && !metrics->split_count)
            outcome_note(&run->outcome, metrics->seconds, metrics->memory_own_bytes, metrics->memory_bytes);
    }
    if (trainer->guard.skipped_in_row >= trainer->guard.max_skips) return run_too_many_skips(run);
    if (step_is_due(config->eval.every, trainer->step)) TRY(take_validation_loss(run, false));
    bool doubtful = trainer->guard.skipped_in_row > 0; // the weights may be what is wrong
    if (step_is_due(config->checkpoint.every, trainer->step) && !doubtful) TRY(run_save_checkpoint(run));
    run_poll_writer(run, false);
    return NULL;
}

typedef struct Verdict {
    bool ended; // all steps or hours are done
    int signal; // that any rank got; 0: none
    bool save;  // a checkpoint is due by time
} Verdict;

// All ranks stop or save at the same step: for a signal that one of them got, or by the clock of rank 0.
static Verdict run_verdict(const Run *run) {
    double minutes = run->config->checkpoint.minutes;
    Verdict verdict = {reached_end(run), (int)run_stop_signal,
                       minutes > 0 && clock_seconds() - run->saved_at >= minutes * 60};
    const World *world = run->world;
    if (!world || world->size == 1) return verdict;
    double mine[3] = {verdict.ended, verdict.save, verdict.signal}, *all = xmalloc(sizeof mine * (size_t)world->size);
    world_gather_doubles(run->world, mine, 3, all);
    verdict.ended = all[0] != 0;
    verdict.save = all[1] != 0;
    for (int i = 0; i < world->size; i++)
        if (all[3 * i + 2] != 0) verdict.signal = (int)all[3 * i + 2];
    free(all);
    return verdict;
}

static void open_profiler(Run *run) {
    const Config *config = run->config;
    run->profile_directory = path_join(run->directory, "profile");
    run->profiler = profiler_open(&(ProfilerOptions){.wait = config->profile.wait,
                                                     .warmup = config->profile.warmup,
                                                     .active = run->profile_steps,
                                                     .model = run->trainer.model,
                                                     .world = run->world,
                                                     .prediction = run->trainer.prediction,
                                                     .directory = run->profile_directory,
                                                     .gpu = run->trainer.ops->gpu});
}

static void say_profile(Run *run) {
    char *said = profiler_said(run->profiler);
    if (said) progress_say(&run->progress, "%s", said);
    free(said);
}

// The trainer's step, with the profiler on both sides of it.
static Status run_step(Run *run, MetricsStep *metrics, bool alone, bool *stopped) {
    profiler_step_begin(run->profiler, run->trainer.step + 1);
    // Between micro-batches one process can stop alone; of several, none may leave the others waiting.
    Status status = trainer_step(&run->trainer, metrics, alone ? &run_stop_signal : NULL, stopped);
    if (status) return status;
    profiler_step_end(run->profiler, *stopped ? NULL : metrics);
    say_profile(run);
    return NULL;
}

static Status train_until_end(Run *run) {
    bool stopped = false, alone = !run->world || run->world->size == 1;
    if (run->config->eval.at_start && run->trainer.step == 0) TRY(take_validation_loss(run, false));
    Verdict verdict = run_verdict(run);
    exposed_begin(&run->exposed, &run->trainer);
    open_profiler(run);
    while (!verdict.ended && !verdict.signal) {
        MetricsStep metrics;
        if (run->world) world_set_step(run->world, run->trainer.step + 1);
        Status status = run_step(run, &metrics, alone, &stopped);
        if (status) return stopped && alone ? run_save_before_end(run, status) : status;
        if (!stopped) TRY(after_step(run, &metrics));
        verdict = run_verdict(run);
        if (verdict.save && !run->trainer.guard.skipped_in_row) TRY(run_save_checkpoint(run));
    }
    profiler_finish(run->profiler);
    say_profile(run);
    if (verdict.signal && !verdict.ended) {
        run->stopped_by = verdict.signal;
        TRY(run_save_checkpoint(run));
        TRY(run_wait_for_last(run));
        progress_say(&run->progress, "stopped by signal %d after step %lld", verdict.signal,
                     (long long)run->trainer.step);
        progress_say(&run->progress, "resume with: %s train --resume --run %s", program_invocation_name,
                     run->directory);
    } else {
        if (run->config->checkpoint.at_end) TRY(run_save_checkpoint(run));
        if (run->config->eval.at_end) TRY(take_validation_loss(run, true));
        TRY(run_wait_for_last(run));
    }
    log_file("ended after step %lld%s", (long long)run->trainer.step, verdict.signal ? ", by a signal" : "");
    Status status = run->save_failure;
    run->save_failure = NULL;
    if (!status && run->trainer.step > 0 && run->trainer.applied == 0)
        return status_hint(status_runtime("every step was skipped: no loss or gradient norm was finite"),
                           "look at the weights it started from, and at optimizer.lr");
    return status;
}

static Status run_steps_or_say_ended(Run *run, bool resumed) {
    int ended = resumed && run->first && run_has_ended(run);
    if (run->world) world_broadcast(run->world, &ended, sizeof ended, 0);
    if (!ended) return train_until_end(run);
    progress_say(&run->progress, "this run has ended: all of its %lld steps are done",
                 (long long)run->trainer.total_steps);
    progress_say(&run->progress, "train it further with a larger train.steps or train.tokens: --set train.steps=N");
    return NULL;
}

Status run_train(const RunOptions *options, int *stopped_by) {
    *stopped_by = 0;
    Config config;
    World *world = options->world;
    Run run = {.config = &config,
               .world = world,
               .rescue = options->rescue,
               .first = !world || world->rank == 0,
               .saved_step = -1,
               .lock = -1};
    char *checkpoint = NULL;
    if (run.first) TRY(run_resume_directory(options, &run.directory));
    // Before a checkpoint is chosen: a run that is still going would write newer ones and remove this one.
    Status status = run.directory ? run_lock(&run) : NULL;
    if (!status) ranks_broadcast_text(world, &run.directory, 0);
    if (!status) status = run_read_config(&config, &run, &checkpoint, options);
    if (status) {
        file_unlock(&run.lock);
        free(run.directory);
        return status;
    }
    bool opened = false;
    TRY_GOTO(run_open(&run, options, checkpoint), done);
    opened = true;
    run.profile_steps = options->profile ? options->profile : config.profile.active;
    run_catch_signals();
    run_show_start(&run);
    run.saved_at = run.kept_at = clock_seconds();
    run.load = machine_load_now();
    run_note_state(&run, RUN_RUNNING, NULL);
    status = run_steps_or_say_ended(&run, options->resume);
    *stopped_by = run.stopped_by;
done:
    checkpoint_writer_close(run.writer);
    run_close_recorder(&run);
    if (opened)
        run_note_state(&run,
                       status           ? RUN_FAILED
                       : run.stopped_by ? RUN_STOPPED
                                        : RUN_FINISHED,
                       status ? status_text(status) : NULL);
    if (opened && run.first) run_show_summary(&run);
    if (opened && run.first && !status) run_show_outcome(&run);
    profiler_close(run.profiler);
    free(run.profile_directory);
    outcome_free(&run.outcome);
    if (!status) log_set_file(NULL); // a failure is still to be told
    trainer_close(&run.trainer);
    file_unlock(&run.lock);
    status_free(run.save_failure);
    config_free(&config);
    free(checkpoint);
    free(run.checkpoints);
    free(run.directory);
    return status;
}
