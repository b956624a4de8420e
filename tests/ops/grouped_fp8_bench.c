// The grouped products of MoE in FP8 on the GPU: every result of every kernel checked, then rates. Run by hand:
//     build/tests/grouped_fp8_bench [--check | --small | --race] [500m|30b]     (all large shapes, or those whose name
//     begins so)
// With --check alone only those of 500m.
//
// The reference is the portable kernel (plain multiply-adds in float, which ops_compare --portable holds against the
// CPU). Outputs hold a pattern before each run, so that an element that was not written, or written where it must not
// be, is seen; codes of rows that are not in use are NaN. Two runs must give the same bits. Rates stand beside those of
// the same product in bf16, and of a dense one in FP8 with as many rows.
#include "base/rng.h"
#include "bench.h"
#include "ops/cuda/grouped_fp8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum Product { FORWARD, INPUT, WEIGHT, ADD_WEIGHT } Product; // the last adds to what is there

static const char *const product_names[] = {"forward", "input", "weight", "add weight"};

typedef struct Case {
    const char *name;
    int experts, in_dim, out_dim;
    int64_t slots;
} Case;

typedef struct Problem {
    const Case *shape;
    Product product;
    int64_t rows; // capacity
    int32_t *counts, *offsets;
    GroupedFp8Call call;
    size_t out_bytes;
    Tensor bf16[3]; // of the same product in bf16: out, and its operands
} Problem;

// ---- problems -----------------------------------------------------------------------------------------------------

// Normal values of deviation 1 in a format, repeated; a prime number of them, so that no two rows are the same.
static void codes_fill(uint8_t *codes, int64_t count, DType dtype, uint64_t seed) {
    enum { BLOCK = 1048573 };
    for (int64_t i = 0; i < count && i < BLOCK; i++)
        codes[i] = fp8_from_f32((float)rng_normal(seed, RNG_STREAM_TEST, (uint64_t)i), dtype);
    for (int64_t i = BLOCK; i < count; i++)
        codes[i] = codes[i - BLOCK];
}

// Codes of expert rows [rows, width], or turned: padding is zero, and what is not in use is NaN.
static void *rows_make(const Problem *p, DType dtype, int64_t width, bool turned, uint64_t seed) {
    enum { FP8_NAN = 0x7f };
    const int64_t count = p->rows * width, experts = p->shape->experts;
    uint8_t *host = malloc((size_t)count);
    codes_fill(host, count, dtype, seed);
    for (int64_t e = 0; e <= experts; e++) {
        const int64_t begin = e < experts ? p->offsets[e] + p->counts[e] : p->offsets[experts];
        const int64_t end = e < experts ? p->offsets[e + 1] : p->rows;
        const int code = e < experts ? 0 : FP8_NAN;
        if (!turned) memset(host + begin * width, code, (size_t)((end - begin) * width));
        for (int64_t i = 0; turned && i < width; i++)
            memset(host + i * p->rows + begin, code, (size_t)(end - begin));
    }
    void *memory = device_memory((size_t)count);
    ops->upload(ops, memory, host, (size_t)count);
    fail_if(ops->sync(ops));
    free(host);
    return memory;
}

static void *weights_make(int64_t count) {
    uint8_t *host = malloc((size_t)count), *memory = device_memory((size_t)count);
    codes_fill(host, count, DTYPE_E4M3, 3);
    ops->upload(ops, memory, host, (size_t)count);
    fail_if(ops->sync(ops));
    free(host);
    return memory;
}

static float *scale_make(float value) {
    float *memory = device_memory(sizeof value);
    ops->upload(ops, memory, &value, sizeof value);
    return memory;
}

static void problem_make(Problem *p, const Case *shape, Product product, Load load) {
    const int experts = shape->experts, in = shape->in_dim, out = shape->out_dim;
    const bool weight = product >= WEIGHT;
    *p = (Problem){
        .shape = shape, .product = product, .rows = moe_rows_capacity(shape->slots, 1, experts, CUDA_ROW_ALIGN)};
    p->counts = calloc((size_t)experts, sizeof *p->counts);
    p->offsets = calloc((size_t)experts + 1, sizeof *p->offsets);
    slots_deal(p->counts, p->offsets, shape->experts, shape->slots, load);
    int32_t *offsets = device_memory((size_t)(experts + 1) * sizeof *offsets);
    ops->upload(ops, offsets, p->offsets, (size_t)(experts + 1) * sizeof *offsets);
    const DType a_dtype = product == FORWARD ? DTYPE_E4M3 : DTYPE_E5M2;
    const int n = product == FORWARD ? out : in, k = product == FORWARD ? in : out;
    p->out_bytes = weight ? (size_t)experts * (size_t)in * (size_t)out * 4 : (size_t)p->rows * (size_t)n * 2;
    p->call = (GroupedFp8Call){
        .call = {.product = weight ? GROUPED_WEIGHT : GROUPED_FORWARD,
                 .out = device_memory(p->out_bytes),
                 .a = rows_make(p, a_dtype, weight ? out : k, weight, 1),
                 .b = weight ? rows_make(p, DTYPE_E4M3, in, true, 2) : weights_make((int64_t)experts * in * out),
                 .offsets = offsets,
                 .experts = experts,
                 .rows = p->rows,
                 .m = weight ? out : 0,
                 .n = n,
                 .k = weight ? 0 : k,
                 .accumulate = product == ADD_WEIGHT},
        .a_dtype = a_dtype,
        .a_scale = scale_make(0x1p-3f),
        .b_scale = scale_make(0x1p-2f)};
}

