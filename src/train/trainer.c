// Opening what a run is made of, and the step: accumulation, optimizer, guard, position.
#include "train/trainer.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "base/timeline.h"
#include "dist/device.h"
#include "model/fp8.h"
#include "model/hf.h"
#include "plan/flops.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/expert_room.h"
#include "train/fit.h"
#include "train/fp8_state.h"
#include "train/prediction.h"
#include "train/router_bias.h"
#include "train/setup.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// ---- opening -------------------------------------------------------------------------------------------------------

static Status check_length(const Trainer *trainer) {
    const Config *config = trainer->config;
    if (trainer->total_steps || config->train.hours > 0) return NULL;
    return config_blame(config, "train.steps",
                        status_hint(status_usage("nothing says when the run ends"),
                                    "set train.steps, train.tokens (\"6B\", \"20x\") or train.hours"));
}

static Status open_data(Trainer *trainer) {
    const Config *config = trainer->config;
    TRY(setup_data(config, &trainer->train, &trainer->val));
    TRY(setup_tokenizer(config, &trainer->train, &trainer->tokenizer));
    TRY(setup_model(config, (int64_t)samples_vocab(&trainer->train), &trainer->model_config));
    TRY(setup_check_init(config, &trainer->train));
    return setup_check_vocab(config, &trainer->model_config, &trainer->train);
}

static Status check_router(const Config *config, const ModelConfig *model) {
    if (config->model.router_bias_rate <= 0 || model_sparse_layers(model)) return NULL;
    return config_blame(config, "model.router_bias_rate",
                        status_usage("model.router_bias_rate balances experts, and this model has none"));
}

static Status open_model(Trainer *trainer) {
    const Config *config = trainer->config;
    LayoutRequest request;
    Ranks *ranks = &trainer->ranks;
    TRY(config_blame(config, "train.device",
                     ranks->world ? device_open(&trainer->ops, ranks->world, config->train.device)
                                  : ops_create(&trainer->ops, config->train.device)));
    TRY(setup_layout(config, &trainer->model_config, trainer->ops->kind, &request));
    request.mesh = ranks->mesh;
    request.island = ranks_island(ranks);
    request.rank = ranks_place(ranks);
    TRY(setup_micro_batches(config, &request, &trainer->batch));
    TRY(config_blame(config, request.mesh.ep > 1 ? "parallelism.expert" : "parallelism.expert_tensor",
                     layout_check_experts(&request)));
    TRY(check_router(config, &trainer->model_config));
    TRY(ranks_open(ranks, trainer->ops, &request));
    TRY(config_blame(config, "train.precision", fp8_choose(trainer->ops, &request, ranks->groups.all)));
    FitMemory memory = {trainer->ops->memory_free(trainer->ops), trainer->ops->memory_total(trainer->ops)};
    TRY(fit_require(config, &request, memory));
    TRY(config_blame(config, "train.micro_batch",
                     model_create_ranks(&trainer->model, trainer->ops, &request, &ranks->groups)));
    trainer->model->z_loss_coef = (float)config->model.z_coef;
    trainer->model->balance = strcmp(config->model.balance, "layers") == 0 ? BALANCE_LAYERS : BALANCE_TOGETHER;
    trainer->model->router_bias = config->model.router_bias_rate > 0;
    trainer->expert_load =
        xcalloc((size_t)model_sparse_layers(&trainer->model_config) + 1, sizeof *trainer->expert_load);
    trainer->model->direct = !config->train.graph;
    if (config->model.init[0])
        TRY(config_blame(config, "model.init", hf_load_weights(trainer->model, config->model.init)));
    else
        model_init_weights(trainer->model, (uint64_t)config->train.seed, config->model.scale_residual);
    TRY(diloco_open(&trainer->diloco, config, ranks, trainer->model));
    diloco_start(&trainer->diloco, trainer->model);
    return NULL;
}

// The plan of memory is not an estimate: what it says of this rank is what this rank has asked for.
static void require_planned_memory(const Trainer *trainer) {
    int64_t current, peak;
    if (trainer->ops->kind != DEVICE_CPU) return;
    ops_cpu_allocated(trainer->ops, &current, &peak);
    assert(current == trainer->model->layout.total_bytes && peak == current);
}

