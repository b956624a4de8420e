// Linear layers: hearth's own kernels (linear_sm90.cu) or cuBLASLt (and the rotary op), whichever is faster for the
// shape; see race.h.
#include "ops/cuda/linear_sm90.h"
#include "ops/cuda/race.h"

static bool own_run(Ops *ops, const LinearCall *call, int variant) {
    CudaState *state = cuda_scope_begin(ops, OP_GEMM);
    bool done = linear_sm90(state, call, variant);
    cuda_scope_end(state);
    return done;
}

static bool forward_run(Ops *ops, const void *context, int choice) {
    const LinearCall *c = context;
    if (choice != RACE_PLAIN) return own_run(ops, c, choice);
    gemm_linear_forward(ops, c->out, c->in, c->in_stride, c->weight, c->add, c->rows, c->k, c->n, DTYPE_BF16);
    return true;
}

static bool backward_run(Ops *ops, const void *context, int choice) {
    const LinearCall *c = context;
    if (choice != RACE_PLAIN) return own_run(ops, c, choice);
    gemm_linear_backward_input(ops, c->out, c->in, c->weight, c->rows, c->n, c->k, DTYPE_BF16);
    return true;
}

static bool rope_run(Ops *ops, const void *context, int choice) {
    const LinearCall *c = context;
    if (choice != RACE_PLAIN) return own_run(ops, c, choice);
    ops_linear_then_rope_forward(ops, c->out, c->in, c->weight, c->k, c->rope, DTYPE_BF16);
    return true;
}

static Race race_of(const LinearCall *call) {
    Race race = {.sizes = {call->rows, call->n, call->k, call->in_stride},
                 .variants = LINEAR_SM90_VARIANTS,
                 .call = call,
                 .results = {{call->out, call->n, call->n}},
                 .rows = call->rows};
    if (call->backward)
        race.what = "linear 3 backward", race.run = backward_run;
    else if (call->rope)
        race.what = "linear 3 rope", race.run = rope_run, race.sizes[4] = call->rope->head_dim;
    else
        race.what = call->add ? "linear 3 add" : "linear 3", race.run = forward_run;
    return race;
}

void cuda_linear_forward(Ops *ops, void *out, const void *in, int64_t in_stride, const void *weight, const void *add,
                         int64_t rows, int in_dim, int out_dim, DType dtype) {
    if (dtype != DTYPE_BF16 || add == out) { // in place: a race would add many times
        gemm_linear_forward(ops, out, in, in_stride, weight, add, rows, in_dim, out_dim, dtype);
        return;
    }
    LinearCall call = {.out = out,
                       .in = in,
                       .in_stride = in_stride,
                       .weight = weight,
                       .add = add,
                       .rows = rows,
                       .n = out_dim,
                       .k = in_dim};
    Race race = race_of(&call);
    race_perform(ops, &race);
}

void cuda_linear_backward_input(Ops *ops, void *din, const void *dout, const void *weight, int64_t rows, int in_dim,
                                int out_dim, DType dtype) {
    if (dtype != DTYPE_BF16) {
        gemm_linear_backward_input(ops, din, dout, weight, rows, in_dim, out_dim, dtype);
        return;
    }
    LinearCall call = {.out = din,
                       .in = dout,
                       .in_stride = out_dim,
                       .weight = weight,
                       .rows = rows,
                       .n = in_dim,
                       .k = out_dim,
                       .backward = true};
    Race race = race_of(&call);
    race_perform(ops, &race);
}

void cuda_linear_rope_forward(Ops *ops, void *out, const void *in, const void *weight, int in_dim,
                              const QkRopeShape *rope, DType dtype) {
    if (dtype != DTYPE_BF16) {
        ops_linear_then_rope_forward(ops, out, in, weight, in_dim, rope, dtype);
        return;
    }
    int n = (rope->heads + 2 * rope->kv_heads) * rope->head_dim;
    LinearCall call = {.out = out,
                       .in = in,
                       .in_stride = in_dim,
                       .weight = weight,
                       .rope = rope,
                       .rows = rope->tokens,
                       .n = n,
                       .k = in_dim};
    Race race = race_of(&call);
    race_perform(ops, &race);
}
