// What a run shows at its start and at its end.
#include "base/clock.h"
#include "base/log.h"
#include "train/prediction.h"
#include "train/run_internal.h"
#include "train/setup.h"
#include "watch/plan_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

void run_show_start(Run *run) {
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

static void show_meetings(Run *run, int64_t tokens) {
    const Trainer *trainer = &run->trainer;
    const Diloco *diloco = &trainer->diloco;
    if (trainer->ranks.islands < 2 || !tokens) return;
    double sent = (double)diloco->sent_bytes;
    progress_say(&run->progress, "islands met %lld times; each sent %.4g MB, %.3g bytes per token",
                 (long long)diloco->meetings, sent * ranks_of_island(&trainer->ranks) / 1e6,
                 island_bytes_per_token(trainer, sent, (double)tokens));
}

void run_show_summary(Run *run) {
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

void run_show_outcome(Run *run) {
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
    double others = outcome_others(&run->load, trainer->ops->kind, run->world);
    const char *unfit = outcome_unfit(run->outcome.count, OUTCOME_STEPS_TEACH, others);
    if (unfit) {
        progress_say(&run->progress, "  (not kept for later predictions: %s)", unfit);
        return;
    }
    Status status = prediction_remember(prediction, &measured);
    if (status) log_warn("the outcome was not added to the history: %s", status_message(status));
    status_free(status);
}