// What the planner expects of a step here. A device that the catalogue does not know has no prediction, and no harm is
// done.
static void predict_step(Trainer *trainer) {
    Ops *ops = trainer->ops;
    Prediction *prediction = xcalloc(1, sizeof *prediction);
    Status status = prediction_make(prediction, &trainer->model->layout.request, (int)trainer->batch.grad_accum,
                                    ops->device, (double)ops->memory_total(ops), ranks_size(&trainer->ranks));
    if (!status) {
        bool device = ops->kind == DEVICE_CUDA; // the peak of a CPU is too loose a bound to call a share of it MFU
        if (device && trainer->peak_flops <= 0) trainer->peak_flops = prediction->plan.step.peak;
        trainer->prediction = prediction;
    } else {
        free(prediction);
    }
    status_free(status);
}

static Status open_all(Trainer *trainer) {
    const Config *config = trainer->config;
    const ModelConfig *model = &trainer->model_config;
    TRY(ranks_islands(config, ranks_size(&trainer->ranks), &trainer->ranks.islands));
    TRY(ranks_mesh(config, ranks_of_island(&trainer->ranks), &trainer->ranks.mesh));
    TRY(open_data(trainer));
    TRY(config_copy(&trainer->resolved, config));
    setup_resolve(&trainer->resolved, model);
    setup_resolve_paths(&trainer->resolved);
    trainer->parameters = model_parameters(model);
    trainer->batch = batch_plan(config, trainer->ranks.islands * trainer->ranks.mesh.dp);
    trainer->total_steps = run_steps(config, &trainer->batch, trainer->parameters.total);
    TRY(check_length(trainer));
    TRY(schedule_make(&trainer->schedule, config, &trainer->batch, trainer->total_steps));
    trainer->guard = (Guard){.factor = config->train.spike_factor,
                             .window = (int)config->train.spike_window,
                             .max_skips = config->train.max_skips};
    if (strcmp(config->train.precision, "fp16") == 0)
        trainer->loss_scale = (LossScale){.scale = config->train.loss_scale, .every = config->train.loss_scale_steps};
    trainer->flops_per_token =
        plan_flops_per_token((double)trainer->parameters.matmul_active, model->layers, model->heads, model->head_dim,
                             (double)config->train.seq, PLAN_ATTENTION_FULL);
    trainer->peak_flops = config->watch.peak_tflops * 1e12; // 0: predict_step() asks the catalogue
    TRY(open_model(trainer));
    require_planned_memory(trainer);
    predict_step(trainer);
    return NULL;
}

Status trainer_open(Trainer *trainer, const Config *config) {
    return trainer_open_ranks(trainer, config, NULL);
}

Status trainer_open_ranks(Trainer *trainer, const Config *config, World *world) {
    *trainer =
        (Trainer){.config = config, .ranks.world = world, .val_loss = NAN, .val_step = -1, .started = clock_seconds()};
    threads_set((int)config->train.threads);
    Status status = open_all(trainer);
    if (status) trainer_close(trainer);
    return status;
}

void trainer_close(Trainer *trainer) {
    loader_stop(trainer->loader);
    diloco_close(&trainer->diloco);
    model_destroy(trainer->model);
    ranks_close(&trainer->ranks);
    if (trainer->ops) ops_destroy(trainer->ops);
    samples_close(&trainer->train);
    samples_close(&trainer->val);
    free(trainer->tokenizer);
    free(trainer->prediction);
    free(trainer->expert_load);
    config_free(&trainer->resolved);
    *trainer = (Trainer){0};
}

// ---- one step ------------------------------------------------------------------------------------------------------

static void split_start(Trainer *trainer, int64_t step, bool *profiled) {
    int64_t every = trainer->config->profile.every;
    *profiled = every > 0 && step % every == 0;
    if (!*profiled) return;
    trainer->model->direct = true; // a replayed graph is one piece to the profile
    trainer->ops->profile_start(trainer->ops);
}

