// The loop around the trainer's steps: metrics, validation, checkpoints, signals, and what to do when a step goes
// wrong.
#include "train/run.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/leftovers.h"
#include "base/log.h"
#include "plan/checkpointing.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/exposed.h"
#include "train/histograms.h"
#include "train/kernel_choices.h"
#include "train/outcome.h"
#include "train/prediction.h"
#include "train/profiler.h"
#include "train/setup.h"
#include "train/trainer.h"
#include "watch/plan_text.h"
#include "watch/progress.h"
#include "watch/recorder.h"
#include "watch/run_state.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct Run {
    const Config *config;
    World *world; // NULL: one process
    const char *rescue;
    bool first; // rank 0: it alone writes and shows what there is once for all ranks
    char *directory, *checkpoints;
    Trainer trainer;
    Recorder *recorder; // NULL on ranks but the first
    double watch_cpu;   // seconds of this thread, spent on what is written and shown of steps
    Progress progress;
    CheckpointWriter *writer;
    double saved_at;                    // when it was begun, or the run
    double kept_at;                     // when the newest complete one was begun, or the run
    int64_t saved_step;                 // of the last checkpoint that was begun, the same on all ranks; -1: none
    Status save_failure;                // of the newest checkpoint, when it could not be written
    int choices_kept;                   // kernel choices in the run directory
    double speed_tokens, speed_seconds; // after the warm-up steps
    int64_t first_tokens;               // done before this process
    Outcome outcome;
    Exposed exposed;
    Profiler *profiler; // NULL: no profile
    char *profile_directory;
    int64_t profile_steps;
    MachineLoad load; // as it was at the first step
    int stopped_by;   // the signal that ended it before its end
    int lock;         // of the run directory: two processes must not write one run
} Run;

static volatile sig_atomic_t stop_signal;

static void on_signal(int number) {
    stop_signal = number;
}

static void catch_signals(void) {
    // The handler resets itself: a second Ctrl-C ends the program at once. A terminal that closes says so twice, by the
    // system and by the shell.
    struct sigaction action = {.sa_handler = on_signal};
    stop_signal = 0;
    static const int stopping[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < sizeof stopping / sizeof *stopping; i++) {
        struct sigaction before;
        sigaction(stopping[i], NULL, &before);
        action.sa_flags = stopping[i] == SIGHUP ? 0 : (int)SA_RESETHAND;
        if (before.sa_handler != SIG_IGN) sigaction(stopping[i], &action, NULL); // nohup wants to hear of none
    }
    signal(SIGPIPE, SIG_IGN); // nobody reads the progress any more: the training goes on
}

// ---- checkpoints ---------------------------------------------------------------------------------------------------

static void poll_writer(Run *run, bool wait) {
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

// Seconds between checkpoints that cost the least (Young); 0: nobody knows the machine.
static double best_interval(const Prediction *prediction, double bytes) {
    if (!prediction) return 0;
    const PlanMachine *machine = &prediction->machine;
    return plan_young_interval(machine->defaults.gpu_mtbf / machine->gpus, plan_machine_write_seconds(machine, bytes));
}

static int gpu_ordinal(const Run *run) { // -1: none
    const char *device = run->config->train.device;
    if (run->trainer.ops->kind != DEVICE_CUDA) return -1;
    if (text_starts_with(device, "cuda:")) return atoi(device + strlen("cuda:"));
    return run->world ? run->world->local_rank : 0;
}

static Status open_recorder(Run *run, Recorder **recorder) {
    const Trainer *trainer = &run->trainer;
    double bytes = plan_checkpoint_parameter_bytes(trainer->diloco.every ? trainer->ranks.islands : 0) *
                   (double)trainer->parameters.total;
    TextBuffer config = {0};
    config_write(&trainer->resolved, &config);
    RecorderOptions options = {
        .directory = run->directory,
        .last_step = trainer->step > 0 ? trainer->step : -1, // else the validation before it is taken again
        .tensorboard = run->config->watch.tensorboard,
        .config_text = config.data,
        .machine.gpu = gpu_ordinal(run),
        .alarms = {.young_seconds = best_interval(trainer->prediction, bytes),
                   .checkpoint_bytes = bytes,
                   .loss_gap_bound = run->config->train.loss_check_bound},
    };
    Status status = recorder_open(recorder, &options);
    text_buffer_free(&config);
    return status;
}

// What the recorder has to say goes through this thread, which has the terminal.
static void hear_recorder(Run *run) {
    for (char *said; run->recorder && (said = recorder_said(run->recorder)); free(said)) {
        progress_clear(&run->progress);
        log_warn("%s", said);
    }
}

static void note_state(const Run *run, RunState state, const char *message) {
    if (!run->first) return;
    Status status = run_state_write(run->directory, state, run->trainer.step, message);
    if (status) log_warn("how the run stands is not noted: %s", status_message(status));
    status_free(status);
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
        status = open_recorder(run, &again);
        if (!status) {
            hear_recorder(run);
            recorder_close(run->recorder);
            run->recorder = again;
            note_state(run, RUN_RUNNING, NULL);
        }
    }
    status_free(status);
}

