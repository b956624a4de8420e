// The hearth program, killed in every way, and resumed: losses and final weights must be those of an undisturbed run,
// bit for bit.
#include "tiny_run.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "train/checkpoint.h"

#include <sys/resource.h>

static char *directory, *config;

static int make_directory(void **state) {
    (void)state;
    directory = tiny_directory();
    config = tiny_config(directory, "run.toml", 40, "[checkpoint]\nevery = 5\nkeep_last = 3\n");
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    free(config);
    return 0;
}

typedef struct Losses {
    char text[41][64]; // [step] the digits as written: equal text is equal bits
    char norm[41][64];
    int count;
} Losses;

static void copy_field(char *out, const char *line, const char *key) {
    const char *at = strstr(line, key);
    assert_non_null(at);
    at += strlen(key);
    size_t length = strcspn(at, ",}");
    assert_true(length < 64);
    memcpy(out, at, length);
    out[length] = 0;
}

static void read_losses(Losses *losses, const char *run) {
    *losses = (Losses){0};
    char *path = path_join(run, "metrics.jsonl"), *text = read_text(path);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (!strstr(line, "\"loss\":")) continue;
        int step = atoi(strstr(line, "\"step\":") + 7);
        assert_int_equal(step, losses->count + 1); // every step once, in order
        copy_field(losses->text[step], line, "\"loss\":");
        copy_field(losses->norm[step], line, "\"grad_norm\":");
        losses->count = step;
    }
    free(text);
    free(path);
}

static int steps_logged(const char *run) {
    char *path = path_join(run, "metrics.jsonl"), *text = read_text(path);
    int count = 0;
    for (const char *at = text; (at = strstr(at, "\"loss\":")); at++)
        count++;
    free(text);
    free(path);
    return count;
}

static void wait_for_step(const char *run, int step) {
    for (int i = 0; i < 20000 && steps_logged(run) < step; i++)
        usleep(1000);
    assert_true(steps_logged(run) >= step);
}

static void assert_same_end(const char *one, const char *two) {
    Losses a, b;
    read_losses(&a, one);
    read_losses(&b, two);
    assert_int_equal(a.count, 40);
    assert_int_equal(b.count, 40);
    for (int i = 1; i <= 40; i++) {
        assert_string_equal(a.text[i], b.text[i]);
        assert_string_equal(a.norm[i], b.norm[i]);
    }
    static const char *const files[] = {"model.safetensors", "adam_m.safetensors", "adam_v.safetensors"};
    for (int i = 0; i < 3; i++) {
        char *left = text_format("%s/checkpoints/step-40/%s", one, files[i]);
        char *right = text_format("%s/checkpoints/step-40/%s", two, files[i]);
        FileMap x, y;
        assert_ok(file_map(&x, left));
        assert_ok(file_map(&y, right));
        assert_int_equal(x.size, y.size);
        assert_memory_equal(x.data, y.data, x.size);
        file_unmap(&x);
        file_unmap(&y);
        free(left);
        free(right);
    }
}

static char *log_path(void) {
    return path_join(directory, "log");
}

static pid_t start_run(const char *run, bool resume) {
    char *log = log_path();
    const char *fresh[] = {"train", config, "--run", run, NULL}, *again[] = {"train", "--resume", "--run", run, NULL};
    pid_t child = hearth_start(resume ? again : fresh, log);
    free(log);
    return child;
}

static const char *straight_run(void) { // made once
    static char *run;
    if (run) return run;
    run = path_join(directory, "straight");
    assert_int_equal(hearth_wait(start_run(run, false)), 0);
    return run;
}

static void killed_at_20_and_resumed_ends_the_same(void **state) {
    (void)state;
    const char *straight = straight_run();
    char *run = path_join(directory, "killed");
    pid_t child = start_run(run, false);
    wait_for_step(run, 20);
    kill(child, SIGKILL);
    assert_int_equal(hearth_wait(child), 128 + SIGKILL);
    assert_int_equal(hearth_wait(start_run(run, true)), 0);
    assert_same_end(straight, run);
    free(run);
}

