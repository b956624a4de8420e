#include "bench/bench_ops.h"

#include "base/rng.h"
#include "base/stats.h"
#include "base/text.h"
#include "bench/bench_step.h"
#include "ops/calls.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// RANDOM: elements of the block that all buffers are filled from. The optimizer's time is linear in its size beyond
// PARAMETERS_MAX.
enum { RANDOM = 1 << 20, SLOTS = 24, ROUNDS = 7, REPEATS_MAX = 20, PARAMETERS_MAX = 1 << 28 };

typedef struct Bench {
    Ops *ops;
    const BenchOps *bench;
    const ModelConfig *config;
    Layout layout;
    DType dtype;
    double size; // of an element of dtype
    int64_t tokens;
    double copy_rate, gemm_rate; // bytes and FLOPs per second; 0 until measured
    void *random_f32, *random_bf16, *workspace;
    size_t workspace_bytes;
    Status status;  // the first failure: what follows does nothing
    const char *op; // whose buffers are being gathered
    void *p[SLOTS]; // its buffers, in the order of calls.h
    size_t bytes[SLOTS];
    int count;
} Bench;

// ---- buffers --------------------------------------------------------------------------------------------------------

static void *space(Bench *b, size_t bytes) {
    void **p = &b->p[b->count];
    *p = NULL;
    b->bytes[b->count++] = bytes;
    if (!b->status) b->status = b->ops->alloc(b->ops, p, bytes, b->op);
    return *p;
}

// Random values, mean 0 and deviation 1: the power that a GPU draws, and with it its clock, depends on them.
static void *random_of(Bench *b, DType dtype, int64_t count) {
    size_t bytes = (size_t)count * dtype_size(dtype), block = RANDOM * dtype_size(dtype);
    char *out = space(b, bytes);
    for (size_t at = 0; out && at < bytes; at += block)
        b->ops->copy(b->ops, out + at, dtype == DTYPE_F32 ? b->random_f32 : b->random_bf16,
                     bytes - at < block ? bytes - at : block);
    return out;
}

static void *uploaded(Bench *b, const void *host, size_t bytes) {
    void *out = space(b, bytes);
    if (out) b->ops->upload(b->ops, out, host, bytes);
    return out;
}

// Half of them small, as frequent token ids are. Returns how many different ones there are.
static int64_t ids_of(Bench *b, int64_t count, int below) {
    int32_t *host = xmalloc((size_t)count * sizeof *host);
    bool *seen = xcalloc((size_t)below, sizeof *seen);
    int64_t different = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = rng_bits(1, RNG_STREAM_BENCH, (uint64_t)i);
        host[i] = (int32_t)((bits >> 8) % (uint64_t)(bits % 2 || below < 64 ? below : 64));
        different += !seen[host[i]];
        seen[host[i]] = true;
    }
    uploaded(b, host, (size_t)count * sizeof *host);
    free(seen);
    free(host);
    return different;
}

static void null_of(Bench *b) {
    b->bytes[b->count] = 0;
    b->p[b->count++] = NULL;
}

// Head norms of 1: an op that works in place neither grows nor shrinks its values from run to run.
static void norms_of(Bench *b) {
    int dim = b->config->head_dim;
    size_t size = dtype_size(b->dtype);
    char *ones = xmalloc((size_t)dim * size);
    float one = 1;
    bf16 half = bf16_from_f32(one);
    for (int i = 0; i < dim; i++)
        memcpy(ones + (size_t)i * size, b->dtype == DTYPE_F32 ? (void *)&one : (void *)&half, size);
    for (int i = 0; i < 2; i++)
        model_qk_norm(b->config) ? (void)uploaded(b, ones, (size_t)dim * size) : null_of(b);
    free(ones);
}

static void buffers_free(Bench *b) {
    for (int i = 0; i < b->count; i++)
        if (b->p[i]) b->ops->free(b->ops, b->p[i], b->bytes[i]);
    b->count = 0;
}

// ---- time -----------------------------------------------------------------------------------------------------------

