#include "bench/bench_machine.h"

#include "base/clock.h"
#include "base/stats.h"
#include "base/threads.h"
#include "model/layout.h"
#include "plan/hardware.h"

#include <assert.h>
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
    {1024, 160, 480, 1},  {1024, 160, 160, 1}, {1024, 160, 896, 1},  {1024, 448, 160, 1},
    {1024, 160, 1024, 1}, {2048, 256, 512, 1}, {2048, 256, 1408, 1}, {1024, 256, 4096, 1},
    {512, 960, 960, 1},   {512, 2560, 960, 1}, {4096, 128, 256, 8},  {4096, 128, 128, 8},
};

typedef struct HeadShape {
    int batch, seq, heads, kv_heads, head_dim;
} HeadShape;
static const HeadShape gpu_heads[] = {{64, 512, 15, 5, 64},  {16, 2048, 15, 5, 64}, {8, 4096, 32, 8, 64},
                                      {8, 4096, 16, 16, 56}, {4, 4096, 32, 4, 128}, {1, 16384, 32, 8, 128},
                                      {16, 1024, 16, 8, 128}};
static const HeadShape cpu_heads[] = {{8, 256, 4, 2, 64}, {8, 256, 5, 5, 32}, {2, 1024, 4, 2, 64}, {1, 512, 15, 5, 64}};
enum { SHAPES_MAX = sizeof gpu_shapes / sizeof *gpu_shapes, HEADS_MAX = sizeof gpu_heads / sizeof *gpu_heads };
static_assert(3 * sizeof gpu_shapes / sizeof(Shape) <= HARDWARE_GEMMS_MAX, "the planner reads the points of a GPU");
static_assert(2 * 3 * sizeof cpu_shapes / sizeof(Shape) <= HARDWARE_GEMMS_MAX, "and those of a CPU, in both formats");

// Results go to OUT and DWEIGHT (attention's gradients and the norm's sum to WEIGHT), so that inputs stay random.
enum { IN, WEIGHT, GRAD, DWEIGHT, SMALL, OUT, BUFFERS };
enum { RANDOM_COUNT = 1 << 20, REPEATS = 3, ROUNDS = 9, ROUNDS_ALONE = 3, PASSES = 4, MIX_PARTS = 3 };
// A step of a small model touches about so many values between two uses of a tensor: more than the caches of a core.
enum { CPU_STEP_VALUES = 8 << 20, CPU_COPY_BYTES = 64 << 20 };

typedef struct Bench {
    Ops *ops;
    DType dtype;
    bool cuda, quick;
    void *buffer[BUFFERS];
    size_t bytes[BUFFERS], each[BUFFERS]; // in all, and of a copy that runs take in turn; 0: there is one
    int copies, turn;
    void *random; // block that buffers are filled with, of
    DType random_dtype;
    void *workspace;
    size_t workspace_bytes;
    struct Bench *mix; // what runs between measurements, MIX_PARTS of them; NULL on a CPU
    Shape shape;
    HeadShape heads;
    int direction; // 0 forward, 1 input gradient, 2 weight gradient
} Bench;

// ---- buffers --------------------------------------------------------------------------------------------------------

// Random values: the power that a GPU draws, and with it its clock, depends on them. Zeros run a quarter faster.
static void make_random(Bench *b) {
    if (b->random && b->random_dtype == b->dtype) return;
    free(b->random);
    b->random = xmalloc(RANDOM_COUNT * dtype_size(b->dtype));
    b->random_dtype = b->dtype;
    for (int i = 0; i < RANDOM_COUNT; i++) {
        float value = 0.05f * (float)(((unsigned)i * 2654435761u >> 8) % 2001 - 1000.0f) / 1000.0f;
        if (b->dtype == DTYPE_F32)
            ((float *)b->random)[i] = value;
        else
            ((uint16_t *)b->random)[i] = bf16_from_f32(value);
    }
}

static void fill_random(Bench *b, void *memory, size_t bytes) {
    size_t block = RANDOM_COUNT * dtype_size(b->dtype), done = bytes < block ? bytes : block;
    make_random(b);
    b->ops->upload(b->ops, memory, b->random, done);
    for (; done < bytes; done *= 2)
        b->ops->copy(b->ops, (char *)memory + done, memory, bytes - done < done ? bytes - done : done);
}