static void terminated_at_13_and_resumed_ends_the_same(void **state) {
    (void)state;
    const char *straight = straight_run();
    char *run = path_join(directory, "terminated"), *log = log_path();
    pid_t child = start_run(run, false);
    wait_for_step(run, 13);
    kill(child, SIGTERM);
    int code = hearth_wait(child), stopped_at = steps_logged(run);
    assert_int_equal(code, stopped_at < 40 ? 128 + SIGTERM : 0);
    char *path = text_format("%s/checkpoints/step-%d", run, stopped_at);
    if (stopped_at < 40) assert_ok(checkpoint_verify(path)); // written at the step where it stopped
    assert_int_equal(hearth_wait(start_run(run, true)), 0);
    assert_same_end(straight, run);
    free(path);
    free(log);
    free(run);
}

// Killed twice while the guard is refusing steps; where the kills come does not matter.
static void killed_twice_with_a_guard_at_work_ends_the_same(void **state) {
    (void)state;
    char *guarded = tiny_config(directory, "guarded.toml", 40, "[checkpoint]\nevery = 3\nkeep_last = 2\n");
    char *straight = path_join(directory, "guarded"), *run = path_join(directory, "guarded-killed"), *log = log_path();
    static const char *const sets[] = {"--set", "train.spike_factor=1.001", "--set", "train.max_skips=1000",
                                       "--set", "optimizer.lr=1e-4",        "--set", "model.init_std=0.3"};
    const char *words[16] = {"train", guarded, "--run", straight}, *again[] = {"train", "--resume", "--run", run, NULL};
    memcpy(words + 4, sets, sizeof sets);
    assert_int_equal(hearth_run(words, log), 0);
    words[3] = run;
    for (int round = 0; round < 2; round++) {
        pid_t child = hearth_start(round ? again : words, log);
        wait_for_step(run, round ? 26 : 14);
        kill(child, SIGKILL);
        hearth_wait(child);
    }
    assert_int_equal(hearth_run(again, log), 0);
    assert_same_end(straight, run);
    char *path = path_join(run, "metrics.jsonl"), *text = read_text(path);
    int skipped = 0;
    for (const char *at = text; (at = strstr(at, "\"skipped\":true")); at++)
        skipped++;
    if (skipped < 4 || skipped > 28) fail_msg("%d of 40 steps were skipped", skipped);
    free(text), free(path), free(log), free(run), free(straight), free(guarded);
}

// Whatever carries a checkpoint's name is complete; returns the newest step, -1: none.
static int64_t verify_all(const char *folder) {
    int64_t *steps = NULL, newest = -1;
    int count = 0;
    if (!file_is_directory(folder)) return -1;
    assert_ok(checkpoint_steps(folder, &steps, &count));
    for (int i = 0; i < count; i++) {
        char *path = text_format("%s/step-%lld", folder, (long long)steps[i]);
        assert_ok(checkpoint_verify(path));
        free(path);
        newest = steps[i];
    }
    free(steps);
    return newest;
}

// Twenty times: kill -9 at a random moment, with a checkpoint after every step written by its own thread. A checkpoint
// that could be seen before is never lost, and nothing damaged is ever accepted. A run that reaches its end is compared
// with the undisturbed one, and another is begun.
static void random_kills_never_lose_or_corrupt_a_checkpoint(void **state) {
    (void)state;
    char *often = tiny_config(directory, "often.toml", 40, "[checkpoint]\nevery = 1\nkeep_last = 40\n"),
         *log = log_path();
    int moved = 0, killed = 0, number = 0;
    for (int round = 0; round < 20; number++) {
        char *run = text_format("%s/random-%d", directory, number), *folder = path_join(run, "checkpoints");
        const char *first[] = {"train", often, "--run", run, NULL},
                   *again[] = {"train", "--resume", "--run", run, NULL};
        for (int64_t newest = -1; round < 20 && newest < 40; round++) {
            pid_t child = hearth_start(file_exists(run) ? again : first, log);
            int64_t step = newest;
            while (step == newest && waitpid(child, NULL, WNOHANG) == 0) { // until it has got further at least once
                char *next = text_format("%s/step-%lld", folder, (long long)(newest < 0 ? 1 : newest + 1));
                step += file_exists(next);
                free(next);
                usleep(200);
            }
            usleep((useconds_t)rng_below(11, RNG_STREAM_TEST, (uint64_t)round, 6000));
            killed += kill(child, SIGKILL) == 0;
            waitpid(child, NULL, 0);
            int64_t now = verify_all(folder);
            assert_true(now >= newest);
            moved += now > newest;
            newest = now;
        }
        assert_int_equal(hearth_run(file_exists(run) ? again : first, log), 0);
        assert_same_end(straight_run(), run);
        free(folder);
        free(run);
    }
    printf("20 rounds over %d runs: %d were killed, %d had got further than the one before\n", number, killed, moved);
    assert_true(moved >= 10);
    free(log);
    free(often);
}