// Milliseconds of one call, the median of some rounds; on a GPU from a recorded graph, as training runs it.
static Status call_time(Bench *b, OpCall *call, const CallSizes *sizes, double *ms) {
    Ops *ops = b->ops;
    double round_ms = b->bench->quick ? 0.2 : 3, budget_ms = b->bench->quick ? 10 : 1000, spent = 0, times[ROUNDS];
    call(ops, b->p, sizes); // tuning and first-use work stay outside
    TRY(ops->sync(ops));
    ops->mark(ops, 0);
    call(ops, b->p, sizes);
    ops->mark(ops, 1);
    double once = ops->mark_elapsed(ops, 0, 1);
    int repeats = (int)fmin(REPEATS_MAX, fmax(1, round_ms / fmax(once, 1e-4))), rounds = 0;
    void *graph = NULL;
    ops->graph_begin(ops);
    for (int i = 0; i < repeats; i++)
        call(ops, b->p, sizes);
    TRY(ops->graph_end(ops, &graph));
    if (graph) ops->graph_launch(ops, graph); // the first launch also uploads it
    while (rounds < ROUNDS && (rounds == 0 || spent < budget_ms)) {
        ops->mark(ops, 0);
        if (graph)
            ops->graph_launch(ops, graph);
        else
            for (int i = 0; i < repeats; i++)
                call(ops, b->p, sizes);
        ops->mark(ops, 1);
        double elapsed = ops->mark_elapsed(ops, 0, 1);
        times[rounds++] = elapsed / repeats;
        spent += elapsed;
    }
    if (graph) ops->graph_free(ops, graph);
    *ms = double_median(times, (size_t)rounds);
    return ops->sync(ops);
}

static bool wanted(Bench *b, const char *op) {
    b->op = op;
    return !b->status && (!b->bench->only || strstr(op, b->bench->only));
}

// Times the call on the buffers gathered since the last one, reports it and frees them. Returns the milliseconds.
__attribute__((format(printf, 6, 7))) static double report(Bench *b, OpCall *call, const CallSizes *sizes, double bytes,
                                                           double flops, const char *format, ...) {
    double ms = 0;
    if (!b->status) b->status = call_time(b, call, sizes, &ms);
    if (!b->status) {
        va_list args;
        va_start(args, format);
        char *shape = text_vformat(format, args);
        va_end(args);
        double floor =
            1e3 * fmax(b->copy_rate > 0 ? bytes / b->copy_rate : 0, b->gemm_rate > 0 ? flops / b->gemm_rate : 0);
        b->bench->row(b->bench->context, &(BenchOpsRow){b->op, shape, ms, bytes, flops, floor > 0 ? floor : ms});
        free(shape);
    }
    buffers_free(b);
    return ms;
}

static void call_copy(Ops *ops, void **p, const CallSizes *s) {
    ops->copy(ops, p[0], p[1], (size_t)s->count);
}

static void call_zero(Ops *ops, void **p, const CallSizes *s) {
    ops->zero(ops, p[0], (size_t)s->count);
}

// ---- the ceilings ---------------------------------------------------------------------------------------------------

// Large enough to leave caches behind and to fill the device.
static void bench_ceilings(Bench *b) {
    bool cuda = b->layout.request.device == LAYOUT_CUDA;
    int64_t bytes = b->bench->quick ? 16 << 20 : cuda ? 1 << 30 : 256 << 20;
    int edge = b->bench->quick ? (cuda ? 4096 : 256) : cuda ? 8192 : 1024;
    CallSizes s = {.dtype = b->dtype, .count = bytes, .rows = edge, .in_dim = edge, .out_dim = edge};
    char text[32];
    b->op = "copy";
    random_of(b, DTYPE_F32, bytes / 4), random_of(b, DTYPE_F32, bytes / 4);
    double ms = report(b, call_copy, &s, 2.0 * (double)bytes, 0, "ceiling %s", text_gib(text, (double)bytes));
    if (b->status) return;
    double copy_rate = 2e3 * (double)bytes / ms, flops = 2.0 * edge * edge * edge;
    b->op = "linear_forward";
    for (int i = 0; i < 3; i++)
        random_of(b, b->dtype, (int64_t)edge * edge);
    null_of(b);
    ms =
        report(b, call_linear_forward, &s, 3.0 * edge * edge * b->size, flops, "ceiling %dx%d -> %d", edge, edge, edge);
    if (b->status) return;
    b->copy_rate = copy_rate;
    b->gemm_rate = 1e3 * flops / ms;
}

// ---- dense ops ------------------------------------------------------------------------------------------------------

