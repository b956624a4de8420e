// Grouped linear layers of MoE in FP8: the choice of the kernel, by time.
#include "ops/cuda/grouped_fp8.h"
#include "ops/cuda/grouped_race.h"

// The plain way is the first variant of the tensor cores' kernel, or where that cannot be the portable one.
static bool grouped_fp8_run(Ops *ops, const void *context, int choice) {
    const GroupedFp8Call *call = context;
    CudaState *state = cuda_scope_begin(ops, OP_GROUPED_LINEAR_FP8);
    bool done = grouped_fp8_sm90(state, call, choice + 1);
    if (!done && choice == RACE_PLAIN) grouped_fp8_plain(state, call), done = true;
    cuda_scope_end(state);
    return done;
}

static Race grouped_fp8_race(const GroupedFp8Call *fp8) {
    static const char *const names[] = {
        [GROUPED_FORWARD] = "grouped fp8 1 rows", [GROUPED_WEIGHT] = "grouped fp8 1 weight"};
    const GroupedCall *call = &fp8->call;
    bool weight = call->product == GROUPED_WEIGHT;
    Race race = {.what = names[call->product],
                 .sizes = {call->rows, call->n, weight ? call->m : call->k, call->experts, fp8->a_dtype == DTYPE_E5M2},
                 .variants = GROUPED_FP8_VARIANTS - 1,
                 .run = grouped_fp8_run,
                 .call = fp8};
    grouped_race_results(&race, call);
    return race;
}

void cuda_grouped_linear_fp8(Ops *ops, Tensor out, Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor offsets,
                             bool accumulate) {
    bool weight = out.dtype == DTYPE_F32;
    int experts = (int)offsets.cols - 1;
    GroupedFp8Call fp8 = {.call = {.product = weight ? GROUPED_WEIGHT : GROUPED_FORWARD,
                                   .out = out.data,
                                   .a = a.data,
                                   .b = b.data,
                                   .offsets = offsets.data,
                                   .experts = experts,
                                   .rows = weight ? a.cols : out.rows,
                                   .m = weight ? (int)a.rows : 0,
                                   .n = (int)out.cols,
                                   .k = weight ? 0 : (int)a.cols,
                                   .accumulate = accumulate},
                          .a_dtype = a.dtype,
                          .a_scale = a_scale.data,
                          .b_scale = b_scale.data};
    Race race = grouped_fp8_race(&fp8);
    grouped_race_perform(ops, &race, &fp8.call);
}