static Status write_checkpoint(Run *run) {
    restore_directory(run);
    if (run->recorder) recorder_flush(run->recorder); // a run that goes on from here has the lines of all steps before
    poll_writer(run, true); // checkpoint_save would wait as well, and the outcome of this one must not be lost
    TRY(checkpoint_save(run->writer, run->trainer.model, run->trainer.step, trainer_state(&run->trainer)));
    run->saved_step = run->trainer.step;
    run->saved_at = clock_seconds();
    if (!run->config->checkpoint.async) poll_writer(run, true);
    return NULL;
}

static Status save_checkpoint(Run *run) {
    return run->saved_step == run->trainer.step ? NULL : write_checkpoint(run);
}

// Waits for the write under way. All ranks then know whether it failed anywhere: a rank whose own part is on disk must
// not be missing when the others try again.
static void settle_writer(Run *run) {
    poll_writer(run, true);
    World *world = run->world;
    if (!world || world->size == 1) return;
    double mine = run->save_failure != NULL, *all = xmalloc((size_t)world->size * sizeof *all);
    world_gather_doubles(world, &mine, 1, all);
    for (int rank = world->size - 1; rank >= 0 && !run->save_failure; rank--) // rank 0 fails with any other
        if (all[rank] != 0)
            run->save_failure = status_runtime("rank %d did not write its part of the checkpoint", rank);
    free(all);
}

static char *rescue_path(const Run *run) {
    const char *temporary = getenv("TMPDIR"), *folder = run->rescue;
    if (!folder) folder = temporary && temporary[0] ? temporary : "/tmp";
    char *name = text_format("hearth-rescue-%s-%ld", path_name(run->directory), (long)getpid());
    char *path = path_join(folder, name);
    free(name);
    return path;
}

static CheckpointPolicy checkpoint_policy(const Config *config) {
    return (CheckpointPolicy){.keep_last = config->checkpoint.keep_last,
                              .keep_every = config->checkpoint.keep_every,
                              .keep_best = config->checkpoint.keep_best,
                              .async = config->checkpoint.async};
}