static void split_stop(Trainer *trainer, MetricsStep *metrics) {
    double of_ops[OP_COUNT] = {0}, milliseconds[CATEGORY_COUNT];
    trainer->ops->profile_stop(trainer->ops, of_ops);
    op_sum_categories(of_ops, milliseconds);
    trainer->model->direct = !trainer->config->train.graph;
    metrics->split_count = CATEGORY_COUNT;
    for (int i = 0; i < CATEGORY_COUNT; i++) {
        metrics->split_name[i] = op_category_name((OpCategory)i);
        metrics->split_ms[i] = milliseconds[i];
    }
}

// It is ahead of the position; the next step starts a new one.
static void stop_loader(Trainer *trainer) {
    loader_stop(trainer->loader);
    trainer->loader = NULL;
}

static void drop_step(Trainer *trainer, bool profiled) {
    MetricsStep unused;
    if (profiled) split_stop(trainer, &unused);
    stop_loader(trainer);
}

// Taken as often as a line is printed.
static void take_expert_load(Trainer *trainer, MetricsStep *metrics) {
    int64_t every = trainer->config->watch.print_every;
    int sparse = model_sparse_layers(&trainer->model_config);
    bool wanted = trainer->step % every == 0 || trainer->step == 1 || trainer->step == trainer->total_steps;
    if (!sparse || !wanted) return;
    float *stats = xmalloc((size_t)sparse * MOE_LOAD_STATS * sizeof *stats);
    model_expert_load(trainer->model, stats);
    for (int i = 0; i < sparse; i++) {
        const float *layer = stats + (size_t)i * MOE_LOAD_STATS;
        trainer->expert_load[i] = (ExpertLoad){layer[MOE_LOAD_MAX], layer[MOE_LOAD_ENTROPY], (int)layer[MOE_LOAD_DEAD]};
    }
    free(stats);
    metrics->moe = trainer->expert_load;
    metrics->moe_count = sparse;
}

// No device does more than its peak. Where the figures say so the peak is wrong, and a share of it says nothing from
// there on.
static void fill_mfu(Trainer *trainer, MetricsStep *metrics) {
    if (trainer->peak_flops <= 0) return;
    double mfu = plan_mfu(trainer->flops_per_token, metrics->tokens_per_second, trainer->peak_flops,
                          ranks_size(&trainer->ranks));
    if (mfu <= 1)
        metrics->mfu = mfu;
    else
        metrics->mfu_refused = mfu, trainer->peak_flops = 0;
}

// What the device's memory has in it; of a host, which others use too, what was asked of it here.
static double memory_in_use(Ops *ops) {
    if (ops->kind == DEVICE_CUDA) return (double)ops->memory_total(ops) - (double)ops->memory_free(ops);
    return (double)ops->memory_own(ops);
}

static void fill_metrics(Trainer *trainer, MetricsStep *metrics, const StepResult *result, double seconds,
                         double waited, double comm_waited, int64_t step_tokens) {
    Ops *ops = trainer->ops;
    double total = (double)ops->memory_total(ops);
    metrics->step = trainer->step;
    metrics->tokens = trainer->tokens;
    metrics->loss = result->loss;
    metrics->loss_aux = result->loss_aux;
    metrics->grad_norm = result->grad_norm;
    metrics->skipped = result->skipped;
    metrics->skipped_total = trainer->guard.skipped;
    metrics->seconds = seconds;
    metrics->elapsed = clock_seconds() - trainer->started;
    metrics->tokens_per_second = (double)step_tokens / seconds;
    metrics->tflops = plan_achieved_flops(trainer->flops_per_token, metrics->tokens_per_second) / 1e12;
    fill_mfu(trainer, metrics);
    metrics->memory_bytes = memory_in_use(ops);
    trainer->memory_peak = fmax(trainer->memory_peak, metrics->memory_bytes);
    metrics->memory_peak_bytes = trainer->memory_peak;
    metrics->memory_own_bytes = (double)ops->memory_own(ops);
    metrics->memory_fraction = total > 0 ? metrics->memory_bytes / total : 0;
    metrics->data_wait = waited / seconds;
    metrics->comm_wait = comm_waited / seconds;
}

