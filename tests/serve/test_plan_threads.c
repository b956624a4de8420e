// Several threads of the server plan at once and without a lock: each answer is the one that it would be alone. Meant
// to run under ThreadSanitizer (cmake --preset tsan).
#include "testing.h"

#include "base/text.h"
#include "plan/step_model.h"
#include "serve/planner_api.h"

#include <pthread.h>
#include <string.h>

static const char *const targets[] = {
    "/api/plan?model=demo-llama&gpu=cpu&precision=fp32", // asks how many threads there are, and has a history
    "/api/plan?model=llama-3-8b&gpus=64&zero=3&tokens=1T",
    "/api/plan?model=qwen3-30b-a3b&node=hgx-h200&ep=4&zero=1&seq=4096&precision=fp8",
    "/api/plan?model=llama-3-8b&gpu=rtx-4090", // does not fit: what would is searched for
    "/api/plan?params=8B&tokens=15T&gpus=64",
    "/api/plan?model=smollm-360m&compare-nodes=true&hours=30&model.layers=24&vocab=50000",
    "/api/plan?model=llama-3-8b&tp=3", // these are refused
    "/api/plan?model=llama-3-8b&micro-bach=1",
};
enum { TARGETS = sizeof targets / sizeof targets[0], PLANS = TARGETS - 2, THREADS = 4, ROUNDS = 2 };

static char *answer_to(const char *target) {
    ServeRequest request;
    json_t *root = NULL;
    assert_null(serve_request_parse(&request, NULL, target));
    Status status = planner_plan(&root, request.parameters, request.parameter_count);
    char *text = status ? text_copy(status_text(status)) : json_dumps(root, JSON_SORT_KEYS | JSON_COMPACT);
    status_free(status);
    json_decref(root);
    serve_request_free(&request);
    return text;
}

typedef struct Asking {
    int first;
    pthread_barrier_t *start;
    char *answers[ROUNDS * TARGETS];
} Asking;

static void *ask_all(void *argument) { // each begins with another one
    Asking *asking = argument;
    pthread_barrier_wait(asking->start);
    for (int i = 0; i < ROUNDS * TARGETS; i++)
        asking->answers[i] = answer_to(targets[(asking->first + i) % TARGETS]);
    return NULL;
}

// The threads come first: what the first plan of a process makes is made by several of them at once.
static void plans_of_several_threads_are_those_of_one(void **state) {
    pthread_barrier_t start;
    pthread_t threads[THREADS];
    Asking asking[THREADS];
    (void)state;
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        asking[i] = (Asking){.first = i * TARGETS / THREADS * (i % 2), .start = &start}; // two with the CPU
        assert_int_equal(pthread_create(&threads[i], NULL, ask_all, &asking[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < TARGETS; i++) {
        char *alone = answer_to(targets[i]);
        assert_int_equal(alone[0] == '{', i < PLANS);
        if (i == 0) assert_non_null(strstr(alone, "\"calibration\":1.2"));
        for (int t = 0; t < THREADS; t++)
            for (int k = (i - asking[t].first + TARGETS) % TARGETS; k < ROUNDS * TARGETS; k += TARGETS) {
                assert_string_equal(asking[t].answers[k], alone);
                free(asking[t].answers[k]);
            }
        free(alone);
    }
    pthread_barrier_destroy(&start);
}

static char directory[] = "/tmp/hearth-plan-threads-XXXXXX";

// A history and a profile of the machine, as a server has them beside it.
static int set_up(void **state) {
    static const char profile[] = "[machine]\ngpu = \"h100-sxm\"\ncopy_GBps = 2900\n";
    char *line = text_format("{\"step_model\":%d,\"device\":\"cpu\",\"devices\":1,\"kind\":\"dense\","
                             "\"precision\":\"fp32\",\"predicted_step_seconds\":0.1,\"measured_step_seconds\":0.12}\n",
                             STEP_MODEL_VERSION);
    (void)state;
    if (!mkdtemp(directory)) return -1;
    char *history = path_join(directory, "history.jsonl"), *machine = path_join(directory, "machine.toml");
    assert_ok(file_append(history, line, strlen(line)));
    free(line);
    assert_ok(file_append(machine, profile, strlen(profile)));
    setenv("HEARTH_HISTORY", history, 1);
    setenv("HEARTH_MACHINE", machine, 1);
    setenv("HEARTH_THREADS", "24", 1); // a pool that takes a while to make
    unsetenv("HEARTH_CALIBRATION");
    free(history);
    free(machine);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_of_several_threads_are_those_of_one),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
