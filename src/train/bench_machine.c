#include "train/bench_machine.h"

#include "base/clock.h"
#include "base/threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Shape { // a linear layer
    int64_t rows;
    int in, out;
    int experts; // 1: a plain product
} Shape;

// The linear layers of the presets at the rows they train with; the last of each list are grouped.
static const Shape gpu_shapes[] = {
    {32768, 960, 1600, 1},  {32768, 960, 960, 1},      {32768, 960, 5120, 1},    {32768, 2560, 960, 1},
    {8192, 960, 49152, 1},  {32768, 2048, 3072, 1},    {32768, 2048, 2048, 1},   {32768, 2048, 16384, 1},
    {32768, 8192, 2048, 1}, {8192, 2048, 128256, 1},   {4096, 4096, 4096, 1},    {8192, 960, 5120, 1},
    {8192, 2048, 16384, 1}, {32768, 896, 2688, 1},     {8192, 896, 151936, 1},   {65536, 896, 1024, 16},
    {65536, 512, 896, 16},  {131072, 2048, 1536, 128}, {131072, 768, 2048, 128},
};
static const Shape cpu_shapes[] = {
    {2048, 256, 512, 1}, {2048, 256, 1408, 1}, {2048, 704, 256, 1}, {2048, 256, 4096, 1}, {2048, 160, 480, 1},
    {2048, 160, 896, 1}, {2048, 448, 160, 1},  {512, 960, 5120, 1}, {4096, 128, 256, 8},  {4096, 128, 128, 8},
};

typedef struct HeadShape {
    int batch, seq, heads, kv_heads, head_dim;
} HeadShape;
static const HeadShape gpu_heads[] = {{64, 512, 15, 5, 64},  {16, 2048, 15, 5, 64}, {8, 4096, 32, 8, 64},
                                      {8, 4096, 16, 16, 56}, {4, 4096, 32, 4, 128}, {1, 16384, 32, 8, 128},
                                      {16, 1024, 16, 8, 128}};
static const HeadShape cpu_heads[] = {{8, 256, 4, 2, 64}, {8, 256, 5, 5, 32}, {2, 1024, 4, 2, 64}, {1, 512, 15, 5, 64}};

enum { BUFFERS = 6, RANDOM_COUNT = 1 << 20, REPEATS = 3 };

typedef struct Bench {
    Ops *ops;
    DType dtype;
    bool cuda, quick;
    void *buffer[BUFFERS];
    size_t bytes[BUFFERS];
    void *workspace;
    size_t workspace_bytes;
    Shape shape;
    HeadShape heads;
    int direction; // 0 forward, 1 input gradient, 2 weight gradient
} Bench;

// ---- buffers --------------------------------------------------------------------------------------------------------

// Random values: the power that a GPU draws, and with it its clock, depends on them.
static void fill_random(Bench *b, void *memory, size_t bytes) {
    size_t size = dtype_size(b->dtype), block = RANDOM_COUNT * size;
    void *host = xmalloc(block);
    for (int i = 0; i < RANDOM_COUNT; i++) {
        float value = 0.05f * (float)(((unsigned)i * 2654435761u >> 8) % 2001 - 1000.0f) / 1000.0f;
        if (b->dtype == DTYPE_F32)
            ((float *)host)[i] = value;
        else
            ((uint16_t *)host)[i] = bf16_from_f32(value);
    }
    for (size_t done = 0; done < bytes; done += block)
        b->ops->upload(b->ops, (char *)memory + done, host, bytes - done < block ? bytes - done : block);
    free(host);
}

static Status reserve(Bench *b, int index, size_t bytes) {
    if (b->bytes[index] >= bytes) return NULL;
    if (b->buffer[index]) b->ops->free(b->ops, b->buffer[index], b->bytes[index]);
    b->buffer[index] = NULL;
    b->bytes[index] = 0;
    TRY(b->ops->alloc(b->ops, &b->buffer[index], bytes, "bench buffer"));
    b->bytes[index] = bytes;
    fill_random(b, b->buffer[index], bytes);
    return NULL;
}

static bool fits(Bench *b, size_t bytes) {
    return (double)bytes < 0.5 * (double)b->ops->memory_free(b->ops);
}

static void release(Bench *b) {
    for (int i = 0; i < BUFFERS; i++)
        if (b->buffer[i]) b->ops->free(b->ops, b->buffer[i], b->bytes[i]);
    if (b->workspace) b->ops->free(b->ops, b->workspace, b->workspace_bytes);
}

// ---- time -----------------------------------------------------------------------------------------------------------

typedef void (*Work)(Bench *b);

