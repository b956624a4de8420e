// What is said about a step's time: the biggest loss with its figures, and never an advice that the run follows already
// or cannot follow.
#include "testing.h"

#include "watch/profile_summary.h"

// ---- two profiles of an H200 ----------------------------------------------------------------------------------------

static ProfileSummary dense_on_h200(void) {
    ProfileSummary s = {.step_seconds = 0.6556, .steps = 3, .ranks = 1};
    s.part[CATEGORY_GEMM] = 0.4549, s.floor[CATEGORY_GEMM] = 0.4598;
    s.part[CATEGORY_ATTENTION] = 0.1620, s.floor[CATEGORY_ATTENTION] = 0.1565;
    s.part[CATEGORY_ELEMENTWISE] = 0.0335, s.floor[CATEGORY_ELEMENTWISE] = 0.0362;
    s.part[CATEGORY_OPTIMIZER] = 0.0028, s.floor[CATEGORY_OPTIMIZER] = 0.0028;
    s.part[CATEGORY_COPY] = 3.6e-5, s.floor[CATEGORY_COPY] = 6.5e-8;
    s.part[PROFILE_GAPS] = 0.0024;
    return s;
}

static ProfileSummary experts_on_h200(void) {
    ProfileSummary s = {.step_seconds = 0.2273, .steps = 3, .ranks = 1};
    s.part[CATEGORY_GEMM] = 0.0919, s.floor[CATEGORY_GEMM] = 0.0955;
    s.part[CATEGORY_GROUPED] = 0.0309, s.floor[CATEGORY_GROUPED] = 0.0233;
    s.part[CATEGORY_ATTENTION] = 0.0618, s.floor[CATEGORY_ATTENTION] = 0.0653;
    s.part[CATEGORY_ELEMENTWISE] = 0.0273, s.floor[CATEGORY_ELEMENTWISE] = 0.0271;
    s.part[CATEGORY_ROUTING] = 0.0095, s.floor[CATEGORY_ROUTING] = 0.0100;
    s.part[CATEGORY_OPTIMIZER] = 0.0045, s.floor[CATEGORY_OPTIMIZER] = 0.0045;
    s.part[PROFILE_GAPS] = 0.0013;
    s.ops[s.op_count++] = (ProfileOp){"attention backward", CATEGORY_ATTENTION, STEP_BACKWARD, 1, 0.0495, 0.0523};
    s.ops[s.op_count++] = (ProfileOp){"cross entropy", CATEGORY_ELEMENTWISE, STEP_FORWARD, 1, 0.01149, 0.01148};
    s.ops[s.op_count++] =
        (ProfileOp){"experts down, weight gradient", CATEGORY_GROUPED, STEP_BACKWARD, 1, 0.00874, 0.00383};
    return s;
}

static LossFacts bf16_on_h200(double fp8_gain) {
    LossFacts facts = {.known = true,
                       .gpu = true,
                       .precision = PRECISION_BF16,
                       .batch_fits = true,
                       .shards_optimizer = true,
                       .fp8 = {.what = "precision fp8 instead of bf16", .gain = fp8_gain}};
    return facts;
}

static void expect(const ProfileSummary *summary, const LossFacts *facts, const char *const *said,
                   const char *const *unsaid) {
    LossTable table = profile_losses(summary);
    char *sentence = loss_sentence(&table, facts);
    for (; *said; said++)
        if (!strstr(sentence, *said)) fail_msg("no \"%s\" in: %s", *said, sentence);
    for (; *unsaid; unsaid++)
        if (strstr(sentence, *unsaid)) fail_msg("\"%s\" in: %s", *unsaid, sentence);
    free(sentence);
}
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void a_dense_run_at_its_floors_is_told_what_the_planner_expects(void **state) {
    (void)state;
    ProfileSummary s = dense_on_h200();
    LossFacts facts = bf16_on_h200(0.156);
    facts.products_peak = 0.3385;
    facts.change = (PlanChange){.what = "micro_batch 32 with grad_accum 2 (same batch)", .gain = 0.025};
    expect(
        &s, &facts,
        LIST("The biggest loss of time is norms, rotary, SwiGLU, loss: 5 % of a step (33.5 of 655.6 ms), at the floor "
             "that memory bandwidth sets. Nothing is to be had there. Products and attention are 94 % of the step, "
             "at the rates of this device for their shapes (55 % of its peak). The planner expects 16 % more tokens/s "
             "from precision fp8 instead of bf16, 2 % from micro_batch 32"),
        LIST("train.precision", "recompute", "What could be had", "Try"));
    facts.change.gain = 0.3; // the larger one first
    expect(&s, &facts,
           LIST("30 % more tokens/s from micro_batch 32 with grad_accum 2 (same batch), 16 % from precision"),
           LIST("finds no change"));
}

