// Preflight: which micro-batches are tried, and which one wins.
#include "tiny_run.h"

#include "train/preflight.h"

#include <sys/prctl.h>

static void test_candidates_keep_the_global_batch(void **state) {
    (void)state;
    static const int64_t table[][2] = {{64, 8}, {1, 1}, {3, 7}, {12, 5}, {8, 1}, {1, 32}, {5, 64}, {12, 1}, {7, 1}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        PreflightTry tries[8];
        int count = preflight_candidates(table[i][0], table[i][1], tries, 8), own = 0;
        assert_in_range(count, 1, 8);
        for (int k = 0; k < count; k++) {
            assert_int_equal(tries[k].micro_batch * tries[k].grad_accum, table[i][0] * table[i][1]);
            if (k) assert_true(tries[k].micro_batch > tries[k - 1].micro_batch);
            own += tries[k].micro_batch == table[i][0];
        }
        assert_int_equal(own, 1);
    }
}

static void test_the_fastest_wins(void **state) {
    (void)state;
    const PreflightTry tries[] = {{1, 8, 0.2, 100}, {2, 4, 0.3, 150}, {4, 2, 0.5, 120}};
    assert_int_equal(preflight_choose(tries, 3), 1);
}

static void test_within_one_percent_memory_near_85_percent_wins(void **state) {
    (void)state;
    const PreflightTry tries[] = {{1, 8, 0.30, 1000}, {2, 4, 0.80, 995}, {4, 2, 0.93, 999}};
    assert_int_equal(preflight_choose(tries, 3), 1);
    const PreflightTry above[] = {{1, 8, 0.60, 1000}, {2, 4, 0.90, 995}}; // nearer to it, but from above
    assert_int_equal(preflight_choose(above, 2), 0);
}

static void test_over_95_percent_of_memory_never_wins(void **state) {
    (void)state;
    const PreflightTry tries[] = {{1, 8, 0.50, 100}, {2, 4, 0.96, 200}};
    assert_int_equal(preflight_choose(tries, 2), 0);
    const PreflightTry none[] = {{1, 8, 0.99, 100}, {2, 4, 0.5, 0}};
    assert_int_equal(preflight_choose(none, 2), -1);
}

static void test_the_shortest_run_is_one_step(void **state) {
    (void)state;
    char *directory = tiny_directory(), *path = tiny_config(directory, "preflight.toml", 4, "");
    Config config;
    setenv("HEARTH_CALIBRATION", "off", 1);
    assert_ok(config_read(&config, path, NULL, 0));
    PreflightResult result;
    assert_ok(preflight_run(&config, &(PreflightOptions){.tokens = 1, .seconds = 1e-12}, &result));
    assert_int_equal(result.steps, 1);
    assert_int_equal(result.tokens, 2 * 2 * 32);
    config_free(&config);
    status_free(dir_remove(directory));
    free(directory);
    free(path);
}

// ---- what is told while it works ------------------------------------------------------------------------------------

typedef struct Told {
    char order[64]; // S search starts, t try starts, T try ends, E search ends
    PreflightTry tries[PREFLIGHT_TRIES_MAX];
    int count;
} Told;

static void tell(Told *told, char what) {
    size_t length = strlen(told->order);
    assert_true(length + 1 < sizeof told->order);
    told->order[length] = what;
}

static void hear_search(void *context, const PreflightSearch *search) {
    tell(context, 'S');
    assert_memory_equal(search->device, "cpu", 3); // and more, by what multiplies bf16
    assert_true(search->seq == 32 && search->sequences == 4);
}

static void hear_try(void *context, const PreflightTry *attempt) {
    tell(context, 't');
    assert_true(attempt->memory_bytes > 0 && attempt->memory_fraction > 0 && attempt->tokens_per_second == 0);
}

static void hear_tried(void *context, const PreflightTry *attempt) {
    Told *told = context;
    tell(told, 'T');
    told->tries[told->count++] = *attempt;
}

static void hear_end(void *context, const PreflightSearch *search) {
    tell(context, 'E');
    assert_true(search->best >= 0 && search->fastest >= 0);
}

static void test_a_listener_hears_every_try_and_nothing_is_printed(void **state) {
    (void)state;
    char *directory = tiny_directory(), *path = tiny_config(directory, "preflight.toml", 4, "");
    char *save = path_join(directory, "best.toml"), *shown = path_join(directory, "shown");
    Config config, written;
    PreflightResult result;
    Told told = {0};
    PreflightOptions options = {.tokens = 1,
                                .seconds = 2,
                                .search = true,
                                .save = save,
                                .listener = {&told, hear_search, hear_try, hear_tried, hear_end}};
    assert_ok(config_read(&config, path, NULL, 0));
    fflush(stdout);
    int out = dup(1), file = open(shown, O_WRONLY | O_CREAT, 0666);
    dup2(file, 1);
    Status status = preflight_run(&config, &options, &result);
    fflush(stdout);
    dup2(out, 1);
    close(out);
    close(file);
    assert_ok(status);
    char *text = read_text(shown);
    assert_string_equal(text, "");
    assert_string_equal(told.order, "StTtTtTE"); // micro-batches of 1, 2 and 4
    for (int i = 0; i < 3; i++)
        assert_true(told.tries[i].verdict == PREFLIGHT_RAN && told.tries[i].tokens_per_second > 0);
    const PreflightTry *best = &result.search.tries[result.search.best];
    assert_int_equal(best->micro_batch * best->grad_accum, 4);
    assert_true(result.steps == 1 && result.tokens == 128 && result.first_loss == result.last_loss);
    assert_true(result.step.measured > 0 && result.memory.measured > 0);
    assert_true(fabs(result.tokens_per_second.measured * result.step.measured - 128) < 1e-9);
    assert_ok(config_read(&written, save, NULL, 0));
    assert_int_equal(written.train.micro_batch, best->micro_batch);
    assert_int_equal(written.train.grad_accum, best->grad_accum);
    config_free(&written);
    assert_error(preflight_run(&config, &options, &result), "exists already");
    config_free(&config);
    status_free(dir_remove(directory));
    free(text), free(shown), free(save), free(path), free(directory);
}

