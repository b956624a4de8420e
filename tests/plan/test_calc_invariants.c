// What must hold between the functions of plan/, whatever the numbers.
#include "testing.h"

#include "plan/batch.h"
#include "plan/checkpointing.h"
#include "plan/collectives.h"
#include "plan/cost.h"
#include "plan/flops.h"
#include "plan/memory.h"
#include "plan/params.h"
#include "plan/pipeline.h"
#include "plan/precision.h"
#include "plan/schedule.h"
#include "plan/tensor_parallel.h"
#include "plan/throughput.h"

static const double RANKS[] = {1, 2, 3, 8, 64, 1000};
enum { RANK_CASES = sizeof RANKS / sizeof RANKS[0] };

static void assert_near(double a, double b) {
    if (!(fabs(a - b) <= 1e-12 * fmax(fabs(a), fabs(b)))) fail_msg("%.17g is not %.17g", a, b);
}

static void an_allreduce_is_a_reduce_scatter_and_an_allgather(void **state) {
    (void)state;
    for (int i = 0; i < RANK_CASES; i++) {
        assert_near(plan_ring_allreduce_bytes(3e9, RANKS[i]), 2 * plan_ring_phase_bytes(3e9, RANKS[i]));
        assert_near(plan_ring_allreduce_seconds(3e9, RANKS[i], 5e10, 5e-6),
                    plan_ring_allreduce_bytes(3e9, RANKS[i]) / 5e10 + plan_ring_latency_seconds(RANKS[i], 5e-6));
    }
    assert_true(plan_ring_allreduce_seconds(1e9, 1, 1e9, 1e-3) == 0); // one rank has nobody to talk to
}

static void busbw_of_a_ring_is_its_bandwidth(void **state) {
    (void)state;
    double seconds = plan_ring_allreduce_seconds(2e9, 8, 5e10, 0);
    assert_near(plan_busbw(2e9, 8, seconds), 5e10);
    assert_near(plan_busbw_utilisation(2e9, 8, seconds, 5e10), 1);
}

static void tree_and_ring_meet_at_the_crossover(void **state) {
    (void)state;
    double bytes = plan_tree_ring_crossover_bytes(16, 5e-6, 5e10);
    assert_near(plan_tree_allreduce_seconds(bytes, 16, 5e10, 5e-6), plan_ring_allreduce_seconds(bytes, 16, 5e10, 5e-6));
}

static void one_node_needs_no_network(void **state) {
    (void)state;
    assert_near(plan_hier_total_seconds(2e10, 8, 1, 6e11, 1e11), plan_hier_intra_seconds(2e10, 8, 6e11));
    assert_near(plan_hier_total_seconds(2e10, 1, 8, 6e11, 1e11), plan_hier_crossnode_seconds(2e10, 8, 1e11));
}

static void zero_stages_only_take_memory_away(void **state) {
    (void)state;
    for (int i = 0; i < RANK_CASES; i++)
        for (double stage = 1; stage <= 3; stage++)
            assert_true(plan_zero_state_bytes(7e9, stage, RANKS[i]) <= plan_zero_state_bytes(7e9, stage - 1, RANKS[i]));
    for (double stage = 0; stage <= 3; stage++)
        assert_near(plan_zero_state_bytes(7e9, stage, 1), 16 * 7e9);
    assert_near(plan_zero_state_bytes(7e9, 3, 64), plan_state_bytes_sharded(7e9, 16, 64));
    assert_near(plan_zero3_comm_bytes(7e9, 1), 1.5 * plan_zero12_comm_bytes(7e9, 1));
}

static void wall_bubble_is_r_over_1_plus_r(void **state) {
    (void)state;
    for (double p = 1; p <= 16; p *= 2)
        for (double m = 1; m <= 64; m *= 4)
            for (double v = 1; v <= 4; v++) {
                double ratio = plan_bubble_of_ideal(p, m, v);
                assert_near(plan_bubble_of_wall(p, m, v), ratio / (1 + ratio));
            }
}

static void min_microbatches_is_the_first_below_the_limit(void **state) {
    (void)state;
    for (double p = 2; p <= 32; p++)
        for (double v = 1; v <= 4; v++)
            for (double percent = 1; percent <= 50; percent++) {
                double limit = percent / 100, m = plan_min_microbatches(p, v, limit, PLAN_BUBBLE_OF_IDEAL);
                assert_true((p - 1) * 100 < percent * m * v);
                assert_true(m == 1 || (p - 1) * 100 >= percent * (m - 1) * v);
                m = plan_min_microbatches(p, v, limit, PLAN_BUBBLE_OF_WALL);
                assert_true((p - 1) * 100 < percent * (m * v + p - 1));
                assert_true(m == 1 || (p - 1) * 100 >= percent * ((m - 1) * v + p - 1));
            }
}