static void a_run_of_experts_is_told_what_is_above_its_floor(void **state) {
    (void)state;
    ProfileSummary s = experts_on_h200();
    LossFacts facts = bf16_on_h200(0.012);
    facts.products_peak = 0.1;
    expect(
        &s, &facts,
        LIST("norms, rotary, SwiGLU, loss: 12 % of a step (27.3 of 227.3 ms), most of all in \"cross entropy\", at the "
             "floor that memory bandwidth sets. Nothing is to be had there.",
             "mostly in products and attention below the rates of this device: 3 % (7.6 ms), most of all in \"experts "
             "down, weight gradient\" at 2.28 times its floor. Products of experts are slow where loads are uneven",
             "Products and attention are 81 % of the step, at 54 % of the device's peak.",
             "The planner finds no change that brings 2 % or more (precision fp8 instead of bf16: 1.2 %)."),
        LIST("train.precision", "recompute", "at the rates of this device for", "Try"));
}

// ---- every advice against the facts ---------------------------------------------------------------------------------

// A step of 100 ms, of which the part takes 60 at `over` times its floor.
static ProfileSummary mostly(int part, double over) {
    ProfileSummary s = {.step_seconds = 0.1, .steps = 1, .ranks = 1};
    s.part[CATEGORY_GEMM] = s.floor[CATEGORY_GEMM] = 0.03;
    s.part[part] = 0.06;
    if (part < CATEGORY_COUNT && over > 0) s.floor[part] = 0.06 / over;
    return s;
}

static void memory_bound_ops_are_advised_what_the_run_does_not_do_yet(void **state) {
    (void)state;
    static const struct {
        bool gpu;
        Precision precision;
        Recompute recompute;
        const char *bf16, *selective, *none; // said, or NULL
        bool full;                           // the memory, so that nothing more can be kept
    } cases[] = {
        {true, PRECISION_FP32, RECOMPUTE_NONE, "Try train.precision = \"bf16\".", NULL, NULL},
        {true, PRECISION_FP32, RECOMPUTE_FULL, "\"bf16\", or recompute.mode", "recompute.mode = \"selective\".", NULL},
        {true, PRECISION_BF16, RECOMPUTE_SELECTIVE, NULL, NULL, "Try recompute.mode = \"none\"."},
        {true, PRECISION_BF16, RECOMPUTE_FULL, NULL, "Try recompute.mode = \"selective\".", NULL},
        {true, PRECISION_BF16, RECOMPUTE_FULL, NULL, NULL, NULL, true},
        {true, PRECISION_BF16, RECOMPUTE_SELECTIVE, NULL, NULL, NULL, true},
        {true, PRECISION_FP8, RECOMPUTE_NONE, NULL, NULL, NULL},
        {true, PRECISION_FP16, RECOMPUTE_NONE, NULL, NULL, NULL},
        {true, PRECISION_BF16_PURE, RECOMPUTE_NONE, NULL, NULL, NULL},
        {false, PRECISION_FP32, RECOMPUTE_NONE, NULL, NULL, NULL}, // norms of a CPU gain nothing from bf16
        {false, PRECISION_FP32, RECOMPUTE_SELECTIVE, NULL, NULL, "Try recompute.mode = \"none\"."},
    };
    ProfileSummary s = mostly(CATEGORY_ELEMENTWISE, 1);
    s.part[PROFILE_GAPS] = 0.01; // spoken of where nothing can be done against the other
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        LossFacts facts = {.known = true,
                           .gpu = cases[i].gpu,
                           .precision = cases[i].precision,
                           .recompute = cases[i].recompute,
                           .recompute_fits = !cases[i].full};
        bool any = cases[i].bf16 || cases[i].selective || cases[i].none;
        expect(&s, &facts, LIST(any ? "Try" : "Nothing is to be had there. What could be had back is mostly in gaps"),
               LIST(any ? "Nothing" : "Try", any ? "What could" : "Try", "fp8"));
        expect(&s, &facts, LIST(cases[i].bf16 ? cases[i].bf16 : ""), LIST(cases[i].bf16 ? "~" : "\"bf16\""));
        expect(&s, &facts, LIST(cases[i].selective ? cases[i].selective : ""),
               LIST(cases[i].selective ? "~" : "\"selective\""));
        expect(&s, &facts, LIST(cases[i].none ? cases[i].none : ""), LIST(cases[i].none ? "~" : "\"none\""));
    }
}

static void a_floor_is_reached_within_five_per_cent_and_said_only_where_it_is_known(void **state) {
    (void)state;
    LossFacts facts = {.known = true, .gpu = true, .precision = PRECISION_BF16};
    ProfileSummary s = mostly(CATEGORY_ELEMENTWISE, 1.049);
    expect(&s, &facts, LIST("at the floor", "Nothing is to be had"), LIST("Of these"));
    s = mostly(CATEGORY_ELEMENTWISE, 0.8); // rates that were measured under load
    expect(&s, &facts, LIST("at the floor", "Nothing is to be had"), LIST("Of these"));
    s = mostly(CATEGORY_ELEMENTWISE, 1.5);
    expect(&s, &facts, LIST("Of these, 20 ms lie above the floor"), LIST("at the floor", "Nothing is to be had"));
    s = mostly(CATEGORY_ELEMENTWISE, 0);
    expect(&s, &facts, LIST("norms, rotary"), LIST("floor", "Nothing is to be had"));
    facts.known = false;
    expect(&s, &facts, LIST("norms, rotary"), LIST("Try", "planner"));
}

