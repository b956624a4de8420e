// Ranks agree on the kernels that one of them has measured: started alone, and on 3 ranks under mpirun. The measurement
// here is made up: every rank would choose its own number.
#include "model/agree.h"
#include "testing.h"

static World *world;

typedef struct Work {
    TuneFile *tune;
    int races; // held on this rank
} Work;

static void ask(Work *work, const char *key) {
    char own[16];
    if (tune_get(work->tune, key) || tune_held(work->tune)) return;
    snprintf(own, sizeof own, "%d", 100 + world->rank);
    tune_put(work->tune, key, own);
    work->races++;
}

// All ranks use one kernel, and those after the first another.
static void rehearse(void *context) {
    ask(context, "of all");
    if (world->rank > 0) ask(context, "of the others");
}

static Work agree(const char *known) {
    Work work = {.tune = tune_open(NULL, "GPU")};
    if (known) tune_take(work.tune, known);
    tune_agree(work.tune, world, rehearse, &work);
    return work;
}

static void all_ranks_take_what_the_first_in_need_has_measured(void **state) {
    (void)state;
    Work work = agree(NULL);
    assert_string_equal(tune_get(work.tune, "of all"), "100");
    if (world->size > 1) assert_string_equal(tune_get(work.tune, "of the others"), "101");
    assert_int_equal(work.races, world->rank < 2);
    assert_true(tune_held(work.tune)); // from here on, nobody chooses alone
    tune_close(work.tune);
}

static void what_rank_0_knows_is_not_measured_again(void **state) {
    (void)state;
    // As after a resume: rank 0 has read the run's file. What other ranks have in theirs does not count.
    Work work = agree(world->rank == 0 ? "GPU\tof all\t7\nGPU\tof the others\t8\n" : "GPU\tof all\t1\nGPU\tstray\t1\n");
    assert_string_equal(tune_get(work.tune, "of all"), "7");
    assert_string_equal(tune_get(work.tune, "of the others"), "8");
    if (world->rank > 0) assert_null(tune_get(work.tune, "stray"));
    assert_int_equal(work.races, 0);
    tune_close(work.tune);
}

int main(void) {
    assert_ok(world_open(&world, NULL));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_take_what_the_first_in_need_has_measured),
        cmocka_unit_test(what_rank_0_knows_is_not_measured_again),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed) world_abort(world, status_runtime("%d tests failed on rank %d", failed, world->rank));
    world_close(world);
    return 0;
}