// The last checkpoint, where the run directory cannot take it: rather somewhere else than nowhere. Ranks of several
// hosts share no temporary folder.
static void rescue_checkpoint(Run *run) {
    World *world = run->world;
    if (!run->save_failure || (world && world->local_size < world->size && !run->rescue)) return;
    char *path = run->first ? rescue_path(run) : NULL;
    ranks_broadcast_text(world, &path, 0);
    CheckpointPolicy policy = checkpoint_policy(run->config);
    policy.async = false;
    CheckpointWriter *own = run->writer;
    Status cause = run->save_failure;
    run->save_failure = checkpoint_writer_open(&run->writer, path, &run->trainer.model->layout, &policy,
                                               ranks_rank(&run->trainer.ranks), ranks_size(&run->trainer.ranks));
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

// Waits for the checkpoint that the run is left with; one that could not be written is tried once more.
static Status wait_for_last(Run *run) {
    settle_writer(run);
    if (!run->save_failure) return NULL;
    TRY(write_checkpoint(run));
    settle_writer(run);
    rescue_checkpoint(run);
    return NULL;
}

// The step before the first skipped one may be what ruined the weights; a checkpoint is good when a later step was
// accepted.
static Status too_many_skips(Run *run) {
    const Trainer *trainer = &run->trainer;
    int64_t accepted = trainer->step - trainer->guard.skipped_in_row, good = -1, *steps = NULL;
    int count = 0;
    poll_writer(run, true);
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

static bool step_is_due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

// ---- the loop ------------------------------------------------------------------------------------------------------

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
        hear_recorder(run);
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
            outcome_note(&run->outcome, metrics->seconds, metrics->memory_bytes);
    }
    if (trainer->guard.skipped_in_row >= trainer->guard.max_skips) return too_many_skips(run);
    if (step_is_due(config->eval.every, trainer->step)) TRY(take_validation_loss(run, false));
    bool doubtful = trainer->guard.skipped_in_row > 0; // the weights may be what is wrong
    if (step_is_due(config->checkpoint.every, trainer->step) && !doubtful) TRY(save_checkpoint(run));
    poll_writer(run, false);
    return NULL;
}

// What was learned so far is kept, whatever is wrong with the data.
static Status save_before_end(Run *run, Status cause) {
    Status status = save_checkpoint(run);
    if (!status) status = wait_for_last(run);
    if (status) log_warn("no checkpoint before the end: %s", status_text(status));
    status_free(status);
    return cause;
}

typedef struct Verdict {
    bool ended; // all steps or hours are done
    int signal; // that any rank got; 0: none
    bool save;  // a checkpoint is due by time
} Verdict;

// All ranks stop or save at the same step: for a signal that one of them got, or by the clock of rank 0.
static Verdict run_verdict(const Run *run) {
    double minutes = run->config->checkpoint.minutes;
    Verdict verdict = {reached_end(run), (int)stop_signal,
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
                                                     .gpu = gpu_ordinal(run)});
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
    Status status = trainer_step(&run->trainer, metrics, alone ? &stop_signal : NULL, stopped);
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
        if (status) return stopped && alone ? save_before_end(run, status) : status;
        if (!stopped) TRY(after_step(run, &metrics));
        verdict = run_verdict(run);
        if (verdict.save && !run->trainer.guard.skipped_in_row) TRY(save_checkpoint(run));
    }
    profiler_finish(run->profiler);
    say_profile(run);
    if (verdict.signal && !verdict.ended) {
        run->stopped_by = verdict.signal;
        TRY(save_checkpoint(run));
        TRY(wait_for_last(run));
        progress_say(&run->progress, "stopped by signal %d after step %lld", verdict.signal,
                     (long long)run->trainer.step);
        progress_say(&run->progress, "resume with: %s train --resume --run %s", program_invocation_name,
                     run->directory);
    } else {
        if (run->config->checkpoint.at_end) TRY(save_checkpoint(run));
        if (run->config->eval.at_end) TRY(take_validation_loss(run, true));
        TRY(wait_for_last(run));
    }
    log_file("ended after step %lld%s", (long long)run->trainer.step, verdict.signal ? ", by a signal" : "");
    Status status = run->save_failure;
    run->save_failure = NULL;
    if (!status && run->trainer.step > 0 && run->trainer.applied == 0)
        return status_hint(status_runtime("every step was skipped: no loss or gradient norm was finite"),
                           "look at the weights it started from, and at optimizer.lr");
    return status;
}

// ---- start and end -------------------------------------------------------------------------------------------------

