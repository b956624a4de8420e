// SwiGLU of experts fused with the grouped product beside it, on the GPU: every variant's results against the separate
// ops, of rows and forward of tokens, then times under sustained load. Run by hand:
//     build/tests/grouped_swiglu_bench [--check | --small | --race] [500m|30b]
//
// Outputs hold NaN before each run, two runs (backward one of them in place) must give the same bits, and rows behind
// the last expert must stay as they were.
#include "base/rng.h"
#include "bench.h"
#include "ops/cuda/grouped_gemm.h"
#include "ops/cuda/grouped_swiglu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Case {
    const char *name;
    int experts;
    int64_t tokens;
    int top_k, inner, dim;
    bool timed;
} Case;

typedef struct Problem {
    const Case *shape;
    bool backward;
    int64_t rows, used;
    GroupedSwigluCall call; // of tokens, which only the forward kernels take
    Tensor in_rows;         // what its rows are
    Tensor saved;           // gate and up for a backward run
} Problem;

enum { RESULTS = 3, GATHER = GROUPED_SWIGLU_VARIANTS, CHOICES = 2 * GROUPED_SWIGLU_VARIANTS };

// ---- problems -----------------------------------------------------------------------------------------------------

static void *upload_new(const void *host, size_t bytes) {
    void *memory = device_memory(bytes);
    ops->upload(ops, memory, host, bytes);
    fail_if(ops->sync(ops));
    return memory;
}

static void rows_make(Problem *p, Load load) {
    enum { STEP = 1000003 }; // a prime above the slots
    const Case *s = p->shape;
    int32_t *counts = xcalloc((size_t)s->experts, sizeof *counts), *offsets = xcalloc((size_t)s->experts + 1, 4);
    slots_deal(counts, offsets, s->experts, s->tokens * s->top_k, load);
    p->rows = moe_rows_capacity(s->tokens, s->top_k, s->experts, CUDA_ROW_ALIGN);
    p->used = offsets[s->experts];
    int32_t *token_of_row = xmalloc((size_t)p->rows * sizeof *token_of_row);
    float *weights = xcalloc((size_t)p->rows, sizeof *weights);
    for (int64_t row = 0; row < p->rows; row++)
        token_of_row[row] = -1;
    int64_t slot = 0;
    for (int e = 0; e < s->experts; e++)
        for (int64_t row = offsets[e]; row < offsets[e] + counts[e]; row++, slot++) {
            token_of_row[row] = (int32_t)(slot * STEP % s->tokens);
            weights[row] = (float)(0.1 + rng_uniform(5, RNG_STREAM_TEST, (uint64_t)row));
        }
    GroupedSwigluCall *c = &p->call;
    size_t bytes = (size_t)p->rows * 4, ends = ((size_t)s->experts + 1) * 4;
    c->offsets = tensor_make(upload_new(offsets, ends), DTYPE_I32, 1, s->experts + 1, "offsets");
    c->token_of_row = tensor_make(upload_new(token_of_row, bytes), DTYPE_I32, p->rows, 1, "token_of_row");
    c->row_weight = tensor_make(upload_new(weights, bytes), DTYPE_F32, p->rows, 1, "row_weight");
    free(counts), free(offsets), free(token_of_row), free(weights);
}

static Tensor rows_new(int64_t rows, int64_t cols) {
    return bf16_tensor(device_memory((size_t)(rows * cols) * sizeof(bf16)), rows, cols);
}

static void gather(const Problem *p, Tensor out) {
    const GroupedSwigluCall *c = &p->call;
    rows_gather(cuda_state(ops), out.data, c->in.data, c->token_of_row.data,
                (const int32_t *)c->offsets.data + p->shape->experts, p->rows, p->shape->inner, DTYPE_BF16);
}

static void problem_make(Problem *p, const Case *s, Load load, bool backward) {
    *p = (Problem){.shape = s, .backward = backward};
    rows_make(p, load);
    GroupedSwigluCall *c = &p->call;
    int64_t weights = (int64_t)s->experts * s->inner * s->dim;
    void *weight = values_make((backward ? 1 : 2) * weights, 2, 0.05f);
    c->backward = backward;
    c->in = bf16_tensor(values_make(s->tokens * s->inner, 1, 1), s->tokens, s->inner);
    c->weight = backward ? bf16_tensor(weight, (int64_t)s->experts * s->inner, s->dim)
                         : bf16_tensor(weight, (int64_t)s->experts * 2 * s->dim, s->inner);
    c->out = rows_new(p->rows, 2 * s->dim);
    c->hidden = rows_new(p->rows, s->dim);
    c->drow_weight = tensor_make(device_memory((size_t)p->rows * 4), DTYPE_F32, p->rows, 1, "drow_weight");
    c->scratch = rows_new(p->rows, s->inner);
    c->before = p->saved = bf16_tensor(values_make(p->rows * 2 * s->dim, 3, 1), p->rows, 2 * s->dim);
    p->in_rows = rows_new(p->rows, s->inner);
    memory_spoil(p->in_rows.data, (size_t)(p->rows * s->inner) * sizeof(bf16));
    gather(p, p->in_rows);
    fail_if(ops->sync(ops));
}