// At least so many bytes; `filled` with new values where what ran before may have left anything that is read.
static Status reserve_room(Bench *b, int index, size_t bytes, bool filled) {
    if (b->bytes[index] < bytes) {
        if (b->buffer[index]) b->ops->free(b->ops, b->buffer[index], b->bytes[index]);
        b->buffer[index] = NULL;
        b->bytes[index] = 0;
        TRY(b->ops->alloc(b->ops, &b->buffer[index], bytes, "bench buffer"));
        b->bytes[index] = bytes;
        filled = true; // so that its pages are there
    }
    if (filled) fill_random(b, b->buffer[index], bytes);
    b->each[index] = 0;
    return NULL;
}

static Status reserve(Bench *b, int index, size_t bytes) {
    return reserve_room(b, index, bytes, true);
}

// In a step the input of an op is what the one before it has just written, but its weights and the memory of its
// results come from the step before, and have left the caches of a CPU: there each run has others, of so many bytes. A
// GPU reads what large products need from memory however often they run.
static Status reserve_turns(Bench *b, const size_t bytes[BUFFERS]) {
    size_t all = 0;
    if (b->cuda) return NULL;
    for (int i = 0; i < BUFFERS; i++)
        all += bytes[i];
    b->turn = 0;
    b->copies = (int)(CPU_STEP_VALUES * dtype_size(b->dtype) / all) + 1;
    for (int i = 0; i < BUFFERS; i++) {
        size_t each = (bytes[i] + 63) / 64 * 64;
        if (each) TRY(reserve_room(b, i, each * (size_t)b->copies, i == WEIGHT));
        b->each[i] = each;
    }
    return NULL;
}

static bool fits(const Bench *b, size_t bytes) {
    return (double)bytes < 0.5 * (double)b->ops->memory_free(b->ops);
}

static void release(Bench *b) {
    for (int i = 0; i < BUFFERS; i++)
        if (b->buffer[i]) b->ops->free(b->ops, b->buffer[i], b->bytes[i]);
    if (b->workspace) b->ops->free(b->ops, b->workspace, b->workspace_bytes);
    free(b->random);
}

// ---- time -----------------------------------------------------------------------------------------------------------

typedef void (*Work)(Bench *b);

static void run_mix(Bench *mix);

static double seconds_of_round(Bench *b, Work work, int count) {
    b->ops->mark(b->ops, 0);
    for (int k = 0; k < count; k++, b->turn++)
        work(b);
    b->ops->mark(b->ops, 1);
    return 1e-3 * b->ops->mark_elapsed(b->ops, 0, 1) / count;
}

typedef struct Samples { // seconds of one run, of short rounds
    double seconds[PASSES * ROUNDS];
    int count;
} Samples;

static void sample_add(Samples *samples, double seconds) {
    samples->seconds[samples->count++] = seconds;
}

// Of a GPU the median. Other programs take of a CPU what they need, which makes a round slower and never faster: there
// the fastest, which is the median but for a per cent or two where there are none.
static double sample_typical(const Bench *b, Samples *samples) {
    qsort(samples->seconds, (size_t)samples->count, sizeof *samples->seconds, double_order);
    return b->cuda ? double_median(samples->seconds, (size_t)samples->count) : samples->seconds[0];
}

// The rounds of a GPU are between stretches of a step's mix: the power limit sets the clock by what ran in the last
// tens of milliseconds, and bursts of one op run at another clock than the same op inside a step.
static void sample_rounds(Bench *b, Work work, Samples *samples) {
    double round = b->mix ? 2e-3 : b->quick ? 1e-3 : 3e-3;
    if (b->cuda) work(b); // tunes and warms up
    double once = seconds_of_round(b, work, 1);
    int count = (int)fmin(1000, fmax(1, ceil(round / fmax(once, 1e-7))));
    int warm = !b->mix ? 0 : b->quick ? 2 : 5, rounds = b->cuda ? ROUNDS : ROUNDS_ALONE;
    for (int i = -warm; i < rounds; i++) {
        if (b->mix) run_mix(b->mix);
        double seconds = seconds_of_round(b, work, count);
        if (i >= 0) sample_add(samples, seconds);
    }
}

static double seconds_of(Bench *b, Work work) {
    Samples samples = {0};
    sample_rounds(b, work, &samples);
    return sample_typical(b, &samples);
}

// ---- what is measured -----------------------------------------------------------------------------------------------

static void *copy_of(const Bench *b, int buffer) { // this turn's
    return (char *)b->buffer[buffer] + (b->each[buffer] ? (size_t)(b->turn % b->copies) * b->each[buffer] : 0);
}