static double comm_waited_so_far(const Trainer *trainer) {
    const World *world = trainer->ranks.world;
    return world && world->size > 1 ? comm_waited_seconds(world) : 0;
}

// Targets of this island's share of a step: with islands, a block of every round of micro-batches.
static int64_t island_targets(const Trainer *trainer, int64_t accum, uint64_t round) {
    uint64_t islands = (uint64_t)trainer->ranks.islands, own = round / islands;
    uint64_t first = trainer->sample + (uint64_t)ranks_island(&trainer->ranks) * own;
    if (islands == 1) return samples_targets(&trainer->train, first, (uint64_t)accum * round);
    int64_t targets = 0;
    for (int64_t i = 0; i < accum; i++)
        targets += samples_targets(&trainer->train, first + (uint64_t)i * round, own);
    return targets;
}

// One try of a step: its micro-batches, the optimizer, and what came of it.
typedef struct StepTry {
    int64_t accum;
    uint64_t samples; // of all ranks
    double waited;    // seconds for data, over all tries
    OptimizerStep optimizer;
    StepResult result;
} StepTry;

static Status run_micro_batches(Trainer *trainer, StepTry *try, const volatile sig_atomic_t *stop, bool *stopped) {
    const Config *config = trainer->config;
    int dp = trainer->ranks.mesh.dp, ranks = dp * trainer->ranks.islands; // that read other samples
    if (!trainer->loader)
        TRY(loader_start(&trainer->loader, &trainer->train, (int)config->train.micro_batch,
                         ranks_island(&trainer->ranks) * dp + trainer->ranks.place.dp, ranks,
                         (int)config->data.prefetch, trainer->sample));
    trainer->model->loss_scale = (float)trainer->loss_scale.scale;
    // The scale of every micro-batch's loss is known before the first one runs, so the sum is the token-weighted mean.
    model_step_begin(trainer->model, island_targets(trainer, try->accum, try->samples / (uint64_t)try->accum),
                     (int)try->accum);
    for (int64_t i = 0; i < try->accum && !*stopped; i++) {
        const LoaderBatch *batch;
        double begin = timeline_begin();
        TRY(loader_next(trainer->loader, &batch, &try->waited));
        model_micro_step(trainer->model, batch->ids, batch->targets, batch->doc_start);
        timeline_end(begin, "micro-batch", i);
        *stopped = stop && *stop && i + 1 < try->accum;
    }
    return NULL;
}

static Status apply_gradients(Trainer *trainer, StepTry *try) {
    const Config *config = trainer->config;
    Model *model = trainer->model;
    // A GPU that waits for another rank's is seen only by who waits for it.
    World *world = trainer->ranks.world;
    bool watched = world && world->size > 1 && trainer->ops->kind == DEVICE_CUDA;
    double begin = timeline_begin();
    model_optimizer_step(model, &try->optimizer);
    timeline_end(begin, "optimizer", -1);
    if (config->model.router_bias_rate > 0) model_update_router_bias(model, (float)config->model.router_bias_rate);
    if (watched) world_enter(world, "a step on the GPU");
    begin = timeline_begin();
    model_step_result(model, &try->result);
    Status status = trainer->ops->sync(trainer->ops);
    timeline_end(begin, "result of the step", -1);
    if (watched) world_leave(world);
    return status;
}

// The step's batch in bf16, with the weights that the step begins with. Its time is not the step's.
static Status evaluate_step(Trainer *trainer, const StepTry *try, StepResult *result) {
    uint64_t micro = (uint64_t)trainer->config->train.micro_batch, round = try->samples / (uint64_t)try->accum;
    uint64_t rank =
        (uint64_t)ranks_island(&trainer->ranks) * (uint64_t)trainer->ranks.mesh.dp + (uint64_t)trainer->ranks.place.dp;
    EvaluateBatch batch = {.samples = &trainer->train,
                           .first = trainer->sample + rank * micro,
                           .round = round,
                           .micro_batches = (int)try->accum,
                           .valid = island_targets(trainer, try->accum, round)};
    return evaluate_batch(trainer->model, &batch, result);
}

