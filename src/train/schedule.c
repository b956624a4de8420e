// Learning rate and batch as functions of the step and of the tokens done.
#include "train/schedule.h"

#include "plan/batch.h"
#include "plan/schedule.h"

#include <math.h>
#include <string.h>

static const char *const kind_names[] = {
    [SCHEDULE_CONSTANT] = "constant", [SCHEDULE_COSINE] = "cosine", [SCHEDULE_WSD] = "wsd"};

static ScheduleKind kind_of_name(const char *name) {
    if (strcmp(name, kind_names[SCHEDULE_COSINE]) == 0) return SCHEDULE_COSINE;
    return strcmp(name, kind_names[SCHEDULE_WSD]) == 0 ? SCHEDULE_WSD : SCHEDULE_CONSTANT;
}

json_t *schedule_json(const Schedule *schedule) {
    return json_pack("{s:s,s:f,s:f,s:I,s:I,s:I}", "kind", kind_names[schedule->kind], "lr", schedule->lr, "min_lr",
                     schedule->min_lr, "warmup_steps", (json_int_t)schedule->warmup_steps, "decay_steps",
                     (json_int_t)schedule->decay_steps, "total_steps", (json_int_t)schedule->total_steps);
}

void schedule_read(Schedule *schedule, const json_t *root) {
    const char *kind;
    json_int_t warmup, decay, total;
    double lr, min_lr;
    if (!root || json_unpack((json_t *)root, "{s:s,s:F,s:F,s:I,s:I,s:I}", "kind", &kind, "lr", &lr, "min_lr", &min_lr,
                             "warmup_steps", &warmup, "decay_steps", &decay, "total_steps", &total) != 0)
        return;
    const json_int_t most = (json_int_t)1 << 60; // sums of steps stay in range
    if (warmup < 0 || decay < 0 || total < 0 || warmup > most || decay > most || total > most) return;
    *schedule = (Schedule){kind_of_name(kind), lr, min_lr, warmup, decay, total};
}

double schedule_lr(const Schedule *schedule, int64_t step) {
    if (step < schedule->warmup_steps) return schedule->lr * (double)step / (double)schedule->warmup_steps;
    switch (schedule->kind) {
    case SCHEDULE_CONSTANT: return schedule->lr;
    case SCHEDULE_COSINE:
        return plan_lr_cosine((double)(step - schedule->warmup_steps),
                              (double)(schedule->total_steps - schedule->warmup_steps), schedule->lr, schedule->min_lr);
    case SCHEDULE_WSD: {
        int64_t left = schedule->total_steps - step;
        if (left >= schedule->decay_steps || !schedule->decay_steps) return schedule->lr;
        double share = left > 0 ? (double)left / (double)schedule->decay_steps : 0;
        return schedule->min_lr + (schedule->lr - schedule->min_lr) * share;
    }
    }
    return schedule->lr;
}

BatchPlan batch_plan(const Config *config, int ranks) {
    BatchPlan plan = {.micro_tokens = config->train.micro_batch * config->train.seq * ranks,
                      .grad_accum = config->train.grad_accum,
                      .warmup_tokens = config->train.batch_warmup_tokens,
                      .asked_tokens = config->train.batch_tokens};
    if (plan.asked_tokens)
        plan.grad_accum = (int64_t)plan_accum_nearest((double)plan.asked_tokens, (double)plan.micro_tokens);
    return plan;
}

int64_t batch_accum(const BatchPlan *plan, int64_t tokens_done) {
    if (tokens_done >= plan->warmup_tokens) return plan->grad_accum;
    // k = floor(done * N / W), without overflow for any size of corpus
    return 1 + (int64_t)((__int128)tokens_done * plan->grad_accum / plan->warmup_tokens);
}

// Tokens done at which accumulation grows beyond `accum`.
static int64_t bucket_end(const BatchPlan *plan, int64_t accum) {
    return (int64_t)(((__int128)accum * plan->warmup_tokens + plan->grad_accum - 1) / plan->grad_accum);
}

