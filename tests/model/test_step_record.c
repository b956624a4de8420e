// The record of a step against the calls that a real step makes, and under meshes that no table runs.
#include "model/small_models.h"

#include "model/step_record.h"

// The CPU runs these as their parts, or inside others; each is counted where the record has it.
static bool comparable(OpId op) {
    switch (op) {
    case OP_LINEAR_FORWARD:
    case OP_LINEAR_BACKWARD_INPUT:
    case OP_QK_ROPE_FORWARD:
    case OP_QK_ROPE_BACKWARD:
    case OP_GROUPED_LINEAR_FORWARD:
    case OP_GROUPED_LINEAR_BACKWARD_INPUT:
    case OP_SWIGLU_FORWARD:
    case OP_SWIGLU_BACKWARD:
    case OP_SWIGLU_PACKED_FORWARD:
    case OP_SWIGLU_PACKED_BACKWARD: return false;
    default: return true;
    }
}

typedef struct Seen {
    double times[OP_COUNT], flops[OP_COUNT], bytes[OP_COUNT];
} Seen;

static void note_call(void *context, const OpRecord *record) {
    Seen *seen = context;
    OpCost cost = op_cost(record, -1, 0);
    seen->times[record->op]++;
    seen->flops[record->op] += cost.flops;
    seen->bytes[record->op] += cost.bytes;
}

static Seen run_step(const LayoutRequest *request) {
    Seen seen = {0};
    Ops *ops;
    Model *model;
    assert_ok(ops_cpu_create(&ops));
    assert_ok(model_create(&model, ops, request));
    model_init_weights(model, 1, false);
    size_t tokens = (size_t)model->layout.tokens;
    int32_t *ids = xmalloc(2 * tokens * sizeof *ids), *documents = xcalloc(tokens, sizeof *documents);
    int64_t valid = small_batch(&model->layout, ids, ids + tokens, 3);
    ops_observe(ops, note_call, &seen);
    model_step_begin(model, valid, 1);
    model_micro_step(model, ids, ids + tokens, documents);
    model_optimizer_step(model, &(OptimizerStep){.step = 1, .loss_limit = INFINITY, .norm_limit = INFINITY});
    ops_stop_observing(ops);
    model_destroy(model);
    ops_cpu_destroy(ops);
    free(ids);
    free(documents);
    return seen;
}

static Seen sum_record(const Layout *layout) {
    Seen seen = {0};
    StepRecord record;
    step_record_make(&record, layout);
    for (int i = 0; i < record.count; i++) {
        const StepCall *call = &record.calls[i];
        OpCost cost = op_cost(&call->call, -1, 0);
        seen.times[call->call.op] += call->times;
        seen.flops[call->call.op] += call->times * cost.flops;
        seen.bytes[call->call.op] += call->times * cost.bytes;
    }
    step_record_free(&record);
    return seen;
}

static void the_record_is_what_a_step_calls(void **state) {
    (void)state;
    for (int which = 0; which < SMALL_COUNT; which++)
        for (int recompute = 0; recompute < 3; recompute++) {
            LayoutRequest request = small_request((SmallModel)which);
            request.recompute = (Recompute)recompute;
            Layout layout;
            assert_ok(layout_build(&layout, &request));
            Seen real = run_step(&request), recorded = sum_record(&layout);
            for (int op = 0; op < OP_COUNT; op++) {
                if (!comparable((OpId)op) || recorded.times[op] == 0) continue;
                bool fused = op == OP_LINEAR_ROPE_FORWARD || op == OP_LINEAR_SWIGLU_FORWARD ||
                             op == OP_LINEAR_SWIGLU_BACKWARD || op == OP_GROUPED_SWIGLU_FORWARD ||
                             op == OP_GROUPED_SWIGLU_BACKWARD;
                if (real.times[op] != recorded.times[op] || real.flops[op] != recorded.flops[op] ||
                    real.bytes[op] != recorded.bytes[op])
                    fail_msg("model %d, recompute %d: %s %g times in the step, %g in the record%s", which, recompute,
                             op_name((OpId)op), real.times[op], recorded.times[op], fused ? " (fused)" : "");
            }
            for (int op = 0; op < OP_COUNT; op++) // and nothing is missing from it
                if (comparable((OpId)op) && real.times[op] > 0 && recorded.times[op] == 0)
                    fail_msg("model %d: the record lacks %s", which, op_name((OpId)op));
            layout_free(&layout);
        }
}

