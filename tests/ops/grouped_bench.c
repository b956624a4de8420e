// The grouped products of MoE on the GPU: every result element checked, then rates beside cuBLAS. Run by hand:
//     build/tests/grouped_bench [--check | --small | --race] [500m|30b]     (all large shapes, or those whose name
//     begins so)
// With --check alone only those of 500m: the others take gigabytes of the host's memory.
//
// The reference is the table's own float version of the same op (plain multiply-adds, another kernel) on the same
// values, and for the small shapes also float64 on the CPU, for a part of the elements. Outputs hold a pattern before
// each run, so that an element that was not written, or written where it must not be, is seen. Two runs must give the
// same bits. The same for every kernel that reads tokens in the place of the input's rows; these are timed beside the
// product of rows, with and without the gathering of them.
#include "base/rng.h"
#include "bench.h"
#include "ops/cuda/grouped_gemm.h"

#include <cublas_v2.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef enum Product { FORWARD, INPUT, WEIGHT, ADD_WEIGHT } Product; // the last adds to what is there

// How the input is read: as rows, or as tokens by mma.sync, or by the variants of grouped_tokens_sm90; first all that
// are of rows, so that a way tells.
typedef enum Way { WAY_ROWS, WAY_GATHER, WAY_MMA, WAY_SM90, WAY_COUNT = WAY_SM90 + GROUPED_TOKENS_VARIANTS } Way;

static const char *const way_names[] = {"rows",          "gather, rows",  "tokens mma",   "tokens sm90 0",
                                        "tokens sm90 1", "tokens sm90 2", "tokens sm90 3"};
static const char *const product_names[] = {"forward", "input", "weight", "add weight"};

typedef struct Case {
    const char *name;
    int experts, in_dim, out_dim;
    int64_t slots;
} Case;

typedef struct Problem {
    const Case *shape;
    int64_t rows, used;        // capacity, and what the experts fill
    int32_t *counts, *offsets; // host
    float *in, *dout, *weight; // host, exact in bf16; NULL for large shapes
    Tensor d_offsets;
    Tensor d_in[2], d_dout[2], d_weight[2]; // by dtype: float, bf16
    Tensor d_token_of_row, d_scratch;       // [rows, 1]; [rows, in]
    Tensor d_in_tokens;                     // bf16: what the rows are of, in another order
} Problem;

// ---- problems -----------------------------------------------------------------------------------------------------

// Values on the device in both dtypes; padding rows are zero and unused rows NaN. Buffers repeat one block of values.
static void rows_make(Tensor out[2], float **host, int64_t rows, int64_t width, const Problem *rows_of, int kind) {
    enum { BLOCK_VALUES = 1 << 20 };
    static float *blocks[4]; // by kind
    const int64_t count = rows * width;
    float *values = malloc(sizeof(float) * (size_t)count), *block = blocks[kind];
    if (!block) {
        block = blocks[kind] = malloc(sizeof(float) * BLOCK_VALUES);
        for (uint64_t i = 0; i < BLOCK_VALUES; i++)
            block[i] = bf16_to_f32(bf16_from_f32((float)(2 * rng_uniform((uint64_t)kind, RNG_STREAM_TEST, i) - 1)));
    }
    int expert = 0;
    for (int64_t row = 0; row < rows; row++) {
        float *to = values + row * width;
        while (rows_of && expert < rows_of->shape->experts && rows_of->offsets[expert + 1] <= row)
            expert++;
        for (int64_t c = 0; c < width; c++)
            to[c] = block[(row * (width + 4099) + c) % BLOCK_VALUES];
        if (rows_of && row >= rows_of->used)
            for (int64_t c = 0; c < width; c++)
                to[c] = NAN;
        else if (rows_of && row - rows_of->offsets[expert] >= rows_of->counts[expert])
            memset(to, 0, sizeof(float) * (size_t)width);
    }
    bf16 *narrow = malloc(sizeof(bf16) * (size_t)count);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = bf16_from_f32(values[i]);
    out[0] = tensor_make(device_memory((size_t)count * 4), DTYPE_F32, rows, width, "bench");
    out[1] = tensor_make(device_memory((size_t)count * 2), DTYPE_BF16, rows, width, "bench");
    ops->upload(ops, out[0].data, values, (size_t)count * 4);
    ops->upload(ops, out[1].data, narrow, (size_t)count * 2);
    fail_if(ops->sync(ops));
    free(narrow);
    *host = values;
}

