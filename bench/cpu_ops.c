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
        for (int64_t i = 0; i < count; i++)
            ((bf16 *)memory)[i] = bf16_from_f32(b->f[i]);
}

static Tensor stored(Bench *b, void *data, int64_t rows, int64_t cols) {
    return tensor_make(data, b->dtype, rows, cols, "operand");
}
static Tensor floats(float *data, int64_t rows, int64_t cols) {
    return tensor_make(data, DTYPE_F32, rows, cols, "floats");
}
static Tensor ints(int32_t *data, int64_t rows, int64_t cols) {
    return tensor_make(data, DTYPE_I32, rows, cols, "ints");
}

typedef void Work(Bench *b);

static void forward(Bench *b) {
    b->ops->linear_forward(b->ops, stored(b, b->c, b->rows, b->out_dim), stored(b, b->a, b->rows, b->in_dim),
                           stored(b, b->b, b->out_dim, b->in_dim), TENSOR_NONE);
}
static void backward_input(Bench *b) {
    b->ops->linear_backward_input(b->ops, stored(b, b->c, b->rows, b->in_dim), stored(b, b->a, b->rows, b->out_dim),
                                  stored(b, b->b, b->out_dim, b->in_dim));
}
static void backward_weight(Bench *b) {
    b->ops->linear_backward_weight(b->ops, floats(b->f, b->out_dim, b->in_dim), stored(b, b->a, b->rows, b->out_dim),
                                   stored(b, b->b, b->rows, b->in_dim), true);
}

static const Attention attention = {.seq = SEQ, .head_dim = HEAD_DIM, .scale = 0.125f};

static Tensor heads(Bench *b, void *qkv, int first, int count) { // of the query, key and value heads side by side
    return tensor_cols(stored(b, qkv, TOKENS, QKV), (int64_t)first * HEAD_DIM, (int64_t)count * HEAD_DIM);
}
static void attention_forward(Bench *b) {
    b->ops->attention_forward(b->ops, stored(b, b->c, TOKENS, HEADS * HEAD_DIM), floats(b->g, BATCH * HEADS, SEQ),
                              heads(b, b->a, 0, HEADS), heads(b, b->a, HEADS, KV_HEADS),
                              heads(b, b->a, HEADS + KV_HEADS, KV_HEADS), &attention);
}
static void attention_backward(Bench *b) {
    Tensor out = stored(b, b->c, TOKENS, HEADS * HEAD_DIM);
    b->ops->attention_backward(b->ops, heads(b, b->b, 0, HEADS), heads(b, b->b, HEADS, KV_HEADS),
                               heads(b, b->b, HEADS + KV_HEADS, KV_HEADS), out, out, floats(b->g, BATCH * HEADS, SEQ),
                               heads(b, b->a, 0, HEADS), heads(b, b->a, HEADS, KV_HEADS),
                               heads(b, b->a, HEADS + KV_HEADS, KV_HEADS), &attention, NULL);
}
static void norm_forward(Bench *b) {
    b->ops->add_rmsnorm_forward(b->ops, stored(b, b->c, TOKENS, HIDDEN), stored(b, b->b, TOKENS, HIDDEN),
                                floats(b->g, TOKENS, 1), stored(b, b->a, TOKENS, HIDDEN),
                                stored(b, b->c, TOKENS, HIDDEN), stored(b, b->b, 1, HIDDEN), 1e-5f);
}
static void norm_backward(Bench *b) {
    b->ops->add_rmsnorm_backward(b->ops, stored(b, b->c, TOKENS, HIDDEN), floats(b->h, 1, HIDDEN),
                                 stored(b, b->a, TOKENS, HIDDEN), stored(b, b->a, TOKENS, HIDDEN),
                                 floats(b->g, TOKENS, 1), stored(b, b->b, 1, HIDDEN), false);
}
static void rope(Bench *b) {
    Rope rotation = {.seq = SEQ,
                     .heads = HEADS,
                     .kv_heads = KV_HEADS,
                     .head_dim = HEAD_DIM,
                     .cos = floats(b->f, SEQ, HEAD_DIM / 2),
                     .sin = floats(b->h, SEQ, HEAD_DIM / 2)};
    Tensor rotated = heads(b, b->a, 0, HEADS + KV_HEADS);
    b->ops->qk_rope_forward(b->ops, rotated, TENSOR_NONE, rotated, &rotation);
}
static void swiglu_forward(Bench *b) {
    b->ops->swiglu_forward(b->ops, stored(b, b->c, TOKENS, FFN), stored(b, b->a, TOKENS, 2 * FFN), TENSOR_NONE,
                           TENSOR_NONE);
}
static void swiglu_backward(Bench *b) {
    b->ops->swiglu_packed_backward(b->ops, stored(b, b->b, TOKENS, 2 * FFN), stored(b, b->a, TOKENS, 2 * FFN),
                                   stored(b, b->c, TOKENS, FFN));
}
static void embedding(Bench *b) {
    Tensor rows = stored(b, b->c, TOKENS, HIDDEN), ids = ints(b->ids, TOKENS, 1);
    b->ops->embedding_forward(b->ops, rows, ids, stored(b, b->a, VOCAB, HIDDEN), 0);
    b->ops->embedding_backward(b->ops, floats(b->f, VOCAB, HIDDEN), rows, ids, 0);
}
static void cross_entropy(Bench *b) {
    float scale = 1.0f / TOKENS;
    b->ops->cross_entropy(b->ops, floats(b->g, TOKENS, 1), stored(b, b->a, TOKENS, VOCAB), ints(b->ids, TOKENS, 1),
                          floats(&scale, 1, 1));
}
static void optimizer(Bench *b) {
    int32_t skip = 0;
    b->ops->norm_f32(b->ops, floats(b->i, 1, 1), floats(b->f, 1, PARAMETERS));
    AdamwArgs args = {.weight = stored(b, b->a, 1, PARAMETERS),
                      .m = floats(b->g, 1, PARAMETERS),
                      .v = floats(b->h, 1, PARAMETERS),
                      .grad = floats(b->f, 1, PARAMETERS),
                      .lr = 1e-4f,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .weight_decay = 0.1f,
                      .bias1 = 0.1f,
                      .bias2 = 0.05f,
                      .max_norm = 1,
                      .norm = floats(b->i, 1, 1),
                      .skip = ints(&skip, 1, 1)};
    if (b->dtype == DTYPE_BF16) args.master = tensor_make(b->b, DTYPE_U16, 1, PARAMETERS, "master");
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
    double attended = report(b, "attention forward", attention_forward, 2 * scores, LAYERS, repetitions) +
                      report(b, "attention backward", attention_backward, 5 * scores, LAYERS, repetitions);
    others += report(b, "add + norm forward", norm_forward, 0, 2 * LAYERS + 1, repetitions);
    others += report(b, "add + norm backward", norm_backward, 0, 2 * LAYERS + 1, repetitions);
    others += report(b, "rope", rope, 0, 2 * LAYERS, repetitions);
    others += report(b, "swiglu forward", swiglu_forward, 0, LAYERS, repetitions);
    others += report(b, "swiglu backward", swiglu_backward, 0, LAYERS, repetitions);
    others += report(b, "embedding, both", embedding, 0, 1, repetitions);
    others += report(b, "cross entropy", cross_entropy, 0, 1, repetitions);
    others += report(b, "norm + AdamW", optimizer, 0, 1, repetitions);
    total = products + attended + others;
    printf("  step: products %.1f + attention %.1f + others %.1f = %.1f ms, %.0f tok/s\n", products, attended, others,
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