static Tensor view(const Bench *b, int buffer, int64_t rows, int64_t cols) {
    return tensor_make(copy_of(b, buffer), b->dtype, rows, cols, "bench buffer");
}

static Tensor view_f32(void *memory, int64_t rows, int64_t cols) {
    return tensor_make(memory, DTYPE_F32, rows, cols, "bench buffer");
}

static void run_linear(Bench *b) {
    const Shape *s = &b->shape;
    Ops *ops = b->ops;
    Tensor in = view(b, IN, s->rows, s->in), grad = view(b, GRAD, s->rows, s->out);
    Tensor out = view(b, OUT, s->rows, s->out), din = view(b, OUT, s->rows, s->in);
    Tensor weight = view(b, WEIGHT, (int64_t)s->experts * s->out, s->in);
    Tensor dweight = view_f32(copy_of(b, DWEIGHT), weight.rows, weight.cols);
    Tensor offsets = tensor_make(b->buffer[SMALL], DTYPE_I32, 1, s->experts + 1, "offsets");
    bool grouped = s->experts > 1;
    if (b->direction == 0)
        grouped ? ops->grouped_linear_forward(ops, out, in, weight, offsets, TENSOR_NONE, TENSOR_NONE)
                : ops->linear_forward(ops, out, in, weight, TENSOR_NONE);
    if (b->direction == 1)
        grouped ? ops->grouped_linear_backward_input(ops, din, grad, weight, offsets)
                : ops->linear_backward_input(ops, din, grad, weight);
    if (b->direction == 2)
        grouped ? ops->grouped_linear_backward_weight(ops, dweight, grad, in, offsets, TENSOR_NONE, TENSOR_NONE, true)
                : ops->linear_backward_weight(ops, dweight, grad, in, true);
}

static size_t linear_weights(const Shape *shape) {
    return (size_t)shape->experts * (size_t)shape->in * (size_t)shape->out;
}

static size_t linear_bytes(const Bench *b, const Shape *shape) {
    size_t size = dtype_size(b->dtype);
    return (size_t)shape->rows * 2 * (size_t)(shape->in + shape->out) * size + linear_weights(shape) * (size + 4);
}

static Status reserve_linear(Bench *b, const Shape *shape) {
    size_t size = dtype_size(b->dtype), weights = linear_weights(shape);
    size_t in = (size_t)shape->rows * (size_t)shape->in * size, out = (size_t)shape->rows * (size_t)shape->out * size;
    TRY(reserve(b, IN, in));
    TRY(reserve(b, WEIGHT, weights * size));
    TRY(reserve(b, GRAD, out));
    TRY(reserve(b, DWEIGHT, weights * 4));
    TRY(reserve(b, SMALL, 4096));
    TRY(reserve(b, OUT, in > out ? in : out));
    int32_t offsets[1024];
    for (int i = 0; i <= shape->experts; i++)
        offsets[i] = (int32_t)(shape->rows / shape->experts * i);
    b->ops->upload(b->ops, b->buffer[SMALL], offsets, (size_t)(shape->experts + 1) * sizeof *offsets);
    b->ops->zero(b->ops, view_f32(b->buffer[DWEIGHT], 1, (int64_t)weights));
    b->shape = *shape;
    return NULL;
}

static Status measure_linear(Bench *b, const Shape *shape, Samples samples[3]) {
    if (!fits(b, linear_bytes(b, shape))) return NULL;
    TRY(reserve_linear(b, shape));
    size_t size = dtype_size(b->dtype), weights = linear_weights(shape), rows = (size_t)shape->rows;
    for (b->direction = 0; b->direction < 3; b->direction++) {
        size_t result = rows * (size_t)(b->direction == 0 ? shape->out : shape->in) * size;
        TRY(reserve_turns(b, b->direction < 2 ? (size_t[BUFFERS]){[WEIGHT] = weights * size, [OUT] = result}
                                              : (size_t[BUFFERS]){[DWEIGHT] = weights * 4}));
        sample_rounds(b, run_linear, &samples[b->direction]);
    }
    return b->ops->sync(b->ops);
}

