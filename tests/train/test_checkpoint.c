// Checkpoints: whole or not there, checked, and kept by the rules.
#include "tiny_folder.h"

#include "model/fp8.h"
#include "train/checkpoint.h"
#include "train/fp8_state.h"
#include "train/router_bias.h"
#include "train/trainer.h"

#include <sys/resource.h>

typedef struct Fixture {
    Config config;
    Trainer trainer;
    CheckpointWriter *writer;
    char *folder;
} Fixture;

static void fixture_open_with(Fixture *fixture, const char *name, CheckpointPolicy policy, const char *const *sets,
                              int set_count) {
    char *path = tiny_config(directory, "checkpoint.toml", 50, "");
    assert_ok(config_read(&fixture->config, path, sets, set_count));
    assert_ok(trainer_open(&fixture->trainer, &fixture->config));
    free(path);
    fixture->folder = path_join(directory, name);
    assert_ok(
        checkpoint_writer_open(&fixture->writer, fixture->folder, &fixture->trainer.model->layout, &policy, 0, 1));
}

static void fixture_open(Fixture *fixture, const char *name, CheckpointPolicy policy) {
    fixture_open_with(fixture, name, policy, NULL, 0);
}

static void fixture_close(Fixture *fixture) {
    checkpoint_writer_close(fixture->writer);
    trainer_close(&fixture->trainer);
    config_free(&fixture->config);
    free(fixture->folder);
}

static void train_and_save(Fixture *fixture, int steps) {
    MetricsStep step;
    bool stopped;
    for (int i = 0; i < steps; i++)
        assert_ok(trainer_step(&fixture->trainer, &step, NULL, &stopped));
    assert_ok(checkpoint_save(fixture->writer, fixture->trainer.model, fixture->trainer.step,
                              trainer_state(&fixture->trainer)));
}

static void flip_byte(const char *path, int64_t from_end) {
    int64_t size;
    assert_ok(file_size(&size, path));
    int fd = open(path, O_RDWR);
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, size - from_end), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, size - from_end), 1);
    close(fd);
}

static int said;
static void count_damaged(void *context, const char *message) {
    (void)context;
    assert_non_null(strstr(message, "cannot be used"));
    said++;
}

static void restore_and_compare(const char *name, const char *const *sets, int set_count) {
    Fixture fixture;
    MetricsStep straight, again;
    bool stopped, same, same_data;
    fixture_open_with(&fixture, name, (CheckpointPolicy){2, 0, true, true}, sets, set_count);
    train_and_save(&fixture, 4);
    for (int i = 0; i < 3; i++)
        assert_ok(trainer_step(&fixture.trainer, &straight, NULL, &stopped));
    Trainer other;
    assert_ok(trainer_open(&other, &fixture.config));
    int64_t done;
    assert_ok(checkpoint_poll(fixture.writer, true, &done));
    assert_int_equal(done, 4);
    char *path = path_join(fixture.folder, "step-4");
    assert_ok(trainer_restore(&other, path, &same, &same_data));
    assert_true(same && same_data);
    for (int i = 0; i < 3; i++)
        assert_ok(trainer_step(&other, &again, NULL, &stopped));
    assert_true(again.loss == straight.loss && again.grad_norm == straight.grad_norm &&
                again.loss_aux == straight.loss_aux);
    free(path);
    trainer_close(&other);
    fixture_close(&fixture);
}

static void a_restored_run_goes_on_with_the_same_bits(void **state) {
    (void)state;
    static const char *const bf16[] = {"train.precision=bf16", "data.mask_documents=true"};
    static const char *const pure[] = {"train.precision=bf16-pure", "train.spike_factor=4"};
    static const char *const fp8[] = {"train.precision=fp8", "train.grad_accum=2", "model.vocab=272"};
    static const char *const moe[] = {"model.arch=qwen3_moe", "model.experts=4", "model.top_k=2", "model.expert_ffn=32",
                                      "train.batch_warmup_tokens=400"};
    restore_and_compare("fp32", NULL, 0);
    restore_and_compare("bf16", bf16, 2);
    restore_and_compare("bf16-pure", pure, 2);
    restore_and_compare("moe", moe, 5);
    restore_and_compare("fp8", fp8, 3);
}

