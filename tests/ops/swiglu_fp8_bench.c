// The gate-up product in FP8 with SwiGLU in its epilogue, of a dense layer and of experts, on the GPU: every code of
// every variant checked, then times beside the separate ops. Run by hand:
//     build/tests/swiglu_fp8_bench [--check | --small | --race] [FIRST LETTERS OF A CASE, as experts]
//
// The reference is the portable product (plain multiply-adds in float) and SwiGLU's own kernel. Outputs hold NaN before
// each run, two runs must give the same bits, and what stands behind them, or behind the last expert, must stay as it
// was. Of the shapes that are timed, also how many codes differ from those of the separate ops.
#include "base/rng.h"
#include "bench.h"
#include "ops/cuda/grouped_fp8.h"
#include "ops/cuda/swiglu_fp8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Case {
    const char *name;
    int64_t rows; // of experts without padding
    int inner, dim, experts;
    bool timed;
} Case;

enum { SEPARATE = -1, REFERENCE = -2 }; // beside the variants

#define IN_SCALE      0x1p-3f
#define WEIGHT_SCALE  0x1p-2f
#define HIDDEN_SCALE  0x1p-6f
#define GATE_UP_SCALE 0x1p-7f // the largest are beyond the format

typedef struct Problem {
    const Case *shape;
    char name[48];
    SwigluFp8Call call;
    void *numbers;                      // two maxima, four scales
    Tensor offsets;                     // of the reference: a dense layer is one expert
    int64_t used;                       // rows that have results
    float *weights;                     // [used] on the host; 0: padding
    size_t hidden_bytes, gate_up_bytes; // with a row behind
} Problem;

typedef struct Result {
    uint8_t *hidden, *gate_up8;
    float amax[2]; // of hidden, and of gate and up
} Result;

// ---- problems -----------------------------------------------------------------------------------------------------

static Tensor number(const Problem *p, int i) { // at 16 bytes, as libraries want them
    return tensor_make((float *)p->numbers + 4 * i, DTYPE_F32, 1, 1, "number");
}

static void *upload_new(const void *host, size_t bytes) {
    void *memory = device_memory(bytes);
    ops->upload(ops, memory, host, bytes);
    fail_if(ops->sync(ops));
    return memory;
}

// Normal values of deviation 1, repeated; a prime number of them, so that no two rows are the same. Rows of padding are
// zero.
static void *codes_make(int64_t rows, int64_t cols, int64_t room, uint64_t seed, const float *weights) {
    enum { BLOCK = 1048573 };
    const int64_t count = rows * cols;
    uint8_t *host = xmalloc((size_t)(room * cols));
    memset(host, 0x7f, (size_t)(room * cols)); // NaN behind them
    for (int64_t i = 0; i < count; i++)
        host[i] = i < BLOCK ? fp8_from_f32((float)rng_normal(seed, RNG_STREAM_TEST, (uint64_t)i), DTYPE_E4M3)
                            : host[i - BLOCK];
    for (int64_t row = 0; weights && row < rows; row++)
        if (weights[row] == 0) memset(host + row * cols, 0, (size_t)cols);
    void *memory = upload_new(host, (size_t)(room * cols));
    free(host);
    return memory;
}

// Returns how many rows there is room for.
static int64_t rows_make(Problem *p, Load load) {
    const Case *s = p->shape;
    const int experts = s->experts ? s->experts : 1;
    int32_t *counts = xcalloc((size_t)experts, sizeof *counts), *offsets = xcalloc((size_t)experts + 1, 4);
    slots_deal(counts, offsets, experts, s->rows, load);
    if (!s->experts) offsets[1] = (int32_t)s->rows;
    p->used = offsets[experts];
    const int64_t rows = s->experts ? moe_rows_capacity(s->rows, 1, experts, CUDA_ROW_ALIGN) : s->rows;
    p->weights = xcalloc((size_t)rows, sizeof *p->weights);
    for (int e = 0; e < experts; e++)
        for (int64_t row = offsets[e]; row < offsets[e] + counts[e]; row++)
            p->weights[row] = s->experts ? (float)(0.1 + rng_uniform(5, RNG_STREAM_TEST, (uint64_t)row)) : 1.0f;
    p->offsets = tensor_make(upload_new(offsets, ((size_t)experts + 1) * 4), DTYPE_I32, 1, experts + 1, "offsets");
    if (s->experts) {
        p->call.offsets = p->offsets;
        p->call.row_weight = tensor_make(upload_new(p->weights, (size_t)rows * 4), DTYPE_F32, rows, 1, "row_weight");
    }
    free(counts), free(offsets);
    return rows;
}