static void print_linear(const Bench *b, TextBuffer *toml, const char *dtype, const Shape *shape, Samples samples[3]) {
    double flops = 2.0 * (double)shape->rows * shape->in * shape->out;
    int64_t each = shape->rows / shape->experts;
    for (int direction = 0; direction < 3 && samples[direction].count; direction++) {
        int64_t m = direction == 2 ? shape->out : each, k = direction == 2 ? each : shape->in;
        int64_t n = direction == 0 ? shape->out : shape->in;
        if (direction == 1) k = shape->out;
        text_buffer_format(toml,
                           "    {dtype = \"%s\", kind = \"%s\", groups = %d, m = %lld, n = %lld, k = %lld, "
                           "tflops = %.4g},\n",
                           dtype, shape->experts > 1 ? "grouped" : "dense", shape->experts, (long long)m, (long long)n,
                           (long long)k, flops / sample_typical(b, &samples[direction]) / 1e12);
    }
}

// Directions of attention beside forward and backward: with the rotation inside, and with one after it or alone.
enum { BACKWARD_ROTATED = 2, BACKWARD_THEN_ROTATION, ROTATION };

static void run_attention(Bench *b) {
    const HeadShape *h = &b->heads;
    int64_t q = (int64_t)h->heads * h->head_dim, kv = (int64_t)h->kv_heads * h->head_dim;
    int64_t tokens = (int64_t)h->batch * h->seq, half = h->head_dim / 2;
    Tensor qkv = view(b, IN, tokens, q + 2 * kv), dqkv = view(b, WEIGHT, tokens, q + 2 * kv);
    Tensor out = view(b, OUT, tokens, q), dout = view(b, GRAD, tokens, q);
    Tensor lse = view_f32(copy_of(b, DWEIGHT), (int64_t)h->batch * h->heads, h->seq);
    Tensor queries = tensor_cols(qkv, 0, q), keys = tensor_cols(qkv, q, kv), values = tensor_cols(qkv, q + kv, kv);
    float *cosines = b->buffer[SMALL];
    Attention how = {.seq = h->seq, .head_dim = h->head_dim, .scale = 1.0f / sqrtf((float)h->head_dim)};
    Rope rope = {.seq = h->seq,
                 .heads = h->heads,
                 .kv_heads = h->kv_heads,
                 .head_dim = h->head_dim,
                 .cos = view_f32(cosines, h->seq, half),
                 .sin = view_f32(cosines + h->seq * half, h->seq, half)};
    if (b->direction == 0) {
        b->ops->attention_forward(b->ops, out, lse, queries, keys, values, &how);
        return;
    }
    if (b->direction != ROTATION)
        b->ops->attention_backward(b->ops, tensor_cols(dqkv, 0, q), tensor_cols(dqkv, q, kv),
                                   tensor_cols(dqkv, q + kv, kv), dout, out, lse, queries, keys, values, &how,
                                   b->direction == BACKWARD_ROTATED ? &rope : NULL);
    if (b->direction >= BACKWARD_THEN_ROTATION)
        b->ops->qk_rope_backward(b->ops, tensor_cols(dqkv, 0, q + kv), TENSOR_NONE, TENSOR_NONE, TENSOR_NONE,
                                 TENSOR_NONE, &rope);
}

static size_t attention_bytes(const Bench *b, const HeadShape *heads) {
    size_t q = (size_t)heads->heads * (size_t)heads->head_dim, kv = (size_t)heads->kv_heads * (size_t)heads->head_dim;
    return (size_t)heads->batch * (size_t)heads->seq * 4 * (q + kv) * dtype_size(b->dtype);
}

static Status reserve_attention(Bench *b, const HeadShape *heads) {
    size_t tokens = (size_t)heads->batch * (size_t)heads->seq, size = dtype_size(b->dtype);
    size_t q = (size_t)heads->heads * (size_t)heads->head_dim, kv = (size_t)heads->kv_heads * (size_t)heads->head_dim;
    TRY(reserve(b, IN, tokens * (q + 2 * kv) * size));
    TRY(reserve(b, WEIGHT, tokens * (q + 2 * kv) * size));
    TRY(reserve(b, GRAD, tokens * q * size));
    TRY(reserve(b, DWEIGHT, tokens * (size_t)heads->heads * 4));
    TRY(reserve(b, OUT, tokens * q * size));
    TRY(reserve(b, SMALL, (size_t)heads->seq * (size_t)heads->head_dim * sizeof(float)));
    b->heads = *heads;
    return NULL;
}