static void bench_elements(Bench *b) {
    int64_t n = b->tokens * b->config->hidden;
    CallSizes s = {.count = n, .flag = true, .value = 1};
    if (wanted(b, "fill_f32")) {
        random_of(b, DTYPE_F32, n);
        report(b, call_fill_f32, &s, 4.0 * (double)n, 0, "%lld", (long long)n);
    }
    if (wanted(b, "cast")) {
        random_of(b, DTYPE_BF16, n), random_of(b, DTYPE_F32, n);
        report(b, call_cast, &s, 6.0 * (double)n, 0, "%lld float to bf16", (long long)n);
    }
    s.count = 4 * n;
    if (wanted(b, "zero")) {
        random_of(b, DTYPE_F32, n);
        report(b, call_zero, &s, 4.0 * (double)n, 0, "%lld bytes", (long long)s.count);
    }
    s = (CallSizes){.count = b->tokens};
    if (wanted(b, "sum_f32")) {
        random_of(b, DTYPE_F32, 1), random_of(b, DTYPE_F32, b->tokens);
        report(b, call_sum_f32, &s, 4.0 * (double)b->tokens, 0, "%lld losses", (long long)b->tokens);
    }
}

// onto: its result joins the residual. beside: its input is the second of two matrices side by side.
static void bench_linear_layer(Bench *b, const char *layer, int64_t rows, int in_dim, int out_dim, bool onto,
                               bool beside) {
    int64_t in = rows * in_dim, out = rows * out_dim, weight = (int64_t)in_dim * out_dim, read = beside ? 2 * in : in;
    CallSizes s = {.dtype = b->dtype, .rows = rows, .in_dim = in_dim, .out_dim = out_dim};
    if (beside) s.in_stride = 2 * (int64_t)in_dim, s.in_first = in_dim;
    double flops = 2.0 * (double)in * out_dim, activations = (double)(in + out) * b->size;
    char *shape = text_format("%s %lldx%d -> %d", layer, (long long)rows, in_dim, out_dim);
    if (wanted(b, "linear_forward")) {
        random_of(b, b->dtype, out), random_of(b, b->dtype, read), random_of(b, b->dtype, weight);
        onto ? (void)random_of(b, b->dtype, out) : null_of(b);
        report(b, call_linear_forward, &s, activations + (double)(weight + (onto ? out : 0)) * b->size, flops, "%s%s",
               shape, onto ? " + residual" : "");
    }
    if (wanted(b, "linear_backward_input")) {
        random_of(b, b->dtype, in), random_of(b, b->dtype, out), random_of(b, b->dtype, weight);
        report(b, call_linear_backward_input, &s, activations + (double)weight * b->size, flops, "%s", shape);
    }
    for (int add = 0; add < 2 && wanted(b, "linear_backward_weight"); add++) {
        s.flag = add;
        random_of(b, DTYPE_F32, weight), random_of(b, b->dtype, out), random_of(b, b->dtype, read);
        report(b, call_linear_backward_weight, &s, activations + layout_gradient_traffic(add) * (double)weight, flops,
               "%s%s", shape, add ? ", add" : "");
    }
    free(shape);
}

static void bench_linear(Bench *b) {
    const ModelConfig *c = b->config;
    bench_linear_layer(b, "qkv", b->tokens, c->hidden, model_qkv_dim(c), false, false);
    bench_linear_layer(b, "o", b->tokens, model_attention_dim(c), c->hidden, true, false);
    if (model_sparse_layers(c) < c->layers) {
        bench_linear_layer(b, "gate_up", b->tokens, c->hidden, 2 * c->ffn, false, false);
        bench_linear_layer(b, "down", b->tokens, c->ffn, c->hidden, true, true);
    }
    bench_linear_layer(b, "head", b->layout.logits_rows, c->hidden, c->vocab, false, false);
}

static void bench_embedding(Bench *b) {
    const ModelConfig *c = b->config;
    int64_t n = b->tokens * c->hidden, weight = (int64_t)c->vocab * c->hidden;
    CallSizes s = {.dtype = b->dtype, .rows = b->tokens, .dim = c->hidden, .vocab = c->vocab};
    char *shape = text_format("%lldx%d of %d", (long long)b->tokens, c->hidden, c->vocab);
    if (wanted(b, "embedding_forward")) {
        random_of(b, b->dtype, n);
        double read = (double)ids_of(b, b->tokens, c->vocab) * c->hidden;
        random_of(b, b->dtype, weight);
        report(b, call_embedding_forward, &s, ((double)n + read) * b->size, 0, "%s", shape);
    }
    if (wanted(b, "embedding_backward")) {
        random_of(b, DTYPE_F32, weight), random_of(b, b->dtype, n);
        double touched = (double)ids_of(b, b->tokens, c->vocab) * c->hidden;
        report(b, call_embedding_backward, &s, (double)n * b->size + 8 * touched, 0, "%s", shape);
    }
    free(shape);
}