static Tensor codes_tensor(void *memory, int64_t rows, int64_t cols) {
    return tensor_make(memory, DTYPE_E4M3, rows, cols, "codes");
}

static void problem_make(Problem *p, const Case *s, Load load) {
    float numbers[24] = {[8] = IN_SCALE, [12] = WEIGHT_SCALE, [16] = HIDDEN_SCALE, [20] = GATE_UP_SCALE};
    *p = (Problem){.shape = s, .numbers = upload_new(numbers, sizeof numbers)};
    snprintf(p->name, sizeof p->name, "%s%s%s", s->name, s->experts ? ", " : "", s->experts ? load_names[load] : "");
    const int64_t rows = rows_make(p, load), room = rows + 16; // the portable product works on 16 rows at a time
    const int64_t outputs = 2 * (int64_t)s->dim * (s->experts ? s->experts : 1);
    p->hidden_bytes = (size_t)((rows + 1) * s->dim);
    p->gate_up_bytes = (size_t)((rows + 1) * 2 * s->dim);
    SwigluFp8Call *c = &p->call;
    c->hidden = codes_tensor(device_memory(p->hidden_bytes), rows, s->dim);
    c->gate_up8 = codes_tensor(device_memory(p->gate_up_bytes), rows, 2 * s->dim);
    c->scratch = bf16_tensor(device_memory((size_t)(room * 2 * s->dim) * sizeof(bf16)), rows, 2 * s->dim);
    c->in = codes_tensor(codes_make(p->used, s->inner, room, 1, p->weights), rows, s->inner);
    c->weight = codes_tensor(codes_make(outputs, s->inner, outputs, 2, NULL), outputs, s->inner);
    c->hidden_amax = number(p, 0), c->gate_up_amax = number(p, 1);
    c->in_scale = number(p, 2), c->weight_scale = number(p, 3);
    c->hidden_scale = number(p, 4), c->gate_up_scale = number(p, 5);
}

static void problem_free(Problem *p) {
    fail_if(ops->sync(ops));
    void *all[] = {p->numbers,           p->offsets.data, p->call.hidden.data, p->call.gate_up8.data,
                   p->call.scratch.data, p->call.in.data, p->call.weight.data, p->call.row_weight.data};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) ops->free(ops, all[i], 0);
    free(p->weights);
}

static void reference_run(const Problem *p) {
    const SwigluFp8Call *c = &p->call;
    const int64_t experts = p->offsets.cols - 1;
    GroupedFp8Call product = {.call = {.product = GROUPED_FORWARD,
                                       .out = c->scratch.data,
                                       .a = c->in.data,
                                       .b = c->weight.data,
                                       .offsets = p->offsets.data,
                                       .experts = (int)experts,
                                       .rows = c->in.rows,
                                       .n = 2 * p->shape->dim,
                                       .k = p->shape->inner},
                              .a_dtype = DTYPE_E4M3,
                              .a_scale = c->in_scale.data,
                              .b_scale = c->weight_scale.data};
    grouped_fp8_plain(cuda_state(ops), &product);
    ops->swiglu_fp8_forward(ops, c->hidden, c->hidden_amax, c->gate_up8, c->gate_up_amax, c->scratch, c->hidden_scale,
                            c->gate_up_scale, c->row_weight,
                            p->shape->experts ? tensor_cols(p->offsets, experts, 1) : TENSOR_NONE);
}

static bool run(const void *problem, int choice) {
    const Problem *p = problem;
    const SwigluFp8Call *c = &p->call;
    if (choice >= 0) return swiglu_fp8_sm90(cuda_state(ops), c, choice);
    if (choice == REFERENCE)
        reference_run(p);
    else
        swiglu_fp8_separate(ops, c);
    return true;
}

// False when it cannot do the shape.
static bool result_make(Result *result, const Problem *p, int choice) {
    const float none[8] = {0};
    memory_spoil(p->call.hidden.data, p->hidden_bytes);
    memory_spoil(p->call.gate_up8.data, p->gate_up_bytes);
    ops->upload(ops, p->numbers, none, sizeof none);
    if (!run(p, choice)) return false;
    float *numbers = fetch(p->numbers, sizeof none);
    *result = (Result){.hidden = fetch(p->call.hidden.data, p->hidden_bytes),
                       .gate_up8 = fetch(p->call.gate_up8.data, p->gate_up_bytes),
                       .amax = {numbers[0], numbers[4]}};
    free(numbers);
    return true;
}