static Status check_loss(Trainer *trainer, const StepTry *try, MetricsStep *metrics) {
    int64_t every = trainer->config->train.loss_check_every;
    StepResult result;
    if (!every || (trainer->step + 1) % every) return NULL;
    TRY(evaluate_step(trainer, try, &result));
    metrics->loss_bf16 = result.rows_needed ? 0 : result.loss;
    return NULL;
}

static Status grow_room(Trainer *trainer, int64_t rows_needed, MetricsStep *metrics) {
    char what[32];
    snprintf(what, sizeof what, "step %lld", (long long)trainer->step + 1);
    TRY(expert_room_grow(trainer->model, what, rows_needed));
    metrics->expert_rows_grown = trainer->model->layout.rows;
    return NULL;
}

static Status grow_and_start_over(Trainer *trainer, int64_t rows_needed, MetricsStep *metrics) {
    TRY(grow_room(trainer, rows_needed, metrics));
    fp8_scales_undo(trainer->model);
    stop_loader(trainer);
    return NULL;
}

// FP8 takes a step's scales from the step before. The first of a run, or of what a run goes on with from another
// precision, has none, and given weights may make activations of any size.
static Status find_first_scales(Trainer *trainer, const StepTry *try, MetricsStep *metrics) {
    Model *model = trainer->model;
    StepResult result = {0};
    if (!model->layout.fp8 || model->fp8_scaled) return NULL;
    do {
        if (result.rows_needed) TRY(grow_room(trainer, result.rows_needed, metrics));
        model->fp8_noting = true;
        Status status = evaluate_step(trainer, try, &result);
        model->fp8_noting = false;
        TRY(status);
        fp8_scales_noted(model);
    } while (result.rows_needed);
    return NULL;
}

Status trainer_step(Trainer *trainer, MetricsStep *metrics, const volatile sig_atomic_t *stop, bool *stopped) {
    const Config *config = trainer->config;
    *metrics = (MetricsStep){0};
    *stopped = false;
    StepTry try = {.accum = batch_accum(&trainer->batch, trainer->tokens),
                   .optimizer = {.step = trainer->applied + 1,
                                 .lr = (float)schedule_lr(&trainer->schedule, trainer->step + 1),
                                 .beta1 = (float)config->optimizer.beta1,
                                 .beta2 = (float)config->optimizer.beta2,
                                 .eps = (float)config->optimizer.eps,
                                 .weight_decay = (float)config->optimizer.weight_decay,
                                 .max_norm = (float)config->optimizer.clip,
                                 .loss_limit = guard_limit(&trainer->guard),
                                 .norm_limit = INFINITY,
                                 .seed = (uint64_t)config->train.seed}};
    try.samples = (uint64_t)try.accum * (uint64_t)config->train.micro_batch *
                  (uint64_t)(trainer->ranks.islands * trainer->ranks.mesh.dp);
    Status damage = find_first_scales(trainer, &try, metrics);
    if (!damage) damage = check_loss(trainer, &try, metrics);
    if (damage) {
        *stopped = true;
        return damage;
    }
    double start = clock_seconds(), comm_before = comm_waited_so_far(trainer);
    bool profiled;
    split_start(trainer, trainer->step + 1, &profiled);
    do {
        if (try.result.rows_needed) TRY(grow_and_start_over(trainer, try.result.rows_needed, metrics));
        damage = run_micro_batches(trainer, &try, stop, stopped);
        if (damage || *stopped) {
            drop_step(trainer, profiled);
            *stopped = true;
            return damage ? damage : trainer->ops->sync(trainer->ops);
        }
        TRY(apply_gradients(trainer, &try));
    } while (try.result.rows_needed); // more than there is room for: the guard has refused it on all ranks
    if (profiled) split_stop(trainer, metrics);
    int64_t step_tokens = (int64_t)try.samples * config->train.seq;
    trainer->step++;
    if (diloco_due(&trainer->diloco, trainer->step, trainer->total_steps))
        diloco_meet(&trainer->diloco, trainer->model);
    trainer->tokens += step_tokens;
    trainer->sample += try.samples;
    trainer->applied += !try.result.skipped;
    metrics->loss_scale = trainer->loss_scale.scale;
    metrics->overflow = loss_scale_note(&trainer->loss_scale, try.result.skipped, try.result.overflow);
    if (metrics->overflow)
        trainer->guard.skipped++; // and no sign that the weights are wrong
    else
        guard_note(&trainer->guard, try.result.loss, try.result.skipped);
    metrics->lr = try.optimizer.lr;
    metrics->grad_accum = try.accum;
    double comm_waited = comm_waited_so_far(trainer) - comm_before;
    fill_metrics(trainer, metrics, &try.result, clock_seconds() - start, try.waited, comm_waited, step_tokens);
    if (metrics->loss_bf16 > 0) metrics->loss_gap = fabs(metrics->loss - metrics->loss_bf16) / metrics->loss_bf16;
    take_expert_load(trainer, metrics);
    return NULL;
}