static void problem_free(Problem *p) {
    fail_if(ops->sync(ops));
    const GroupedSwigluCall *c = &p->call;
    void *all[] = {c->in.data,          c->weight.data,  c->out.data,     c->hidden.data,
                   c->drow_weight.data, c->scratch.data, c->offsets.data, c->token_of_row.data,
                   c->row_weight.data,  p->in_rows.data, p->saved.data};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ops->free(ops, all[i], 0);
}

// ---- runs ---------------------------------------------------------------------------------------------------------

// choice -1: the separate ops; from GATHER on, a gather and then the variant of rows.
static bool run(const void *problem, int choice) {
    const Problem *p = problem;
    GroupedSwigluCall call = p->call;
    if (choice >= GATHER) {
        if (!tensor_present(call.token_of_row)) return false;
        gather(p, call.scratch);
        call.in = call.scratch, call.token_of_row = TENSOR_NONE;
    }
    if (choice >= 0) return grouped_swiglu_sm90(ops->state, &call, choice % GROUPED_SWIGLU_VARIANTS);
    if (p->backward)
        ops_grouped_then_swiglu_backward(ops, call.out, call.hidden, call.drow_weight, call.before, call.in,
                                         call.weight, call.offsets, call.row_weight);
    else
        ops_grouped_then_swiglu_forward(ops, call.hidden, call.out, call.in, call.weight, call.offsets, call.row_weight,
                                        call.token_of_row, call.scratch);
    return true;
}

static Tensor result_tensor(const Problem *p, int i) {
    return i == 0 ? p->call.out : i == 1 ? p->call.hidden : p->call.drow_weight;
}

static int result_count(const Problem *p) {
    return p->backward ? RESULTS : RESULTS - 1;
}

static size_t result_bytes(const Problem *p, int i) {
    Tensor t = result_tensor(p, i);
    return (size_t)tensor_count(t) * dtype_size(t.dtype);
}

// False when it cannot do the shape.
static bool results(const Problem *p, int choice, void *got[RESULTS]) {
    for (int i = 0; i < RESULTS; i++)
        memory_spoil(result_tensor(p, i).data, result_bytes(p, i));
    if (p->backward && p->call.before.data == p->call.out.data)
        ops->copy(ops, p->call.out.data, p->saved.data, result_bytes(p, 0));
    if (!run(p, choice)) return false;
    for (int i = 0; i < result_count(p); i++)
        got[i] = fetch(result_tensor(p, i).data, result_bytes(p, i));
    return true;
}

// ---- checks -------------------------------------------------------------------------------------------------------

static double value_of(const void *data, DType dtype, int64_t i) {
    return dtype == DTYPE_F32 ? ((const float *)data)[i] : bf16_to_f32(((const bf16 *)data)[i]);
}

// Elements of a result that are off. Two right ways differ by their roundings: what one rounds to bf16 (gate and up, or
// the gradient of hidden) falls on the other side of a step, or is not rounded at all. Each is at most 2^-8 of its
// value, three of them meet in a result, and a sum over a row (drow_weight) has them of its largest addends: allowed
// are 2^-6 of the value and 2^-6 of the rms. What is not multiplied right is off by about the rms.
static int64_t wrong_elements(const void *got, const void *wanted, DType dtype, int64_t count) {
    double square = 0;
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++)
        square += value_of(wanted, dtype, i) * value_of(wanted, dtype, i);
    double rms = sqrt(square / (double)(count > 0 ? count : 1));
    for (int64_t i = 0; i < count; i++) {
        double want = value_of(wanted, dtype, i);
        wrong += !(fabs(value_of(got, dtype, i) - want) <= 0x1p-6 * (fabs(want) + rms));
    }
    return wrong;
}

static void results_free(void *of[RESULTS], int count) {
    for (int i = 0; i < count; i++)
        free(of[i]);
}