static void show_banner(const Run *run) {
    const Trainer *trainer = &run->trainer;
    const Config *config = run->config;
    uint64_t data_tokens = 0;
    for (size_t i = 0; i < trainer->train.mix.count; i++)
        data_tokens += trainer->train.mix.datasets[i].token_count;
    int64_t batch_tokens = trainer->batch.micro_tokens * trainer->batch.grad_accum;
    const Mesh *mesh = &trainer->ranks.mesh;
    const ModelRanks *groups = &trainer->ranks.groups;
    const Comm *group = groups->all;
    const LayoutRequest *layout = &trainer->model->layout.request;
    char ranks[192], pipeline[64] = "";
    if (mesh->pp > 1)
        snprintf(pipeline, sizeof pipeline, ", pipeline %d (%s)", mesh->pp,
                 pipeline_schedule_name(layout_schedule(layout)));
    if (group)
        snprintf(ranks, sizeof ranks, "%d: data %d, context %d, tensor %d%s, ZeRO %d; over %s",
                 ranks_size(&trainer->ranks), mesh->dp, mesh->cp, mesh->tp, pipeline, mesh->zero, group->backend);
    size_t used = group ? strlen(ranks) : 0;
    if (mesh->ep * mesh->etp > 1)
        snprintf(ranks + used, sizeof ranks - used, "; experts over %d, each over %d", mesh->ep, mesh->etp);
    ProgressBanner banner = {
        .run = run->directory,
        .model = setup_model_name(config),
        .device = device_kind_name(trainer->ops->kind),
        .precision = config->train.tf32 ? "fp32, products in TF32," : config->train.precision,
        .parameters = trainer->parameters.total,
        .active_parameters = trainer->parameters.active,
        .micro_batch = config->train.micro_batch,
        .seq = config->train.seq,
        .grad_accum = trainer->batch.grad_accum,
        .ranks = trainer->ranks.islands * mesh->dp,
        .mesh = group ? ranks : NULL,
        .batch_tokens = batch_tokens,
        .asked_batch_tokens = trainer->batch.asked_tokens,
        .batch_warmup_tokens = trainer->batch.warmup_tokens,
        .total_steps = trainer->total_steps,
        .total_tokens = trainer_total_tokens(trainer),
        .data_tokens = (int64_t)data_tokens,
        .hours = config->train.hours,
        .memory_bytes = (double)trainer->model->layout.total_bytes,
        .memory_total = (double)trainer->ops->memory_total(trainer->ops),
        .predicted_seconds = trainer->prediction ? trainer->prediction->plan.step.seconds *
                                                       (double)(trainer->total_steps - trainer->step)
                                                 : 0,
        .resumed_step = trainer->step,
    };
    progress_banner(&banner, stdout);
    fflush(stdout);
}

// What islands send to each other, by an island, for each token that it trains on.
static double island_bytes_per_token(const Trainer *trainer, double sent_by_rank, double tokens) {
    return sent_by_rank * ranks_of_island(&trainer->ranks) / (tokens / trainer->ranks.islands);
}

static void show_islands(Run *run) {
    const Trainer *trainer = &run->trainer;
    const Diloco *diloco = &trainer->diloco;
    int islands = trainer->ranks.islands, each = ranks_of_island(&trainer->ranks);
    double sent = diloco_meeting_bytes(diloco, &trainer->model->layout);
    double batch = (double)(trainer->batch.micro_tokens * trainer->batch.grad_accum);
    if (!diloco->every) return;
    if (islands == 1) {
        progress_say(&run->progress, "islands    one, with an outer step every %lld steps: nothing to send",
                     (long long)diloco->every);
        return;
    }
    double gradients = sent * (double)sizeof(float) / (double)dtype_size(diloco->exchange); // as an all-reduce
    progress_say(&run->progress,
                 "islands    %d of %d rank%s; every %lld steps each sends %.4g MB, %.3g bytes per token (gradients in "
                 "every step: %.3g)",
                 islands, each, each > 1 ? "s" : "", (long long)diloco->every, sent * each / 1e6,
                 island_bytes_per_token(trainer, sent, batch * (double)diloco->every),
                 island_bytes_per_token(trainer, gradients, batch));
}

static void show_meetings(Run *run, int64_t tokens) {
    const Trainer *trainer = &run->trainer;
    const Diloco *diloco = &trainer->diloco;
    if (trainer->ranks.islands < 2 || !tokens) return;
    double sent = (double)diloco->sent_bytes;
    progress_say(&run->progress, "islands met %lld times; each sent %.4g MB, %.3g bytes per token",
                 (long long)diloco->meetings, sent * ranks_of_island(&trainer->ranks) / 1e6,
                 island_bytes_per_token(trainer, sent, (double)tokens));
}

