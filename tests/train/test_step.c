// The arithmetic of a step: accumulation, masking, guards, and the moment a signal comes.
#include "tiny_folder.h"

#include "train/evaluate.h"
#include "train/trainer.h"

static void open_trainer(Trainer *trainer, Config *config, const char *const *sets, int set_count) {
    char *path = tiny_config(directory, "step.toml", 20, "");
    assert_ok(config_read(config, path, sets, set_count));
    assert_ok(trainer_open(trainer, config));
    free(path);
}

static void close_trainer(Trainer *trainer, Config *config) {
    trainer_close(trainer);
    config_free(config);
}

// The same 8 sequences in 1, 2 and 4 micro-batches. The sums have other orders, so loss and norm differ by rounding:
// each is a sum of about n = 8 * 32 terms (the norm of gradients that are such sums), with a relative error of at most
// n * 2^-24; the second step adds what the first step's difference does to the weights.
static void accumulation_does_not_change_the_step(void **state) {
    (void)state;
    static const char *const shapes[4][2] = {{"train.micro_batch=8", "train.grad_accum=1"},
                                             {"train.micro_batch=4", "train.grad_accum=2"},
                                             {"train.micro_batch=2", "train.grad_accum=4"},
                                             {"train.micro_batch=1", "train.grad_accum=8"}};
    static const char *const masks[2] = {"data.mask_documents=false", "data.mask_documents=true"};
    for (int mask = 0; mask < 2; mask++) {
        MetricsStep first[2], step;
        for (int shape = 0; shape < 4; shape++) {
            const char *sets[] = {shapes[shape][0], shapes[shape][1], masks[mask]};
            Config config;
            Trainer trainer;
            bool stopped;
            open_trainer(&trainer, &config, sets, 3);
            for (int i = 0; i < 2; i++) {
                assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
                if (shape == 0) first[i] = step;
                double bound = (i + 1) * 256 * 0x1p-24;
                assert_true(fabs(step.loss - first[i].loss) <= bound * first[i].loss);
                assert_true(fabs(step.grad_norm - first[i].grad_norm) <= 4 * bound * first[i].grad_norm);
            }
            close_trainer(&trainer, &config);
        }
    }
}

static void an_mfu_above_the_peak_is_left_out(void **state) {
    (void)state;
    const char *low[] = {"watch.peak_tflops=1e-6"}, *high[] = {"watch.peak_tflops=1e6"};
    Config config;
    Trainer trainer;
    MetricsStep step;
    bool stopped;
    open_trainer(&trainer, &config, low, 1);
    assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
    assert_true(step.tflops > 1e-6 && step.mfu == 0);
    close_trainer(&trainer, &config);
    open_trainer(&trainer, &config, high, 1);
    assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
    assert_true(step.mfu > 0 && step.mfu <= 1);
    close_trainer(&trainer, &config);
}

static void the_loss_falls(void **state) {
    (void)state;
    Config config;
    Trainer trainer;
    MetricsStep step;
    bool stopped;
    open_trainer(&trainer, &config, NULL, 0);
    double first = 0;
    for (int i = 0; i < 20; i++) {
        assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
        if (i == 0) first = step.loss;
    }
    assert_true(step.loss < 0.75 * first);
    assert_int_equal(step.step, 20);
    assert_int_equal(step.tokens, 20 * 2 * 2 * 32);
    close_trainer(&trainer, &config);
}

static void evaluation_changes_nothing(void **state) {
    (void)state;
    Config config;
    Trainer trainer;
    MetricsStep step[2];
    Evaluation eval;
    bool stopped;
    for (int round = 0; round < 2; round++) {
        open_trainer(&trainer, &config, NULL, 0);
        for (int i = 0; i < 3; i++) {
            if (round) assert_ok(evaluate_samples(trainer.model, &trainer.val, 5, &eval));
            assert_ok(trainer_step(&trainer, &step[round], NULL, &stopped));
        }
        close_trainer(&trainer, &config);
    }
    assert_int_equal(eval.targets, 5 * 32);
    assert_true(step[0].loss == step[1].loss && step[0].grad_norm == step[1].grad_norm);
}