int64_t trainer_total_tokens(const Trainer *trainer) {
    return (int64_t)batch_tokens(&trainer->batch, trainer->total_steps);
}

// ---- state ---------------------------------------------------------------------------------------------------------

// Of what the position in the data counts on: the tokens themselves, by the checksums of their shards, and the weights.
static void data_hash(char hash[24], const Samples *samples) {
    TextBuffer text = {0};
    for (size_t i = 0; i < samples->mix.count; i++) {
        const Dataset *dataset = &samples->mix.datasets[i];
        text_buffer_format(&text, "weight %.17g\n", samples->weighted ? samples->mix.weights[i] : 0.0);
        for (size_t k = 0; k < dataset->shard_count; k++)
            text_buffer_format(&text, "%016llx\n", (unsigned long long)dataset->shards[k].header->tokens_checksum);
    }
    snprintf(hash, 24, "%016llx", (unsigned long long)XXH64(text.data, text.length, 0));
    text_buffer_free(&text);
}

static void tokenizer_hash_text(char hash[24], const Samples *samples) {
    snprintf(hash, 24, "%016llx", (unsigned long long)samples->mix.datasets[0].tokenizer_hash);
}

static void settings_hash(char hash[24], const Trainer *trainer) {
    int64_t batch_tokens = trainer->batch.micro_tokens * trainer->batch.grad_accum;
    snprintf(hash, 24, "%016llx", (unsigned long long)config_hash(&trainer->resolved, batch_tokens));
}

// What each island has for itself, beside its weights and moments.
static json_t *island_state(const Trainer *trainer) {
    json_t *root =
        json_pack("{s:I,s:o}", "applied", (json_int_t)trainer->applied, "guard", guard_json(&trainer->guard));
    if (trainer->loss_scale.scale > 0) json_object_set_new(root, "loss_scale", loss_scale_json(&trainer->loss_scale));
    if (trainer->model->router_bias) json_object_set_new(root, "router_bias", router_bias_json(trainer->model));
    if (trainer->model->fp8_scaled) fp8_scales_save(trainer->model, root);
    return root;
}

// Of all islands, on every rank.
static json_t *island_states(const Trainer *trainer) {
    const Ranks *ranks = &trainer->ranks;
    json_t *list = json_array();
    for (int i = 0; i < ranks->islands; i++) {
        json_t *mine = island_state(trainer);
        char *text = json_dumps(mine, JSON_COMPACT);
        ranks_broadcast_text(ranks->world, &text, i * ranks_of_island(ranks));
        json_array_append_new(list, json_loads(text, 0, NULL));
        free(text);
        json_decref(mine);
    }
    return list;
}