static void show_summary(Run *run) {
    char *path = path_join(run->directory, "metrics.jsonl");
    double *losses = NULL;
    int64_t count = 0;
    char text[64], average[64];
    Status status = metrics_read_losses(path, &losses, &count);
    if (run->progress.mode != PROGRESS_OFF) {
        progress_say(&run->progress, "\nloss over the steps");
        if (!status) progress_curve(stdout, losses, count, 72, 14);
        progress_say(&run->progress, "%s tokens so far; this process ran %s",
                     text_count(text, (double)run->trainer.tokens),
                     text_duration(average, clock_seconds() - run->trainer.started));
        if (run->speed_seconds > 0)
            progress_say(&run->progress, "average %s tok/s after the first steps",
                         text_grouped(text, (int64_t)llround(run->speed_tokens / run->speed_seconds)));
        char *exposed = exposed_text(&run->exposed);
        if (exposed) progress_say(&run->progress, "%s", exposed);
        free(exposed);
        show_meetings(run, run->trainer.tokens - run->first_tokens);
        progress_say(&run->progress, "run directory: %s", run->directory);
    }
    status_free(status);
    free(losses);
    free(path);
}

// Predicted against measured, for the reader and for the history that the next prediction learns from.
static void close_prediction(Run *run) {
    const Trainer *trainer = &run->trainer;
    const Prediction *prediction = trainer->prediction;
    double step_tokens = (double)(trainer->batch.micro_tokens * trainer->batch.grad_accum);
    PlanMeasured measured;
    if (!prediction || !outcome_measured(&run->outcome, step_tokens, &measured)) return;
    TextBuffer text = {0};
    plan_outcome_text(&prediction->plan, &measured, &text);
    progress_say(&run->progress, "\npredicted against measured: median of %zu steps, the first %lld left out\n%.*s",
                 run->outcome.count, (long long)run->config->watch.warmup_steps, (int)(text.length - 1), text.data);
    if (prediction->calibration.runs)
        progress_say(&run->progress, "  (step time predicted with a factor of %.3g from %d earlier run%s%s)",
                     prediction->calibration.factor, prediction->calibration.runs,
                     prediction->calibration.runs > 1 ? "s" : "", prediction->calibration.bounded ? ", bounded" : "");
    text_buffer_free(&text);
    MachineLoad now = machine_load_now();
    double others = machine_load_others(&run->load, &now, (int)sysconf(_SC_NPROCESSORS_ONLN));
    const char *unfit = outcome_unfit(&run->outcome, trainer->ops->kind == DEVICE_CPU ? others : 0);
    if (unfit) {
        progress_say(&run->progress, "  (not kept for later predictions: %s)", unfit);
        return;
    }
    Status status = prediction_remember(prediction, &measured);
    if (status) log_warn("the outcome was not added to the history: %s", status_message(status));
    status_free(status);
}

