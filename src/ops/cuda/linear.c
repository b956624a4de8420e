// Linear layers: hearth's own kernels (linear_sm90.cu) or others, whichever is faster for the shape; see race.h.
#include "ops/cuda/linear_sm90.h"
#include "ops/cuda/race.h"

static bool rope_run(Ops *ops, const void *context, int choice) {
    const LinearCall *call = context;
    if (choice == RACE_PLAIN) {
        ops_linear_then_rope_forward(ops, call->out, call->in, call->weight, call->k, call->rope, DTYPE_BF16);
        return true;
    }
    CudaState *state = cuda_scope_begin(ops, OP_GEMM);
    bool done = linear_sm90(state, call, choice);
    cuda_scope_end(state);
    return done;
}

void cuda_linear_rope_forward(Ops *ops, void *out, const void *in, const void *weight, int in_dim,
                              const QkRopeShape *rope, DType dtype) {
    if (dtype != DTYPE_BF16) {
        ops_linear_then_rope_forward(ops, out, in, weight, in_dim, rope, dtype);
        return;
    }
    int n = (rope->heads + 2 * rope->kv_heads) * rope->head_dim;
    LinearCall call = {.out = out, .in = in, .weight = weight, .rope = rope, .rows = rope->tokens, .n = n, .k = in_dim};
    Race race = {.what = "linear_rope 1",
                 .sizes = {call.rows, n, in_dim, rope->head_dim},
                 .variants = LINEAR_SM90_VARIANTS,
                 .run = rope_run,
                 .call = &call,
                 .results = {{out, n}},
                 .rows = call.rows};
    race_perform(ops, &race);
}
