// Times the operations of one training step on the CPU, each at the shapes of the 5.5M-parameter Llama of
// docs/performance-log.md (batch 8 x 256), and adds them up. Usage: cpu_ops [repetitions]
#include "base/clock.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    BATCH = 8,
    SEQ = 256,
    TOKENS = BATCH * SEQ,
    HIDDEN = 256,
    LAYERS = 6,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 64,
    QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
    FFN = 704,
    VOCAB = 4096,
    PARAMETERS = 5500000
};

typedef struct Bench {
    Ops *ops;
    DType dtype;
    void *a, *b, *c;      // large enough for any operand
    float *f, *g, *h, *i; // [PARAMETERS]
    int32_t *ids;
    int rows, in_dim, out_dim;
} Bench;

static void *allocate(Ops *ops, int64_t floats) {
    void *memory;
    Status status = ops->alloc(ops, &memory, (size_t)floats * 4, "a benchmark");
    if (status) {
        status_print(status, stderr);
        exit(1);
    }
    rng_fill_normal(memory, floats, 1, RNG_STREAM_BENCH, 0, 0, 0.02f);
    return memory;
}

static void fill(Bench *b, void *memory, int64_t count) {
    if (b->dtype == DTYPE_F32)
        rng_fill_normal(memory, count, 1, RNG_STREAM_BENCH, 0, 0, 0.5f);
    else
        b->ops->cast(b->ops, memory, DTYPE_BF16, b->f, DTYPE_F32, count);
}

typedef void Work(Bench *b);

static void forward(Bench *b) {
    b->ops->linear_forward(b->ops, b->c, b->a, b->in_dim, b->b, NULL, b->rows, b->in_dim, b->out_dim, b->dtype);
}
static void backward_input(Bench *b) {
    b->ops->linear_backward_input(b->ops, b->c, b->a, b->b, b->rows, b->in_dim, b->out_dim, b->dtype);
}
static void backward_weight(Bench *b) {
    b->ops->linear_backward_weight(b->ops, b->f, b->a, b->b, b->in_dim, b->rows, b->in_dim, b->out_dim, true, b->dtype);
}

static AttentionShape attention_shape(void) {
    return (AttentionShape){BATCH, SEQ, HEADS, KV_HEADS, HEAD_DIM, QKV, QKV, QKV, HEADS * HEAD_DIM, 0.125f, NULL};
}
static char *part(Bench *b, void *qkv, int heads) {
    return (char *)qkv + (size_t)heads * HEAD_DIM * dtype_size(b->dtype);
}
static void attention_forward(Bench *b) {
    AttentionShape shape = attention_shape();
    b->ops->attention_forward(b->ops, b->c, b->g, b->a, part(b, b->a, HEADS), part(b, b->a, HEADS + KV_HEADS), &shape,
                              b->dtype);
}
static void attention_backward(Bench *b) {
    AttentionShape shape = attention_shape();
    b->ops->attention_backward(b->ops, b->b, part(b, b->b, HEADS), part(b, b->b, HEADS + KV_HEADS), QKV, b->c, b->c,
                               b->g, b->a, part(b, b->a, HEADS), part(b, b->a, HEADS + KV_HEADS), &shape, NULL,
                               b->dtype);
}
static void norm_forward(Bench *b) {
    b->ops->add_rmsnorm_forward(b->ops, b->c, b->b, b->g, b->a, b->c, b->b, TOKENS, HIDDEN, 1e-5f, b->dtype);
}
static void norm_backward(Bench *b) {
    b->ops->add_rmsnorm_backward(b->ops, b->c, b->h, b->a, b->a, b->g, b->b, TOKENS, HIDDEN, false, b->dtype);
}
static void rope(Bench *b) {
    QkRopeShape shape = {TOKENS, SEQ, 0, HEADS, KV_HEADS, HEAD_DIM, b->f, b->h, NULL, NULL, 0};
    b->ops->qk_rope_forward(b->ops, b->a, QKV, b->a, QKV, NULL, &shape, b->dtype);
}
static void swiglu_forward(Bench *b) {
    b->ops->swiglu_forward(b->ops, b->c, b->a, NULL, NULL, TOKENS, FFN, b->dtype);
}
static void swiglu_backward(Bench *b) {
    b->ops->swiglu_packed_backward(b->ops, b->b, b->a, b->c, TOKENS, FFN, b->dtype);
}
static void embedding(Bench *b) {
    b->ops->embedding_forward(b->ops, b->c, b->ids, b->a, TOKENS, HIDDEN, b->dtype);
    b->ops->embedding_backward(b->ops, b->f, b->c, b->ids, TOKENS, HIDDEN, VOCAB, b->dtype);
}
static void cross_entropy(Bench *b) {
    float scale = 1.0f / TOKENS;
    b->ops->cross_entropy(b->ops, b->g, b->a, b->ids, &scale, TOKENS, VOCAB, b->dtype);
}
static void optimizer(Bench *b) {
    b->ops->norm_f32(b->ops, b->i, b->f, PARAMETERS);
    AdamwArgs args = {.count = PARAMETERS,
                      .weight = b->a,
                      .m = b->g,
                      .v = b->h,
                      .grad = b->f,
                      .dtype = b->dtype,
                      .master_low = b->dtype == DTYPE_F32 ? NULL : (int16_t *)b->b,
                      .lr = 1e-4f,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .weight_decay = 0.1f,
                      .bias1 = 0.1f,
                      .bias2 = 0.05f,
                      .max_norm = 1,
                      .norm = b->i};
    b->ops->adamw(b->ops, &args);
}

