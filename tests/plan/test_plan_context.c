// Context parallelism in a plan: what of its exchange hides behind attention, and what other programs do differently.
#include "catalogue.h"

#include <string.h>

enum { RANKS = 4, LAYERS = 16, HEADS = 32, KV_HEADS = 8, HEAD_DIM = 64, SEQ = 65536 }; // llama-3.2-1b

static PlanPrediction predict_ring(const PlanMachine *machine, Recompute recompute) {
    PlanRun run = preset_run("llama-3.2-1b", 1, SEQ, 1);
    PlanPrediction prediction;
    run.layout.mesh.cp = RANKS;
    run.layout.recompute = recompute;
    assert_ok(plan_predict(&prediction, machine, &run));
    return prediction;
}

static double attention_seconds(const StepModel *step, StepPass pass) {
    double seconds = 0;
    for (int i = 0; i < step->op_count; i++)
        if (step->ops[i].part == STEP_ATTENTION && step->ops[i].pass == pass) seconds += step->ops[i].seconds;
    return seconds;
}

static double line_seconds(const StepModel *step, const char *name) {
    for (int i = 0; i < step->op_count; i++)
        if (strcmp(step->ops[i].name, name) == 0) return step->ops[i].seconds;
    fail_msg("no line \"%s\"", name);
    return 0;
}

// Long blocks hide everything but the last hop of the gradients' sums: nothing is left to do then.
static void the_way_home_of_key_gradients_hides_behind_nothing(void **state) {
    (void)state;
    for (int other = 0; other < 2; other++) {
        PlanMachine machine = catalogue_machine("h100-sxm", other ? "torchtitan" : "hearth", RANKS);
        PlanPrediction prediction = predict_ring(&machine, RECOMPUTE_NONE);
        double heads = other ? HEADS : KV_HEADS; // PyTorch's ring has the heads of queries: keys are repeated before
        double sums = 2.0 * SEQ / RANKS * heads * HEAD_DIM * 4;
        double hop = sums / (machine.link_bandwidth * machine.gpu.efficiency.link) + machine.link_latency;
        assert_near(prediction.step.part[STEP_CONTEXT], LAYERS * hop, 1e-12);
    }
}

// Where every hop takes longer than a block's attention, what is hidden is attention: in hearth's ring that of all
// blocks but the last one forward, in other programs, which gather at once, that of the own block; backward of all.
static void short_blocks_hide_no_more_than_their_attention(void **state) {
    (void)state;
    for (int other = 0; other < 2; other++)
        for (int full = 0; full < 2; full++) {
            PlanMachine machine = catalogue_machine("h100-sxm", other ? "torchtitan" : "hearth", RANKS);
            machine.link_bandwidth = 1e6;
            PlanPrediction prediction = predict_ring(&machine, full ? RECOMPUTE_FULL : RECOMPUTE_NONE);
            const StepAxis *axis = &prediction.step.axis[STEP_CONTEXT];
            double forward = attention_seconds(&prediction.step, STEP_FORWARD) * (other ? 1 : RANKS - 1) / RANKS;
            double hidden = (1 + full) * forward + attention_seconds(&prediction.step, STEP_BACKWARD);
            assert_near((axis->seconds - axis->exposed) / hidden, 1, 1e-6); // of days on the links
        }
}

// Of the pairs of whole chunks one in 2 cp - 1 has the rank's own keys.
static void the_context_factor_is_that_of_other_ranks_keys(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "torchtitan", RANKS);
    (void)state;
    machine.software.context_factor = 1;
    PlanPrediction plain = predict_ring(&machine, RECOMPUTE_NONE);
    machine.software.context_factor = 3;
    PlanPrediction slower = predict_ring(&machine, RECOMPUTE_NONE);
    const char *const names[] = {"attention to earlier chunks", "attention to earlier chunks backward"};
    for (int i = 0; i < 2; i++)
        assert_near(line_seconds(&slower.step, names[i]) / line_seconds(&plain.step, names[i]), (6 * 3 + 1) / 7.0,
                    1e-12);
    assert_near(line_seconds(&slower.step, "attention"), line_seconds(&plain.step, "attention"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_way_home_of_key_gradients_hides_behind_nothing),
        cmocka_unit_test(short_blocks_hide_no_more_than_their_attention),
        cmocka_unit_test(the_context_factor_is_that_of_other_ranks_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