static void a_larger_micro_batch_is_advised_where_memory_takes_it(void **state) {
    (void)state;
    static const int parts[] = {PROFILE_GAPS, PROFILE_COMMUNICATION, CATEGORY_ROUTING, CATEGORY_COPY};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        ProfileSummary s = mostly(parts[i], 2);
        LossFacts facts = {.known = true, .gpu = true, .precision = PRECISION_BF16, .batch_fits = true};
        expect(&s, &facts, LIST("larger train.micro_batch"), LIST("Nothing"));
        facts.batch_fits = false;
        expect(&s, &facts, LIST(""), LIST("micro_batch"));
    }
    ProfileSummary s = mostly(CATEGORY_ROUTING, 1);
    LossFacts facts = {.known = true, .gpu = true, .batch_fits = true};
    expect(&s, &facts, LIST("Nothing is to be had there."), LIST("micro_batch"));
}

static void gaps_speak_of_graphs_where_there_can_be_some(void **state) {
    (void)state;
    ProfileSummary s = mostly(PROFILE_GAPS, 0);
    LossFacts facts = {.known = true, .gpu = true, .batch_fits = true};
    expect(&s, &facts, LIST("replayed from a graph already. Try a larger train.micro_batch."), LIST("train.graph"));
    snprintf(s.no_graph, sizeof s.no_graph, "train.graph = false");
    expect(&s, &facts, LIST("no recorded graph (train.graph = false). Try a larger"), LIST("already"));
    facts.gpu = false;
    expect(&s, &facts, LIST("Try a larger train.micro_batch."), LIST("graph"));
}

static void the_optimizer_is_shared_only_where_it_is_not_yet(void **state) {
    (void)state;
    ProfileSummary s = mostly(CATEGORY_OPTIMIZER, 1);
    LossFacts facts = {.known = true, .gpu = true, .shards_optimizer = true};
    expect(&s, &facts, LIST("larger batch (train.batch_tokens)"), LIST("zero", "Nothing"));
    facts.shards_optimizer = false;
    expect(&s, &facts, LIST("larger batch (train.batch_tokens)", "parallelism.zero = 1"), LIST("Nothing"));
}

static void recomputation_is_advised_to_the_next_lesser_mode(void **state) {
    (void)state;
    ProfileSummary s = mostly(CATEGORY_GEMM, 1);
    s.recompute = 0.02;
    LossFacts facts = {.known = true, .gpu = true, .recompute = RECOMPUTE_FULL};
    expect(&s, &facts, LIST("recompute.mode = \"selective\", or recompute.mode = \"none\""), LIST("Nothing"));
    facts.recompute = RECOMPUTE_SELECTIVE;
    expect(&s, &facts, LIST("Try recompute.mode = \"none\""), LIST("\"selective\""));
    facts.recompute = RECOMPUTE_NONE;
    expect(&s, &facts, LIST("recomputation in the backward pass: 20 %"), LIST("recompute.mode"));
}

static void slow_products_of_experts_point_at_their_load_and_others_at_the_device(void **state) {
    (void)state;
    LossFacts facts = {.known = true, .gpu = true, .precision = PRECISION_BF16};
    ProfileSummary s = mostly(CATEGORY_GEMM, 2);
    expect(&s, &facts, LIST("below the rates of this device: 30 %", "clocks and temperature"), LIST("load of experts"));
    s = mostly(CATEGORY_GROUPED, 2);
    s.ops[s.op_count++] = (ProfileOp){"experts down", CATEGORY_GROUPED, STEP_FORWARD, 1, 0.06, 0.03};
    expect(&s, &facts, LIST("\"experts down\" at 2 times its floor", "load of experts"), LIST("clocks"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dense_run_at_its_floors_is_told_what_the_planner_expects),
        cmocka_unit_test(a_run_of_experts_is_told_what_is_above_its_floor),
        cmocka_unit_test(memory_bound_ops_are_advised_what_the_run_does_not_do_yet),
        cmocka_unit_test(a_floor_is_reached_within_five_per_cent_and_said_only_where_it_is_known),
        cmocka_unit_test(a_larger_micro_batch_is_advised_where_memory_takes_it),
        cmocka_unit_test(gaps_speak_of_graphs_where_there_can_be_some),
        cmocka_unit_test(the_optimizer_is_shared_only_where_it_is_not_yet),
        cmocka_unit_test(recomputation_is_advised_to_the_next_lesser_mode),
        cmocka_unit_test(slow_products_of_experts_point_at_their_load_and_others_at_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