// Tokens of which the rows are made: one for each row that is not padding.
static Tensor tokens_make(const Problem *p, const int32_t *token_of_row, const float *rows, int64_t width) {
    const int64_t tokens = p->shape->slots > 0 ? p->shape->slots : 1;
    const size_t bytes = (size_t)(tokens * width) * sizeof(bf16);
    bf16 *values = malloc(bytes);
    memset(values, 0xff, bytes);
    for (int64_t row = 0; row < p->used; row++)
        for (int64_t c = 0; c < width && token_of_row[row] >= 0; c++)
            values[token_of_row[row] * width + c] = bf16_from_f32(rows[row * width + c]);
    Tensor out = tensor_make(device_memory(bytes), DTYPE_BF16, tokens, width, "bench");
    ops->upload(ops, out.data, values, bytes);
    fail_if(ops->sync(ops));
    free(values);
    return out;
}

static void tokens_of_rows_make(Problem *p) {
    enum { STEP = 1000003 }; // a prime above the slots
    const Case *shape = p->shape;
    int32_t *token_of_row = malloc(sizeof(int32_t) * (size_t)p->rows);
    int64_t slot = 0;
    for (int64_t row = 0; row < p->rows; row++)
        token_of_row[row] = -1;
    for (int e = 0; e < shape->experts; e++)
        for (int64_t i = 0; i < p->counts[e]; i++)
            token_of_row[p->offsets[e] + i] = (int32_t)(slot++ * STEP % shape->slots);
    p->d_in_tokens = tokens_make(p, token_of_row, p->in, shape->in_dim);
    p->d_token_of_row = tensor_make(device_memory(sizeof(int32_t) * (size_t)p->rows), DTYPE_I32, p->rows, 1, "tokens");
    ops->upload(ops, p->d_token_of_row.data, token_of_row, sizeof(int32_t) * (size_t)p->rows);
    p->d_scratch = tensor_make(device_memory((size_t)(p->rows * shape->in_dim) * 2), DTYPE_BF16, p->rows, shape->in_dim,
                               "scratch");
    fail_if(ops->sync(ops));
    free(token_of_row);
}

static void problem_make(Problem *p, const Case *shape, Load load) {
    memset(p, 0, sizeof *p);
    p->shape = shape;
    p->counts = calloc((size_t)shape->experts, sizeof(int32_t));
    p->offsets = calloc((size_t)shape->experts + 1, sizeof(int32_t));
    slots_deal(p->counts, p->offsets, shape->experts, shape->slots, load);
    p->rows = moe_rows_capacity(shape->slots, 1, shape->experts, CUDA_ROW_ALIGN);
    p->used = p->offsets[shape->experts];
    rows_make(p->d_in, &p->in, p->rows, shape->in_dim, p, 1);
    rows_make(p->d_dout, &p->dout, p->rows, shape->out_dim, p, 2);
    rows_make(p->d_weight, &p->weight, (int64_t)shape->experts * shape->out_dim, shape->in_dim, NULL, 3);
    const size_t bytes = sizeof(int32_t) * ((size_t)shape->experts + 1);
    p->d_offsets = tensor_make(device_memory(bytes), DTYPE_I32, 1, shape->experts + 1, "offsets");
    ops->upload(ops, p->d_offsets.data, p->offsets, bytes);
    tokens_of_rows_make(p);
}

static void problem_free(Problem *p) {
    fail_if(ops->sync(ops));
    for (int i = 0; i < 2; i++)
        ops->free(ops, p->d_in[i].data, 0), ops->free(ops, p->d_dout[i].data, 0),
            ops->free(ops, p->d_weight[i].data, 0);
    ops->free(ops, p->d_offsets.data, 0);
    ops->free(ops, p->d_token_of_row.data, 0), ops->free(ops, p->d_scratch.data, 0);
    ops->free(ops, p->d_in_tokens.data, 0);
    free(p->counts), free(p->offsets), free(p->in), free(p->dout), free(p->weight);
}

static Tensor result_tensor(const Problem *p, Product product, DType dtype, void *memory) {
    const Case *s = p->shape;
    if (product >= WEIGHT)
        return tensor_make(memory, DTYPE_F32, (int64_t)s->experts * s->out_dim, s->in_dim, product_names[product]);
    return tensor_make(memory, dtype, p->rows, product == FORWARD ? s->out_dim : s->in_dim, product_names[product]);
}

