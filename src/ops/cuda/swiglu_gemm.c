// SwiGLU and the product beside it: one kernel (swiglu_gemm_sm90.cu) or two, whichever is faster for the shape; see
// race.h.
#include "ops/cuda/swiglu_gemm.h"
#include "ops/cuda/race.h"

static bool call_run(Ops *ops, const void *context, int choice) {
    const SwigluCall *c = context;
    if (choice != RACE_PLAIN) {
        CudaState *state = cuda_scope_begin(ops, OP_GEMM);
        bool done = swiglu_sm90(state, c, choice);
        cuda_scope_end(state);
        return done;
    }
    if (c->backward)
        ops_linear_then_swiglu_backward(ops, c->out, c->scratch, c->before, c->in, c->weight, c->rows, c->dim, c->inner,
                                        DTYPE_BF16);
    else
        ops_linear_then_swiglu_forward(ops, c->out, c->in, c->weight, c->rows, c->inner, c->dim, DTYPE_BF16);
    return true;
}

static Race race_of(const SwigluCall *call) {
    const int64_t dim = call->dim, stride = 2 * dim;
    return (Race){.what = call->backward ? "swiglu 5 backward" : "swiglu 5 forward",
                  .sizes = {call->rows, call->dim, call->inner},
                  .variants = SWIGLU_SM90_VARIANTS,
                  .run = call_run,
                  .call = call,
                  .results = {{call->out, stride, dim}, {(bf16 *)call->out + dim, stride, dim}},
                  .rows = call->rows};
}

// Backward in place: what is read must survive the race, so it writes elsewhere.
static void race_elsewhere(Ops *ops, const SwigluCall *call) {
    CudaState *state = cuda_state(ops);
    SwigluCall other = *call;
    size_t bytes = (size_t)call->rows * 2 * (size_t)call->dim * sizeof(bf16);
    void *borrowed = NULL;
    bool there = cudaMalloc(&borrowed, bytes) == cudaSuccess;
    if (there) other.out = borrowed;
    Race race = race_of(&other);
    if (there) {
        race_run(ops, &race);
        CUDA_CHECK(state, cudaFree(borrowed));
    } else {
        cudaGetLastError();
        log_warn("no memory to race kernels of SwiGLU (%zu bytes): two separate ones are used", bytes);
        race_give_up(state, &race);
    }
}

static void linear_swiglu(Ops *ops, const SwigluCall *call) {
    Race race = race_of(call);
    int choice;
    if (call->before == call->out && !race_known(cuda_state(ops), &race, &choice)) race_elsewhere(ops, call);
    race_perform(ops, &race);
}

void cuda_linear_swiglu_forward(Ops *ops, void *gate_hidden, const void *in, const void *weight, int64_t rows,
                                int in_dim, int dim, DType dtype) {
    SwigluCall call = {.out = gate_hidden, .in = in, .weight = weight, .rows = rows, .dim = dim, .inner = in_dim};
    if (dtype == DTYPE_BF16)
        linear_swiglu(ops, &call);
    else
        ops_linear_then_swiglu_forward(ops, gate_hidden, in, weight, rows, in_dim, dim, dtype);
}

void cuda_linear_swiglu_backward(Ops *ops, void *dgate_up, void *scratch, const void *gate_hidden, const void *dnext,
                                 const void *weight, int64_t rows, int dim, int next_dim, DType dtype) {
    SwigluCall call = {.out = dgate_up,
                       .before = gate_hidden,
                       .scratch = scratch,
                       .in = dnext,
                       .weight = weight,
                       .rows = rows,
                       .dim = dim,
                       .inner = next_dim,
                       .backward = true};
    if (dtype == DTYPE_BF16)
        linear_swiglu(ops, &call);
    else
        ops_linear_then_swiglu_backward(ops, dgate_up, scratch, gate_hidden, dnext, weight, rows, dim, next_dim, dtype);
}