// Best of the repetitions, in milliseconds.
static double measure(Bench *b, Work *work, int repetitions) {
    double best = INFINITY;
    for (int i = 0; i < repetitions; i++) {
        double start = clock_seconds();
        work(b);
        best = fmin(best, 1e3 * (clock_seconds() - start));
    }
    return best;
}

static double report(Bench *b, const char *name, Work *work, double gflop, int per_step, int repetitions) {
    int64_t most = (int64_t)TOKENS * VOCAB;
    fill(b, b->a, most);
    double ms = measure(b, work, repetitions);
    printf("  %-26s %8.3f ms", name, ms);
    if (gflop > 0)
        printf("  %7.1f GFLOP/s", gflop / ms * 1e3);
    else
        printf("  %15s", "");
    printf("  x %2d = %8.2f ms\n", per_step, ms * per_step);
    return ms * per_step;
}

static void bench_dtype(Bench *b, DType dtype, int repetitions) {
    b->dtype = dtype;
    int64_t most = (int64_t)TOKENS * VOCAB;
    double total = 0, products = 0, others = 0;
    fill(b, b->b, most), fill(b, b->c, most);
    printf("%s, %d threads\n", dtype_name(dtype), threads_count());
    const struct {
        const char *name;
        int in_dim, out_dim, times;
    } linear[] = {{"qkv", HIDDEN, QKV, LAYERS},
                  {"o", HIDDEN, HIDDEN, LAYERS},
                  {"gate_up", HIDDEN, 2 * FFN, LAYERS},
                  {"down", FFN, HIDDEN, LAYERS},
                  {"head", HIDDEN, VOCAB, 1}};
    for (size_t i = 0; i < sizeof linear / sizeof *linear; i++) {
        const char *kind[] = {"forward", "dgrad", "wgrad"};
        Work *work[] = {forward, backward_input, backward_weight};
        b->rows = TOKENS, b->in_dim = linear[i].in_dim, b->out_dim = linear[i].out_dim;
        for (int j = 0; j < 3; j++) {
            char *name = text_format("%s %s", linear[i].name, kind[j]);
            products += report(b, name, work[j], 2e-9 * TOKENS * b->in_dim * b->out_dim, linear[i].times, repetitions);
            free(name);
        }
    }
    double scores = 2e-9 * BATCH * HEADS * (double)SEQ * SEQ / 2 * HEAD_DIM; // one product, causal half
    double attention = report(b, "attention forward", attention_forward, 2 * scores, LAYERS, repetitions) +
                       report(b, "attention backward", attention_backward, 5 * scores, LAYERS, repetitions);
    others += report(b, "add + norm forward", norm_forward, 0, 2 * LAYERS + 1, repetitions);
    others += report(b, "add + norm backward", norm_backward, 0, 2 * LAYERS + 1, repetitions);
    others += report(b, "rope", rope, 0, 2 * LAYERS, repetitions);
    others += report(b, "swiglu forward", swiglu_forward, 0, LAYERS, repetitions);
    others += report(b, "swiglu backward", swiglu_backward, 0, LAYERS, repetitions);
    others += report(b, "embedding, both", embedding, 0, 1, repetitions);
    others += report(b, "cross entropy", cross_entropy, 0, 1, repetitions);
    others += report(b, "norm + AdamW", optimizer, 0, 1, repetitions);
    total = products + attention + others;
    printf("  step: products %.1f + attention %.1f + others %.1f = %.1f ms, %.0f tok/s\n", products, attention, others,
           total, TOKENS / total * 1e3);
}

int main(int argc, char **argv) {
    int repetitions = argc > 1 ? atoi(argv[1]) : 10;
    if (repetitions < 1) repetitions = 1;
    Bench b = {0};
    Status status = ops_cpu_create(&b.ops);
    if (status) {
        status_print(status, stderr);
        return 1;
    }
    OpsWorkspaceRequest request = {.tokens = TOKENS,
                                   .batch = BATCH,
                                   .seq = SEQ,
                                   .hidden = HIDDEN,
                                   .heads = HEADS,
                                   .kv_heads = KV_HEADS,
                                   .head_dim = HEAD_DIM,
                                   .vocab = VOCAB,
                                   .logits_rows = TOKENS,
                                   .parameters = PARAMETERS,
                                   .dtype = DTYPE_BF16,
                                   .threads = threads_count()};
    size_t workspace = ops_cpu_workspace(&request);
    void *space = allocate(b.ops, (int64_t)workspace / 4);
    b.ops->bind_workspace(b.ops, space, workspace);
    int64_t most = (int64_t)TOKENS * VOCAB;
    b.a = allocate(b.ops, most), b.b = allocate(b.ops, most), b.c = allocate(b.ops, most);
    b.f = allocate(b.ops, most), b.g = allocate(b.ops, most), b.h = allocate(b.ops, most), b.i = allocate(b.ops, 64);
    b.ids = allocate(b.ops, TOKENS);
    for (int i = 0; i < TOKENS; i++)
        b.ids[i] = (int32_t)rng_below(2, RNG_STREAM_BENCH, (uint64_t)i, VOCAB);
    bench_dtype(&b, DTYPE_F32, repetitions);
    bench_dtype(&b, DTYPE_BF16, repetitions);
    void *memory[] = {b.a, b.b, b.c, b.f, b.g, b.h, b.i, b.ids, space};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        b.ops->free(b.ops, memory[i], 0);
    ops_cpu_destroy(b.ops);
    return 0;
}