static int64_t result_count(const Problem *p, Product product) {
    return tensor_count(result_tensor(p, product, DTYPE_BF16, NULL));
}

static void rows_run(const Problem *p, Product product, Tensor out, Tensor in) {
    const Tensor dout = p->d_dout[in.dtype == DTYPE_BF16], none = TENSOR_NONE,
                 weight = p->d_weight[in.dtype == DTYPE_BF16];
    if (product == FORWARD)
        ops->grouped_linear_forward(ops, out, in, weight, p->d_offsets, none, none);
    else if (product == INPUT)
        ops->grouped_linear_backward_input(ops, out, dout, weight, p->d_offsets);
    else
        ops->grouped_linear_backward_weight(ops, out, dout, in, p->d_offsets, none, none, product == ADD_WEIGHT);
}

// False when there is no such kernel for the product or the shape.
static bool product_run(const Problem *p, Product product, void *memory, DType dtype, Way way) {
    const Tensor out = result_tensor(p, product, dtype, memory), tokens = p->d_in_tokens;
    const int32_t *token_of_row = p->d_token_of_row.data, *offsets = p->d_offsets.data;
    const bool weight = product >= WEIGHT;
    CudaState *state = cuda_state(ops);
    if (way == WAY_ROWS) {
        rows_run(p, product, out, p->d_in[dtype == DTYPE_BF16]);
        return true;
    }
    if (product == INPUT) return false; // it has no input
    if (way == WAY_GATHER) {
        rows_gather(state, p->d_scratch.data, tokens.data, token_of_row, offsets + p->shape->experts, p->rows,
                    (int)tokens.cols, DTYPE_BF16);
        rows_run(p, product, out, p->d_scratch);
        return true;
    }
    const GroupedCall call = {.product = weight ? GROUPED_WEIGHT : GROUPED_FORWARD,
                              .out = memory,
                              .a = weight ? p->d_dout[1].data : tokens.data,
                              .b = weight ? tokens.data : p->d_weight[1].data,
                              .offsets = offsets,
                              .experts = p->shape->experts,
                              .rows = p->rows,
                              .m = p->shape->out_dim,
                              .n = weight ? p->shape->in_dim : p->shape->out_dim,
                              .k = p->shape->in_dim,
                              .accumulate = product == ADD_WEIGHT,
                              .a_tokens = weight ? NULL : token_of_row,
                              .b_tokens = weight ? token_of_row : NULL};
    return way == WAY_MMA ? grouped_mma(state, &call, DTYPE_BF16) : grouped_tokens_sm90(state, &call, way - WAY_SM90);
}

// ---- checks -------------------------------------------------------------------------------------------------------

static int expert_of_row(const Problem *p, int64_t row) {
    int e = 0;
    while (p->offsets[e + 1] <= row)
        e++;
    return e;
}

// One result in float64, without what was in memory before.
static double result_exact(const Problem *p, Product product, int64_t at) {
    const int in = p->shape->in_dim, out = p->shape->out_dim;
    double sum = 0;
    if (product >= WEIGHT) {
        const int64_t e = at / ((int64_t)in * out), o = at / in % out, i = at % in;
        for (int64_t r = p->offsets[e]; r < p->offsets[e + 1]; r++)
            sum += (double)p->dout[r * out + o] * p->in[r * in + i];
    } else if (product == FORWARD) {
        const int64_t row = at / out;
        const float *w = p->weight + ((int64_t)expert_of_row(p, row) * out + at % out) * in;
        for (int i = 0; i < in; i++)
            sum += (double)p->in[row * in + i] * w[i];
    } else {
        const int64_t row = at / in;
        const float *w = p->weight + (int64_t)expert_of_row(p, row) * in * out + at % in;
        for (int o = 0; o < out; o++)
            sum += (double)p->dout[row * out + o] * w[(int64_t)o * in];
    }
    return sum;
}

// Runs on memory that holds `pattern` bytes (as floats or bf16: NaN for 0xff) and brings the bits back, or NULL.
static void *product_bits(const Problem *p, Product product, DType dtype, int pattern, Way way) {
    const size_t bytes = (size_t)result_count(p, product) * (product >= WEIGHT || dtype == DTYPE_F32 ? 4 : 2);
    void *out = device_memory(bytes), *host = malloc(bytes);
    memset(host, pattern, bytes);
    ops->upload(ops, out, host, bytes);
    const bool ran = product_run(p, product, out, dtype, way);
    ops->download(ops, host, out, bytes);
    fail_if(ops->sync(ops));
    ops->free(ops, out, bytes);
    if (!ran) free(host);
    return ran ? host : NULL;
}