static void problem_free(Problem *p) {
    const GroupedCall *call = &p->call.call;
    fail_if(ops->sync(ops));
    ops->free(ops, call->out, 0), ops->free(ops, (void *)call->a, 0), ops->free(ops, (void *)call->b, 0);
    ops->free(ops, (void *)call->offsets, 0);
    ops->free(ops, (void *)p->call.a_scale, 0), ops->free(ops, (void *)p->call.b_scale, 0);
    free(p->counts), free(p->offsets);
}

// ---- checks -------------------------------------------------------------------------------------------------------

// Runs on memory that holds `pattern` bytes and brings the bits back, or NULL. variant -1: the portable kernel.
static void *product_bits(const Problem *p, int pattern, int variant) {
    CudaState *state = cuda_state(ops);
    void *host = malloc(p->out_bytes);
    memset(host, pattern, p->out_bytes);
    ops->upload(ops, p->call.call.out, host, p->out_bytes);
    bool ran = true;
    if (variant < 0)
        grouped_fp8_plain(state, &p->call);
    else
        ran = grouped_fp8_sm90(state, &p->call, variant);
    ops->download(ops, host, p->call.call.out, p->out_bytes);
    fail_if(ops->sync(ops));
    if (!ran) free(host);
    return ran ? host : NULL;
}

static float result_at(const void *bits, bool weight, int64_t i) {
    return weight ? ((const float *)bits)[i] : bf16_to_f32(((const bf16 *)bits)[i]);
}

// A result over n terms has deviation sqrt(n) times the scales. Tensor cores add with 13 bits beyond the largest
// addend, which is a few times that: all along the reduction in steps of 32, or for a weight gradient over 128 of it.
// Beside it one step of bf16 where the result is stored so, else the order of sums in float.
static void variant_check(const Problem *p, int variant, const void *want, int pattern, bool small, const char *load) {
    const Case *s = p->shape;
    const bool weight = p->product >= WEIGHT;
    void *got = product_bits(p, pattern, variant);
    if (!got) return; // not for this shape, or not on this GPU
    void *again = product_bits(p, pattern, variant);
    const int64_t count = (int64_t)(p->out_bytes / (weight ? 4 : 2)), width = p->call.call.n;
    const int64_t per = (int64_t)s->in_dim * s->out_dim, used = p->offsets[s->experts];
    int64_t wrong = 0, touched = 0;
    double error = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        const bool unused = weight ? p->counts[i / per] == 0 : i / width >= used;
        if (unused) { // zeros, what was there before, or the pattern: as the reference has it
            touched += memcmp((char *)got + i * (weight ? 4 : 2), (const char *)want + i * (weight ? 4 : 2),
                              weight ? 4 : 2) != 0;
            continue;
        }
        const double value = result_at(got, weight, i), wanted = result_at(want, weight, i);
        const double terms = weight ? p->counts[i / per] : p->call.call.k, deviation = sqrt(terms) * 0x1p-5;
        const double steps = weight ? 4 : terms / 32;
        const double slack = (steps + 6) * 0x1p-11 * deviation + fabs(wanted) * (weight ? 1e-5 : 0x1p-7);
        wrong += !(fabs(value - wanted) <= slack);
        error += (value - wanted) * (value - wanted), norm += wanted * wanted;
    }
    const bool same = memcmp(got, again, p->out_bytes) == 0, good = wrong + touched == 0 && same;
    verdict(good);
    if (!good || !small)
        printf("%-12s %-8s %-10s variant %d %s: %lld wrong, %lld touched, %s, relative error %.1e\n", s->name, load,
               product_names[p->product], variant, good ? "ok" : "WRONG", (long long)wrong, (long long)touched,
               same ? "same bits twice" : "DIFFERENT BITS", sqrt(error / (norm + 1e-300)));
    fflush(stdout);
    free(got), free(again);
}

static void variants_check(const Problem *p, bool small, const char *load) {
    const int pattern = p->product == ADD_WEIGHT ? 0x3e : 0xff; // 0x3e3e3e3e: 0.18578
    void *want = product_bits(p, pattern, -1);
    for (int variant = 0; variant < GROUPED_FP8_VARIANTS; variant++)
        variant_check(p, variant, want, pattern, small, load);
    free(want);
}

// ---- rates --------------------------------------------------------------------------------------------------------

enum { RUN_BF16 = -1, RUN_DENSE = -2 };

