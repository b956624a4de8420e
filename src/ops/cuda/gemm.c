// The three products of a linear layer through cuBLASLt. A shape is tuned at its first use outside a graph: the
// heuristic's candidates are timed on the real inputs and the fastest is kept, in memory and in the tuning cache. What
// overwrites its output is timed into it; what adds to its output is timed into borrowed memory that is given back
// before the call returns.
//
// Deterministic: split-K only with the reduction in the workspace, never by atomic addition into the output.
#include "ops/cuda/cuda.h"
#include "ops/cuda/workspace.h"

#include <stdlib.h>

enum { GEMM_CANDIDATES = 24, GEMM_FINALISTS = 6 };
static const float GEMM_FINAL_MARGIN = 1.12f; // slower than this in the short race: not a finalist
static const float GEMM_SMALL_MS = 0.03f;     // products too short to heat the GPU are raced as they are

// GEMM_FP8 is laid out like GEMM_FORWARD, whatever it is for.
typedef enum GemmKind { GEMM_FORWARD, GEMM_BACKWARD_INPUT, GEMM_BACKWARD_WEIGHT, GEMM_FP8 } GemmKind;
static const char *const kind_name[] = {"forward", "dgrad", "wgrad", "fp8 2"};
static const OpId kind_op[] = {OP_LINEAR_FORWARD, OP_LINEAR_BACKWARD_INPUT, OP_LINEAR_BACKWARD_WEIGHT, OP_LINEAR_FP8};

// Column-major, as cuBLAS thinks: D[m, n] = op(A) op(B), + C where something is added.
typedef struct GemmShape {
    GemmKind kind;
    bool add;
    DType dtype; // of B; A is e4m3 where that is FP8, else the same
    int64_t m, n, k;
    int64_t in_stride; // from a row of the layer's input to the next; GEMM_BACKWARD_INPUT does not read it
    DType out_dtype;
    int alignment; // of the least aligned operand, at most 16 bytes
    bool tf32;
} GemmShape;

typedef struct Gemm {
    GemmShape shape;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    bool tuned;
} Gemm;

struct GemmCache {
    Gemm *items;
    int count, capacity;
};

GemmCache *gemm_cache_create(void) {
    return xcalloc(1, sizeof(GemmCache));
}

void gemm_cache_free(GemmCache *cache) {
    if (!cache) return;
    for (int i = 0; i < cache->count; i++) {
        cublasLtMatmulDescDestroy(cache->items[i].operation);
        cublasLtMatrixLayoutDestroy(cache->items[i].a);
        cublasLtMatrixLayoutDestroy(cache->items[i].b);
        cublasLtMatrixLayoutDestroy(cache->items[i].d);
    }
    free(cache->items);
    free(cache);
}

