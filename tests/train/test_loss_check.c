// The loss of FP8 steps, taken in bf16 as well: what it says, and that it disturbs nothing.
#include "tiny_folder.h"

#include "train/trainer.h"

enum { STEPS = 4 };

static void train(MetricsStep steps[STEPS], const char *precision, const char *every, const char *mask) {
    char *path = tiny_config(directory, "check.toml", 20, "");
    const char *sets[] = {precision, every, mask, "model.vocab=272"}; // the head in FP8 too
    Config config;
    Trainer trainer;
    assert_ok(config_read(&config, path, sets, 4));
    assert_ok(trainer_open(&trainer, &config));
    for (int i = 0; i < STEPS; i++) {
        bool stopped;
        assert_ok(trainer_step(&trainer, &steps[i], NULL, &stopped));
    }
    trainer_close(&trainer);
    config_free(&config);
    free(path);
}

// The first step of a bf16 run has the same weights and batch, so its loss has the same bits.
static void it_is_the_loss_of_a_bf16_run(void **state) {
    (void)state;
    static const char *const masks[] = {"data.mask_documents=false", "data.mask_documents=true"};
    for (int i = 0; i < 2; i++) {
        MetricsStep bf16[STEPS], fp8[STEPS];
        train(bf16, "train.precision=bf16", "train.loss_check_every=0", masks[i]);
        train(fp8, "train.precision=fp8", "train.loss_check_every=1", masks[i]);
        assert_true(fp8[0].loss_bf16 == bf16[0].loss);
        assert_true(fp8[0].loss != bf16[0].loss);
        for (int k = 0; k < STEPS; k++) {
            assert_true(fp8[k].loss_gap == fabs(fp8[k].loss - fp8[k].loss_bf16) / fp8[k].loss_bf16);
            assert_true(fp8[k].loss_gap > 0 && fp8[k].loss_gap < 0.01);
        }
    }
}

static void it_is_taken_every_so_many_steps_and_changes_none(void **state) {
    (void)state;
    MetricsStep plain[STEPS], checked[STEPS];
    train(plain, "train.precision=fp8", "train.loss_check_every=0", "data.mask_documents=false");
    train(checked, "train.precision=fp8", "train.loss_check_every=2", "data.mask_documents=false");
    for (int i = 0; i < STEPS; i++) {
        assert_true(plain[i].loss == checked[i].loss && plain[i].grad_norm == checked[i].grad_norm);
        assert_true(plain[i].loss_bf16 == 0 && plain[i].loss_gap == 0);
        assert_true((checked[i].loss_bf16 > 0) == (i % 2 == 1));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_loss_of_a_bf16_run),
        cmocka_unit_test(it_is_taken_every_so_many_steps_and_changes_none),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