static void bench_norms(Bench *b) {
    int64_t rows = b->tokens, dim = b->config->hidden, n = rows * dim;
    DType t = b->dtype;
    CallSizes s = {.dtype = t, .rows = rows, .dim = (int)dim};
    if (wanted(b, "add_rmsnorm_forward")) { // as the model runs it: nothing to add, reads one, writes one
        random_of(b, t, n), null_of(b), random_of(b, DTYPE_F32, rows);
        random_of(b, t, n), null_of(b), random_of(b, t, dim);
        report(b, call_add_rmsnorm_forward, &s, 2 * b->size * (double)n, 0, "%lldx%d", (long long)rows, s.dim);
    }
    if (wanted(b, "add_rmsnorm_backward")) { // reads three, writes one
        random_of(b, t, n), random_of(b, DTYPE_F32, dim);
        random_of(b, t, n), random_of(b, t, n), random_of(b, DTYPE_F32, rows), random_of(b, t, dim);
        report(b, call_add_rmsnorm_backward, &s, 4 * b->size * (double)n, 0, "%lldx%d", (long long)rows, s.dim);
    }
}

static CallSizes head_sizes(const Bench *b) {
    const ModelConfig *c = b->config;
    return (CallSizes){.dtype = b->dtype,
                       .rows = b->tokens,
                       .batch = b->layout.request.micro_batch,
                       .seq = b->layout.request.seq,
                       .heads = c->heads,
                       .kv_heads = c->kv_heads,
                       .head_dim = c->head_dim};
}

static void bench_rope(Bench *b) {
    const ModelConfig *c = b->config;
    CallSizes s = head_sizes(b);
    int64_t heads = c->heads + c->kv_heads, all = b->tokens * model_qkv_dim(c),
            table = (int64_t)s.seq * c->head_dim / 2;
    double turned = (double)(b->tokens * heads * c->head_dim) * b->size, tables = 8.0 * (double)table;
    float *host = xmalloc(2 * (size_t)table * sizeof *host);
    model_rope_table(c, s.seq, host, host + table);
    for (int backward = 0; backward < 2; backward++) {
        if (!wanted(b, backward ? "qk_rope_backward" : "qk_rope_forward")) continue;
        random_of(b, b->dtype, all);
        if (backward)
            random_of(b, DTYPE_F32, c->head_dim), random_of(b, DTYPE_F32, c->head_dim);
        else
            random_of(b, DTYPE_F32, b->tokens * heads);
        random_of(b, b->dtype, all);
        int rstd = b->count;
        if (backward) random_of(b, DTYPE_F32, b->tokens * heads);
        if (backward && b->p[rstd]) b->ops->fill_f32(b->ops, b->p[rstd], 1, b->tokens * heads);
        uploaded(b, host, (size_t)table * sizeof *host);
        uploaded(b, host + table, (size_t)table * sizeof *host);
        norms_of(b);
        // in and out; backward under the norms also reads the forward pass's input
        report(b, backward ? call_qk_rope_backward : call_qk_rope_forward, &s,
               turned * (backward && model_qk_norm(c) ? 3 : 2) + tables, 0, "%lld x %d+%d heads of %d",
               (long long)b->tokens, c->heads, c->kv_heads, c->head_dim);
    }
    if (wanted(b, "linear_rope_forward")) { // the product of queries, keys and values
        int64_t weight = (int64_t)model_qkv_dim(c) * c->hidden, in = b->tokens * c->hidden;
        s.in_dim = c->hidden;
        random_of(b, b->dtype, all), random_of(b, b->dtype, in), random_of(b, b->dtype, weight);
        uploaded(b, host, (size_t)table * sizeof *host);
        uploaded(b, host + table, (size_t)table * sizeof *host);
        report(b, call_linear_rope_forward, &s, (double)(all + in + weight) * b->size + tables,
               2.0 * (double)b->tokens * (double)weight, "%lldx%d -> %d+%d heads of %d", (long long)b->tokens,
               c->hidden, c->heads, c->kv_heads, c->head_dim);
    }
    free(host);
}