#define CUBLAS_CHECK(state, call)                                                                            \
    do {                                                                                                     \
        cublasStatus_t cublas_check_ = (call);                                                               \
        if (cublas_check_ != CUBLAS_STATUS_SUCCESS)                                                          \
            cuda_fail((state), __FILE__, __LINE__, "%s: %s", #call, cublasLtGetStatusString(cublas_check_)); \
    } while (0)

static size_t gemm_workspace(const CudaState *state) {
    return state->workspace_bytes < WORKSPACE_GEMM ? state->workspace_bytes : WORKSPACE_GEMM;
}

static cudaDataType_t cuda_type(DType dtype) {
    switch (dtype) {
    case DTYPE_BF16: return CUDA_R_16BF;
    case DTYPE_F16: return CUDA_R_16F;
    case DTYPE_E4M3: return CUDA_R_8F_E4M3;
    case DTYPE_E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
    }
}

static void gemm_describe(CudaState *state, Gemm *gemm) {
    const GemmShape *s = &gemm->shape;
    cudaDataType_t type = cuda_type(s->dtype), a_type = s->kind == GEMM_FP8 ? CUDA_R_8F_E4M3 : type;
    cublasOperation_t op_a = s->kind == GEMM_FORWARD || s->kind == GEMM_FP8 ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = s->kind == GEMM_BACKWARD_WEIGHT ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS_CHECK(state,
                 cublasLtMatmulDescCreate(&gemm->operation, s->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                          CUDA_R_32F)); // TF32 never by itself
    CUBLAS_CHECK(state,
                 cublasLtMatmulDescSetAttribute(gemm->operation, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
    CUBLAS_CHECK(state,
                 cublasLtMatmulDescSetAttribute(gemm->operation, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
    uint64_t a_rows = (uint64_t)(op_a == CUBLAS_OP_N ? s->m : s->k),
             a_cols = (uint64_t)(op_a == CUBLAS_OP_N ? s->k : s->m);
    uint64_t b_rows = (uint64_t)(op_b == CUBLAS_OP_N ? s->k : s->n),
             b_cols = (uint64_t)(op_b == CUBLAS_OP_N ? s->n : s->k);
    int64_t a_stride = s->kind == GEMM_BACKWARD_WEIGHT ? s->in_stride : (int64_t)a_rows;
    int64_t b_stride = s->kind == GEMM_FORWARD ? s->in_stride : (int64_t)b_rows;
    if (s->kind ==
        GEMM_FP8) { // but for weight gradients, sums may be taken in the tensor cores' own, shorter registers
        int8_t fast = s->out_dtype == DTYPE_BF16 && s->k <= OPS_FP8_SHORT_SUM;
        CUBLAS_CHECK(state, cublasLtMatmulDescSetAttribute(gemm->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast,
                                                           sizeof fast));
    }
    CUBLAS_CHECK(state, cublasLtMatrixLayoutCreate(&gemm->a, a_type, a_rows, a_cols, a_stride));
    CUBLAS_CHECK(state, cublasLtMatrixLayoutCreate(&gemm->b, type, b_rows, b_cols, b_stride));
    CUBLAS_CHECK(state,
                 cublasLtMatrixLayoutCreate(&gemm->d, cuda_type(s->out_dtype), (uint64_t)s->m, (uint64_t)s->n, s->m));
}

static cublasStatus_t gemm_run(CudaState *state, const Gemm *gemm, const cublasLtMatmulAlgo_t *algorithm, const void *a,
                               const void *b, const void *c, void *d) {
    float alpha = 1, beta = c ? 1.0f : 0.0f;
    return cublasLtMatmul(state->cublas, gemm->operation, &alpha, a, gemm->a, b, gemm->b, &beta, c ? c : d, gemm->d, d,
                          gemm->d, algorithm, state->workspace, gemm_workspace(state), state->stream);
}

static int gemm_candidates(CudaState *state, const Gemm *gemm, cublasLtMatmulHeuristicResult_t *results, int wanted) {
    cublasLtMatmulPreference_t preference;
    CUBLAS_CHECK(state, cublasLtMatmulPreferenceCreate(&preference));
    size_t workspace = gemm_workspace(state);
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t alignment = (uint32_t)gemm->shape.alignment;
    CUBLAS_CHECK(state, cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                             &workspace, sizeof workspace));
    CUBLAS_CHECK(state, cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                             &reductions, sizeof reductions));
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4; i++)
        CUBLAS_CHECK(state,
                     cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment, sizeof alignment));
    int found = 0;
    CUBLAS_CHECK(state, cublasLtMatmulAlgoGetHeuristic(state->cublas, gemm->operation, gemm->a, gemm->b, gemm->d,
                                                       gemm->d, preference, wanted, results, &found));
    cublasLtMatmulPreferenceDestroy(preference);
    int kept = 0;
    for (int i = 0; i < found; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) results[kept++] = results[i];
    return kept;
}

// Milliseconds of one run, or a negative number when the algorithm fails.
static float gemm_time(CudaState *state, const Gemm *gemm, const cublasLtMatmulAlgo_t *algorithm, const void *a,
                       const void *b, const void *c, void *d, int repeats) {
    float milliseconds = -1;
    cudaEvent_t begin, end;
    CUDA_CHECK(state, cudaEventCreate(&begin));
    CUDA_CHECK(state, cudaEventCreate(&end));
    bool good = gemm_run(state, gemm, algorithm, a, b, c, d) == CUBLAS_STATUS_SUCCESS;
    CUDA_CHECK(state, cudaEventRecord(begin, state->stream));
    for (int i = 0; good && i < repeats; i++)
        good = gemm_run(state, gemm, algorithm, a, b, c, d) == CUBLAS_STATUS_SUCCESS;
    CUDA_CHECK(state, cudaEventRecord(end, state->stream));
    CUDA_CHECK(state, cudaEventSynchronize(end));
    if (good) CUDA_CHECK(state, cudaEventElapsedTime(&milliseconds, begin, end));
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return good ? milliseconds / (float)repeats : -1;
}

// The same under load: a GPU that multiplies without pause reaches its power limit within milliseconds and lowers its
// clock, and then the algorithm that moves the least data is fastest, not the one that wins a short race.
static float gemm_time_sustained(CudaState *state, const Gemm *gemm, const cublasLtMatmulAlgo_t *algorithm,
                                 const void *a, const void *b, const void *c, void *d, float short_time) {
    enum { HEAT_MS = 40, RACE_MS = 40 };
    int heat = (int)(HEAT_MS / short_time) + 1, race = (int)(RACE_MS / short_time) + 1;
    for (int i = 0; i < heat; i++)
        if (gemm_run(state, gemm, algorithm, a, b, c, d) != CUBLAS_STATUS_SUCCESS) return -1;
    return gemm_time(state, gemm, algorithm, a, b, c, d, race);
}

// Whether one was found.
static bool gemm_tune(CudaState *state, Gemm *gemm, const void *a, const void *b, const void *c, void *d,
                      const cublasLtMatmulHeuristicResult_t *results, int found) {
    float times[GEMM_CANDIDATES];
    int order[GEMM_CANDIDATES], count = 0;
    for (int i = 0; i < found; i++) {
        float time = gemm_time(state, gemm, &results[i].algo, a, b, c, d, 3);
        if (time < 0) continue;
        int at = count++;
        for (; at > 0 && times[order[at - 1]] > time; at--)
            order[at] = order[at - 1];
        order[at] = i;
        times[i] = time;
    }
    int best = -1;
    float best_time = 0;
    for (int i = 0; i < count && i < GEMM_FINALISTS; i++) { // the first round is short, so the front runners race again
        const cublasLtMatmulAlgo_t *algorithm = &results[order[i]].algo;
        float time = times[order[i]];
        if (time > GEMM_FINAL_MARGIN * times[order[0]]) break;
        time = time > GEMM_SMALL_MS ? gemm_time_sustained(state, gemm, algorithm, a, b, c, d, time)
                                    : gemm_time(state, gemm, algorithm, a, b, c, d, 10);
        if (time >= 0 && (best < 0 || time < best_time)) best = order[i], best_time = time;
    }
    if (best < 0 || state->failure) return false;
    gemm->algorithm = results[best].algo;
    const GemmShape *s = &gemm->shape;
    log_debug("gemm %s %s m %lld n %lld k %lld: candidate %d of %d, %.3f ms (first: %.3f), %.0f TFLOP/s",
              kind_name[s->kind], dtype_name(s->dtype), (long long)s->m, (long long)s->n, (long long)s->k, best, found,
              best_time, times[0], 2e-9 * (double)s->m * (double)s->n * (double)s->k / best_time);
    return true;
}

// A weight gradient that is added runs the same algorithm as one that is written.
static char *gemm_key(const CudaState *state, const GemmShape *s) {
    bool adds = s->add && s->kind != GEMM_BACKWARD_WEIGHT && !(s->kind == GEMM_FP8 && s->out_dtype == DTYPE_F32);
    return text_format("cublasLt %zu sustained %s%s%s %s %lld %lld %lld stride %lld align %d workspace %zu",
                       cublasLtGetVersion(), kind_name[s->kind], adds ? " add" : "",
                       s->kind == GEMM_FP8 && s->out_dtype == DTYPE_F32 ? " to float" : "",
                       s->tf32 ? "TF32" : dtype_name(s->dtype), (long long)s->m, (long long)s->n, (long long)s->k,
                       (long long)s->in_stride, s->alignment, gemm_workspace(state));
}

// An algorithm is an opaque block that its library version can restore; it is checked before it is trusted.
static bool algorithm_from_text(CudaState *state, Gemm *gemm, const char *text) {
    cublasLtMatmulAlgo_t algorithm;
    unsigned char *bytes = (unsigned char *)&algorithm;
    if (!text || strlen(text) != 2 * sizeof algorithm) return false;
    for (size_t i = 0; i < sizeof algorithm; i++) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1) return false;
        bytes[i] = (unsigned char)value;
    }
    cublasLtMatmulHeuristicResult_t result;
    if (cublasLtMatmulAlgoCheck(state->cublas, gemm->operation, gemm->a, gemm->b, gemm->d, gemm->d, &algorithm,
                                &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > gemm_workspace(state))
        return false;
    gemm->algorithm = algorithm;
    return true;
}