static void layer_splits_add_up(void **state) {
    (void)state;
    for (double layers = 1; layers <= 130; layers++)
        for (double p = 1; p <= layers; p++) {
            PlanLayerSplit split = plan_layer_split(layers, p);
            assert_true(split.longer * split.most + split.shorter * split.least == layers);
            assert_true(split.longer + split.shorter == p);
        }
}

static void stash_of_1f1b_falls_along_the_pipeline(void **state) {
    (void)state;
    assert_true(plan_stash_inflight_1f1b(4, 0) == 4 && plan_stash_inflight_1f1b(4, 3) == 1);
}

static void a_moe_of_one_expert_is_dense_but_for_its_router(void **state) {
    (void)state;
    PlanShape dense = {.vocab = 1000,
                       .hidden = 64,
                       .layers = 3,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 16,
                       .ffn = 128,
                       .experts = 1,
                       .top_k = 1};
    PlanShape moe = dense;
    moe.router = true;
    assert_near(plan_params_total(&moe), plan_params_total(&dense) + 3 * 64);
    assert_near(plan_params_active(&dense), plan_params_total(&dense));
    dense.tied = true;
    assert_near(plan_params_matmul(&dense), plan_params_total(&dense)); // tied: every parameter is in a product
}

static void mfu_conventions_are_ordered(void **state) {
    (void)state;
    double none = plan_flops_per_token(1e9, 16, 32, 64, 4096, PLAN_ATTENTION_NONE);
    double causal = plan_flops_per_token(1e9, 16, 32, 64, 4096, PLAN_ATTENTION_CAUSAL);
    double full = plan_flops_per_token(1e9, 16, 32, 64, 4096, PLAN_ATTENTION_FULL);
    assert_true(none < causal && causal < full);
    assert_near(causal - none, full - causal);
    double rate = plan_tokens_per_second(full, 989e12, 8, 0.4);
    assert_near(plan_mfu(full, rate, 989e12, 8), 0.4);
    assert_near(plan_params_from_mfu(plan_mfu_6n(1e9, rate, 989e12, 8), rate, 989e12, 8), 1e9);
}

static void time_and_budget_are_inverse(void **state) {
    (void)state;
    double seconds = plan_train_seconds(1e9, 2e10, 989e12, 8, 0.4);
    assert_near(plan_token_budget(1e9, seconds, 989e12, 8, 0.4), 2e10);
    assert_near(plan_mfu_from_seconds(1e9, 2e10, 989e12, 8, seconds), 0.4);
}

static void two_point_fit_returns_what_made_the_rates(void **state) {
    (void)state;
    double tokens = 98304, compute = 0.45, overhead = 0.19;
    double one = tokens / (compute + overhead), ten = 10 * tokens / (10 * compute + overhead);
    assert_true(fabs(plan_step_overhead(tokens, one, 1, ten, 10) - overhead) < 1e-12);
    assert_true(fabs(plan_micro_seconds(tokens, one, 1, ten, 10) - compute) < 1e-12);
    assert_near(plan_rate_with_accum(tokens, one, overhead, 10), ten);
}

static void memory_model_fits_its_two_points(void **state) {
    (void)state;
    double slope = plan_memory_slope(9e9, 5000, 7e9, 3000), base = plan_memory_static(9e9, 5000, 7e9, 3000);
    assert_near(base + slope * 5000, 9e9);
    assert_near(base + slope * 3000, 7e9);
    double batch = plan_max_local_batch(10e9, 0.9, base, slope, 100);
    assert_true(base + slope * 100 * batch <= 9e9 && base + slope * 100 * (batch + 1) > 9e9);
}

static void accumulation_reaches_its_target(void **state) {
    (void)state;
    for (double target = 1; target <= 300; target++) {
        double accum = plan_accum_ceil(target, 3, 4);
        assert_true(plan_effective_batch(3, accum, 4) >= target && plan_effective_batch(3, accum - 1, 4) < target);
        double power = plan_accum_pow2(target, 7);
        assert_true(power * 7 >= target && (power == 1 || power / 2 * 7 < target));
    }
    // A ramp of one level is no ramp.
    assert_near(plan_optimizer_steps_ramped(1e9, 1e8, 1, 32768), plan_optimizer_steps(1e9, 32768));
}