// A checkpoint of a version whose LM head was in bf16 has the scales of layers only.
static void a_state_without_the_heads_scale_begins_it_afresh(void **state) {
    (void)state;
    static const char *const sets[] = {"train.precision=fp8", "model.vocab=272"};
    Fixture fixture;
    fixture_open_with(&fixture, "fp8-head", (CheckpointPolicy){2, 0, true, true}, sets, 2);
    train_and_save(&fixture, 2);
    Model *model = fixture.trainer.model;
    json_t *saved = json_object(), *older = json_object();
    fp8_scales_save(model, saved);
    assert_true(json_number_value(json_object_get(saved, "fp8_head_scale")) != (double)FP8_FIRST_SCALE);
    json_object_set(older, "fp8_scales", json_object_get(saved, "fp8_scales"));
    for (int i = 0; i < 2; i++) {
        json_t *again = json_object();
        assert_ok(fp8_scales_restore(model, i ? saved : older, "there"));
        fp8_scales_save(model, again);
        assert_true(json_equal(json_object_get(again, "fp8_scales"), json_object_get(saved, "fp8_scales")));
        double head = json_number_value(json_object_get(again, "fp8_head_scale"));
        assert_true(head ==
                    (i ? json_number_value(json_object_get(saved, "fp8_head_scale")) : (double)FP8_FIRST_SCALE));
        json_decref(again);
    }
    json_object_set_new(older, "fp8_head_scale", json_real(-1));
    assert_error(fp8_scales_restore(model, older, "there"), "does not fit the model");
    json_decref(older);
    json_decref(saved);
    fixture_close(&fixture);
}

static void the_head_can_be_left_in_bf16(void **state) {
    (void)state;
    static const char *const sets[] = {"train.precision=fp8", "model.vocab=272", "train.fp8_head=off"};
    unsigned fp8[2];
    for (int off = 0; off < 2; off++) {
        Fixture fixture;
        fixture_open_with(&fixture, "fp8-off", (CheckpointPolicy){2, 0, true, true}, sets, 2 + off);
        fp8[off] = fixture.trainer.model->layout.fp8;
        fixture_close(&fixture);
    }
    assert_int_equal(fp8[0] & FP8_HEAD, FP8_HEAD);
    assert_int_equal(fp8[1], fp8[0] & ~(unsigned)FP8_HEAD);
}

static void assert_same_bias(Model *one, Model *two) {
    json_t *left = router_bias_json(one), *right = router_bias_json(two);
    assert_int_equal(json_array_size(left), 2); // sparse layers
    assert_true(json_number_value(json_array_get(json_array_get(left, 0), 0)) != 0);
    assert_true(json_equal(left, right));
    json_decref(left);
    json_decref(right);
}

static void the_routers_bias_is_part_of_the_state(void **state) {
    (void)state;
    static const char *const sets[] = {"model.arch=qwen3_moe", "model.experts=4",   "model.top_k=1",
                                       "model.expert_ffn=32",  "model.aux_coef=0",  "model.router_bias_rate=0.05",
                                       "model.z_coef=0.001",   "train.grad_accum=1"};
    restore_and_compare("bias", sets, 8);
    Fixture fixture;
    MetricsStep step;
    bool stopped, same, same_data;
    fixture_open_with(&fixture, "bias-state", (CheckpointPolicy){2, 0, true, false}, sets, 8);
    train_and_save(&fixture, 5);
    char *path = path_join(fixture.folder, "step-5");
    Trainer other;
    Config fixed;
    assert_ok(config_copy(&fixed, &fixture.config));
    fixed.model.router_bias_rate = 0;
    assert_ok(trainer_open(&other, &fixed));
    assert_ok(trainer_restore(&other, path, &same, &same_data));
    assert_true(other.model->router_bias); // experts are still chosen with it, though it no longer moves
    assert_same_bias(fixture.trainer.model, other.model);
    assert_ok(trainer_step(&other, &step, NULL, &stopped));
    assert_same_bias(fixture.trainer.model, other.model);
    trainer_close(&other);
    config_free(&fixed);
    free(path);
    fixture_close(&fixture);
}