static int64_t steps_between(const BatchPlan *plan, int64_t done, int64_t tokens) {
    int64_t steps = 0;
    while (done < tokens && done < plan->warmup_tokens) {
        int64_t accum = batch_accum(plan, done), size = accum * plan->micro_tokens;
        // to the end of this bucket or of the run, whichever comes first
        int64_t end = bucket_end(plan, accum);
        if (end > tokens) end = tokens;
        int64_t count = (end - done + size - 1) / size;
        steps += count;
        done += count * size;
    }
    int64_t size = plan->grad_accum * plan->micro_tokens;
    if (done < tokens) steps += (tokens - done + size - 1) / size;
    return steps;
}

int64_t batch_steps(const BatchPlan *plan, int64_t tokens) {
    return steps_between(plan, 0, tokens);
}

double batch_tokens(const BatchPlan *plan, int64_t steps) {
    int64_t done = 0;
    while (steps > 0 && done < plan->warmup_tokens) {
        int64_t accum = batch_accum(plan, done), size = accum * plan->micro_tokens;
        int64_t count = (bucket_end(plan, accum) - done + size - 1) / size;
        if (count > steps) count = steps;
        steps -= count;
        done += count * size;
    }
    return (double)done + (double)steps * (double)plan->grad_accum * (double)plan->micro_tokens;
}

int64_t run_tokens(const Config *config, int64_t parameters) {
    const ConfigTokens *tokens = &config->train.tokens;
    return tokens->per_parameter > 0 ? (int64_t)llround(tokens->per_parameter * (double)parameters) : tokens->count;
}

int64_t run_steps_from(const Config *config, const BatchPlan *plan, int64_t parameters, int64_t step,
                       int64_t tokens_done) {
    int64_t tokens = run_tokens(config, parameters);
    int64_t steps = tokens ? step + steps_between(plan, tokens_done, tokens) : 0;
    if (config->train.steps && (!steps || config->train.steps < steps)) steps = config->train.steps;
    return steps;
}

int64_t run_steps(const Config *config, const BatchPlan *plan, int64_t parameters) {
    return run_steps_from(config, plan, parameters, 0, 0);
}

double run_peak_lr(const Config *config, const BatchPlan *plan) {
    double from = (double)config->optimizer.lr_base_batch_tokens; // AdamW sees the batch of an island
    double to = (double)(plan->micro_tokens * plan->grad_accum) / (double)config->diloco.islands;
    if (strcmp(config->optimizer.lr_rescale, "linear") == 0) return plan_lr_linear(config->optimizer.lr, from, to);
    if (strcmp(config->optimizer.lr_rescale, "sqrt") == 0) return plan_lr_sqrt(config->optimizer.lr, from, to);
    return config->optimizer.lr;
}

Status schedule_make(Schedule *schedule, const Config *config, const BatchPlan *plan, int64_t total_steps) {
    const char *kind = config->schedule.kind;
    *schedule = (Schedule){.kind = kind_of_name(kind),
                           .lr = run_peak_lr(config, plan),
                           .warmup_steps = config->schedule.warmup_steps,
                           .total_steps = total_steps};
    schedule->min_lr = schedule->lr * config->schedule.min_lr_ratio;
    schedule->decay_steps = (int64_t)llround((double)total_steps * config->schedule.decay_fraction);
    if (!total_steps && schedule->kind != SCHEDULE_CONSTANT)
        return config_blame(config, "schedule.kind",
                            status_hint(status_usage("schedule.kind = \"%s\" needs to know when the run ends", kind),
                                        "set train.steps or train.tokens (train.hours may stop it earlier)"));
    if (total_steps && schedule->warmup_steps > total_steps)
        return config_blame(config, "schedule.warmup_steps",
                            status_usage("schedule.warmup_steps = %lld is longer than the run of %lld steps",
                                         (long long)schedule->warmup_steps, (long long)total_steps));
    return NULL;
}