static char *algorithm_to_text(const cublasLtMatmulAlgo_t *algorithm) {
    TextBuffer text = {0};
    for (size_t i = 0; i < sizeof *algorithm; i++)
        text_buffer_format(&text, "%02x", ((const unsigned char *)algorithm)[i]);
    return text.data;
}

static void gemm_choose(CudaState *state, Gemm *gemm, const void *a, const void *b, const void *c, void *d) {
    char *key = gemm_key(state, &gemm->shape);
    gemm->tuned = algorithm_from_text(state, gemm, tune_get(state->tune, key));
    cublasLtMatmulHeuristicResult_t results[GEMM_CANDIDATES];
    int found = gemm->tuned ? 0 : gemm_candidates(state, gemm, results, GEMM_CANDIDATES);
    if (!gemm->tuned && found == 0) cuda_fail(state, __FILE__, __LINE__, "cuBLASLt has no algorithm for: %s", key);
    if (!gemm->tuned && found > 0) {
        gemm->algorithm = results[0].algo;
        void *out = d, *borrowed = NULL;
        bool race = !state->capturing && !tune_held(state->tune);
        if (race && c == d) {
            size_t bytes = (size_t)gemm->shape.m * (size_t)gemm->shape.n * sizeof(float);
            if (cudaMalloc(&borrowed, bytes) != cudaSuccess) {
                cudaGetLastError();
                borrowed = NULL;
                log_warn("no memory to race algorithms of a product (%zu bytes): the library's first choice is used",
                         bytes);
            }
            if (borrowed) CUDA_CHECK(state, cudaMemsetAsync(borrowed, 0, bytes, state->stream));
            out = borrowed;
        }
        if (race && out && gemm_tune(state, gemm, a, b, c == d ? out : c, out, results, found)) {
            gemm->tuned = true;
            char *text = algorithm_to_text(&gemm->algorithm);
            tune_put(state->tune, key, text);
            free(text);
        }
        if (borrowed) CUDA_CHECK(state, cudaFree(borrowed));
    }
    free(key);
}

