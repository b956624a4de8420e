// The search: constraints hold, the order is by tokens/s, and on 8 H200 it finds what seven logged runs found.
#include "catalogue.h"
#include "plan/search.h"

#include <time.h>

static void search(SearchResult *result, const PlanMachine *machine, const PlanRun *run, int seq, double batch) {
    SearchSpace space = {.seqs = {seq}, .seq_count = 1, .batch_tokens = batch, .memory_limit = 0.85};
    assert_ok(search_run(result, machine, run, &space));
    assert_true(result->found_count > 0);
}

static void finds_the_local_batches_of_the_logged_runs(void **state) {
    PlanMachine machine = catalogue_machine("h200-sxm", "torchtitan", 8);
    PlanRun run = preset_run("qwen3-30b-a3b", 1, 8192, 1);
    static const int cases[2][2] = {{8192, 6}, {12288, 4}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        SearchResult result;
        search(&result, &machine, &run, cases[i][0], 0);
        const SearchCandidate *best = &result.found[0];
        assert_int_equal(best->mesh.tp, 1);
        assert_int_equal(best->mesh.etp, 1);
        assert_int_equal(best->recompute, RECOMPUTE_SELECTIVE);
        assert_int_equal(best->micro_batch, cases[i][1]);
        // The same with the expert parallelism that the runs ended with.
        for (int k = 0; k < result.found_count; k++) {
            const SearchCandidate *c = &result.found[k];
            if (c->mesh.ep != 4 || c->mesh.dp != 8 || c->recompute != RECOMPUTE_SELECTIVE) continue;
            assert_int_equal(c->micro_batch, cases[i][1]);
            break;
        }
        search_free(&result);
    }
}

static void every_candidate_keeps_the_constraints(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 16);
    PlanRun run = preset_run("llama-3-8b", 1, 8192, 1);
    SearchResult result;
    (void)state;
    search(&result, &machine, &run, 8192, 1 << 20);
    for (int i = 0; i < result.found_count; i++) {
        const SearchCandidate *c = &result.found[i];
        const Mesh *m = &c->mesh;
        assert_int_equal(m->dp * m->tp * m->pp * m->cp, 16);
        assert_true(c->memory_fraction <= 0.85);
        double batch = (double)c->micro_batch * c->seq * m->dp * c->grad_accum;
        assert_true(batch >= 0.6 * (1 << 20) && batch <= 1.5 * (1 << 20));
        if (i) assert_true(c->tokens_per_second <= result.found[i - 1].tokens_per_second);
        PlanRun again = run;
        PlanPrediction prediction;
        if (i % 50) continue; // what the search says is what the planner says
        again.layout.mesh = *m;
        again.layout.recompute = c->recompute;
        again.layout.micro_batch = c->micro_batch;
        again.grad_accum = c->grad_accum;
        assert_ok(plan_predict(&prediction, &machine, &again));
        assert_near(prediction.step.tokens_per_second, c->tokens_per_second, 1e-9 * c->tokens_per_second);
        assert_near(prediction.memory.total, c->memory, 0);
    }
    search_free(&result);
}

static void nothing_is_faster_for_less_memory_than_the_frontier(void **state) {
    PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 8);
    PlanRun run = preset_run("qwen3-30b-a3b", 1, 4096, 1);
    SearchResult result;
    (void)state;
    search(&result, &machine, &run, 4096, 0);
    for (int f = 0; f < result.frontier_count; f++) {
        const SearchCandidate *on = &result.found[result.frontier[f]];
        for (int i = 0; i < result.found_count; i++) {
            const SearchCandidate *c = &result.found[i];
            assert_false(c->tokens_per_second > on->tokens_per_second && c->memory < on->memory);
        }
    }
    search_free(&result);
}

static void thousands_of_candidates_take_about_a_second(void **state) {
    PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 16);
    PlanRun run = preset_run("qwen3-30b-a3b", 1, 8192, 1);
    SearchResult result;
    (void)state;
    clock_t start = clock();
    search(&result, &machine, &run, 8192, 0);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    printf("%d candidates in %.2f s of CPU time: %.0f us each\n", result.tried, seconds, 1e6 * seconds / result.tried);
    assert_true(result.tried > 1000);
    assert_true(seconds / result.tried < 2e-3); // sanitizers and busy machines included
    search_free(&result);
}

static void a_model_that_cannot_fit_finds_nothing(void **state) {
    PlanMachine machine = catalogue_machine("rtx-3090", "hearth", 1);
    PlanRun run = preset_run("llama-3-70b", 1, 4096, 1);
    SearchSpace space = {.seqs = {4096}, .seq_count = 1, .memory_limit = 0.85};
    SearchResult result;
    (void)state;
    assert_ok(search_run(&result, &machine, &run, &space));
    assert_int_equal(result.found_count, 0);
    assert_true(result.too_large > 0);
    search_free(&result);
}

// Above what a small space holds the bound changes nothing but the micro-batches between powers of two.
static void a_bound_ends_the_search_and_large_ones_find_the_best(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 8);
    PlanRun run = preset_run("llama-3-8b", 1, 4096, 1);
    SearchSpace space = {.seqs = {4096}, .seq_count = 1, .batch_tokens = 1 << 19, .memory_limit = 0.85};
    SearchResult all, bounded;
    (void)state;
    assert_ok(search_run(&all, &machine, &run, &space));
    int best = 0;
    while (all.found[best].micro_batch & (all.found[best].micro_batch - 1))
        best++;
    space.tries_max = 100000;
    assert_ok(search_run(&bounded, &machine, &run, &space));
    assert_true(bounded.tried < all.tried + 1000); // one more of each mesh
    assert_near(bounded.found[0].tokens_per_second, all.found[best].tokens_per_second, 0);
    search_free(&bounded);
    machine = catalogue_machine("h100-sxm", "hearth", 55440); // many divisors
    run = preset_run("qwen3-30b-a3b", 1, 32768, 1);
    space = (SearchSpace){.seqs = {32768}, .seq_count = 1, .memory_limit = 0.85, .tries_max = 50};
    assert_ok(search_run(&bounded, &machine, &run, &space));
    assert_int_equal(bounded.tried, 50);
    assert_true(bounded.found_count > 0);
    for (int i = 0; i < bounded.found_count; i++) // the model is cut least first
        assert_int_equal(bounded.found[i].mesh.tp * bounded.found[i].mesh.pp, 1);
    search_free(&bounded);
    search_free(&all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_local_batches_of_the_logged_runs),
        cmocka_unit_test(every_candidate_keeps_the_constraints),
        cmocka_unit_test(nothing_is_faster_for_less_memory_than_the_frontier),
        cmocka_unit_test(thousands_of_candidates_take_about_a_second),
        cmocka_unit_test(a_model_that_cannot_fit_finds_nothing),
        cmocka_unit_test(a_bound_ends_the_search_and_large_ones_find_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