// Values are uniform in [-1, 1], so a result over n terms has deviation sqrt(n) / 3. Allowed: half a unit of bf16 where
// the result is stored so (doubled, for a sum that rounds the other way), and 1e-3 of the deviation for the order of
// the sums.
static void product_check(const Problem *p, Product product, bool small, const char *load, Way way, const float *want) {
    const Case *s = p->shape;
    const int pattern = product == ADD_WEIGHT ? 0x3e : 0xff; // 0x3e3e3e3e: 0.18578
    const int64_t count = result_count(p, product), per = (int64_t)s->in_dim * s->out_dim;
    const int64_t width = product == FORWARD ? s->out_dim : s->in_dim;
    float before;
    void *got = product_bits(p, product, DTYPE_BF16, pattern, way);
    if (!got) return; // not for this shape, or not on this GPU
    void *again = product_bits(p, product, DTYPE_BF16, pattern, way);
    memset(&before, product == WEIGHT ? 0 : pattern, sizeof before); // an expert without rows has a gradient of zero
    const size_t bytes = (size_t)count * (product >= WEIGHT ? 4 : 2);
    int64_t wrong = 0, touched = 0, inexact = 0;
    double error = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        const bool untouched = product >= WEIGHT ? p->counts[i / per] == 0 : i / width >= p->used;
        const float value = product >= WEIGHT ? ((float *)got)[i] : bf16_to_f32(((bf16 *)got)[i]);
        if (untouched) {
            touched += product >= WEIGHT ? value != before : ((bf16 *)got)[i] != 0xffff;
            continue;
        }
        const double terms = product >= WEIGHT ? p->counts[i / per] : product == FORWARD ? s->in_dim : s->out_dim;
        const double slack = 1e-3 * sqrt(terms) / 3 + fabs(want[i]) * (product >= WEIGHT ? 1e-5 : 1.0 / 256);
        wrong += !(fabs(value - want[i]) <= slack);
        if (small && i % 61 == 0)
            inexact += !(fabs(result_exact(p, product, i) + (product == ADD_WEIGHT ? before : 0) - want[i]) <= slack);
        error += (value - want[i]) * (double)(value - want[i]), norm += want[i] * (double)want[i];
    }
    const bool same = memcmp(got, again, bytes) == 0, good = wrong + touched + inexact == 0 && same;
    verdict(good);
    if (!good || !small)
        printf("%-12s %-8s %-8s %-13s %s: %lld wrong, %lld touched, %lld off float64, %s, relative error %.1e\n",
               s->name, load, product_names[product], way_names[way], good ? "ok" : "WRONG", (long long)wrong,
               (long long)touched, (long long)inexact, same ? "same bits twice" : "DIFFERENT BITS",
               sqrt(error / (norm + 1e-300)));
    fflush(stdout);
    free(got), free(again);
}

static void ways_check(const Problem *p, Product product, bool small, const char *load) {
    const int pattern = product == ADD_WEIGHT ? 0x3e : 0xff;
    float *want = product_bits(p, product, DTYPE_F32, pattern, WAY_ROWS);
    for (Way way = WAY_ROWS; way < WAY_COUNT; way++)
        product_check(p, product, small, load, way, want);
    free(want);
}

// ---- rates --------------------------------------------------------------------------------------------------------