// Shapes are checked while they are recorded: what every rank of a mesh would call fits together.
static void every_stage_of_a_mesh_can_be_recorded(void **state) {
    (void)state;
    static const Mesh meshes[] = {{1, 2, 1, 1, 1, 1, 0}, {1, 6, 1, 1, 1, 1, 0}, {2, 1, 3, 1, 1, 1, 3},
                                  {1, 1, 1, 1, 3, 1, 0}, {5, 1, 1, 5, 1, 1, 0}, {5, 2, 3, 5, 1, 2, 1},
                                  {1, 2, 2, 1, 3, 1, 0}};
    for (int which = 0; which < SMALL_COUNT; which++)
        for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
            LayoutRequest request = small_request((SmallModel)which);
            request.mesh = meshes[i];
            if (request.mesh.cp > 1) request.seq = 24; // six chunks
            if (!request.config.experts && request.mesh.ep * request.mesh.etp > 1) continue;
            for (int stage = 0; stage < request.mesh.pp; stage++) {
                request.rank = stage * mesh_stage_ranks(&request.mesh);
                Layout layout;
                assert_ok(layout_build(&layout, &request));
                Seen seen = sum_record(&layout);
                bool first = stage == 0, last = stage == request.mesh.pp - 1;
                assert_true(seen.times[OP_EMBEDDING_FORWARD] == first && seen.times[OP_EMBEDDING_BACKWARD] == first);
                assert_true((seen.times[OP_CROSS_ENTROPY] + seen.times[OP_CROSS_ENTROPY_APPLY] > 0) == last);
                int pairs = request.mesh.cp > 1 ? 2 * request.mesh.cp + 1 : 1; // of chunks
                assert_true(seen.times[OP_ATTENTION_BACKWARD] == layout.layer_count * pairs);
                layout_free(&layout);
            }
        }
}

static void tensor_parallel_ranks_share_the_flops(void **state) {
    (void)state;
    LayoutRequest request = small_request(SMALL_QWEN3);
    Layout whole, half;
    assert_ok(layout_build(&whole, &request));
    request.mesh.tp = 2;
    assert_ok(layout_build(&half, &request));
    Seen all = sum_record(&whole), part = sum_record(&half);
    for (int op = 0; op < OP_COUNT; op++) {
        bool head = op == OP_LINEAR_FORWARD || op == OP_LINEAR_BACKWARD_INPUT || op == OP_LINEAR_BACKWARD_WEIGHT;
        double ratio = all.flops[op] > 0 ? part.flops[op] / all.flops[op] : 0.5;
        // The vocabulary is odd: one rank's share is a row larger than the other's.
        assert_true(head ? ratio >= 0.5 && ratio < 0.51 : ratio == 0.5);
    }
    layout_free(&whole);
    layout_free(&half);
}

// Early and late chunks make up for each other: no rank has more of the scores than another.
static void context_parallel_ranks_share_attention_evenly(void **state) {
    (void)state;
    LayoutRequest request = small_request(SMALL_QWEN3);
    request.seq = 48;
    Layout layout;
    assert_ok(layout_build(&layout, &request));
    Seen all = sum_record(&layout);
    layout_free(&layout);
    for (request.mesh.cp = 2; request.mesh.cp <= 8; request.mesh.cp++) {
        if (request.seq % (2 * request.mesh.cp)) continue;
        for (request.rank = 0; request.rank < request.mesh.cp; request.rank++) {
            assert_ok(layout_build(&layout, &request));
            Seen part = sum_record(&layout);
            for (int op = OP_ATTENTION_FORWARD; op <= OP_ATTENTION_BACKWARD; op++)
                assert_true(part.flops[op] * request.mesh.cp == all.flops[op]);
            layout_free(&layout);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_record_is_what_a_step_calls),
        cmocka_unit_test(every_stage_of_a_mesh_can_be_recorded),
        cmocka_unit_test(tensor_parallel_ranks_share_the_flops),
        cmocka_unit_test(context_parallel_ranks_share_attention_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
