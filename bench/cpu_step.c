// One training step on the CPU at a fixed small shape (a 5.5M-parameter Llama, batch 8 x 256), timed: tokens per
// second, GFLOP/s by the usual count, and where the time goes. The shape is that of a PyTorch program of the same
// model, so the two can be compared on one machine.
#include "base/clock.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = 12, WARM = 2 };

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void one_step(Model *model, const int32_t *ids, const int32_t *targets, int64_t tokens, int64_t step) {
    model_step_begin(model, tokens, 1);
    model_micro_step(model, ids, targets, NULL);
    OptimizerStep optimizer = {.step = step,
                               .lr = 3e-4f,
                               .beta1 = 0.9f,
                               .beta2 = 0.999f,
                               .eps = 1e-8f,
                               .weight_decay = 0.01f,
                               .max_norm = 1,
                               .loss_limit = INFINITY,
                               .norm_limit = INFINITY};
    model_optimizer_step(model, &optimizer);
}

int main(int argc, char **argv) {
    LayoutRequest request = {.config = {.arch = MODEL_LLAMA,
                                        .vocab = 4096,
                                        .hidden = 256,
                                        .layers = 6,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = 64,
                                        .ffn = 704,
                                        .max_positions = 256,
                                        .norm_eps = 1e-5f,
                                        .init_std = 0.02f,
                                        .tied = true,
                                        .rope_theta = 10000,
                                        .sparse_step = 1},
                             .mesh = MESH_SINGLE,
                             .micro_batch = 8,
                             .seq = 256,
                             .device = DEVICE_CPU};
    Ops *ops;
    Model *model = NULL;
    Status status = argc > 1 ? precision_parse(&request.precision, argv[1]) : NULL;
    request.threads = threads_count();
    if (!status) status = ops_create(&ops, "cpu");
    if (!status) status = model_create(&model, ops, &request);
    if (status) {
        status_print(status, stderr);
        return (int)status_code(status);
    }
    int64_t tokens = model->layout.tokens;
    int32_t *ids = xmalloc(2 * (size_t)tokens * sizeof *ids), *targets = ids + tokens;
    for (int64_t i = 0; i < 2 * tokens; i++)
        ids[i] = (int32_t)rng_below(1, RNG_STREAM_BENCH, (uint64_t)i, (uint64_t)request.config.vocab);
    model_init_weights(model, 1, false);
    double seconds[STEPS], of_ops[OP_COUNT], split[CATEGORY_COUNT];
    for (int step = 0; step < STEPS; step++) {
        double start = clock_seconds();
        one_step(model, ids, targets, tokens, step + 1);
        seconds[step] = clock_seconds() - start;
    }
    qsort(seconds + WARM, STEPS - WARM, sizeof *seconds, compare);
    double median = seconds[WARM + (STEPS - WARM) / 2];
    ops->profile_start(ops);
    double start = clock_seconds();
    one_step(model, ids, targets, tokens, STEPS + 1);
    double whole = 1e3 * (clock_seconds() - start);
    ops->profile_stop(ops, of_ops);
    op_sum_categories(of_ops, split);
    ModelParameters parameters = model_parameters(&request.config);
    // 6 FLOPs per parameter and token, and causal attention: 6 * layers * heads * head_dim * seq.
    double flops = (double)tokens * (6.0 * (double)parameters.matmul_active +
                                     6.0 * request.config.layers * model_attention_dim(&request.config) * request.seq);
    printf("%lld parameters, %s, batch %d x %d, %d threads: step %.1f ms, %.0f tok/s, %.1f GFLOP/s\n",
           (long long)parameters.total, precision_name(request.precision), request.micro_batch, request.seq,
           threads_count(), 1e3 * median, (double)tokens / median, flops / median / 1e9);
    for (int i = 0; i < CATEGORY_COUNT; i++)
        printf("  %-12s %6.1f ms  %4.1f %%\n", op_category_name((OpCategory)i), split[i], 100 * split[i] / whole);
    model_destroy(model);
    ops_destroy(ops);
    free(ids);
    return 0;
}
