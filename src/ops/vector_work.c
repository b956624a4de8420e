// What a CPU computes beside products, in instructions on vectors of floats, counted from the loops of ops/cpu by
// element. A CPU has its activations in caches more often than not, and there these instructions, not bytes, are the
// time of an op: an exponential costs the same whatever the storage type, and bf16 halves the bytes but adds the
// conversions. Ops that only move bytes, AdamW (which moves 28 for each parameter) and FP8, which a CPU emulates, have
// none.
#include "ops/record.h"

enum {
    EXPONENTIAL = 25, // vec_exp, with multiply and add as one
    DIVISION = 10,    // as long as so many others
    NONZERO = 4,      // vec_nonzero
    TO_DOUBLES = 8,   // vec_add_to_doubles
};

typedef struct Work { // of one element
    double reads, writes, others;
} Work;

static double work_of(double elements, DType dtype, Work work) {
    double read = dtype == DTYPE_F32 ? 1 : dtype == DTYPE_BF16 ? 3 : 2;   // load, widen, shift; f16 has an instruction
    double write = dtype == DTYPE_F32 ? 1 : dtype == DTYPE_BF16 ? 11 : 2; // vec_to_bf16 and the store
    return elements * (work.reads * read + work.writes * write + work.others);
}

static Work norm_forward(bool branch) {
    return branch ? (Work){5, 2, NONZERO + 5} : (Work){3, 1, NONZERO + 4};
}

static Work norm_backward(bool alone) {
    return (Work){alone ? 6 : 7, 1, 2 * (NONZERO + DIVISION) + TO_DOUBLES + 6};
}

// A pair shares its cosine and sine.
static Work rope_work(const Rope *rope, bool backward) {
    if (!tensor_present(rope->q_weight)) return (Work){1, 1, 3};
    return backward ? (Work){6, 1, TO_DOUBLES + 13} : (Work){3, 1, 7};
}

double op_vector_work(const OpRecord *r, double expert_rows) {
    const Tensor *t = r->tensor;
    DType dtype = t[0].dtype;
    double count = (double)tensor_count(t[0]), logits = (double)tensor_count(t[1]);
    double used = expert_rows >= 0 ? expert_rows : (double)t[0].rows;
    switch (r->op) {
    case OP_ADD: return work_of(count, dtype, (Work){2, 1, 1});
    case OP_ADD_RMSNORM_FORWARD: return work_of(count, dtype, norm_forward(tensor_present(t[4])));
    case OP_ADD_RMSNORM_BACKWARD: return work_of(count, dtype, norm_backward(r->flag));
    case OP_QK_ROPE_FORWARD: return work_of(count, dtype, rope_work(&r->rope, false));
    case OP_QK_ROPE_BACKWARD: return work_of(count, dtype, rope_work(&r->rope, true));
    case OP_SWIGLU_FORWARD: return work_of(used * (double)t[0].cols, dtype, (Work){2, 1, EXPONENTIAL + DIVISION + 4});
    case OP_SWIGLU_BACKWARD: return work_of(used * (double)t[1].cols, dtype, (Work){3, 3, EXPONENTIAL + DIVISION + 14});
    case OP_SWIGLU_PACKED_FORWARD: return work_of(count / 2, dtype, (Work){2, 1, EXPONENTIAL + DIVISION + NONZERO + 3});
    case OP_SWIGLU_PACKED_BACKWARD:
        return work_of(count / 2, dtype, (Work){3, 2, EXPONENTIAL + 2 * DIVISION + NONZERO + 9});
    case OP_CROSS_ENTROPY:
        return work_of(logits, t[1].dtype,
                       tensor_present(t[3]) ? (Work){3, 1, 2 * EXPONENTIAL + 6} : (Work){2, 0, EXPONENTIAL + 4});
    case OP_CROSS_ENTROPY_STATS: return work_of(logits, t[1].dtype, (Work){2, 0, EXPONENTIAL + 4});
    case OP_CROSS_ENTROPY_APPLY:
        return tensor_present(t[4]) ? work_of(logits, t[1].dtype, (Work){1, 1, EXPONENTIAL + 2}) : 0;
    case OP_MOE_SUM:
        return work_of(used * (double)t[0].cols, dtype, (Work){1, 0, 1}) + work_of(count, dtype, (Work){1, 1, 1});
    default: return 0;
    }
}