static Status measure_attention(Bench *b, const HeadShape *heads, Samples samples[2]) {
    if (!fits(b, 2 * attention_bytes(b, heads))) return NULL;
    TRY(reserve_attention(b, heads));
    size_t tokens = (size_t)heads->batch * (size_t)heads->seq, width = (size_t)heads->head_dim * dtype_size(b->dtype);
    size_t q = (size_t)heads->heads, kv = (size_t)heads->kv_heads;
    for (b->direction = 0; b->direction < 2; b->direction++) {
        TRY(reserve_turns(b, b->direction ? (size_t[BUFFERS]){[WEIGHT] = tokens * (q + 2 * kv) * width}
                                          : (size_t[BUFFERS]){[OUT] = tokens * q * width, [DWEIGHT] = tokens * q * 4}));
        sample_rounds(b, run_attention, &samples[b->direction]);
    }
    return b->ops->sync(b->ops);
}

static void print_attention(const Bench *b, TextBuffer *toml, const char *dtype, const HeadShape *heads,
                            Samples samples[2]) {
    double triangle = (double)heads->batch * heads->heads * heads->seq * heads->seq * heads->head_dim;
    if (samples[0].count)
        text_buffer_format(
            toml, "    {dtype = \"%s\", head_dim = %d, seq = %d, forward_tflops = %.4g, backward_tflops = %.4g},\n",
            dtype, heads->head_dim, heads->seq, 2 * triangle / sample_typical(b, &samples[0]) / 1e12,
            5 * triangle / sample_typical(b, &samples[1]) / 1e12);
}

// Measured on the backward pass, inside attention; plans take the same share of the forward pass, inside the QKV
// product.
static double rope_hidden(Bench *b) {
    double seconds[ROTATION + 1];
    for (b->direction = BACKWARD_ROTATED; b->direction <= ROTATION; b->direction++)
        seconds[b->direction] = seconds_of(b, run_attention);
    return fmin(1, fmax(0, (seconds[BACKWARD_THEN_ROTATION] - seconds[BACKWARD_ROTATED]) / seconds[ROTATION]));
}

// The memory-bound ops of a layer, forward and backward, as training runs them.
enum { ROPE_HEADS = 16, ROPE_KV_HEADS = 8, ROPE_HEAD_DIM = 64, ROPE_SEQ = 512 };
enum { ROPE_DIM = (ROPE_HEADS + ROPE_KV_HEADS) * ROPE_HEAD_DIM, SMALL_PART = 1 << 16 };

static int layer_ffn(int hidden) {
    return hidden / 4 * 11;
}

static double layer_bytes(const Bench *b) { // two norms, rotary, SwiGLU
    double hidden = b->shape.in, forward = 4 * hidden + 2 * ROPE_DIM + 3 * layer_ffn(b->shape.in);
    double backward = 8 * hidden + 2 * ROPE_DIM + 5 * layer_ffn(b->shape.in);
    return (double)b->shape.rows * (forward + backward) * (double)dtype_size(b->dtype);
}

static Status reserve_layer(Bench *b, int64_t rows, int hidden) {
    int width = 2 * layer_ffn(hidden) > ROPE_DIM ? 2 * layer_ffn(hidden) : ROPE_DIM;
    size_t bytes = (size_t)rows * (size_t)width * dtype_size(b->dtype);
    for (int i = 0; i < BUFFERS; i++)
        TRY(reserve(b, i, i == DWEIGHT ? (size_t)rows * 4 : i == SMALL ? 4 * SMALL_PART : bytes));
    b->ops->zero(b->ops, view_f32(b->buffer[SMALL], 1, SMALL_PART));
    b->shape = (Shape){.rows = rows, .in = hidden};
    return NULL;
}