static void young_interval_wastes_least(void **state) {
    (void)state;
    double best = plan_young_interval(86400, 98), least = plan_young_waste(86400, 98);
    assert_true(plan_checkpoint_waste(best * 1.05, 86400, 98) > least);
    assert_true(plan_checkpoint_waste(best / 1.05, 86400, 98) > least);
    assert_near(least, 2 * plan_checkpoint_overhead(98, best)); // both terms are equal at the optimum
}

static void overlap_matches_an_event_model(void **state) {
    (void)state;
    for (double comm = 0.5; comm <= 8; comm += 0.5) {
        double backward = 0, link = 0; // the bucket of a layer starts when the layer is done and the link is free
        for (int layer = 0; layer < 40; layer++) {
            backward += 5;
            link = fmax(link, backward) + comm;
        }
        assert_near(plan_exposed_comm_seconds(40, comm, 5), link - backward);
    }
}

static void schedules_start_and_end_where_they_should(void **state) {
    (void)state;
    assert_near(plan_lr_cosine(0, 1000, 6e-4, 6e-5), 6e-4);
    assert_near(plan_lr_cosine(1000, 1000, 6e-4, 6e-5), 6e-5);
    assert_near(plan_lr_cosine(5000, 1000, 6e-4, 6e-5), 6e-5);
    assert_near(plan_lr_sqrt(1, 1, 64) * plan_lr_sqrt(1, 1, 64), plan_lr_linear(1, 1, 64));
    assert_near(plan_perplexity(plan_initial_loss(49152)), 49152);
}

static void loss_scale_traces_agree_with_the_closed_form(void **state) {
    (void)state;
    bool good[64] = {false};
    for (size_t n = 0; n <= 64; n++)
        assert_near(plan_loss_scale(good, n, 1024, 5), plan_loss_scale_after_good((double)n, 1024, 5));
}

static void kv_heads_and_replicas_fill_all_ranks(void **state) {
    (void)state;
    for (double tp = 1; tp <= 32; tp *= 2)
        assert_near(plan_kv_heads_per_rank(8, tp) * tp, 8 * plan_kv_replicas(8, tp));
}

static void moe_exchange_time_is_bytes_plus_latency(void **state) {
    (void)state;
    double bytes = plan_moe_alltoall_bytes(49152, 8, 2048, 2, 48, 8);
    assert_near(plan_moe_alltoall_seconds(bytes, 48, 8, 450e9, 0, 1), bytes / 450e9);
    assert_true(plan_moe_alltoall_seconds(bytes, 48, 8, 450e9, 1e-5, 1.2) > 1.2 * bytes / 450e9);
    assert_true(plan_moe_alltoall_bytes(49152, 8, 2048, 2, 48, 1) == 0);
}

static void costs_scale_with_gpus_and_hours(void **state) {
    (void)state;
    assert_near(plan_gpu_cost(8, 7200, 3), 48);
    assert_near(plan_node_cost(7200, 24), plan_gpu_cost(8, 7200, 3));
    assert_near(plan_electricity_cost(8, 700, 3600, 0.1, 1.5), plan_energy_kwh(8, 700, 3600, 1.5) * 0.1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_allreduce_is_a_reduce_scatter_and_an_allgather),
        cmocka_unit_test(busbw_of_a_ring_is_its_bandwidth),
        cmocka_unit_test(tree_and_ring_meet_at_the_crossover),
        cmocka_unit_test(one_node_needs_no_network),
        cmocka_unit_test(zero_stages_only_take_memory_away),
        cmocka_unit_test(wall_bubble_is_r_over_1_plus_r),
        cmocka_unit_test(min_microbatches_is_the_first_below_the_limit),
        cmocka_unit_test(layer_splits_add_up),
        cmocka_unit_test(stash_of_1f1b_falls_along_the_pipeline),
        cmocka_unit_test(a_moe_of_one_expert_is_dense_but_for_its_router),
        cmocka_unit_test(mfu_conventions_are_ordered),
        cmocka_unit_test(time_and_budget_are_inverse),
        cmocka_unit_test(two_point_fit_returns_what_made_the_rates),
        cmocka_unit_test(memory_model_fits_its_two_points),
        cmocka_unit_test(accumulation_reaches_its_target),
        cmocka_unit_test(young_interval_wastes_least),
        cmocka_unit_test(overlap_matches_an_event_model),
        cmocka_unit_test(schedules_start_and_end_where_they_should),
        cmocka_unit_test(loss_scale_traces_agree_with_the_closed_form),
        cmocka_unit_test(kv_heads_and_replicas_fill_all_ranks),
        cmocka_unit_test(moe_exchange_time_is_bytes_plus_latency),
        cmocka_unit_test(costs_scale_with_gpus_and_hours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
