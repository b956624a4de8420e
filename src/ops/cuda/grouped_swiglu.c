// SwiGLU of experts' rows and the grouped product beside it: one kernel (grouped_swiglu_sm90.cu), forward of rows or of
// tokens, or two, whichever is faster for the shape; see race.h.
#include "ops/cuda/grouped_swiglu.h"
#include "ops/cuda/grouped_race.h"

enum { GATHER_FIRST = GROUPED_SWIGLU_VARIANTS, CHOICES = 2 * GROUPED_SWIGLU_VARIANTS }; // variants, and behind a gather

static const int32_t *row_count(const GroupedSwigluCall *call) {
    return (const int32_t *)call->offsets.data + call->offsets.cols - 1;
}

static bool one_kernel_run(Ops *ops, const GroupedSwigluCall *c, int choice) {
    bool tokens = tensor_present(c->token_of_row), gather = choice >= GATHER_FIRST;
    if (gather && !tokens) return false;
    GroupedSwigluCall call = *c;
    CudaState *state = cuda_scope_begin(ops, c->backward ? OP_GROUPED_SWIGLU_BACKWARD : OP_GROUPED_SWIGLU_FORWARD);
    if (gather) {
        rows_gather(state, c->scratch.data, c->in.data, c->token_of_row.data, row_count(c), c->out.rows,
                    (int)c->in.cols, c->in.dtype);
        call.in = c->scratch;
        call.token_of_row = TENSOR_NONE;
    }
    bool done = grouped_swiglu_sm90(state, &call, choice % GROUPED_SWIGLU_VARIANTS);
    cuda_scope_end(state);
    return done;
}

static bool call_run(Ops *ops, const void *context, int choice) {
    const GroupedSwigluCall *c = context;
    if (choice != RACE_PLAIN) return one_kernel_run(ops, c, choice);
    if (c->backward)
        ops_grouped_then_swiglu_backward(ops, c->out, c->hidden, c->drow_weight, c->before, c->in, c->weight,
                                         c->offsets, c->row_weight);
    else
        ops_grouped_then_swiglu_forward(ops, c->hidden, c->out, c->in, c->weight, c->offsets, c->row_weight,
                                        c->token_of_row, c->scratch);
    return true;
}

static Race race_of(const GroupedSwigluCall *call) {
    const Tensor *out = &call->out;
    const int64_t dim = out->cols / 2, experts = call->offsets.cols - 1;
    return (Race){.what = call->backward ? "grouped swiglu 1 backward" : "grouped swiglu 1 forward",
                  .sizes = {out->rows, dim, call->in.cols, experts, tensor_present(call->token_of_row)},
                  .variants = CHOICES,
                  .run = call_run,
                  .call = call,
                  .results = {{out->data, out->cols, dim},
                              {(bf16 *)out->data + dim, out->cols, dim},
                              {call->hidden.data, dim, dim}},
                  .rows = grouped_rows_in_use(out->rows, (int)experts)};
}

// Backward in place: what is read must survive the race, so it writes elsewhere.
static int race_elsewhere(Ops *ops, const GroupedSwigluCall *call, const Race *here) {
    CudaState *state = cuda_state(ops);
    GroupedSwigluCall other = *call;
    other.out.data = race_borrow(state, here, (size_t)tensor_count(call->out) * sizeof(bf16));
    if (!other.out.data) return RACE_PLAIN;
    Race race = race_of(&other);
    race.rows = here->rows;
    int choice = race_run(ops, &race);
    CUDA_CHECK(state, cudaFree(other.out.data));
    return choice;
}

static int choice_find(Ops *ops, const GroupedSwigluCall *call) {
    Race race = race_of(call);
    int choice;
    if (race_known(cuda_state(ops), &race, &choice)) return choice;
    race.rows = grouped_race_rows(ops, &race, row_count(call));
    if (race.rows == 0) return RACE_PLAIN;
    return call->before.data == call->out.data ? race_elsewhere(ops, call, &race) : race_run(ops, &race);
}

static void grouped_swiglu(Ops *ops, const GroupedSwigluCall *call) {
    int choice = call->out.dtype == DTYPE_BF16 ? choice_find(ops, call) : RACE_PLAIN;
    if (!call_run(ops, call, choice)) call_run(ops, call, RACE_PLAIN);
}

void cuda_grouped_swiglu_forward(Ops *ops, Tensor hidden, Tensor gate_up, Tensor in, Tensor weight, Tensor offsets,
                                 Tensor row_weight, Tensor token_of_row, Tensor scratch) {
    GroupedSwigluCall call = {.out = gate_up,
                              .hidden = hidden,
                              .in = in,
                              .weight = weight,
                              .offsets = offsets,
                              .row_weight = row_weight,
                              .token_of_row = token_of_row,
                              .scratch = scratch};
    grouped_swiglu(ops, &call);
}

void cuda_grouped_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor hidden, Tensor drow_weight, Tensor gate_up,
                                  Tensor dnext, Tensor weight, Tensor offsets, Tensor row_weight) {
    GroupedSwigluCall call = {.out = dgate_up,
                              .hidden = hidden,
                              .drow_weight = drow_weight,
                              .before = gate_up,
                              .in = dnext,
                              .weight = weight,
                              .offsets = offsets,
                              .row_weight = row_weight,
                              .backward = true};
    grouped_swiglu(ops, &call);
}