// Seconds of one run: the best of a few rounds, each long enough for the clock.
static double seconds_of(Bench *b, Work work) {
    Ops *ops = b->ops;
    double round = b->quick ? 5e-3 : 2e-2, best = INFINITY;
    work(b); // tunes and warms up
    ops->mark(ops, 0);
    work(b);
    ops->mark(ops, 1);
    double once = 1e-3 * ops->mark_elapsed(ops, 0, 1);
    int count = (int)fmin(1000, fmax(1, ceil(round / fmax(once, 1e-7))));
    for (int i = 0; i < REPEATS; i++) {
        ops->mark(ops, 0);
        for (int k = 0; k < count; k++)
            work(b);
        ops->mark(ops, 1);
        best = fmin(best, 1e-3 * ops->mark_elapsed(ops, 0, 1) / count);
    }
    return best;
}

// ---- what is measured -----------------------------------------------------------------------------------------------

static void run_linear(Bench *b) {
    const Shape *s = &b->shape;
    Ops *ops = b->ops;
    void *in = b->buffer[0], *weight = b->buffer[1], *out = b->buffer[2], *offsets = b->buffer[4];
    float *dweight = b->buffer[3];
    if (s->experts == 1) {
        if (b->direction == 0) ops->linear_forward(ops, out, in, weight, s->rows, s->in, s->out, b->dtype);
        if (b->direction == 1) ops->linear_backward_input(ops, in, out, weight, s->rows, s->in, s->out, b->dtype);
        if (b->direction == 2)
            ops->linear_backward_weight(ops, dweight, out, in, s->rows, s->in, s->out, true, b->dtype);
        return;
    }
    if (b->direction == 0)
        ops->grouped_linear_forward(ops, out, in, weight, offsets, s->experts, s->rows, s->in, s->out, b->dtype);
    if (b->direction == 1)
        ops->grouped_linear_backward_input(ops, in, out, weight, offsets, s->experts, s->rows, s->in, s->out, b->dtype);
    if (b->direction == 2)
        ops->grouped_linear_backward_weight(ops, dweight, out, in, offsets, s->experts, s->rows, s->in, s->out, true,
                                            b->dtype);
}

static Status measure_linear(Bench *b, const Shape *shape, TextBuffer *toml) {
    size_t size = dtype_size(b->dtype), weights = (size_t)shape->experts * (size_t)shape->in * (size_t)shape->out;
    size_t in = (size_t)shape->rows * (size_t)shape->in * size, out = (size_t)shape->rows * (size_t)shape->out * size;
    if (!fits(b, in + out + weights * (size + 4))) return NULL;
    TRY(reserve(b, 0, in));
    TRY(reserve(b, 1, weights * size));
    TRY(reserve(b, 2, out));
    TRY(reserve(b, 3, weights * 4));
    TRY(reserve(b, 4, 4096));
    int32_t offsets[1024];
    for (int i = 0; i <= shape->experts; i++)
        offsets[i] = (int32_t)(shape->rows / shape->experts * i);
    b->ops->upload(b->ops, b->buffer[4], offsets, (size_t)(shape->experts + 1) * sizeof *offsets);
    b->shape = *shape;
    double flops = 2.0 * (double)shape->rows * shape->in * shape->out;
    int64_t each = shape->rows / shape->experts;
    for (b->direction = 0; b->direction < 3; b->direction++) {
        b->ops->zero(b->ops, b->buffer[3], weights * 4); // sums stay finite
        double rate = flops / seconds_of(b, run_linear);
        int64_t m = b->direction == 2 ? shape->out : each, k = b->direction == 2 ? each : shape->in;
        int64_t n = b->direction == 0 ? shape->out : shape->in;
        if (b->direction == 1) k = shape->out;
        text_buffer_format(toml, "    {dtype = \"%s\", kind = \"%s\", m = %lld, n = %lld, k = %lld, tflops = %.4g},\n",
                           b->dtype == DTYPE_F32 ? "fp32" : "bf16", shape->experts > 1 ? "grouped" : "dense",
                           (long long)m, (long long)n, (long long)k, rate / 1e12);
    }
    return b->ops->sync(b->ops);
}