static void damage_anywhere_is_found_and_the_previous_one_used(void **state) {
    (void)state;
    static const char *const files[] = {"model.safetensors", "adam_m.safetensors", "adam_v.safetensors",
                                        "state.json",        "config.json",        "manifest.json"};
    Fixture fixture;
    fixture_open(&fixture, "damage", (CheckpointPolicy){10, 0, false, false});
    train_and_save(&fixture, 1);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        train_and_save(&fixture, 1);
    // Steps 2.. are each damaged in one file; only step 1 is left.
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = text_format("%s/step-%zu/%s", fixture.folder, i + 2, files[i]);
        flip_byte(path, 40);
        free(path);
    }
    char *found;
    int64_t step;
    said = 0;
    assert_ok(checkpoint_find(fixture.folder, &found, &step, count_damaged, NULL));
    assert_non_null(found);
    assert_int_equal(step, 1);
    assert_int_equal(said, 6);
    free(found);
    fixture_close(&fixture);
}

static void a_truncated_or_missing_file_is_not_accepted(void **state) {
    (void)state;
    Fixture fixture;
    fixture_open(&fixture, "torn", (CheckpointPolicy){10, 0, false, false});
    train_and_save(&fixture, 1);
    train_and_save(&fixture, 1);
    char *torn = path_join(fixture.folder, "step-2/adam_v.safetensors"),
         *gone = path_join(fixture.folder, "step-1/state.json");
    assert_int_equal(truncate(torn, 1000), 0);
    assert_int_equal(unlink(gone), 0);
    char *found;
    int64_t step;
    assert_error(checkpoint_find(fixture.folder, &found, &step, NULL, NULL), "can be used");
    assert_null(found);
    free(torn);
    free(gone);
    fixture_close(&fixture);
}

static void the_newest_the_best_and_the_milestones_stay(void **state) {
    (void)state;
    static const double losses[] = {5, 3, 4, 2, 4, 4, 4, 4}; // after steps 1..8
    Fixture fixture;
    fixture_open(&fixture, "keep", (CheckpointPolicy){2, 3, true, false});
    for (int i = 0; i < 8; i++) {
        MetricsStep metrics;
        bool stopped;
        assert_ok(trainer_step(&fixture.trainer, &metrics, NULL, &stopped));
        fixture.trainer.val_loss = losses[i];
        fixture.trainer.val_step = fixture.trainer.step;
        train_and_save(&fixture, 0);
    }
    int64_t *steps;
    int count;
    assert_ok(checkpoint_steps(fixture.folder, &steps, &count));
    static const int64_t expected[] = {3, 4, 6, 7, 8}; // 3 and 6 are milestones, 4 the best, 7 and 8 the newest
    assert_int_equal(count, 5);
    assert_memory_equal(steps, expected, sizeof expected);
    free(steps);
    fixture_close(&fixture);
}

static void checkpoints_are_listed_by_number(void **state) {
    (void)state;
    char *folder = path_join(directory, "listed");
    static const char *const names[] = {"step-9",           "step-100",        "step-10",
                                        ".writing-step-11", "damaged-step-12", "step-x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = path_join(folder, names[i]);
        assert_ok(dir_make(path));
        free(path);
    }
    int64_t *steps;
    int count;
    assert_ok(checkpoint_steps(folder, &steps, &count));
    assert_int_equal(count, 3);
    assert_true(steps[0] == 9 && steps[1] == 10 && steps[2] == 100);
    free(steps);
    free(folder);
}

static void a_checkpoint_counts_as_written_when_an_older_one_cannot_be_removed(void **state) {
    (void)state;
    char *odd = path_join(directory, "stuck/step-00"); // reads as step 0, but step-0 is not there to be removed
    assert_ok(dir_make(odd));
    Fixture fixture;
    int64_t done;
    fixture_open(&fixture, "stuck", (CheckpointPolicy){1, 0, false, false});
    train_and_save(&fixture, 1);
    assert_ok(checkpoint_poll(fixture.writer, true, &done));
    assert_int_equal(done, 1);
    fixture_close(&fixture);
    free(odd);
}