json_t *trainer_state(const Trainer *trainer) {
    char hash[24], data[24], tokenizer[24];
    tokenizer_hash_text(tokenizer, &trainer->train);
    settings_hash(hash, trainer);
    data_hash(data, &trainer->train);
    json_t *root = json_pack("{s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:s,s:o,s:o}", "step", (json_int_t)trainer->step, "tokens",
                             (json_int_t)trainer->tokens, "applied", (json_int_t)trainer->applied, "sample",
                             (json_int_t)trainer->sample, "seed", (json_int_t)trainer->config->train.seed,
                             "settings_hash", hash, "data_hash", data, "tokenizer_hash", tokenizer, "guard",
                             guard_json(&trainer->guard), "schedule", schedule_json(&trainer->schedule));
    bool fresh = trainer->val_step == trainer->step && isfinite(trainer->val_loss);
    if (trainer->model->router_bias) json_object_set_new(root, "router_bias", router_bias_json(trainer->model));
    if (trainer->model->fp8_scaled) fp8_scales_save(trainer->model, root);
    if (trainer->loss_scale.scale > 0) json_object_set_new(root, "loss_scale", loss_scale_json(&trainer->loss_scale));
    json_object_set_new(root, "val_loss", fresh ? json_real(trainer->val_loss) : json_null());
    if (trainer->ranks.islands > 1) json_object_set_new(root, "islands", island_states(trainer));
    return root;
}

// An island that the checkpoint does not know goes on as the first.
static Status restore_island(Trainer *trainer, const json_t *state, const char *where) {
    const json_t *own = json_array_get(json_object_get(state, "islands"), (size_t)ranks_island(&trainer->ranks));
    if (own) state = own;
    TRY(json_get_int(state, "applied", &trainer->applied, where));
    TRY(guard_restore(&trainer->guard, json_object_get(state, "guard"), where));
    TRY(loss_scale_restore(&trainer->loss_scale, state, where));
    TRY(fp8_scales_restore(trainer->model, state, where));
    return router_bias_restore(trainer->model, state, where);
}

static Status restore_position(Trainer *trainer, const json_t *state, const char *where, bool *same_config,
                               bool *same_data) {
    int64_t sample = 0;
    TRY(json_get_int(state, "step", &trainer->step, where));
    TRY(json_get_int(state, "tokens", &trainer->tokens, where));
    TRY(json_get_int(state, "sample", &sample, where));
    const char *hash =
        json_string_value(json_object_get(state, "settings_hash")); // checkpoints from before it have none
    if (trainer->step < 0 || trainer->tokens < 0 || sample < 0)
        return status_at(status_usage("state.json holds a negative position"), where, 0, 0);
    trainer->sample = (uint64_t)sample;
    char own[24];
    settings_hash(own, trainer);
    *same_config = !hash || strcmp(hash, own) == 0;
    hash = json_string_value(json_object_get(state, "tokenizer_hash"));
    tokenizer_hash_text(own, &trainer->train);
    if (hash && strcmp(hash, own) != 0)
        return config_blame(
            trainer->config, "data.train",
            status_hint(status_usage("the data was made with another tokenizer than that of %s: its tokens mean "
                                     "something else to the model",
                                     where),
                        "prepare the data with the run's tokenizer.json, or start another run"));
    hash = json_string_value(json_object_get(state, "data_hash"));
    data_hash(own, &trainer->train);
    *same_data = !hash || strcmp(hash, own) == 0;
    trainer->total_steps =
        run_steps_from(trainer->config, &trainer->batch, trainer->parameters.total, trainer->step, trainer->tokens);
    TRY(schedule_make(&trainer->schedule, trainer->config, &trainer->batch, trainer->total_steps));
    trainer->schedule_before = trainer->schedule;
    schedule_read(&trainer->schedule_before, json_object_get(state, "schedule"));
    return NULL;
}

Status trainer_restore(Trainer *trainer, const char *checkpoint, bool *same_config, bool *same_data) {
    json_t *state = NULL;
    bool outer = false;
    Status status = checkpoint_load(trainer->model, checkpoint, true, &state);
    if (!status) status = restore_position(trainer, state, checkpoint, same_config, same_data);
    if (!status) status = router_bias_restore(trainer->model, state, checkpoint);
    if (!status) status = fp8_scales_restore(trainer->model, state, checkpoint);
    if (!status) status = restore_island(trainer, state, checkpoint);
    if (!status) status = checkpoint_load_outer(trainer->model, checkpoint, &outer);
    if (!status && !outer) diloco_start(&trainer->diloco, trainer->model);
    json_decref(state);
    return status;
}