static void run_attention(Bench *b) {
    const HeadShape *h = &b->heads;
    size_t size = dtype_size(b->dtype);
    int64_t q = (int64_t)h->heads * h->head_dim, kv = (int64_t)h->kv_heads * h->head_dim, stride = q + 2 * kv;
    AttentionShape shape = {.batch = h->batch,
                            .seq = h->seq,
                            .heads = h->heads,
                            .kv_heads = h->kv_heads,
                            .head_dim = h->head_dim,
                            .q_stride = stride,
                            .k_stride = stride,
                            .v_stride = stride,
                            .o_stride = q,
                            .scale = 1.0f / sqrtf((float)h->head_dim)};
    char *in = b->buffer[0], *grad = b->buffer[1];
    float *lse = b->buffer[3];
    const char *k = in + (size_t)q * size, *v = in + (size_t)(q + kv) * size;
    if (b->direction == 0) {
        b->ops->attention_forward(b->ops, b->buffer[2], lse, in, k, v, &shape, b->dtype);
        return;
    }
    b->ops->attention_backward(b->ops, grad, grad + (size_t)q * size, grad + (size_t)(q + kv) * size, stride,
                               b->buffer[5], b->buffer[2], lse, in, k, v, &shape, b->dtype);
}

static Status measure_attention(Bench *b, const HeadShape *heads, TextBuffer *toml) {
    size_t tokens = (size_t)heads->batch * (size_t)heads->seq, size = dtype_size(b->dtype);
    size_t q = (size_t)heads->heads * (size_t)heads->head_dim, kv = (size_t)heads->kv_heads * (size_t)heads->head_dim;
    if (!fits(b, tokens * (3 * q + 4 * kv) * size * 2)) return NULL;
    TRY(reserve(b, 0, tokens * (q + 2 * kv) * size));
    TRY(reserve(b, 1, tokens * (q + 2 * kv) * size));
    TRY(reserve(b, 2, tokens * q * size));
    TRY(reserve(b, 3, tokens * (size_t)heads->heads * 4));
    TRY(reserve(b, 5, tokens * q * size));
    b->heads = *heads;
    double triangle = (double)heads->batch * heads->heads * heads->seq * heads->seq * heads->head_dim;
    b->direction = 0;
    double forward = 2 * triangle / seconds_of(b, run_attention);
    b->direction = 1;
    double backward = 5 * triangle / seconds_of(b, run_attention);
    text_buffer_format(toml, "    {head_dim = %d, seq = %d, forward_tflops = %.4g, backward_tflops = %.4g},\n",
                       heads->head_dim, heads->seq, forward / 1e12, backward / 1e12);
    return b->ops->sync(b->ops);
}

static void run_copy(Bench *b) {
    b->ops->copy(b->ops, b->buffer[2], b->buffer[0], (size_t)b->shape.rows);
}

// As training runs them: read two, write two; and SwiGLU's three passes.
static void run_norm(Bench *b) {
    b->ops->add_rmsnorm_forward(b->ops, b->buffer[2], b->buffer[1], b->buffer[3], b->buffer[0], b->buffer[5],
                                b->buffer[4], b->shape.rows, b->shape.in, 1e-5f, b->dtype);
}

static void run_swiglu(Bench *b) {
    b->ops->swiglu_forward(b->ops, b->buffer[2], b->buffer[0], NULL, NULL, b->shape.rows / 2, b->shape.in, b->dtype);
}

enum { TINY = 200 };

static void run_tiny(Bench *b) {
    for (int i = 0; i < TINY; i++)
        b->ops->fill_f32(b->ops, b->buffer[3], 0, 32);
}

// Kernels that do next to nothing, one after the other, in a recorded graph where there is one: as training runs them.
static Status measure_gap(Bench *b, double *gap) {
    Ops *ops = b->ops;
    void *graph = NULL;
    double best = INFINITY;
    run_tiny(b);
    ops->graph_begin(ops);
    run_tiny(b);
    TRY(ops->graph_end(ops, &graph));
    for (int i = 0; i < 2 * REPEATS; i++) {
        ops->mark(ops, 0);
        if (graph)
            ops->graph_launch(ops, graph);
        else
            run_tiny(b);
        ops->mark(ops, 1);
        best = fmin(best, 1e-3 * ops->mark_elapsed(ops, 0, 1) / TINY);
    }
    if (graph) ops->graph_free(ops, graph);
    *gap = best;
    return NULL;
}