static void result_free(Result *result) {
    free(result->hidden), free(result->gate_up8);
}

// ---- checks -------------------------------------------------------------------------------------------------------

typedef struct Errors {
    int64_t wrong;
    double square, size; // of the difference and of what was wanted
    double slack;        // the largest, before codes
} Errors;

// Codes of two values that are `slack` apart may be a step apart beside that.
static void code_check(Errors *errors, uint8_t got, uint8_t wanted, float scale, double slack) {
    const double x = (double)(fp8_to_f32(got, DTYPE_E4M3) * scale),
                 y = (double)(fp8_to_f32(wanted, DTYPE_E4M3) * scale);
    const double step = fmax(0x1p-3 * fabs(y), 0x1p-9 * (double)scale);
    errors->wrong += !(fabs(x - y) <= slack + step);
    errors->square += (x - y) * (x - y);
    errors->size += y * y;
    errors->slack = fmax(errors->slack, slack);
}

// A sum over n terms has deviation sqrt(n) times the scales. Tensor cores add with 13 bits beyond the largest addend,
// which is a few times that, in steps of 32: `off`. A bf16 may be one step from the other, and hidden moves with both
// of its factors, by the row's weight; silu's slope is at most 1.1.
static void codes_check(Errors errors[2], const Problem *p, const Result *got, const Result *wanted,
                        const bf16 *gate_up) {
    const int64_t dim = p->shape->dim;
    const double off =
        (p->shape->inner / 32.0 + 6) * 0x1p-11 * sqrt(p->shape->inner) * (double)(IN_SCALE * WEIGHT_SCALE);
    for (int64_t row = 0; row < p->used; row++)
        for (int64_t i = 0; i < dim; i++) {
            const int64_t g = row * 2 * dim + i, u = g + dim, h = row * dim + i;
            const double gate = fabs((double)bf16_to_f32(gate_up[g])), up = fabs((double)bf16_to_f32(gate_up[u]));
            const double gate_off = off + 0x1p-7 * gate, up_off = off + 0x1p-7 * up;
            code_check(&errors[0], got->hidden[h], wanted->hidden[h], HIDDEN_SCALE,
                       (1.1 * gate_off * (up + up_off) + gate * up_off) * (double)p->weights[row]);
            code_check(&errors[1], got->gate_up8[g], wanted->gate_up8[g], GATE_UP_SCALE, gate_off);
            code_check(&errors[1], got->gate_up8[u], wanted->gate_up8[u], GATE_UP_SCALE, up_off);
        }
}

static bool results_same(const Problem *p, const Result *a, const Result *b) {
    return memcmp(a->hidden, b->hidden, p->hidden_bytes) == 0 &&
           memcmp(a->gate_up8, b->gate_up8, p->gate_up_bytes) == 0 && memcmp(a->amax, b->amax, sizeof a->amax) == 0;
}

static void variant_check(const Problem *p, int variant, const Result *wanted, const bf16 *gate_up) {
    enum { PARTS = 2 };
    const size_t used = (size_t)(p->used * p->shape->dim);
    Result got, again;
    Errors errors[PARTS] = {{0}};
    if (!result_make(&got, p, variant)) {
        printf("%-32s variant %d: not for this shape\n", p->name, variant);
        return;
    }
    result_make(&again, p, variant);
    codes_check(errors, p, &got, wanted, gate_up);
    bool same = results_same(p, &got, &again), right = same;
    bool edge = spoiled(got.hidden + used, p->hidden_bytes - used) &&
                spoiled(got.gate_up8 + 2 * used, p->gate_up_bytes - 2 * used);
    double difference[PARTS];
    for (int i = 0; i < PARTS; i++) {
        difference[i] = sqrt(errors[i].square / errors[i].size); // as race.h's samples: see sample.h
        right = right && errors[i].wrong == 0 && difference[i] < 0.03 &&
                fabsf(got.amax[i] - wanted->amax[i]) <= (float)errors[i].slack;
    }
    right = verdict(right && edge);
    printf("%-32s variant %d: %lld and %lld codes wrong, differences %.2e %.2e, maxima %.4g %.4g (%.4g %.4g)%s%s %s\n",
           p->name, variant, (long long)errors[0].wrong, (long long)errors[1].wrong, difference[0], difference[1],
           (double)got.amax[0], (double)got.amax[1], (double)wanted->amax[0], (double)wanted->amax[1],
           same ? "" : ", two runs differ", edge ? "" : ", wrote beyond the end", right ? "ok" : "FAILED");
    result_free(&got), result_free(&again);
}