static void bench_attention(Bench *b) {
    const ModelConfig *c = b->config;
    CallSizes s = head_sizes(b);
    int64_t all = b->tokens * model_qkv_dim(c), out = b->tokens * model_attention_dim(c), lse = b->tokens * c->heads;
    double flops = 2.0 * (double)out * s.seq; // causal: half of 4 * out * seq
    char *shape = text_format("%dx%d, %d+%d heads of %d", s.batch, s.seq, c->heads, c->kv_heads, c->head_dim);
    if (wanted(b, "attention_forward")) {
        random_of(b, b->dtype, out), random_of(b, DTYPE_F32, lse), random_of(b, b->dtype, all), null_of(b);
        report(b, call_attention_forward, &s, (double)(all + out) * b->size, flops, "%s", shape);
    }
    if (wanted(b, "attention_backward")) {
        random_of(b, b->dtype, all), random_of(b, b->dtype, out), random_of(b, b->dtype, out);
        random_of(b, DTYPE_F32, lse), random_of(b, b->dtype, all), null_of(b), null_of(b), null_of(b);
        if (!b->status) call_attention_forward(b->ops, (void *[]){b->p[2], b->p[3], b->p[4], NULL}, &s);
        report(b, call_attention_backward, &s, 2.0 * (double)(all + out) * b->size, 2.5 * flops, "%s", shape);
    }
    if (wanted(b, "attention_cached")) { // one new token at the end of a sequence
        int64_t q = model_attention_dim(c), kv = (int64_t)s.seq * c->kv_heads * c->head_dim;
        s.rows = 1, s.first = s.seq - 1;
        random_of(b, b->dtype, q), random_of(b, b->dtype, q), random_of(b, b->dtype, kv), random_of(b, b->dtype, kv);
        report(b, call_attention_cached, &s, 2.0 * (double)(q + kv) * b->size, 4.0 * (double)q * s.seq,
               "1 of %d, %d+%d heads of %d", s.seq, c->heads, c->kv_heads, c->head_dim);
    }
    free(shape);
}

// SwiGLU of a dense MLP alone, as it runs where no kernel has it with the product beside it.
static void bench_swiglu_packed(Bench *b, int64_t rows, int dim) {
    int64_t n = rows * dim;
    CallSizes s = {.dtype = b->dtype, .rows = rows, .dim = dim};
    if (wanted(b, "swiglu_packed_forward")) { // reads two, writes one
        random_of(b, b->dtype, 2 * n);
        report(b, call_swiglu_packed_forward, &s, 3 * b->size * (double)n, 0, "%lldx%d", (long long)rows, dim);
    }
    if (wanted(b, "swiglu_packed_backward")) { // reads three, writes two
        random_of(b, b->dtype, 2 * n), random_of(b, b->dtype, 2 * n), random_of(b, b->dtype, n);
        report(b, call_swiglu_packed_backward, &s, 5 * b->size * (double)n, 0, "%lldx%d", (long long)rows, dim);
    }
}

// With the product beside it.
static void bench_linear_swiglu(Bench *b, int64_t rows, int hidden, int dim) {
    int64_t n = rows * dim, weight = (int64_t)hidden * dim;
    double size = (double)b->size, outside = (double)rows * hidden * size, one = (double)n * size;
    CallSizes s = {.dtype = b->dtype, .rows = rows, .in_dim = hidden, .out_dim = hidden, .dim = dim};
    if (wanted(b, "linear_swiglu_forward")) {
        random_of(b, b->dtype, 2 * n), random_of(b, b->dtype, rows * hidden), random_of(b, b->dtype, 2 * weight);
        report(b, call_linear_swiglu_forward, &s, outside + 2 * one + 2.0 * (double)weight * size,
               4.0 * (double)rows * (double)weight, "%lldx%d -> %d", (long long)rows, hidden, dim);
    }
    if (wanted(b, "linear_swiglu_backward")) {
        random_of(b, b->dtype, 2 * n), random_of(b, b->dtype, n), random_of(b, b->dtype, 2 * n);
        random_of(b, b->dtype, rows * hidden), random_of(b, b->dtype, weight);
        report(b, call_linear_swiglu_backward, &s, outside + 4 * one + (double)weight * size,
               2.0 * (double)rows * (double)weight, "%lldx%d -> %d", (long long)rows, hidden, dim);
    }
}

// Of expert rows. rows: capacity of the buffers; used: rows in use.
static void bench_swiglu(Bench *b, int64_t rows, int64_t used, int dim) {
    int64_t n = rows * dim;
    int32_t count = (int32_t)used;
    double one = (double)used * dim * b->size;
    CallSizes s = {.dtype = b->dtype, .rows = rows, .dim = dim};
    for (int backward = 0; backward < 2; backward++) {
        if (!wanted(b, backward ? "swiglu_backward" : "swiglu_forward")) continue;
        if (backward) {
            random_of(b, b->dtype, 2 * n), random_of(b, b->dtype, n), random_of(b, DTYPE_F32, rows);
            random_of(b, b->dtype, 2 * n), random_of(b, b->dtype, n);
        } else {
            random_of(b, b->dtype, n), random_of(b, b->dtype, 2 * n);
        }
        random_of(b, DTYPE_F32, rows), uploaded(b, &count, sizeof count);
        report(b, backward ? call_swiglu_backward : call_swiglu_forward, &s, (backward ? 6 : 3) * one, 0,
               "experts %lldx%d", (long long)used, dim);
    }
}