static void bf16_run(const Problem *p) {
    const Tensor *t = p->bf16, none = TENSOR_NONE;
    const Tensor offsets = tensor_make((void *)p->call.call.offsets, DTYPE_I32, 1, p->shape->experts + 1, "offsets");
    if (p->product == FORWARD)
        ops->grouped_linear_forward(ops, t[0], t[1], t[2], offsets, none, none);
    else if (p->product == INPUT)
        ops->grouped_linear_backward_input(ops, t[0], t[1], t[2], offsets);
    else
        ops->grouped_linear_backward_weight(ops, t[0], t[1], t[2], offsets, none, none, p->product == ADD_WEIGHT);
}

static bool rate_run(const void *context, int choice) {
    const Problem *p = context;
    const GroupedCall *call = &p->call.call;
    if (choice >= 0) return grouped_fp8_sm90(cuda_state(ops), &p->call, choice);
    if (choice == RUN_BF16) {
        bf16_run(p);
        return true;
    }
    if (p->product >= WEIGHT) return false;
    const Tensor a = tensor_make((void *)call->a, p->call.a_dtype, p->shape->slots, call->k, "a");
    const Tensor b = tensor_make((void *)call->b, DTYPE_E4M3, call->n, call->k, "b");
    ops->linear_fp8(ops, tensor_make(call->out, DTYPE_BF16, a.rows, b.rows, "out"), a, b,
                    tensor_make((void *)p->call.a_scale, DTYPE_F32, 1, 1, "scale"),
                    tensor_make((void *)p->call.b_scale, DTYPE_F32, 1, 1, "scale"), TENSOR_NONE, false);
    return true;
}

static void bf16_make(Problem *p) {
    const Case *s = p->shape;
    const int64_t in = s->in_dim, out = s->out_dim, weights = s->experts * out, rows = p->rows;
    const bool weight = p->product >= WEIGHT, forward = p->product == FORWARD;
    void *a = values_make(rows * (forward ? in : out), 1, 1);
    void *b = values_make(weight ? rows * in : weights * in, 2, 1);
    p->bf16[0] = weight ? tensor_make(p->call.call.out, DTYPE_F32, weights, in, "out")
                        : bf16_tensor(p->call.call.out, rows, forward ? out : in);
    p->bf16[1] = bf16_tensor(a, rows, forward ? in : out);
    p->bf16[2] = weight ? bf16_tensor(b, rows, in) : bf16_tensor(b, weights, in);
}

static void rates_print(Problem *p) {
    enum { RUNS = 8 };
    const Case *s = p->shape;
    const double work = 2.0 * (double)s->slots * s->in_dim * s->out_dim / 1e9;
    bf16_make(p);
    printf("%-12s %-10s bf16 %.0f, dense FP8 %.0f, FP8", s->name, product_names[p->product],
           work / timed(rate_run, p, RUN_BF16, RUNS), work / timed(rate_run, p, RUN_DENSE, RUNS));
    for (int variant = 0; variant < GROUPED_FP8_VARIANTS; variant++)
        printf(" %.0f", work / timed(rate_run, p, variant, RUNS));
    printf(" TFLOP/s\n");
    fflush(stdout);
    ops->free(ops, p->bf16[1].data, 0), ops->free(ops, p->bf16[2].data, 0);
}

static void case_run(const Case *shape, Load load, bool small) {
    for (Product product = FORWARD; product <= ADD_WEIGHT; product++) {
        Problem problem;
        problem_make(&problem, shape, product, load);
        if (small || check_only || !strncmp(shape->name, "500m", 4)) variants_check(&problem, small, load_names[load]);
        if (!small && !check_only) rates_print(&problem);
        problem_free(&problem);
    }
}

static int64_t case_size(const Case *c) {
    return c->slots * c->in_dim * c->out_dim;
}

int main(int argc, char **argv) {
    static const Case small[] = {
        {"one tile", 1, 128, 64, 128}, {"one expert", 1, 256, 512, 2000}, {"odd", 4, 80, 144, 700},
        {"narrow", 3, 16, 32, 300},    {"many", 128, 128, 272, 3000},     {"most", 256, 64, 144, 2000},
        {"wide", 5, 1008, 720, 1111},  {"no slots", 3, 64, 64, 0},
    };
    static const Case large[] = {
        {"500m gate-up", 16, 896, 1024, 65536},
        {"500m down", 16, 512, 896, 65536},
        {"30b gate-up", 128, 2048, 1536, 131072},
        {"30b down", 128, 768, 2048, 131072},
    };
    const char *wanted;
    bench_begin(argc, argv, (size_t)64 << 20, &wanted);
    if (check_only && !*wanted) wanted = "500m";
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        for (Load load = 0; load < LOAD_COUNT; load++)
            if (load_wanted(load) && !(race_only && case_size(&small[i]) > SMALL_SIZE)) case_run(&small[i], load, true);
    printf("small shapes are done\n");
    fflush(stdout);
    for (size_t i = 0; i < sizeof large / sizeof *large && !small_only; i++)
        if (!strncmp(large[i].name, wanted, strlen(wanted))) case_run(&large[i], LOAD_NATURAL, false);
    return bench_end();
}
