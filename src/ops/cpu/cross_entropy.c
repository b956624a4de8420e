// Cross entropy over rows of logits: the loss, and the gradient in place of the logits. Of whole rows, and of a rank's
// share of their columns, where the ranks exchange what they know of their own between two ops.
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

#include <assert.h>
#include <math.h>

typedef struct CrossEntropy {
    float *losses;
    void *logits;
    const int32_t *targets;
    const float *scale;
    int vocab;
    DType dtype;
} CrossEntropy;

typedef struct RowSoftmax {
    float highest; // logit; -infinity without columns
    double sum;    // of e^(logit - highest)
} RowSoftmax;

VEC_INLINE RowSoftmax row_softmax(const void *logits, int64_t columns, DType dtype) {
    Vec most = vec_all(-INFINITY);
    VEC_FOR(i, n, columns) {
        Vec x = vec_get(logits, i, n, dtype);
        if (n < VEC_LANES)
            for (int64_t lane = n; lane < VEC_LANES; lane++)
                x[lane] = -INFINITY;
        most = vec_max(most, x);
    }
    float highest = vec_highest(most), reference = highest > -INFINITY ? highest : 0; // -inf - -inf is not a number
    VecSum sum = {0};
    VEC_FOR(i, n, columns) {
        Vec e = vec_exp(vec_get(logits, i, n, dtype) - reference);
        if (n < VEC_LANES)
            for (int64_t lane = n; lane < VEC_LANES; lane++)
                e[lane] = 0;
        vec_sum_add(&sum, e);
    }
    return (RowSoftmax){highest, vec_sum_total(&sum)};
}

// p - 1 where the target stands, without the rounding of p to the storage type in between
static float target_gradient(float at_target, RowSoftmax softmax, float scale) {
    return (float)((double)scale * (exp((double)at_target - (double)softmax.highest) / softmax.sum - 1.0));
}

// softmax: of the whole row, of which these may be some columns. target: outside of them where it is another's.
VEC_INLINE void row_gradient(void *logits, int64_t target, RowSoftmax softmax, float scale, int64_t columns,
                             DType dtype) {
    float factor = (float)((double)scale / softmax.sum);
    bool here = target >= 0 && target < columns;
    float at_target = here ? storage_get(logits, target, dtype) : 0;
    VEC_FOR(i, n, columns)
    vec_put(logits, i, n, dtype, vec_exp(vec_get(logits, i, n, dtype) - softmax.highest) * factor);
    if (here) storage_put(logits, target, dtype, target_gradient(at_target, softmax, scale));
}

VEC_INLINE void rows_of(const CrossEntropy *ce, int64_t begin, int64_t end, DType dtype) {
    for (int64_t row = begin; row < end; row++) {
        void *logits = cpu_at_mut(ce->logits, row * ce->vocab, dtype);
        int32_t target = ce->targets[row];
        assert(target < ce->vocab);
        if (target < 0) {
            ce->losses[row] = 0;
            if (ce->scale) memset(logits, 0, (size_t)ce->vocab * dtype_size(dtype));
            continue;
        }
        RowSoftmax softmax = row_softmax(logits, ce->vocab, dtype);
        float at_target = storage_get(logits, target, dtype);
        ce->losses[row] = (float)(log(softmax.sum) + (double)softmax.highest - (double)at_target);
        if (ce->scale) row_gradient(logits, target, softmax, *ce->scale, ce->vocab, dtype);
    }
}

static void cross_entropy_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const CrossEntropy *ce = context;
    VEC_BY_STORAGE(ce->dtype, rows_of, ce, begin, end);
}

static void cpu_cross_entropy(Ops *ops, Tensor losses, Tensor logits, Tensor targets, Tensor scale) {
    CPU_TIMED(ops, OP_CROSS_ENTROPY);
    CrossEntropy ce = {losses.data, logits.data, targets.data, scale.data, (int)logits.cols, logits.dtype};
    threads_for(logits.rows, cpu_row_chunk(ce.vocab), cross_entropy_task, &ce);
}