static void another_batch_changes_only_the_steps_that_are_left(void **state) {
    (void)state;
    static const char *const small[] = {"train.tokens=2560"}, *const large[] = {"train.tokens=2560",
                                                                                "train.grad_accum=4"};
    Fixture fixture, other;
    bool same, same_data;
    fixture_open_with(&fixture, "small-batch", (CheckpointPolicy){1, 0, false, false}, small, 1);
    assert_int_equal(fixture.trainer.total_steps, 20); // of 128 tokens
    train_and_save(&fixture, 4);
    fixture_open_with(&other, "large-batch", (CheckpointPolicy){1, 0, false, false}, large, 2);
    char *path = path_join(fixture.folder, "step-4");
    assert_ok(trainer_restore(&other.trainer, path, &same, &same_data));
    assert_int_equal(other.trainer.total_steps, 4 + (2560 - 4 * 128) / 256);
    assert_int_equal(other.trainer.schedule.total_steps, other.trainer.total_steps);
    free(path);
    fixture_close(&other);
    fixture_close(&fixture);
}

static void what_a_crash_left_behind_is_cleared_away(void **state) {
    (void)state;
    char *half = path_join(directory, "crash/.writing-step-7");
    assert_ok(dir_make(half));
    Fixture fixture;
    fixture_open(&fixture, "crash", (CheckpointPolicy){2, 0, false, true});
    assert_false(file_exists(half));
    fixture_close(&fixture);
    free(half);
}

// A limit on the size of files stands in for a full disk: writes fail in the middle of a tensor.
static void a_full_disk_leaves_the_old_checkpoint_and_the_training_state(void **state) {
    (void)state;
    Fixture fixture;
    MetricsStep metrics;
    bool stopped;
    fixture_open(&fixture, "full", (CheckpointPolicy){2, 0, false, true});
    train_and_save(&fixture, 1);
    int64_t done;
    assert_ok(checkpoint_poll(fixture.writer, true, &done));
    assert_int_equal(done, 1);
    struct rlimit before, small = {20000, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    train_and_save(&fixture, 1);
    Status status = checkpoint_poll(fixture.writer, true, &done);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_non_null(status);
    assert_non_null(strstr(status_text(status), "step 2 was not written"));
    assert_int_equal(done, -1);
    status_free(status);
    char *found;
    int64_t step;
    assert_ok(checkpoint_find(fixture.folder, &found, &step, count_damaged, NULL));
    assert_int_equal(step, 1);
    free(found);
    assert_ok(trainer_step(&fixture.trainer, &metrics, NULL, &stopped)); // training goes on
    train_and_save(&fixture, 0);
    assert_ok(checkpoint_poll(fixture.writer, true, &done));
    assert_int_equal(done, 3);
    fixture_close(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restored_run_goes_on_with_the_same_bits),
        cmocka_unit_test(a_state_without_the_heads_scale_begins_it_afresh),
        cmocka_unit_test(the_head_can_be_left_in_bf16),
        cmocka_unit_test(the_routers_bias_is_part_of_the_state),
        cmocka_unit_test(damage_anywhere_is_found_and_the_previous_one_used),
        cmocka_unit_test(a_truncated_or_missing_file_is_not_accepted),
        cmocka_unit_test(the_newest_the_best_and_the_milestones_stay),
        cmocka_unit_test(checkpoints_are_listed_by_number),
        cmocka_unit_test(a_checkpoint_counts_as_written_when_an_older_one_cannot_be_removed),
        cmocka_unit_test(another_batch_changes_only_the_steps_that_are_left),
        cmocka_unit_test(what_a_crash_left_behind_is_cleared_away),
        cmocka_unit_test(a_full_disk_leaves_the_old_checkpoint_and_the_training_state),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