static void a_signal_drops_the_step_under_way(void **state) {
    (void)state;
    Config config;
    Trainer trainer;
    MetricsStep interrupted, straight;
    bool stopped;
    volatile sig_atomic_t stop = 1;
    open_trainer(&trainer, &config, NULL, 0);
    assert_ok(trainer_step(&trainer, &interrupted, &stop, &stopped));
    assert_true(stopped);
    assert_int_equal(trainer.step, 0);
    assert_int_equal(trainer.sample, 0);
    stop = 0;
    assert_ok(trainer_step(&trainer, &interrupted, &stop, &stopped));
    assert_false(stopped);
    close_trainer(&trainer, &config);
    open_trainer(&trainer, &config, NULL, 0);
    assert_ok(trainer_step(&trainer, &straight, NULL, &stopped));
    assert_true(straight.loss == interrupted.loss && straight.grad_norm == interrupted.grad_norm);
    close_trainer(&trainer, &config);
}

static void a_poisoned_step_is_skipped_and_leaves_the_weights(void **state) {
    (void)state;
    Config config;
    Trainer trainer;
    MetricsStep step;
    bool stopped;
    open_trainer(&trainer, &config, NULL, 0);
    assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
    const LayoutParam *param = layout_param(&trainer.model->layout, PARAM_FINAL_NORM, -1);
    float good[32], bad[32], after[32];
    model_read_param(trainer.model, param, MODEL_WEIGHTS, good);
    for (int i = 0; i < 32; i++)
        bad[i] = NAN;
    model_write_param(trainer.model, param, MODEL_WEIGHTS, bad);
    assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
    assert_true(step.skipped);
    assert_int_equal(trainer.guard.skipped_in_row, 1);
    assert_int_equal(trainer.applied, 1);
    model_write_param(trainer.model, param, MODEL_WEIGHTS, good);
    const LayoutParam *embedding = layout_param(&trainer.model->layout, PARAM_EMBEDDING, -1);
    float *weights = xmalloc((size_t)embedding->count * sizeof *weights);
    model_read_param(trainer.model, embedding, MODEL_WEIGHTS, weights);
    for (int64_t i = 0; i < embedding->count; i++)
        assert_true(isfinite(weights[i]));
    free(weights);
    assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
    assert_false(step.skipped);
    model_read_param(trainer.model, param, MODEL_WEIGHTS, after);
    assert_true(isfinite(after[0]));
    close_trainer(&trainer, &config);
}

static void a_loss_spike_is_skipped(void **state) {
    (void)state;
    const char *sets[] = {"train.spike_factor=1.5", "train.spike_window=4"};
    Config config;
    Trainer trainer;
    MetricsStep step;
    bool stopped;
    open_trainer(&trainer, &config, sets, 2);
    for (int i = 0; i < 4; i++) {
        assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
        assert_false(step.skipped);
    }
    const LayoutParam *param = layout_param(&trainer.model->layout, PARAM_FINAL_NORM, -1);
    float loud[32];
    model_read_param(trainer.model, param, MODEL_WEIGHTS, loud);
    for (int i = 0; i < 32; i++)
        loud[i] *= -40;
    model_write_param(trainer.model, param, MODEL_WEIGHTS, loud);
    assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
    assert_true(isfinite(step.loss));
    assert_true(step.skipped);
    close_trainer(&trainer, &config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulation_does_not_change_the_step),
        cmocka_unit_test(the_loss_falls),
        cmocka_unit_test(an_mfu_above_the_peak_is_left_out),
        cmocka_unit_test(evaluation_changes_nothing),
        cmocka_unit_test(a_signal_drops_the_step_under_way),
        cmocka_unit_test(a_poisoned_step_is_skipped_and_leaves_the_weights),
        cmocka_unit_test(a_loss_spike_is_skipped),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