// ---- the gradient in FP8 --------------------------------------------------------------------------------------------

typedef struct EntropyFp8 {
    float *losses;
    Tensor codes, logits; // bf16
    const int32_t *targets;
    float scale, codes_scale;
} EntropyFp8;

// As row_gradient, rounded from float; the logits stay.
VEC_INLINE void row_codes(uint8_t *codes, const bf16 *logits, int64_t target, RowSoftmax softmax,
                          const EntropyFp8 *ce) {
    float factor = (float)((double)ce->scale / softmax.sum);
    VEC_FOR(i, n, ce->logits.cols) {
        Vec gradient = vec_exp(vec_get(logits, i, n, DTYPE_BF16) - softmax.highest) * factor;
        for (int64_t lane = 0; lane < n; lane++)
            codes[i + lane] = fp8_from_f32(gradient[lane] / ce->codes_scale, DTYPE_E5M2);
    }
    float at_target = target_gradient(bf16_to_f32(logits[target]), softmax, ce->scale);
    codes[target] = fp8_from_f32(at_target / ce->codes_scale, DTYPE_E5M2);
}

static void entropy_fp8_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const EntropyFp8 *ce = context;
    for (int64_t row = begin; row < end; row++) {
        const bf16 *logits = tensor_at(ce->logits, row, 0);
        uint8_t *codes = tensor_at(ce->codes, row, 0);
        int32_t target = ce->targets[row];
        assert(target < ce->logits.cols);
        if (target < 0) {
            ce->losses[row] = 0;
            memset(codes, 0, (size_t)ce->codes.cols);
            continue;
        }
        RowSoftmax softmax = row_softmax(logits, ce->logits.cols, DTYPE_BF16);
        ce->losses[row] = (float)(log(softmax.sum) + (double)softmax.highest - (double)bf16_to_f32(logits[target]));
        row_codes(codes, logits, target, softmax, ce);
    }
}

static void cpu_cross_entropy_fp8(Ops *ops, Tensor losses, Tensor codes, Tensor logits, Tensor targets, Tensor scale,
                                  Tensor codes_scale) {
    CPU_TIMED(ops, OP_CROSS_ENTROPY_FP8);
    threads_for(logits.rows, cpu_row_chunk(logits.cols), entropy_fp8_task,
                &(EntropyFp8){.losses = losses.data,
                              .codes = codes,
                              .logits = logits,
                              .targets = targets.data,
                              .scale = *(const float *)scale.data,
                              .codes_scale = *(const float *)codes_scale.data});
}

// ---- a vocabulary that is split over ranks --------------------------------------------------------------------------

typedef struct SplitEntropy {
    float *losses;
    float *stats; // of this rank, or of all of them one below the other
    void *logits;
    const int32_t *targets;
    const float *scale;
    int64_t rows, ranks;
    int64_t columns, real; // of a row, and those of them that are no padding
    int64_t first, vocab;
    DType dtype;
} SplitEntropy;

static int64_t real_columns(int64_t columns, int64_t first, int64_t vocab) {
    int64_t left = vocab > first ? vocab - first : 0;
    return left < columns ? left : columns;
}

VEC_INLINE void stats_of_rows(const SplitEntropy *split, int64_t begin, int64_t end, DType dtype) {
    for (int64_t row = begin; row < end; row++) {
        const void *logits = cpu_at(split->logits, row * split->columns, dtype);
        float *stats = split->stats + row * SPLIT_STATS;
        int64_t target = split->targets[row] - split->first;
        assert(split->targets[row] < split->vocab);
        bool here = target >= 0 && target < split->real;
        RowSoftmax softmax = row_softmax(logits, split->real, dtype);
        stats[SPLIT_MAX] = softmax.highest;
        stats[SPLIT_SUM] = (float)softmax.sum;
        stats[SPLIT_TARGET] = here ? storage_get(logits, target, dtype) : 0;
        stats[SPLIT_HERE] = here;
    }
}