static void bench_cross_entropy(Bench *b) {
    int64_t rows = b->layout.logits_rows, n = rows * b->config->vocab;
    CallSizes s = {.dtype = b->dtype, .rows = rows, .vocab = b->config->vocab};
    if (!wanted(b, "cross_entropy")) return;
    random_of(b, DTYPE_F32, rows), random_of(b, b->dtype, n), ids_of(b, rows, s.vocab), random_of(b, DTYPE_F32, 1);
    report(b, call_cross_entropy, &s, 2 * b->size * (double)n, 0, "%lldx%d", (long long)rows, s.vocab);
}

// ---- MoE ------------------------------------------------------------------------------------------------------------

static CallSizes moe_sizes(const Bench *b) {
    const ModelConfig *c = b->config;
    int64_t rows = moe_rows_capacity(b->tokens, c->top_k, c->experts, b->ops->row_align);
    return (CallSizes){.dtype = b->dtype,
                       .rows = b->tokens,
                       .dim = c->hidden,
                       .layers = model_sparse_layers(c),
                       .moe = {b->tokens, c->experts, c->top_k, c->norm_topk, rows, MOE_NATURAL}};
}

// The buffers of MoeRouting, filled by the op itself from random logits.
static void add_routing(Bench *b, const CallSizes *s) {
    const MoeShape *m = &s->moe;
    int64_t slots = m->tokens * m->top_k, scores = m->tokens * m->experts;
    random_of(b, DTYPE_F32, scores), null_of(b), random_of(b, DTYPE_F32, scores), random_of(b, DTYPE_F32, m->tokens);
    space(b, (size_t)slots * 4), random_of(b, DTYPE_F32, slots), space(b, (size_t)m->experts * 4);
    space(b, (size_t)(m->experts + 1) * 4), space(b, (size_t)slots * 4), space(b, (size_t)m->rows * 4);
    random_of(b, DTYPE_F32, m->rows), random_of(b, DTYPE_F32, m->experts);
    if (!b->status) call_moe_route_forward(b->ops, b->p, s);
}

static void bench_moe_router(Bench *b) {
    CallSizes s = moe_sizes(b);
    int64_t n = b->tokens * s.dim, scores = b->tokens * s.moe.experts, weight = (int64_t)s.moe.experts * s.dim;
    double flops = 2.0 * (double)n * s.moe.experts;
    char *shape = text_format("%lldx%d -> %d", (long long)b->tokens, s.dim, s.moe.experts);
    if (wanted(b, "moe_router_forward")) {
        random_of(b, DTYPE_F32, scores), random_of(b, b->dtype, n), random_of(b, b->dtype, weight);
        report(b, call_moe_router_forward, &s, (double)n * b->size + 4.0 * (double)scores, flops, "%s", shape);
    }
    if (wanted(b, "moe_router_backward")) {
        random_of(b, b->dtype, n), random_of(b, DTYPE_F32, weight), random_of(b, DTYPE_F32, scores);
        random_of(b, b->dtype, n), random_of(b, b->dtype, weight);
        report(b, call_moe_router_backward, &s, 3 * (double)n * b->size + 4.0 * (double)scores, 2 * flops, "%s", shape);
    }
    free(shape);
}