static void a_corrupt_checkpoint_is_reported_and_the_one_before_used(void **state) {
    (void)state;
    const char *straight = straight_run();
    char *run = path_join(directory, "corrupt"), *log = log_path();
    assert_int_equal(hearth_wait(start_run(run, false)), 0);
    char *file = path_join(run, "checkpoints/step-40/model.safetensors");
    int fd = open(file, O_WRONLY);
    assert_int_equal(pwrite(fd, "damage", 6, 5000), 6);
    close(fd);
    assert_int_equal(hearth_wait(start_run(run, true)), 0);
    char *text = read_text(log);
    assert_non_null(strstr(text, "step-40 cannot be used"));
    assert_non_null(strstr(text, "checksum"));
    assert_same_end(straight, run);
    free(text);
    free(file);
    free(log);
    free(run);
}

// Nothing is started over, renamed or cut: what is damaged may still be saved by hand.
static void a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_alone(void **state) {
    (void)state;
    char *run = path_join(directory, "all-damaged"), *folder = path_join(run, "checkpoints"), *log = log_path();
    assert_int_equal(hearth_wait(start_run(run, false)), 0);
    int64_t *steps;
    int count;
    assert_ok(checkpoint_steps(folder, &steps, &count));
    assert_int_equal(count, 3);
    for (int i = 0; i < count; i++) {
        char *file = text_format("%s/step-%lld/model.safetensors", folder, (long long)steps[i]);
        assert_int_equal(truncate(file, 100), 0);
        free(file);
    }
    free(steps);
    assert_int_equal(hearth_wait(start_run(run, true)), 1);
    char *text = read_text(log);
    assert_non_null(strstr(text, "no checkpoint in "));
    assert_non_null(strstr(text, "damaged: step-30, step-35, step-40"));
    assert_int_equal(steps_logged(run), 40);
    assert_ok(checkpoint_steps(folder, &steps, &count));
    assert_int_equal(count, 3);
    free(steps);
    free(text);
    free(log);
    free(folder);
    free(run);
}

static void the_settings_of_a_resume_hold_for_the_next_one(void **state) {
    (void)state;
    char *run = path_join(directory, "settings"), *log = log_path(), *file = path_join(run, "config.toml");
    assert_int_equal(hearth_wait(start_run(run, false)), 0);
    const char *longer[] = {"train", "--resume",           "--run", run, "--set", "train.steps=44",
                            "--set", "optimizer.lr=0.005", NULL};
    assert_int_equal(hearth_run(longer, log), 0);
    char *changed = read_text(file), *said = read_text(log);
    assert_non_null(strstr(said, "optimizer.lr was 0.01 and is 0.005;")); // and nothing else has changed
    free(said);
    assert_non_null(strstr(changed, "\nsteps = 44\n"));
    assert_non_null(strstr(changed, "\nlr = 0.005\n"));
    assert_non_null(strstr(changed, "\nconfig = \"\"\n")); // not the checkpoint's, which will be pruned
    assert_int_equal(hearth_wait(start_run(run, true)), 0);
    char *again = read_text(file);
    assert_string_equal(again, changed);
    said = read_text(log);
    assert_null(strstr(said, "other settings"));
    free(said);
    assert_int_equal(steps_logged(run), 44);
    free(again);
    free(changed);
    free(file);
    free(log);
    free(run);
}