static Gemm *gemm_find(CudaState *state, const GemmShape *shape) {
    GemmCache *cache = state->gemms;
    for (int i = 0; i < cache->count; i++) {
        const GemmShape *s = &cache->items[i].shape;
        if (s->kind == shape->kind && s->add == shape->add && s->dtype == shape->dtype && s->m == shape->m &&
            s->n == shape->n && s->k == shape->k && s->in_stride == shape->in_stride &&
            s->out_dtype == shape->out_dtype && s->alignment == shape->alignment && s->tf32 == shape->tf32)
            return &cache->items[i];
    }
    if (cache->count == cache->capacity) {
        cache->capacity = cache->capacity ? 2 * cache->capacity : 32;
        cache->items = xrealloc(cache->items, (size_t)cache->capacity * sizeof *cache->items);
    }
    Gemm *gemm = &cache->items[cache->count++];
    memset(gemm, 0, sizeof *gemm);
    gemm->shape = *shape;
    return gemm;
}

// scales: of A and B, in FP8; else NULL.
static void gemm(Ops *ops, GemmKind kind, void *d, const void *a, const void *b, const void *c, int64_t m, int64_t n,
                 int64_t k, int64_t in_stride, DType dtype, DType out_dtype, const void *const scales[2]) {
    if (m == 0 || n == 0) return;
    CudaState *state = cuda_scope_begin(ops, kind_op[kind]);
    if (k == 0) { // happens only for a weight gradient
        if (!c) CUDA_CHECK(state, cudaMemsetAsync(d, 0, (size_t)(m * n) * sizeof(float), state->stream));
        cuda_scope_end(state);
        return;
    }
    uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | 16;
    GemmShape shape = {
        kind, c != NULL, dtype, m, n, k, in_stride, out_dtype, (int)(bits & -bits), ops->tf32 && dtype == DTYPE_F32};
    Gemm *item = gemm_find(state, &shape);
    bool fresh = !item->operation;
    if (fresh) gemm_describe(state, item);
    for (int i = 0; scales && i < 2; i++)
        CUBLAS_CHECK(state, cublasLtMatmulDescSetAttribute(item->operation,
                                                           i ? CUBLASLT_MATMUL_DESC_B_SCALE_POINTER
                                                             : CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                                           &scales[i], sizeof scales[i]));
    if (fresh) gemm_choose(state, item, a, b, c, d);
    cublasStatus_t status = gemm_run(state, item, &item->algorithm, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) {
        char *key = gemm_key(state, &item->shape);
        cuda_fail(state, __FILE__, __LINE__, "a product (%s) failed: %s", key, cublasLtGetStatusString(status));
        free(key);
    }
    cuda_scope_end(state);
}