static Status measure_memory(Bench *b, TextBuffer *toml) {
    int64_t rows = b->cuda ? 65536 : 8192, dim = b->cuda ? 2048 : 256;
    size_t size = dtype_size(b->dtype), bytes = (size_t)(rows * dim) * size;
    if (!fits(b, 4 * bytes)) rows /= 8, bytes /= 8;
    for (int i = 0; i < BUFFERS; i++)
        TRY(reserve(b, i, i == 3 ? (size_t)rows * 4 : i == 4 ? (size_t)dim * size : bytes));
    b->shape = (Shape){.rows = (int64_t)bytes};
    double copy = 2 * (double)bytes / seconds_of(b, run_copy);
    b->shape = (Shape){.rows = rows, .in = (int)dim};
    double norm = 4 * (double)bytes / seconds_of(b, run_norm), swiglu = 1.5 * (double)bytes / seconds_of(b, run_swiglu);
    double gap;
    TRY(measure_gap(b, &gap));
    void *host = xcalloc(1, bytes);
    b->ops->upload(b->ops, b->buffer[0], host, bytes); // the first one touches the host's pages
    double start = clock_seconds();
    b->ops->upload(b->ops, b->buffer[0], host, bytes);
    TRY(b->ops->sync(b->ops));
    double upload = (double)bytes / (clock_seconds() - start);
    free(host);
    text_buffer_format(toml,
                       "copy_GBps = %.4g         # read + write\nelementwise_GBps = %.4g  # RMSNorm and SwiGLU, mean\n"
                       "launch_gap_us = %.3g\nhost_GBps = %.3g\nmemory_gib = %.3f\n",
                       copy / 1e9, sqrt(norm * swiglu) / 1e9, 1e6 * gap, upload / 1e9,
                       (double)b->ops->memory_total(b->ops) / 1073741824.0);
    return NULL;
}

static Status bind_workspace(Bench *b) {
    OpsWorkspaceRequest request = {.tokens = b->cuda ? 65536 : 8192,
                                   .batch = b->cuda ? 64 : 8,
                                   .seq = b->cuda ? 16384 : 1024,
                                   .hidden = b->cuda ? 8192 : 1024,
                                   .heads = 32,
                                   .kv_heads = 16,
                                   .head_dim = 128,
                                   .vocab = b->cuda ? 151936 : 8192,
                                   .experts = 128,
                                   .top_k = 8,
                                   .logits_rows = 8192,
                                   .parameters = 1 << 24,
                                   .dtype = b->dtype,
                                   .threads = threads_count()};
    b->workspace_bytes = b->cuda ? ops_cuda_workspace(&request) : ops_cpu_workspace(&request);
    // In training, attention's backward pass borrows temporaries as scratch; here it gets as much of its own.
    size_t lent = (size_t)9 << 28;
    if (b->cuda && b->workspace_bytes < lent && fits(b, 4 * lent)) b->workspace_bytes = lent;
    TRY(b->ops->alloc(b->ops, &b->workspace, b->workspace_bytes, "bench workspace"));
    b->ops->bind_workspace(b->ops, b->workspace, b->workspace_bytes);
    return NULL;
}

static Status measure(Bench *b, TextBuffer *toml) {
    const Shape *shapes = b->cuda ? gpu_shapes : cpu_shapes;
    const HeadShape *heads = b->cuda ? gpu_heads : cpu_heads;
    int shape_count = (int)(b->cuda ? sizeof gpu_shapes : sizeof cpu_shapes) / (int)sizeof *shapes;
    int head_count = (int)(b->cuda ? sizeof gpu_heads : sizeof cpu_heads) / (int)sizeof *heads;
    TRY(bind_workspace(b));
    TRY(measure_memory(b, toml));
    text_buffer_format(toml,
                       "\n# m x k by k x n: forward, input gradient and weight gradient of each layer\ngemm = [\n");
    for (int i = 0; i < shape_count; i += b->quick ? 3 : 1)
        TRY(measure_linear(b, &shapes[i], toml));
    text_buffer_format(toml, "]\n\n# causal FLOPs counted\nattention = [\n");
    for (int i = 0; i < head_count; i += b->quick ? 2 : 1)
        TRY(measure_attention(b, &heads[i], toml));
    text_buffer_format(toml, "]\n");
    return NULL;
}

Status bench_machine(Ops *ops, const char *gpu, bool quick, TextBuffer *toml) {
    Bench b = {.ops = ops, .cuda = strcmp(ops->name, "cuda") == 0, .quick = quick};
    char date[32];
    time_t now = time(NULL);
    struct tm parts;
    b.dtype = b.cuda ? DTYPE_BF16 : DTYPE_F32;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &parts));
    text_buffer_format(toml,
                       "# What this machine does, measured by `hearth bench machine`. It replaces the catalogue's\n"
                       "# figures of one device in `hearth plan`, `preflight` and `train`.\n\n"
                       "[machine]\ngpu = \"%s\"\ndevice = \"%s\"\nwritten = \"%s\"\n",
                       gpu, ops->device, date);
    Status status = measure(&b, toml);
    release(&b);
    return status;
}
