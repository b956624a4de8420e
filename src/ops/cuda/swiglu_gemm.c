// SwiGLU and the product beside it: one kernel (swiglu_gemm_sm90.cu) or two, whichever is faster for the shape; see
// race.h.
#include "ops/cuda/swiglu_gemm.h"
#include "ops/cuda/race.h"

static bool call_run(Ops *ops, const void *context, int choice) {
    const SwigluCall *c = context;
    if (choice != RACE_PLAIN) {
        CudaState *state = cuda_scope_begin(ops, c->backward ? OP_LINEAR_SWIGLU_BACKWARD : OP_LINEAR_SWIGLU_FORWARD);
        bool done = swiglu_sm90(state, c, choice);
        cuda_scope_end(state);
        return done;
    }
    if (c->backward)
        ops_linear_then_swiglu_backward(ops, c->out, c->scratch, c->before, c->in, c->weight);
    else
        ops_linear_then_swiglu_forward(ops, c->out, c->in, c->weight);
    return true;
}

static Race race_of(const SwigluCall *call) {
    const Tensor *out = &call->out;
    const int64_t dim = out->cols / 2;
    return (Race){.what = call->backward ? "swiglu 5 backward" : "swiglu 5 forward",
                  .sizes = {out->rows, dim, call->in.cols},
                  .variants = SWIGLU_SM90_VARIANTS,
                  .run = call_run,
                  .call = call,
                  .results = {{out->data, out->cols, dim}, {(bf16 *)out->data + dim, out->cols, dim}},
                  .rows = out->rows};
}

// Backward in place: what is read must survive the race, so it writes elsewhere.
static void race_elsewhere(Ops *ops, const SwigluCall *call) {
    CudaState *state = cuda_state(ops);
    SwigluCall other = *call;
    Race race = race_of(call);
    other.out.data = race_borrow(state, &race, (size_t)tensor_count(call->out) * sizeof(bf16));
    if (!other.out.data) return;
    race = race_of(&other);
    race_run(ops, &race);
    CUDA_CHECK(state, cudaFree(other.out.data));
}

static void linear_swiglu(Ops *ops, const SwigluCall *call) {
    Race race = race_of(call);
    int choice;
    if (call->before.data == call->out.data && !race_known(cuda_state(ops), &race, &choice)) race_elsewhere(ops, call);
    race_perform(ops, &race);
}

void cuda_linear_swiglu_forward(Ops *ops, Tensor gate_hidden, Tensor in, Tensor weight) {
    SwigluCall call = {.out = gate_hidden, .in = in, .weight = weight};
    if (gate_hidden.dtype == DTYPE_BF16)
        linear_swiglu(ops, &call);
    else
        ops_linear_then_swiglu_forward(ops, gate_hidden, in, weight);
}

void cuda_linear_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor scratch, Tensor gate_hidden, Tensor dnext,
                                 Tensor weight) {
    SwigluCall call = {
        .out = dgate_up, .before = gate_hidden, .scratch = scratch, .in = dnext, .weight = weight, .backward = true};
    if (dgate_up.dtype == DTYPE_BF16)
        linear_swiglu(ops, &call);
    else
        ops_linear_then_swiglu_backward(ops, dgate_up, scratch, gate_hidden, dnext, weight);
}