// Lines that a preflight of so many tokens adds. calibration: "always", or NULL: where the machine is not busy.
static int history_lines(const char *tokens, const char *save, const char *calibration) {
    char *directory = tiny_directory(), *path = tiny_config(directory, "preflight.toml", 4, "");
    char *history = path_join(directory, "history.jsonl"), *log = path_join(directory, "log");
    const char *words[] = {"preflight",
                           path,
                           "--no-search",
                           "--tokens",
                           tokens,
                           "--set",
                           "train.batch_warmup_tokens=256",
                           save ? "--write" : NULL,
                           save,
                           NULL};
    if (calibration)
        setenv("HEARTH_CALIBRATION", calibration, 1);
    else
        unsetenv("HEARTH_CALIBRATION");
    setenv("HEARTH_HISTORY", history, 1);
    assert_int_equal(hearth_run(words, log), 0);
    setenv("HEARTH_HISTORY", "", 1);
    char *text = read_text(history);
    int count = 0;
    for (const char *at = text; *at; at++)
        count += *at == '\n';
    status_free(dir_remove(directory));
    free(text), free(log), free(history), free(path), free(directory);
    return count;
}

static void test_only_enough_steps_are_remembered(void **state) {
    (void)state;
    assert_int_equal(history_lines("896", NULL, "always"), 0);  // 7 steps of the whole batch: 4 beyond the warm-up
    assert_int_equal(history_lines("1024", NULL, "always"), 1); // 8 steps
}

// A program on each core leaves the run no more than half of them, however many there are; 500 steps are many
// ticks of the clock that the system counts the cores' work with.
static void test_a_busy_machine_teaches_nothing(void **state) {
    (void)state;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    pid_t *others = xmalloc((size_t)cores * sizeof *others);
    for (long i = 0; i < cores; i++) {
        others[i] = fork();
        if (others[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); // they go with the test, however it ends
            for (;;) {
            }
        }
        assert_true(others[i] > 0); // kill takes another number for more than one process
    }
    int lines = history_lines("64000", NULL, NULL);
    for (long i = 0; i < cores; i++) {
        kill(others[i], SIGKILL);
        waitpid(others[i], NULL, 0);
    }
    assert_int_equal(lines, 0);
    free(others);
}

// The short run takes the full batch at once; the run itself shall not.
static void test_the_written_config_keeps_its_batch_warmup(void **state) {
    (void)state;
    char save[] = "/tmp/hearth-test-XXXXXX";
    assert_non_null(mkdtemp(save));
    char *file = path_join(save, "best.toml");
    Config written;
    history_lines("1", file, "always");
    assert_ok(config_read(&written, file, NULL, 0));
    assert_int_equal(written.train.batch_warmup_tokens, 256);
    assert_true(written.train.micro_batch == 2 && written.train.grad_accum == 2);
    config_free(&written);
    status_free(dir_remove(save));
    free(file);
}

static void test_the_command_prints_tries_choice_and_outcome(void **state) {
    (void)state;
    char *directory = tiny_directory(), *path = tiny_config(directory, "preflight.toml", 4, "");
    char *save = path_join(directory, "best.toml"), *shown = path_join(directory, "shown");
    const char *const words[] = {"preflight", path, "--tokens", "1", "--write", save, NULL};
    assert_int_equal(hearth_run(words, shown), 0);
    char *text = read_text(shown);
    static const char *const parts[] = {"preflight.toml, seq 32, 4 sequences a step, on cpu\n",
                                        "  micro_batch  grad_accum  memory (predicted)          tok/s\n",
                                        "            1           4 ",
                                        "            2           2 ",
                                        "            4           1 ",
                                        "best: put this into the config\n\n[train]\nmicro_batch = ",
                                        "\n1 steps, 128 tokens: loss 5.",
                                        "  memory ",
                                        "  step ",
                                        "  throughput ",
                                        "\nwritten to "};
    const char *at = text;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *found = strstr(at, parts[i]);
        if (!found) fail_msg("\"%s\" does not follow in:\n%s", parts[i], text);
        at = found;
    }
    status_free(dir_remove(directory));
    free(text), free(shown), free(save), free(path), free(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_candidates_keep_the_global_batch),
        cmocka_unit_test(test_the_fastest_wins),
        cmocka_unit_test(test_within_one_percent_memory_near_85_percent_wins),
        cmocka_unit_test(test_over_95_percent_of_memory_never_wins),
        cmocka_unit_test(test_the_shortest_run_is_one_step),
        cmocka_unit_test(test_a_listener_hears_every_try_and_nothing_is_printed),
        cmocka_unit_test(test_only_enough_steps_are_remembered),
        cmocka_unit_test(test_a_busy_machine_teaches_nothing),
        cmocka_unit_test(test_the_written_config_keeps_its_batch_warmup),
        cmocka_unit_test(test_the_command_prints_tries_choice_and_outcome),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
