// Grouped linear layers of MoE: the choice of the engine, and of tokens whether the loads find their rows or these are
// gathered first.
#include "ops/cuda/grouped_race.h"

// The fastest engine, or of tokens that of the portable ones which can do it.
static void engine_run(CudaState *state, const GroupedCall *call, DType dtype) {
    bool tokens = call->a_tokens || call->b_tokens;
    bool done = (dtype == DTYPE_BF16 && !tokens && grouped_sm90(state, call)) ||
                (dtype != DTYPE_F32 && grouped_mma(state, call, dtype));
    if (!done) grouped_plain(state, call, dtype);
}

// ---- tokens ---------------------------------------------------------------------------------------------------------

typedef struct TokensCall {
    GroupedCall call;
    OpId op;
    DType dtype;
    void *scratch;
} TokensCall;

enum { TOKENS_PORTABLE, TOKENS_SM90 }; // choices beside RACE_PLAIN; the latter and those behind it

static void gather_then_run(CudaState *state, const TokensCall *t) {
    GroupedCall call = t->call;
    bool of_b = call.b_tokens != NULL;
    rows_gather(state, t->scratch, of_b ? call.b : call.a, of_b ? call.b_tokens : call.a_tokens,
                call.offsets + call.experts, call.rows, of_b ? call.n : call.k, t->dtype);
    *(of_b ? &call.b : &call.a) = t->scratch;
    call.a_tokens = call.b_tokens = NULL;
    engine_run(state, &call, t->dtype);
}

static bool tokens_run(Ops *ops, const void *context, int choice) {
    const TokensCall *t = context;
    CudaState *state = cuda_scope_begin(ops, t->op);
    bool done = true;
    if (choice == RACE_PLAIN)
        gather_then_run(state, t);
    else if (choice >= TOKENS_SM90)
        done = t->dtype == DTYPE_BF16 && grouped_tokens_sm90(state, &t->call, choice - TOKENS_SM90);
    else if (state->arch == 90 && t->dtype == DTYPE_BF16) // no match for wgmma after a gather
        done = false;
    else
        engine_run(state, &t->call, t->dtype);
    cuda_scope_end(state);
    return done;
}

static Race tokens_race(const TokensCall *t) {
    const GroupedCall *call = &t->call;
    bool weight = call->product == GROUPED_WEIGHT;
    Race race = {.what = weight ? "grouped tokens 2 weight" : "grouped tokens 1 forward",
                 .sizes = {call->rows, call->n, weight ? call->m : call->k, call->experts},
                 .variants = TOKENS_SM90 + GROUPED_TOKENS_VARIANTS,
                 .run = tokens_run,
                 .call = t};
    grouped_race_results(&race, call);
    return race;
}

// Gathering first wins where a product has many columns of results to spread the cost over; reading tokens in the loads
// saves writing and reading the rows. Only bf16 is raced, since a race compares results in it; the other types read
// tokens.
static void tokens_perform(Ops *ops, const TokensCall *t) {
    Race race = tokens_race(t);
    if (t->dtype != DTYPE_BF16)
        tokens_run(ops, t, TOKENS_PORTABLE);
    else
        grouped_race_perform(ops, &race, &t->call);
}

// ---- the ops --------------------------------------------------------------------------------------------------------

static void grouped_run(Ops *ops, OpId op, const GroupedCall *call, DType dtype, void *scratch) {
    if (call->a_tokens || call->b_tokens) {
        TokensCall tokens = {*call, op, dtype, scratch};
        tokens_perform(ops, &tokens);
        return;
    }
    CudaState *state = cuda_scope_begin(ops, op);
    engine_run(state, call, dtype);
    cuda_scope_end(state);
}

static GroupedCall grouped_call(GroupedProduct product, Tensor out, Tensor a, Tensor b, Tensor offsets) {
    return (GroupedCall){.product = product,
                         .out = out.data,
                         .a = a.data,
                         .b = b.data,
                         .offsets = offsets.data,
                         .experts = (int)offsets.cols - 1};
}

void cuda_grouped_linear_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor offsets, Tensor token_of_row,
                                 Tensor scratch) {
    GroupedCall call = grouped_call(GROUPED_FORWARD, out, in, weight, offsets);
    call.rows = out.rows, call.n = (int)out.cols, call.k = (int)in.cols;
    call.a_tokens = token_of_row.data;
    grouped_run(ops, OP_GROUPED_LINEAR_FORWARD, &call, in.dtype, scratch.data);
}

void cuda_grouped_linear_backward_input(Ops *ops, Tensor din, Tensor dout, Tensor weight, Tensor offsets) {
    GroupedCall call = grouped_call(GROUPED_INPUT, din, dout, weight, offsets);
    call.rows = din.rows, call.n = (int)din.cols, call.k = (int)dout.cols;
    grouped_run(ops, OP_GROUPED_LINEAR_BACKWARD_INPUT, &call, dout.dtype, NULL);
}

void cuda_grouped_linear_backward_weight(Ops *ops, Tensor dweight, Tensor dout, Tensor in, Tensor offsets,
                                         Tensor token_of_row, Tensor scratch, bool accumulate) {
    GroupedCall call = grouped_call(GROUPED_WEIGHT, dweight, dout, in, offsets);
    call.rows = dout.rows, call.m = (int)dout.cols, call.n = (int)in.cols, call.accumulate = accumulate;
    call.b_tokens = token_of_row.data;
    grouped_run(ops, OP_GROUPED_LINEAR_BACKWARD_WEIGHT, &call, in.dtype, scratch.data);
}