// Row-major [rows, dim] is column-major [dim, rows], so the operands change places.
void gemm_linear_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor add) {
    gemm(ops, GEMM_FORWARD, out.data, weight.data, in.data, add.data, weight.rows, in.rows, weight.cols, in.stride,
         in.dtype, out.dtype, NULL);
}

void gemm_linear_backward_input(Ops *ops, Tensor din, Tensor dout, Tensor weight) {
    gemm(ops, GEMM_BACKWARD_INPUT, din.data, weight.data, dout.data, NULL, weight.cols, dout.rows, weight.rows,
         weight.cols, dout.dtype, din.dtype, NULL);
}

void cuda_linear_backward_weight(Ops *ops, Tensor dweight, Tensor dout, Tensor in, bool accumulate) {
    gemm(ops, GEMM_BACKWARD_WEIGHT, dweight.data, in.data, dout.data, accumulate ? dweight.data : NULL, dweight.cols,
         dweight.rows, in.rows, in.stride, in.dtype, DTYPE_F32, NULL);
}

void cuda_linear_fp8(Ops *ops, Tensor out, Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor add,
                     bool accumulate) {
    const void *scales[2] = {b_scale.data, a_scale.data};
    gemm(ops, GEMM_FP8, out.data, b.data, a.data, accumulate ? out.data : add.data, out.cols, out.rows, a.cols, a.cols,
         a.dtype, out.dtype, scales);
}