static void run_layer(Bench *b) {
    Ops *ops = b->ops;
    int64_t rows = b->shape.rows, hidden = b->shape.in, ffn = layer_ffn(b->shape.in), half = ROPE_HEAD_DIM / 2;
    Tensor in = view(b, IN, rows, hidden), grad = view(b, GRAD, rows, hidden), out = view(b, OUT, rows, hidden);
    Tensor rstd = view_f32(copy_of(b, DWEIGHT), rows, 1), qk = view(b, OUT, rows, ROPE_DIM);
    Tensor gate_up = view(b, IN, rows, 2 * ffn), weight = view(b, SMALL, 1, hidden);
    char *small = b->buffer[SMALL];
    Tensor dweight = view_f32(small + SMALL_PART, 1, hidden);
    Rope rope = {.seq = ROPE_SEQ,
                 .heads = ROPE_HEADS,
                 .kv_heads = ROPE_KV_HEADS,
                 .head_dim = ROPE_HEAD_DIM,
                 .cos = view_f32(small + 2 * SMALL_PART, ROPE_SEQ, half),
                 .sin = view_f32(small + 3 * SMALL_PART, ROPE_SEQ, half)};
    for (int i = 0; i < 2; i++)
        ops->add_rmsnorm_forward(ops, out, TENSOR_NONE, rstd, in, TENSOR_NONE, weight, 1e-5f);
    ops->qk_rope_forward(ops, qk, TENSOR_NONE, qk, &rope);
    // The experts' forward: as many bytes as the packed one, which would wear down its input in place.
    ops->swiglu_forward(ops, view(b, OUT, rows, ffn), gate_up, TENSOR_NONE, TENSOR_NONE);
    ops->swiglu_packed_backward(ops, view(b, WEIGHT, rows, 2 * ffn), gate_up, view(b, GRAD, rows, ffn));
    for (int i = 0; i < 2; i++)
        ops->add_rmsnorm_backward(ops, out, dweight, grad, in, rstd, weight, false);
    ops->qk_rope_backward(ops, qk, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, &rope);
}

// SwiGLU and its products: alone, apart, and as one op.
typedef enum SwigluRun { SWIGLU_ALONE, SWIGLU_APART, SWIGLU_FUSED } SwigluRun;

static void run_swiglu(Bench *b) {
    Ops *ops = b->ops;
    SwigluRun run = (SwigluRun)b->direction;
    int64_t rows = b->shape.rows, hidden = b->shape.in, ffn = layer_ffn(b->shape.in);
    Tensor in = view(b, IN, rows, hidden), gate_hidden = view(b, IN, rows, 2 * ffn);
    Tensor gate_up = view(b, WEIGHT, rows, 2 * ffn), dhidden = view(b, OUT, rows, ffn);
    Tensor gate_up_weight = view(b, GRAD, 2 * ffn, hidden), down_weight = view(b, GRAD, hidden, ffn);
    Tensor dnext = view(b, GRAD, rows, hidden);
    if (run == SWIGLU_ALONE) {
        ops->swiglu_forward(ops, dhidden, gate_hidden, TENSOR_NONE, TENSOR_NONE);
        ops->swiglu_packed_backward(ops, gate_up, gate_hidden, view(b, GRAD, rows, ffn));
    } else if (run == SWIGLU_APART) {
        ops_linear_then_swiglu_forward(ops, gate_up, in, gate_up_weight);
        ops_linear_then_swiglu_backward(ops, gate_up, dhidden, gate_hidden, dnext, down_weight);
    } else {
        ops->linear_swiglu_forward(ops, gate_up, in, gate_up_weight);
        ops->linear_swiglu_backward(ops, gate_up, dhidden, gate_hidden, dnext, down_weight);
    }
}

static double swiglu_hidden(Bench *b) {
    double seconds[3];
    for (b->direction = 0; b->direction < 3; b->direction++)
        seconds[b->direction] = seconds_of(b, run_swiglu);
    return fmin(1, fmax(0, (seconds[SWIGLU_APART] - seconds[SWIGLU_FUSED]) / seconds[SWIGLU_ALONE]));
}

static void run_copy(Bench *b) {
    b->ops->copy(b->ops, copy_of(b, OUT), copy_of(b, IN), (size_t)b->shape.rows);
}

// About a dense model's step: three fifths products, a fifth attention, a fifth memory-bound.
static void run_mix(Bench *mix) {
    enum { PRODUCTS = 4, ATTENTIONS = 2, LAYERS = 2 };
    Bench *linear = &mix[0], *heads = &mix[1], *layer = &mix[2];
    for (int i = 0; i < PRODUCTS; i++)
        for (linear->direction = 0; linear->direction < 3; linear->direction++)
            run_linear(linear);
    for (int i = 0; i < ATTENTIONS; i++)
        for (heads->direction = 0; heads->direction < 2; heads->direction++)
            run_attention(heads);
    for (int i = 0; i < LAYERS; i++)
        run_layer(layer);
}