static void check(const Problem *p) {
    Result wanted;
    result_make(&wanted, p, REFERENCE);
    bf16 *gate_up = fetch(p->call.scratch.data, (size_t)tensor_count(p->call.scratch) * sizeof(bf16));
    for (int variant = 0; variant < SWIGLU_FP8_VARIANTS; variant++)
        variant_check(p, variant, &wanted, gate_up);
    free(gate_up);
    result_free(&wanted);
}

// ---- times --------------------------------------------------------------------------------------------------------

static double share_differing(const uint8_t *a, const uint8_t *b, size_t count) {
    size_t differing = 0;
    for (size_t i = 0; i < count; i++)
        differing += a[i] != b[i];
    return (double)differing / (double)count;
}

static void others_print(const Problem *p) {
    Result separate, own;
    result_make(&separate, p, SEPARATE);
    if (result_make(&own, p, 0)) {
        const size_t used = (size_t)(p->used * p->shape->dim);
        printf("%-32s of variant 0 %.2g of hidden and %.2g of gate and up are other codes than the separate ops'\n",
               p->name, share_differing(own.hidden, separate.hidden, used),
               share_differing(own.gate_up8, separate.gate_up8, 2 * used));
        result_free(&own);
    }
    result_free(&separate);
}

static void race(const Problem *p) {
    const Case *s = p->shape;
    const double flops = 4.0 * (double)s->rows * s->inner * s->dim;
    printf("%-32s", p->name);
    for (int round = 0; round < 2; round++)
        for (int variant = SEPARATE; variant < SWIGLU_FP8_VARIANTS; variant++) {
            double ms = timed(run, p, variant, (int)(60.0e12 / flops) + 1);
            if (ms > 0) printf("  %s%d %.3f ms %.0f", variant < 0 ? "separate " : "v", variant, ms, flops / ms / 1e9);
        }
    printf("\n");
    others_print(p);
}

static int64_t case_size(const Case *s) {
    return s->rows * s->inner * s->dim * 2;
}

static void case_run(const Case *s, Load load) {
    Problem problem;
    problem_make(&problem, s, load);
    if (s->timed)
        race(&problem);
    else
        check(&problem);
    fflush(stdout);
    problem_free(&problem);
}

static bool case_wanted(const Case *s, Load load, const char *wanted) {
    if (strncmp(s->name, wanted, strlen(wanted)) != 0) return false;
    if ((s->timed && check_only) || (small_only && case_size(s) > SMALL_SIZE)) return false;
    return s->timed || !s->experts ? load == LOAD_NATURAL : load >= LOAD_NATURAL && load_wanted(load);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        {"odd", 129, 80, 96, 0, false},
        {"one row", 1, 32, 32, 0, false},
        {"narrow", 300, 16, 64, 0, false},
        {"half a slice", 257, 192, 160, 0, false},
        {"more than half", 640, 480, 224, 0, false},
        {"many small tiles", 1600, 64, 2592, 0, false},
        {"odd rows", 1000, 960, 2560, 0, false},
        {"many tiles", 4200, 960, 2560, 0, false},
        {"experts, odd", 700, 80, 96, 4, false},
        {"experts, one", 1000, 192, 160, 1, false},
        {"experts, tiles", 1200, 480, 224, 3, false}, // and slices, that are not whole
        {"experts, many", 3000, 128, 64, 128, false}, // a tile each, or none
        {"experts, most", 2000, 64, 32, 256, false},
        {"experts, waves", 4200, 960, 1056, 5, false},
        {"smollm-360m", 32768, 960, 2560, 0, true},
        {"llama-3.2-1b", 32768, 2048, 8192, 0, true},
        {"experts, qwen3-moe-500m", 65536, 896, 512, 16, true},
        {"experts, qwen3-30b-a3b", 131072, 2048, 768, 128, true},
    };
    const char *wanted;
    bench_begin(argc, argv, (size_t)64 << 20, &wanted);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (Load load = 0; load < LOAD_COUNT; load++)
            if (case_wanted(&cases[i], load, wanted)) case_run(&cases[i], load);
    return bench_end();
}
