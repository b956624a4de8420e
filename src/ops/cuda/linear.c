// Linear layers: hearth's own kernels (linear_sm90.cu) or cuBLASLt (and the rotary op), whichever is faster for the
// shape; see race.h.
#include "ops/cuda/linear_sm90.h"
#include "ops/cuda/race.h"

static bool own_run(Ops *ops, OpId op, const LinearCall *call, int variant) {
    CudaState *state = cuda_scope_begin(ops, op);
    bool done = linear_sm90(state, call, variant);
    cuda_scope_end(state);
    return done;
}

static bool forward_run(Ops *ops, const void *context, int choice) {
    const LinearCall *c = context;
    if (choice != RACE_PLAIN) return own_run(ops, OP_LINEAR_FORWARD, c, choice);
    gemm_linear_forward(ops, c->out, c->in, c->weight, c->add);
    return true;
}

static bool backward_run(Ops *ops, const void *context, int choice) {
    const LinearCall *c = context;
    if (choice != RACE_PLAIN) return own_run(ops, OP_LINEAR_BACKWARD_INPUT, c, choice);
    gemm_linear_backward_input(ops, c->out, c->in, c->weight);
    return true;
}

static bool rope_run(Ops *ops, const void *context, int choice) {
    const LinearCall *c = context;
    if (choice != RACE_PLAIN) return own_run(ops, OP_LINEAR_ROPE_FORWARD, c, choice);
    ops_linear_then_rope_forward(ops, c->out, c->in, c->weight, c->rope);
    return true;
}

static Race race_of(const LinearCall *call) {
    const Tensor *out = &call->out, *in = &call->in;
    Race race = {.sizes = {out->rows, out->cols, in->cols, in->stride},
                 .variants = LINEAR_SM90_VARIANTS,
                 .call = call,
                 .results = {{out->data, out->cols, out->cols}},
                 .rows = out->rows};
    if (call->backward)
        race.what = "linear 3 backward", race.run = backward_run;
    else if (call->rope)
        race.what = "linear 3 rope", race.run = rope_run, race.sizes[4] = call->rope->head_dim;
    else
        race.what = tensor_present(call->add) ? "linear 3 add" : "linear 3", race.run = forward_run;
    return race;
}

void cuda_linear_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor add) {
    if (out.dtype != DTYPE_BF16 || add.data == out.data) { // in place: a race would add many times
        gemm_linear_forward(ops, out, in, weight, add);
        return;
    }
    LinearCall call = {.out = out, .in = in, .weight = weight, .add = add};
    Race race = race_of(&call);
    race_perform(ops, &race);
}

void cuda_linear_backward_input(Ops *ops, Tensor din, Tensor dout, Tensor weight) {
    if (din.dtype != DTYPE_BF16) {
        gemm_linear_backward_input(ops, din, dout, weight);
        return;
    }
    LinearCall call = {.out = din, .in = dout, .weight = weight, .backward = true};
    Race race = race_of(&call);
    race_perform(ops, &race);
}

void cuda_linear_rope_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, const Rope *rope) {
    if (out.dtype != DTYPE_BF16) {
        ops_linear_then_rope_forward(ops, out, in, weight, rope);
        return;
    }
    LinearCall call = {.out = out, .in = in, .weight = weight, .rope = rope};
    Race race = race_of(&call);
    race_perform(ops, &race);
}