static void bench_moe_route(Bench *b) {
    CallSizes s = moe_sizes(b);
    int64_t experts = s.moe.experts, counts = s.layers * experts;
    double scores = (double)(b->tokens * experts), slots = (double)(b->tokens * s.moe.top_k);
    char *shape = text_format("%lld, %d of %d experts", (long long)b->tokens, s.moe.top_k, s.moe.experts);
    if (wanted(b, "moe_route_forward")) {
        add_routing(b, &s);
        report(b, call_moe_route_forward, &s, 8 * scores + 24 * slots, 0, "%s", shape);
    }
    if (wanted(b, "moe_route_backward")) {
        add_routing(b, &s);
        random_of(b, DTYPE_F32, (int64_t)scores), random_of(b, DTYPE_F32, s.moe.rows);
        random_of(b, DTYPE_F32, experts), random_of(b, DTYPE_F32, 1);
        report(b, call_moe_route_backward, &s, 8 * scores + 16 * slots, 0, "%s", shape);
    }
    if (wanted(b, "moe_balance")) {
        random_of(b, DTYPE_F32, 1), random_of(b, DTYPE_F32, counts), random_of(b, DTYPE_F32, 1);
        ids_of(b, counts, 64), random_of(b, DTYPE_F32, counts);
        report(b, call_moe_balance, &s, 12.0 * (double)counts, 0, "%d layers, %d experts", s.layers, s.moe.experts);
    }
    if (wanted(b, "moe_load_stats")) {
        space(b, (size_t)s.layers * MOE_LOAD_STATS * sizeof(float)), ids_of(b, counts, 64);
        report(b, call_moe_load_stats, &s, 4.0 * (double)counts, 0, "%d layers, %d experts", s.layers, s.moe.experts);
    }
    if (wanted(b, "moe_bias_update")) {
        const int32_t skip = 0;
        random_of(b, DTYPE_F32, counts), ids_of(b, counts, 64), uploaded(b, &skip, sizeof skip);
        report(b, call_moe_bias_update, &s, 12.0 * (double)counts, 0, "%d layers, %d experts", s.layers, s.moe.experts);
    }
    free(shape);
}

static void bench_moe_rows(Bench *b) {
    CallSizes s = moe_sizes(b);
    int64_t n = b->tokens * s.dim, rows = s.moe.rows * s.dim;
    double bytes = (double)n * (1 + s.moe.top_k) * b->size;
    char *shape = text_format("%lldx%d, %d rows each", (long long)b->tokens, s.dim, s.moe.top_k);
    if (wanted(b, "moe_gather")) {
        add_routing(b, &s);
        random_of(b, b->dtype, rows), random_of(b, b->dtype, n);
        report(b, call_moe_gather, &s, bytes, 0, "%s", shape);
    }
    if (wanted(b, "moe_sum")) {
        add_routing(b, &s);
        random_of(b, b->dtype, n), random_of(b, b->dtype, rows), random_of(b, b->dtype, n);
        report(b, call_moe_sum, &s, bytes + (double)n * b->size, 0, "%s", shape);
    }
    free(shape);
}

static void bench_grouped_layer(Bench *b, const char *layer, int in_dim, int out_dim) {
    CallSizes s = moe_sizes(b);
    s.in_dim = in_dim, s.out_dim = out_dim;
    int64_t in = s.moe.rows * in_dim, out = s.moe.rows * out_dim, weight = (int64_t)s.moe.experts * in_dim * out_dim;
    double rows = (double)(b->tokens * s.moe.top_k), flops = 2 * rows * in_dim * out_dim;
    double activations = rows * (in_dim + out_dim) * b->size, weights = (double)weight * b->size;
    char *shape = text_format("%s %.0fx%d -> %d, %d experts", layer, rows, in_dim, out_dim, s.moe.experts);
    if (wanted(b, "grouped_linear_forward")) {
        add_routing(b, &s);
        random_of(b, b->dtype, out), random_of(b, b->dtype, in), random_of(b, b->dtype, weight);
        report(b, call_grouped_linear_forward, &s, activations + weights, flops, "%s", shape);
    }
    if (wanted(b, "grouped_linear_backward_input")) {
        add_routing(b, &s);
        random_of(b, b->dtype, in), random_of(b, b->dtype, out), random_of(b, b->dtype, weight);
        report(b, call_grouped_linear_backward_input, &s, activations + weights, flops, "%s", shape);
    }
    for (int add = 0; add < 2 && wanted(b, "grouped_linear_backward_weight"); add++) {
        s.flag = add;
        add_routing(b, &s);
        random_of(b, DTYPE_F32, weight), random_of(b, b->dtype, out), random_of(b, b->dtype, in);
        report(b, call_grouped_linear_backward_weight, &s, activations + layout_gradient_traffic(add) * (double)weight,
               flops, "%s%s", shape, add ? ", add" : "");
    }
    free(shape);
}

static void bench_moe(Bench *b) {
    const ModelConfig *c = b->config;
    CallSizes s = moe_sizes(b);
    bench_moe_router(b);
    bench_moe_route(b);
    bench_moe_rows(b);
    bench_swiglu(b, s.moe.rows, b->tokens * c->top_k, c->moe_ffn);
    bench_grouped_layer(b, "gate_up", c->hidden, 2 * c->moe_ffn);
    bench_grouped_layer(b, "down", c->moe_ffn, c->hidden);
}

// ---- optimizer ------------------------------------------------------------------------------------------------------