static Status make_mix(Bench *b, Bench mix[MIX_PARTS]) {
    for (int i = 0; i < MIX_PARTS; i++)
        mix[i] = (Bench){.ops = b->ops, .dtype = b->dtype, .cuda = true};
    if (!fits(b, (size_t)4 << 30)) return NULL; // a small or busy GPU is measured without
    TRY(reserve_linear(&mix[0], &(Shape){16384, 2048, 4096, 1}));
    TRY(reserve_attention(&mix[1], &(HeadShape){8, 2048, 16, 8, 64}));
    TRY(reserve_layer(&mix[2], 32768, 1024));
    b->mix = mix;
    double start = clock_seconds();
    while (clock_seconds() - start < 1) { // the clock falls as the power is averaged
        run_mix(mix);
        TRY(b->ops->sync(b->ops));
    }
    return NULL;
}

enum { TINY = 200 };

static void run_tiny(Bench *b) {
    Tensor counts = tensor_make(b->buffer[DWEIGHT], DTYPE_I32, 1, 32, "counts");
    for (int i = 0; i < TINY; i++)
        b->ops->moe_add_counts(b->ops, tensor_make(b->buffer[SMALL], DTYPE_I32, 1, 32, "sums"), counts, false);
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

// The shares are of a GPU, whose products and attention have other ops inside.
typedef struct Memory {
    size_t bytes; // copied and uploaded
    double layer_bytes;
    Samples layer, copy, gap, upload;
    double swiglu_hidden, rope_hidden;
} Memory;

static Status measure_memory(Bench *b, Memory *memory) {
    int64_t rows = b->cuda ? 32768 : 4096;
    int hidden = b->cuda ? 1024 : 256;
    if (!fits(b, (size_t)(8 * rows * layer_ffn(hidden)) * dtype_size(b->dtype))) rows /= 8;
    TRY(reserve_layer(b, rows, hidden));
    memory->bytes = (size_t)(rows * layer_ffn(hidden)) * dtype_size(b->dtype);
    memory->layer_bytes = layer_bytes(b);
    sample_rounds(b, run_layer, &memory->layer);
    if (b->cuda) {
        memory->swiglu_hidden = swiglu_hidden(b);
    } else { // beyond caches
        memory->bytes = CPU_COPY_BYTES;
        TRY(reserve(b, IN, CPU_COPY_BYTES));
        TRY(reserve(b, OUT, CPU_COPY_BYTES));
    }
    b->shape.rows = (int64_t)memory->bytes;
    sample_rounds(b, run_copy, &memory->copy);
    double gap;
    TRY(measure_gap(b, &gap));
    sample_add(&memory->gap, gap);
    void *host = xcalloc(1, memory->bytes);
    b->ops->upload(b->ops, b->buffer[IN], host, memory->bytes); // the first one touches the host's pages
    double start = clock_seconds();
    b->ops->upload(b->ops, b->buffer[IN], host, memory->bytes);
    Status status = b->ops->sync(b->ops);
    sample_add(&memory->upload, clock_seconds() - start);
    free(host);
    HeadShape heads = {8, 2048, 16, 8, 64};
    if (status || !b->cuda || !fits(b, 2 * attention_bytes(b, &heads))) return status;
    TRY(reserve_attention(b, &heads));
    memory->rope_hidden = rope_hidden(b);
    return NULL;
}

static void print_memory(const Bench *b, TextBuffer *toml, Memory *memory) {
    double bytes = (double)memory->bytes;
    text_buffer_format(toml,
                       "copy_GBps = %.4g         # read + write\nelementwise_GBps = %.4g  # RMSNorm, rotary and "
                       "SwiGLU, forward and backward\n",
                       2 * bytes / sample_typical(b, &memory->copy) / 1e9,
                       memory->layer_bytes / sample_typical(b, &memory->layer) / 1e9);
    if (b->cuda)
        text_buffer_format(toml,
                           "swiglu_hidden = %.3f    # share of SwiGLU's own time that its products hide\n"
                           "rope_hidden = %.3f      # and of the rotary's (measured inside attention backward)\n",
                           memory->swiglu_hidden, memory->rope_hidden);
    else
        text_buffer_format(toml, "cores = %d\nmethod = %d\n", threads_count(), HARDWARE_CPU_METHOD);
    text_buffer_format(toml, "launch_gap_us = %.3g\nhost_GBps = %.3g\nmemory_gib = %.3f\n",
                       1e6 * sample_typical(b, &memory->gap), bytes / sample_typical(b, &memory->upload) / 1e9,
                       (double)b->ops->memory_total(b->ops) / 1073741824.0);
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
    size_t lent = LAYOUT_SCRATCH_MAX;
    if (b->cuda && b->workspace_bytes < lent && fits(b, 4 * lent)) b->workspace_bytes = lent;
    TRY(b->ops->alloc(b->ops, &b->workspace, b->workspace_bytes, "bench workspace"));
    b->ops->bind_workspace(b->ops, b->workspace, b->workspace_bytes);
    return NULL;
}

typedef struct Survey { // what to measure, and what was
    const Shape *shapes;
    const HeadShape *heads;
    const DType *dtypes;
    int shape_count, head_count, dtype_count;
    Memory memory;
    Samples linear[2][SHAPES_MAX][3], attention[2][HEADS_MAX][2];
} Survey;

static Status measure_pass(Bench *b, Survey *survey) {
    b->dtype = survey->dtypes[survey->dtype_count - 1];
    TRY(measure_memory(b, &survey->memory));
    for (int d = 0; d < survey->dtype_count; d++) {
        b->dtype = survey->dtypes[d];
        for (int i = 0; i < survey->shape_count; i += b->quick ? 3 : 1)
            TRY(measure_linear(b, &survey->shapes[i], survey->linear[d][i]));
    }
    for (int d = 0; d < survey->dtype_count; d++) {
        b->dtype = survey->dtypes[d];
        for (int i = 0; i < survey->head_count; i += b->quick ? 2 : 1)
            TRY(measure_attention(b, &survey->heads[i], survey->attention[d][i]));
    }
    return NULL;
}

static Status measure(Bench *b, TextBuffer *toml) {
    // A GPU trains in bf16; of a CPU both are asked, because how they compare depends on its instructions.
    static const DType dtypes[] = {DTYPE_BF16, DTYPE_F32};
    static const char *const names[] = {"bf16", "fp32"};
    Survey survey = {.shapes = b->cuda ? gpu_shapes : cpu_shapes,
                     .heads = b->cuda ? gpu_heads : cpu_heads,
                     .dtypes = dtypes,
                     .shape_count = (int)(b->cuda ? sizeof gpu_shapes : sizeof cpu_shapes) / (int)sizeof(Shape),
                     .head_count = (int)(b->cuda ? sizeof gpu_heads : sizeof cpu_heads) / (int)sizeof(HeadShape),
                     .dtype_count = b->cuda ? 1 : 2};
    // Rounds far apart: what another program takes of a CPU for a moment is in few of them.
    for (int pass = 0; pass < (b->cuda || b->quick ? 1 : PASSES); pass++)
        TRY(measure_pass(b, &survey));
    print_memory(b, toml, &survey.memory);
    text_buffer_format(toml,
                       "\n# m x k by k x n: forward, input gradient and weight gradient of each layer\ngemm = [\n");
    for (int d = 0; d < survey.dtype_count; d++)
        for (int i = 0; i < survey.shape_count; i++)
            print_linear(b, toml, names[d], &survey.shapes[i], survey.linear[d][i]);
    text_buffer_format(toml, "]\n\n# causal FLOPs counted\nattention = [\n");
    for (int d = 0; d < survey.dtype_count; d++)
        for (int i = 0; i < survey.head_count; i++)
            print_attention(b, toml, names[d], &survey.heads[i], survey.attention[d][i]);
    text_buffer_format(toml, "]\n");
    return NULL;
}

Status bench_machine(Ops *ops, const char *gpu, bool quick, TextBuffer *toml) {
    Bench b = {.ops = ops, .cuda = ops->kind == DEVICE_CUDA, .quick = quick};
    char date[32];
    time_t now = time(NULL);
    struct tm parts;
    b.dtype = b.cuda ? DTYPE_BF16 : DTYPE_F32; // of the workspace
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &parts));
    text_buffer_format(toml,
                       "# What this machine does, measured by `hearth bench machine`. It replaces the catalogue's\n"
                       "# figures of one device in `hearth plan`, `preflight` and `train`.\n\n"
                       "[machine]\ngpu = \"%s\"\ndevice = \"%s\"\nwritten = \"%s\"\n",
                       gpu, ops->device, date);
    Bench mix[MIX_PARTS] = {0};
    Status status = bind_workspace(&b);
    if (!status && b.cuda) status = make_mix(&b, mix);
    if (!status) status = measure(&b, toml);
    for (int i = 0; i < MIX_PARTS; i++)
        release(&mix[i]);
    release(&b);
    return status;
}