// What the trainer said while it trained and what `hearth eval RUN` says are one number.
static void a_finished_run_is_not_trained_again_and_evaluates_to_its_validation_loss(void **state) {
    (void)state;
    char *run = path_join(directory, "ended"), *log = log_path(), *metrics = path_join(run, "metrics.jsonl");
    const char *fresh[] = {"train", config,
                           "--run", run,
                           "--set", "eval.at_end=true",
                           "--set", "watch.terminal=plain",
                           "--set", "data.mask_documents=true",
                           NULL};
    assert_int_equal(hearth_run(fresh, log), 0);
    char *before = read_text(metrics);
    assert_int_equal(hearth_wait(start_run(run, true)), 0);
    char *after = read_text(metrics), *text = read_text(log);
    assert_string_equal(before, after);
    assert_non_null(strstr(text, "this run has ended: all of its 40 steps are done"));
    assert_null(strstr(text, "other settings"));
    char *last = strstr(before, "\"val_loss\":");
    assert_non_null(last);
    for (char *next; (next = strstr(last + 1, "\"val_loss\":"));)
        last = next;
    double trained = strtod(last + strlen("\"val_loss\":"), NULL);
    assert_int_equal(hearth_run((const char *[]){"eval", run, "--device", "cpu", NULL}, log), 0);
    char *said = read_text(log);
    const char *line = strstr(said, "\nloss ");
    assert_non_null(line);
    double evaluated = strtod(line + strlen("\nloss "), NULL);
    if (!(fabs(evaluated - trained) <= 0.5e-6 + 0.5e-8)) // six decimals here, nine digits in the metrics
        fail_msg("training said %.9g, evaluating %.6f", trained, evaluated);
    assert_int_equal(hearth_run((const char *[]){"sample", run, "--device", "cpu", NULL}, log), 2);
    free(said), said = read_text(log);
    assert_non_null(strstr(said, "--prompt"));
    free(said), free(text), free(after), free(before);
    free(metrics), free(log), free(run);
}

static void data_that_has_changed_is_named(void **state) {
    (void)state;
    char *run = path_join(directory, "other-data"), *log = log_path(), *data = path_join(directory, "changing");
    char *set = text_format("data.train=[\"%s\"]", data);
    SynthRequest request = {data, "bytes", 0, 7, 200, 20, false};
    SynthResult result;
    assert_ok(synth_write(&request, &result));
    assert_int_equal(hearth_run((const char *[]){"train", config, "--run", run, "--set", set, NULL}, log), 0);
    const char *longer[] = {"train", "--resume", "--run", run, "--set", "train.steps=41", NULL};
    assert_int_equal(hearth_run(longer, log), 0);
    char *text = read_text(log);
    assert_null(strstr(text, "has changed"));
    request.seed = 8, request.overwrite = true;
    assert_ok(synth_write(&request, &result));
    longer[5] = "train.steps=42";
    assert_int_equal(hearth_run(longer, log), 0);
    free(text), text = read_text(log);
    assert_non_null(strstr(text, "the training data has changed since "));
    free(text), free(set), free(data), free(log), free(run);
}

// Killed between the checkpoint of the last step and the end of the evaluation: that is made up for.
static void a_run_killed_in_its_last_evaluation_makes_up_for_it(void **state) {
    (void)state;
    char *run = path_join(directory, "unevaluated"), *log = log_path(), *metrics = path_join(run, "metrics.jsonl");
    const char *fresh[] = {"train", config, "--run", run, "--set", "eval.at_end=true", NULL};
    assert_int_equal(hearth_run(fresh, log), 0);
    char *whole = read_text(metrics), *last = strstr(whole, "\"eval\":\"full\"");
    assert_non_null(last);
    while (last[-1] != '\n')
        last--;
    assert_int_equal(truncate(metrics, last - whole), 0);
    assert_int_equal(hearth_wait(start_run(run, true)), 0);
    char *again = read_text(metrics);
    assert_non_null(strstr(again, "\"eval\":\"full\""));
    assert_int_equal(steps_logged(run), 40);
    free(again), free(whole);
    free(metrics), free(log), free(run);
}