static void bench_optimizer(Bench *b) {
    int64_t n = b->layout.element_count < PARAMETERS_MAX ? b->layout.element_count : PARAMETERS_MAX;
    bool master = b->layout.request.precision == PRECISION_BF16;
    char shape[32];
    text_count(shape, (double)n);
    CallSizes s = {.dtype = b->dtype, .count = n, .value = 10};
    s.adamw = (AdamwArgs){.lr = 1e-3f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .bias1 = 0.1f,
                          .bias2 = 0.05f,
                          .max_norm = 1.0f};
    if (wanted(b, "norm_f32")) {
        random_of(b, DTYPE_F32, 1), random_of(b, DTYPE_F32, n);
        report(b, call_norm_f32, &s, 4.0 * (double)n, 0, "%s", shape);
    }
    if (wanted(b, "guard")) {
        space(b, 4), random_of(b, DTYPE_F32, 1), random_of(b, DTYPE_F32, 1);
        report(b, call_guard, &s, 12, 0, "1");
    }
    if (wanted(b, "adamw")) {
        const float norm = 2;
        const int32_t skip = 0;
        random_of(b, b->dtype, n);
        master ? (void)random_of(b, DTYPE_BF16, n) : null_of(b);
        for (int i = 0; i < 3; i++)
            random_of(b, DTYPE_F32, n);
        uploaded(b, &norm, sizeof norm), uploaded(b, &skip, sizeof skip);
        if (b->p[3]) b->ops->zero(b->ops, b->p[3], (size_t)n * sizeof(float)); // second moments are never negative
        report(b, call_adamw, &s, layout_adamw_traffic(b->layout.request.precision) * (double)n, 0, "%s", shape);
    }
}

// ---- all of them ----------------------------------------------------------------------------------------------------

static Status bench_prepare(Bench *b) {
    Ops *ops = b->ops;
    const LayoutActivation *scratch = layout_activation(&b->layout, ACT_SCRATCH, -1, 1);
    b->workspace_bytes = (size_t)b->layout.bytes[LAYOUT_WORKSPACE];
    // In training, attention's backward pass borrows temporaries as a larger workspace; here it has as much of its own.
    if (scratch && (size_t)scratch->bytes > b->workspace_bytes) b->workspace_bytes = (size_t)scratch->bytes;
    TRY(ops->alloc(ops, &b->workspace, b->workspace_bytes, "the workspace"));
    ops->bind_workspace(ops, b->workspace, b->workspace_bytes);
    TRY(ops->alloc(ops, &b->random_f32, RANDOM * sizeof(float), "random numbers"));
    TRY(ops->alloc(ops, &b->random_bf16, RANDOM * sizeof(bf16), "random numbers"));
    float *host = xmalloc(RANDOM * sizeof *host);
    rng_fill_normal(host, RANDOM, 1, RNG_STREAM_BENCH, 0, 0, 1);
    ops->upload(ops, b->random_f32, host, RANDOM * sizeof *host);
    ops->cast(ops, b->random_bf16, DTYPE_BF16, b->random_f32, DTYPE_F32, RANDOM);
    free(host);
    return ops->sync(ops);
}

static void bench_all(Bench *b) {
    const ModelConfig *c = b->config;
    int sparse = model_sparse_layers(c);
    bench_ceilings(b);
    bench_elements(b);
    bench_embedding(b);
    bench_norms(b);
    bench_linear(b);
    bench_rope(b);
    bench_attention(b);
    if (sparse < c->layers) {
        bench_swiglu_packed(b, b->tokens, c->ffn);
        bench_linear_swiglu(b, b->tokens, c->hidden, c->ffn);
    }
    if (sparse > 0) bench_moe(b);
    bench_cross_entropy(b);
    bench_optimizer(b);
}

Status bench_ops(Ops *ops, const BenchOps *bench) {
    Bench b = {.ops = ops, .bench = bench, .config = &bench->request.config};
    TRY(layout_build(&b.layout, &bench->request));
    b.dtype = b.layout.dtype;
    b.size = (double)dtype_size(b.dtype);
    b.tokens = b.layout.tokens;
    b.status = bench_prepare(&b);
    if (!b.status) bench_all(&b);
    if (b.random_f32) ops->free(ops, b.random_f32, RANDOM * sizeof(float));
    if (b.random_bf16) ops->free(ops, b.random_bf16, RANDOM * sizeof(bf16));
    if (b.workspace) ops->free(ops, b.workspace, b.workspace_bytes);
    layout_free(&b.layout);
    return b.status;
}