static void stats_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const SplitEntropy *split = context;
    VEC_BY_STORAGE(split->dtype, stats_of_rows, split, begin, end);
}

static void cpu_cross_entropy_stats(Ops *ops, Tensor stats, Tensor logits, Tensor targets, int64_t first,
                                    int64_t vocab) {
    CPU_TIMED(ops, OP_CROSS_ENTROPY_STATS);
    SplitEntropy split = {.stats = stats.data,
                          .logits = logits.data,
                          .targets = targets.data,
                          .columns = logits.cols,
                          .real = real_columns(logits.cols, first, vocab),
                          .first = first,
                          .vocab = vocab,
                          .dtype = logits.dtype};
    threads_for(logits.rows, cpu_row_chunk(logits.cols), stats_task, &split);
}

// The whole row's softmax from that of each rank's columns.
static RowSoftmax merge_stats(const SplitEntropy *split, int64_t row, float *at_target) {
    RowSoftmax merged = {-INFINITY, 0};
    *at_target = 0;
    for (int64_t rank = 0; rank < split->ranks; rank++) {
        const float *stats = split->stats + (rank * split->rows + row) * SPLIT_STATS;
        if (stats[SPLIT_MAX] > merged.highest) merged.highest = stats[SPLIT_MAX];
        if (stats[SPLIT_HERE] != 0) *at_target = stats[SPLIT_TARGET];
    }
    for (int64_t rank = 0; rank < split->ranks; rank++) {
        const float *stats = split->stats + (rank * split->rows + row) * SPLIT_STATS;
        merged.sum += (double)stats[SPLIT_SUM] * exp((double)stats[SPLIT_MAX] - (double)merged.highest);
    }
    return merged;
}

VEC_INLINE void apply_to_rows(const SplitEntropy *split, int64_t begin, int64_t end, DType dtype) {
    size_t row_bytes = (size_t)split->columns * dtype_size(dtype), real = (size_t)split->real * dtype_size(dtype);
    for (int64_t row = begin; row < end; row++) {
        char *logits = cpu_at_mut(split->logits, row * split->columns, dtype);
        int32_t target = split->targets[row];
        assert(target < split->vocab);
        if (target < 0) {
            split->losses[row] = 0;
            if (split->scale) memset(logits, 0, row_bytes);
            continue;
        }
        float at_target;
        RowSoftmax softmax = merge_stats(split, row, &at_target);
        split->losses[row] = (float)(log(softmax.sum) + (double)softmax.highest - (double)at_target);
        if (!split->scale) continue;
        row_gradient(logits, target - split->first, softmax, *split->scale, split->real, dtype);
        memset(logits + real, 0, row_bytes - real);
    }
}

static void apply_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const SplitEntropy *split = context;
    VEC_BY_STORAGE(split->dtype, apply_to_rows, split, begin, end);
}

static void cpu_cross_entropy_apply(Ops *ops, Tensor losses, Tensor logits, Tensor targets, Tensor stats, Tensor scale,
                                    int64_t first, int64_t vocab) {
    CPU_TIMED(ops, OP_CROSS_ENTROPY_APPLY);
    if (logits.rows == 0) return;
    SplitEntropy split = {.losses = losses.data,
                          .stats = stats.data,
                          .logits = logits.data,
                          .targets = targets.data,
                          .scale = scale.data,
                          .rows = logits.rows,
                          .ranks = stats.rows / logits.rows,
                          .columns = logits.cols,
                          .real = real_columns(logits.cols, first, vocab),
                          .first = first,
                          .vocab = vocab,
                          .dtype = logits.dtype};
    threads_for(logits.rows, cpu_row_chunk(logits.cols), apply_task, &split);
}

void cpu_install_cross_entropy(Ops *ops) {
    ops->cross_entropy = cpu_cross_entropy;
    ops->cross_entropy_fp8 = cpu_cross_entropy_fp8;
    ops->cross_entropy_stats = cpu_cross_entropy_stats;
    ops->cross_entropy_apply = cpu_cross_entropy_apply;
}