static void check(const Problem *p, const char *load) {
    const char *direction = p->backward ? "backward" : "forward";
    const char *source = tensor_present(p->call.token_of_row) ? "tokens" : "rows";
    Problem second = *p;
    if (p->backward) second.call.before = p->call.out;
    void *wanted[RESULTS] = {0};
    results(p, -1, wanted);
    for (int choice = 0; choice < GATHER; choice++) {
        void *got[RESULTS] = {0}, *again[RESULTS] = {0};
        if (!results(p, choice, got)) continue; // not for this shape, or this GPU
        results(&second, choice, again);
        int64_t wrong = 0;
        bool same = true, edge = true;
        for (int i = 0; i < result_count(p); i++) {
            Tensor t = result_tensor(p, i);
            size_t size = dtype_size(t.dtype), used = (size_t)(p->used * t.cols) * size, bytes = result_bytes(p, i);
            wrong += wrong_elements(got[i], wanted[i], t.dtype, p->used * t.cols);
            bool in_place = i == 0 && p->backward; // again: rows behind the last expert are those that were there
            same = same && memcmp(got[i], again[i], in_place ? used : bytes) == 0;
            edge = edge && spoiled((char *)got[i] + used, bytes - used);
        }
        bool right = verdict(!wrong && same && edge);
        if (!right || !p->shape->timed)
            printf("%-12s %-8s %-8s %-6s variant %d: %lld wrong%s%s %s\n", p->shape->name, load, direction, source,
                   choice, (long long)wrong, same ? "" : ", two runs differ",
                   edge ? "" : ", wrote behind the last expert", right ? "ok" : "FAILED");
        results_free(got, result_count(p)), results_free(again, result_count(p));
    }
    results_free(wanted, result_count(p));
}

static void race(const Problem *p) {
    const Case *s = p->shape;
    bool tokens = tensor_present(p->call.token_of_row);
    double flops = 2.0 * (double)(s->tokens * s->top_k) * s->inner * s->dim * (p->backward ? 1 : 2);
    for (int round = 0; round < 2; round++) {
        printf("%-8s %-8s %-6s", s->name, p->backward ? "backward" : "forward", tokens ? "tokens" : "rows");
        for (int choice = -1; choice < (tokens ? CHOICES : GATHER); choice++) {
            double ms = timed(run, p, choice, (int)(30.0e12 / flops) + 1);
            if (choice < 0)
                printf("  separate %.3f ms %.0f", ms, flops / ms / 1e9);
            else
                printf("  %s%d %.3f %.0f", choice < GATHER ? "v" : "gather v", choice % GROUPED_SWIGLU_VARIANTS, ms,
                       flops / ms / 1e9);
        }
        printf("\n");
    }
}

static void case_run(const Case *s, Load load, bool backward) {
    Problem p;
    problem_make(&p, s, load, backward);
    Problem rows = p;
    rows.call.in = p.in_rows, rows.call.token_of_row = TENSOR_NONE;
    for (int tokens = 0; tokens < (backward ? 1 : 2); tokens++) {
        check(tokens ? &p : &rows, load_names[load]);
        if (s->timed && !check_only) race(tokens ? &p : &rows);
    }
    fflush(stdout);
    problem_free(&p);
}

static bool case_wanted(const Case *s, Load load, const char *wanted) {
    if (s->timed) return !small_only && load == LOAD_NATURAL && !strncmp(s->name, wanted, strlen(wanted));
    return load >= LOAD_NATURAL && load_wanted(load) &&
           !(race_only && s->tokens * s->top_k * s->inner * s->dim > SMALL_SIZE);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        {"odd", 4, 350, 2, 72, 40, false},          // dim: backward only
        {"one expert", 1, 1000, 1, 256, 96, false}, //
        {"tiles", 3, 700, 2, 136, 224, false},      // tiles and slices that are not whole
        {"many", 128, 1500, 2, 128, 64, false},     // experts of a tile or none
        {"most", 256, 1000, 2, 64, 32, false},      //
        {"wide", 5, 600, 2, 1000, 1056, false},     // several waves
        {"500m", 16, 32768, 2, 896, 512, true},     //
        {"30b", 128, 16384, 8, 2048, 768, true},    //
    };
    const char *wanted;
    bench_begin(argc, argv, (size_t)64 << 20, &wanted);
    if (check_only && !*wanted) wanted = "500m";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int backward = 0; backward < 2; backward++)
            for (Load load = 0; load < LOAD_COUNT; load++)
                if (case_wanted(&cases[i], load, wanted)) case_run(&cases[i], load, backward);
    return bench_end();
}