static void say_damaged(void *context, const char *message) {
    (void)context;
    log_warn("%s", message);
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

// Puts the trainer where the newest good checkpoint left off. A run that has none yet starts over in its directory.
static Status resume_training(Run *run, const char *checkpoint) {
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
    return checkpoint_set_aside(run->checkpoints, run->trainer.step);
}

static Status lock_directory(Run *run) {
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

// Everything that there is once for all ranks is made by the first; what it fails in ends the others too.
static Status run_open(Run *run, const RunOptions *options, const char *checkpoint) {
    const Config *config = run->config;
    if (!options->resume && run->first) TRY(run_directory_choose(config, options, &run->directory));
    ranks_broadcast_text(run->world, &run->directory, 0);
    TRY(trainer_open_ranks(&run->trainer, config, run->world));
    if (!options->resume && run->first) {
        TRY(run_directory_create(run->directory, &run->trainer));
        TRY(lock_directory(run));
    }
    if (run->world) world_barrier(run->world); // the directory is there
    if (run->first) open_log(run);
    if (config->watch.log_ranks && !run->first) open_rank_log(run);
    run->checkpoints = path_join(run->directory, "checkpoints");
    CheckpointPolicy policy = checkpoint_policy(config);
    TRY(checkpoint_writer_open(&run->writer, run->checkpoints, &run->trainer.model->layout, &policy,
                               ranks_rank(&run->trainer.ranks), ranks_size(&run->trainer.ranks)));
    if (options->resume) TRY(resume_training(run, checkpoint));
    TRY(kernel_choices_settle(&run->trainer, run->directory));
    if (!run->first) return NULL;
    Status status = histograms_check(&run->trainer);
    if (!status) status = open_recorder(run, &run->recorder);
    if (status || !options->resume) return status;
    Status kept = run_directory_update(run->directory, &run->trainer, checkpoint != NULL);
    if (kept) log_warn("the settings of this --resume are not kept for the next one: %s", status_text(kept));
    status_free(kept);
    return NULL;
}

static void close_recorder(Run *run) {
    if (!run->recorder) return;
    AppendMissing missing = recorder_missing(run->recorder);
    hear_recorder(run);
    if (missing.records)
        log_warn("%lld lines of metrics, of steps %lld to %lld, could not be written to %s/metrics.jsonl",
                 (long long)missing.records, (long long)missing.first_step, (long long)missing.last_step,
                 run->directory);
    log_debug("watching: %.4f s of CPU time in the thread of the steps, %.4f s in its own", run->watch_cpu,
              recorder_cpu_seconds(run->recorder));
    recorder_close(run->recorder);
}

// All steps are done, and so is what comes after the last one.
static bool has_ended(const Run *run) {
    const Trainer *trainer = &run->trainer;
    if (!trainer->total_steps || trainer->step < trainer->total_steps) return false;
    if (!run->config->eval.at_end || !trainer->val.windows) return true;
    char *path = path_join(run->directory, "metrics.jsonl");
    bool evaluated = metrics_has_full_eval(path, trainer->step);
    free(path);
    return evaluated;
}

static Status run_config(Config *config, const Run *run, char **checkpoint, const RunOptions *options) {
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

static Status find_directory(const RunOptions *options, char **directory) {
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

static void open_progress(Run *run) {
    const Config *config = run->config;
    run->progress = (Progress){.mode = run->first ? progress_mode(config->watch.terminal) : PROGRESS_OFF,
                               .print_every = config->watch.print_every,
                               .first_step = run->trainer.step,
                               .total_steps = run->trainer.total_steps,
                               .hours = config->train.hours};
    run->first_tokens = run->trainer.tokens;
    if (run->progress.mode != PROGRESS_OFF) show_banner(run);
    show_islands(run);
    progress_begin(&run->progress);
}

static Status run_steps_or_say_ended(Run *run, bool resumed) {
    int ended = resumed && run->first && has_ended(run);
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
    if (run.first) TRY(find_directory(options, &run.directory));
    // Before a checkpoint is chosen: a run that is still going would write newer ones and remove this one.
    Status status = run.directory ? lock_directory(&run) : NULL;
    if (!status) ranks_broadcast_text(world, &run.directory, 0);
    if (!status) status = run_config(&config, &run, &checkpoint, options);
    if (status) {
        file_unlock(&run.lock);
        free(run.directory);
        return status;
    }
    bool opened = false;
    TRY_GOTO(run_open(&run, options, checkpoint), done);
    opened = true;
    run.profile_steps = options->profile ? options->profile : config.profile.active;
    catch_signals();
    open_progress(&run);
    run.saved_at = run.kept_at = clock_seconds();
    run.load = machine_load_now();
    note_state(&run, RUN_RUNNING, NULL);
    status = run_steps_or_say_ended(&run, options->resume);
    *stopped_by = run.stopped_by;
done:
    checkpoint_writer_close(run.writer);
    close_recorder(&run);
    if (opened)
        note_state(&run,
                   status           ? RUN_FAILED
                   : run.stopped_by ? RUN_STOPPED
                                    : RUN_FINISHED,
                   status ? status_text(status) : NULL);
    if (opened && run.first) show_summary(&run);
    if (opened && run.first && !status) close_prediction(&run);
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