static void cublas_run(cublasHandle_t blas, const Problem *p, Product product, void *out) {
    const int in = p->shape->in_dim, features = p->shape->out_dim, experts = p->shape->experts;
    const int rows = (int)(p->shape->slots / experts);
    const long long in_size = (long long)rows * in, out_size = (long long)rows * features;
    const long long weight_size = (long long)in * features;
    const float one = 1, zero = 0, beta = product == ADD_WEIGHT;
    const void *x = p->d_in[1].data, *dy = p->d_dout[1].data, *w = p->d_weight[1].data;
    if (product == FORWARD)
        cublasGemmStridedBatchedEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, features, rows, in, &one, w, CUDA_R_16BF, in,
                                   weight_size, x, CUDA_R_16BF, in, in_size, &zero, out, CUDA_R_16BF, features,
                                   out_size, experts, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    else if (product == INPUT)
        cublasGemmStridedBatchedEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, in, rows, features, &one, w, CUDA_R_16BF, in,
                                   weight_size, dy, CUDA_R_16BF, features, out_size, &zero, out, CUDA_R_16BF, in,
                                   in_size, experts, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    else
        cublasGemmStridedBatchedEx(blas, CUBLAS_OP_N, CUBLAS_OP_T, in, features, rows, &one, x, CUDA_R_16BF, in,
                                   in_size, dy, CUDA_R_16BF, features, out_size, &beta, out, CUDA_R_32F, in,
                                   weight_size, experts, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

static int compare_doubles(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

// Median TFLOP/s of 7 times 4 runs, on useful work; blas NULL: hearth's own. 0 without such a kernel.
static double product_rate(cublasHandle_t blas, const Problem *p, Product product, void *out, Way way) {
    enum { TIMES = 7, RUNS = 4 };
    double times[TIMES];
    for (int t = -1; t < TIMES; t++) { // the first is for warming up
        ops->mark(ops, 0);
        for (int r = 0; r < RUNS; r++) {
            if (blas)
                cublas_run(blas, p, product, out);
            else if (!product_run(p, product, out, DTYPE_BF16, way))
                return 0;
        }
        ops->mark(ops, 1);
        const double elapsed = ops->mark_elapsed(ops, 0, 1) / RUNS;
        if (t >= 0) times[t] = elapsed;
    }
    qsort(times, TIMES, sizeof *times, compare_doubles);
    return 2.0 * (double)p->shape->slots * p->shape->in_dim * p->shape->out_dim / times[TIMES / 2] / 1e9;
}

// Natural rows: what the loads of tokens cost, or save over gathering.
static void ways_print(const Problem *p, Product product, void *out) {
    if (product == INPUT) return;
    printf("%-12s %-8s tokens:", p->shape->name, product_names[product]);
    for (Way way = WAY_ROWS; way < WAY_COUNT; way++)
        printf("%s %s %.0f", way ? "," : "", way_names[way], product_rate(NULL, p, product, out, way));
    printf(" TFLOP/s\n");
}

static void rates_print(const Case *shape, const Problem *natural) {
    Problem balanced;
    cublasHandle_t blas;
    problem_make(&balanced, shape, LOAD_BALANCED);
    cublasCreate(&blas);
    cublasSetStream(blas, cuda_state(ops)->stream);
    for (Product product = FORWARD; product <= ADD_WEIGHT; product++) {
        void *out = device_memory((size_t)result_count(natural, product) * 4);
        ops->zero(ops, tensor_make(out, DTYPE_F32, 1, result_count(natural, product), "bench"));
        const double own = product_rate(NULL, &balanced, product, out, WAY_ROWS);
        const double own_natural = product_rate(NULL, natural, product, out, WAY_ROWS);
        const double library = product_rate(blas, &balanced, product, out, WAY_ROWS);
        printf("%-12s %-8s %6.0f TFLOP/s balanced, %6.0f natural; cuBLAS balanced %6.0f: %3.0f %%\n", shape->name,
               product_names[product], own, own_natural, library, 100 * own / library);
        ways_print(natural, product, out);
        fflush(stdout);
        ops->free(ops, out, 0);
    }
    cublasDestroy(blas);
    problem_free(&balanced);
}

static void case_run(const Case *shape, Load load, bool small) {
    Problem problem;
    problem_make(&problem, shape, load);
    for (Product product = FORWARD; product <= ADD_WEIGHT; product++)
        ways_check(&problem, product, small, load_names[load]);
    if (!small && !check_only) rates_print(shape, &problem);
    problem_free(&problem);
}

static int64_t case_size(const Case *c) {
    return c->slots * c->in_dim * c->out_dim;
}

int main(int argc, char **argv) {
    static const Case small[] = {
        {"one tile", 1, 64, 64, 128}, {"one expert", 1, 256, 512, 2000}, {"odd", 4, 72, 136, 700},
        {"narrow", 3, 8, 24, 300},    {"unaligned", 3, 30, 50, 300},     {"many", 128, 128, 264, 3000},
        {"most", 256, 64, 136, 2000}, {"wide", 5, 1000, 712, 1111},      {"no slots", 3, 64, 64, 0},
    };
    static const Case large[] = {
        {"500m gate-up", 16, 896, 1024, 65536},
        {"500m down", 16, 512, 896, 65536},
        {"30b gate-up", 128, 2048, 1536, 131072},
        {"30b down", 128, 768, 2048, 131072},
    };
    const char *wanted;
    bench_begin(argc, argv, 0, &wanted);
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