// A limit on the size of files stands in for a full disk.
static void a_run_goes_on_when_its_metrics_cannot_be_written(void **state) {
    (void)state;
    char *run = path_join(directory, "no-metrics"), *log = log_path();
    const char *arguments[] = {"train", config,
                               "--run", run,
                               "--set", "train.steps=200",
                               "--set", "checkpoint.every=0",
                               "--set", "checkpoint.at_end=false",
                               NULL};
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = (struct rlimit){16000, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pid_t child = hearth_start(arguments, log);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(hearth_wait(child), 0);
    char *text = read_text(log);
    const char *warning = strstr(text, "metrics cannot be written");
    assert_non_null(warning);
    assert_null(strstr(warning + 1, "metrics cannot be written")); // said once
    free(text);
    free(log);
    free(run);
}

// A learning rate that ruins the model at step 8: the guard refuses what follows, and the run ends with a good
// checkpoint's name.
static void a_ruined_run_stops_and_names_the_last_good_checkpoint(void **state) {
    (void)state;
    char *run = path_join(directory, "ruined"), *log = log_path();
    const char *arguments[] = {"train", config,
                               "--run", run,
                               "--set", "train.spike_factor=1.5",
                               "--set", "train.spike_window=4",
                               "--set", "train.max_skips=3",
                               "--set", "optimizer.lr=4",
                               "--set", "schedule.warmup_steps=40",
                               "--set", "checkpoint.every=1",
                               NULL};
    assert_int_equal(hearth_run(arguments, log), 1);
    char *text = read_text(log);
    assert_non_null(strstr(text, "3 steps in a row were skipped"));
    assert_non_null(strstr(text, "last good checkpoint: "));
    const char *name = strstr(text, "/checkpoints/step-");
    assert_non_null(name);
    char *folder = path_join(run, "checkpoints");
    assert_int_equal(verify_all(folder), atoi(name + strlen("/checkpoints/step-")));
    const char *again[] = {"train", "--resume", "--run", run, "--set", "optimizer.lr=1e-3", NULL};
    assert_int_equal(hearth_run(again, log), 0);
    free(folder);
    free(text);
    free(log);
    free(run);
}

// Any number of threads gives the same bits, so a run may move to another machine in the middle.
static void the_number_of_threads_changes_nothing(void **state) {
    (void)state;
    char *run = path_join(directory, "threads"), *log = log_path();
    const char *arguments[] = {"train", config, "--run", run, "--set", "train.threads=2", NULL};
    assert_int_equal(hearth_run(arguments, log), 0);
    assert_same_end(straight_run(), run);
    free(log);
    free(run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_20_and_resumed_ends_the_same),
        cmocka_unit_test(terminated_at_13_and_resumed_ends_the_same),
        cmocka_unit_test(killed_twice_with_a_guard_at_work_ends_the_same),
        cmocka_unit_test(random_kills_never_lose_or_corrupt_a_checkpoint),
        cmocka_unit_test(a_corrupt_checkpoint_is_reported_and_the_one_before_used),
        cmocka_unit_test(a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_alone),
        cmocka_unit_test(the_settings_of_a_resume_hold_for_the_next_one),
        cmocka_unit_test(a_finished_run_is_not_trained_again_and_evaluates_to_its_validation_loss),
        cmocka_unit_test(a_run_killed_in_its_last_evaluation_makes_up_for_it),
        cmocka_unit_test(data_that_has_changed_is_named),
        cmocka_unit_test(a_run_goes_on_when_its_metrics_cannot_be_written),
        cmocka_unit_test(a_ruined_run_stops_and_names_the_last_good_checkpoint),
        cmocka_unit_test(the_number_of_threads_changes_nothing),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
