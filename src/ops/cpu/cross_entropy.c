// Cross entropy over rows of logits: the loss, and the gradient in place of the logits.
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

VEC_INLINE void row_gradient(void *logits, int32_t target, float highest, double sum, float scale, int vocab,
                             DType dtype) {
    float factor = (float)((double)scale / sum);
    float at_target = dtype == DTYPE_F32 ? ((float *)logits)[target] : bf16_to_f32(((bf16 *)logits)[target]);
    VEC_FOR(i, n, vocab) vec_put(logits, i, n, dtype, vec_exp(vec_get(logits, i, n, dtype) - highest) * factor);
    // p - 1 where the target stands, without the rounding of p to the storage type in between
    float value = (float)((double)scale * (exp((double)at_target - (double)highest) / sum - 1.0));
    if (dtype == DTYPE_F32)
        ((float *)logits)[target] = value;
    else
        ((bf16 *)logits)[target] = bf16_from_f32(value);
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
        Vec most = vec_all(-INFINITY);
        VEC_FOR(i, n, ce->vocab) {
            Vec x = vec_get(logits, i, n, dtype);
            if (n < VEC_LANES)
                for (int64_t lane = n; lane < VEC_LANES; lane++)
                    x[lane] = -INFINITY;
            most = vec_max(most, x);
        }
        float highest = vec_highest(most);
        VecSum sum = {0};
        VEC_FOR(i, n, ce->vocab) {
            Vec e = vec_exp(vec_get(logits, i, n, dtype) - highest);
            if (n < VEC_LANES)
                for (int64_t lane = n; lane < VEC_LANES; lane++)
                    e[lane] = 0;
            vec_sum_add(&sum, e);
        }
        double total = vec_sum_total(&sum);
        float at_target = dtype == DTYPE_F32 ? ((float *)logits)[target] : bf16_to_f32(((bf16 *)logits)[target]);
        ce->losses[row] = (float)(log(total) + (double)highest - (double)at_target);
        if (ce->scale) row_gradient(logits, target, highest, total, *ce->scale, ce->vocab, dtype);
    }
}

static void cross_entropy_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const CrossEntropy *ce = context;
    if (ce->dtype == DTYPE_F32)
        rows_of(ce, begin, end, DTYPE_F32);
    else
        rows_of(ce, begin, end, DTYPE_BF16);
}

static void cpu_cross_entropy(Ops *ops, Tensor losses, Tensor logits, Tensor targets, Tensor scale) {
    CPU_TIMED(ops, OP_CROSS_ENTROPY);
    CrossEntropy ce = {losses.data, logits.data, targets.data, scale.data, (int)logits.cols, logits.dtype};
    threads_for(logits.rows, cpu_row_chunk(ce.vocab), cross_entropy_task, &ce);
}

void cpu_install_cross_entropy(Ops *ops) {
    ops->cross_entropy = cpu_cross_entropy;
}
