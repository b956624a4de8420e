// SwiGLU in FP8 and the product before it, of a dense layer or of experts: one kernel (swiglu_fp8_sm90.cu) or two,
// whichever is faster for the shape; see race.h.
#include "ops/cuda/swiglu_fp8.h"
#include "ops/cuda/grouped_race.h"

static bool has_experts(const SwigluFp8Call *call) {
    return tensor_present(call->offsets);
}

void swiglu_fp8_separate(Ops *ops, const SwigluFp8Call *c) {
    if (has_experts(c))
        ops_grouped_then_swiglu_fp8_forward(ops, c->hidden, c->hidden_amax, c->gate_up8, c->gate_up_amax, c->scratch,
                                            c->in, c->weight, c->in_scale, c->weight_scale, c->hidden_scale,
                                            c->gate_up_scale, c->row_weight, c->offsets);
    else
        ops_linear_then_swiglu_fp8_forward(ops, c->hidden, c->hidden_amax, c->gate_up8, c->gate_up_amax, c->scratch,
                                           c->in, c->weight, c->in_scale, c->weight_scale, c->hidden_scale,
                                           c->gate_up_scale);
}

static bool call_run(Ops *ops, const void *context, int choice) {
    const SwigluFp8Call *call = context;
    if (choice == RACE_PLAIN) {
        swiglu_fp8_separate(ops, call);
        return true;
    }
    CudaState *state =
        cuda_scope_begin(ops, has_experts(call) ? OP_GROUPED_SWIGLU_FP8_FORWARD : OP_LINEAR_SWIGLU_FP8_FORWARD);
    bool done = swiglu_fp8_sm90(state, call, choice);
    cuda_scope_end(state);
    return done;
}

static Race race_of(const SwigluFp8Call *call) {
    const int64_t dim = call->hidden.cols, rows = call->hidden.rows;
    const int experts = swiglu_fp8_experts(call);
    return (Race){.what = has_experts(call) ? "fp8 grouped swiglu 1" : "fp8 swiglu 1",
                  .sizes = {rows, dim, call->in.cols, has_experts(call) ? experts : 0},
                  .variants = SWIGLU_FP8_VARIANTS,
                  .run = call_run,
                  .call = call,
                  .results = {{call->hidden.data, dim, dim, .fp8 = true},
                              {call->gate_up8.data, 2 * dim, dim, .fp8 = true},
                              {(uint8_t *)call->gate_up8.data + dim, 2 * dim, dim, .fp8 = true}},
                  .rows = has_experts(call) ? grouped_rows_in_use(rows, experts) : rows};
}

// Maxima stay until the next step. Those of a race, whose kernels may round otherwise or be wrong, go elsewhere.
static void race_elsewhere(Ops *ops, const SwigluFp8Call *call) {
    CudaState *state = cuda_state(ops);
    SwigluFp8Call other = *call;
    Race race = race_of(&other);
    if (has_experts(call)) {
        race.rows = grouped_race_rows(ops, &race, (const int32_t *)call->offsets.data + call->offsets.cols - 1);
        if (race.rows == 0) return;
    }
    float *amax = race_borrow(state, &race, 2 * sizeof *amax);
    if (!amax) return;
    CUDA_CHECK(state, cudaMemsetAsync(amax, 0, 2 * sizeof *amax, state->stream));
    if (tensor_present(call->hidden_amax)) other.hidden_amax.data = amax;
    if (tensor_present(call->gate_up_amax)) other.gate_up_amax.data = amax + 1;
    race_run(ops, &race);
    CUDA_CHECK(state, cudaFree(amax));
}

void cuda_grouped_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8, Tensor gate_up_amax,
                                     Tensor scratch, Tensor in, Tensor weight, Tensor in_scale, Tensor weight_scale,
                                     Tensor hidden_scale, Tensor gate_up_scale, Tensor row_weight, Tensor offsets) {
    const SwigluFp8Call call = {.hidden = hidden,
                                .hidden_amax = hidden_amax,
                                .gate_up8 = gate_up8,
                                .gate_up_amax = gate_up_amax,
                                .scratch = scratch,
                                .in = in,
                                .weight = weight,
                                .in_scale = in_scale,
                                .weight_scale = weight_scale,
                                .hidden_scale = hidden_scale,
                                .gate_up_scale = gate_up_scale,
                                .row_weight = row_weight,
                                .offsets = offsets};
    Race race = race_of(&call);
    int choice;
    if (!race_known(cuda_state(ops), &race, &choice)) race_elsewhere(ops, &call);
    race_perform(ops, &race);
}

void cuda_linear_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8, Tensor gate_up_amax,
                                    Tensor scratch, Tensor in, Tensor weight, Tensor in_scale, Tensor weight_scale,
                                    Tensor hidden_scale, Tensor gate_up_scale) {
    cuda_grouped_swiglu_fp8_forward(ops, hidden, hidden_amax, gate_up8, gate_up_amax, scratch, in, weight, in_scale,
                                    weight_scale, hidden_scale, gate_up_scale, TENSOR_NONE, TENSOR_NONE);
}
