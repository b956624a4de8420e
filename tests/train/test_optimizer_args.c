// What trainer_step tells the guard and AdamW, recorded at the op table.
#include "tiny_folder.h"

#include "train/trainer.h"

enum { STEPS = 20, CALLS_MAX = 2 * STEPS };

// ---- the recording table -------------------------------------------------------------------------------------------

typedef struct AdamwCall { // the scalars of AdamwArgs
    float lr, beta1, beta2, eps, weight_decay, bias1, bias2, max_norm;
    uint64_t seed;
} AdamwCall;

typedef struct GuardCall {
    float loss_limit, norm_limit;
} GuardCall;

static struct {
    AdamwCall adamw[CALLS_MAX];
    GuardCall guard[STEPS];
    int adamw_count, guard_count;
    bool refuse; // the guard refuses the step, whatever its loss
    Ops real;
} recorded;

static void record_adamw(Ops *ops, const AdamwArgs *args) {
    assert_true(recorded.adamw_count < CALLS_MAX);
    recorded.adamw[recorded.adamw_count++] =
        (AdamwCall){args->lr,    args->beta1, args->beta2,    args->eps, args->weight_decay,
                    args->bias1, args->bias2, args->max_norm, args->seed};
    recorded.real.adamw(ops, args);
}

static void record_guard(Ops *ops, Tensor skip, Tensor loss, Tensor norm, Tensor refuse, float loss_limit,
                         float norm_limit) {
    assert_true(recorded.guard_count < STEPS);
    recorded.guard[recorded.guard_count++] = (GuardCall){loss_limit, norm_limit};
    recorded.real.guard(ops, skip, loss, norm, refuse, recorded.refuse ? -1 : loss_limit, norm_limit);
}

typedef struct Recording {
    Config config;
    Trainer trainer;
} Recording;

static void recording_open(Recording *recording, const char *const *sets, int set_count) {
    char *path = tiny_config(directory, "optimizer.toml", STEPS, "");
    assert_ok(config_read(&recording->config, path, sets, set_count));
    assert_ok(trainer_open(&recording->trainer, &recording->config));
    memset(&recorded, 0, sizeof recorded);
    Ops *ops = recording->trainer.ops; // in its place: an implementation may keep more behind its table
    recorded.real = *ops;
    ops->adamw = record_adamw;
    ops->guard = record_guard;
    free(path);
}

static void recording_close(Recording *recording) {
    trainer_close(&recording->trainer);
    config_free(&recording->config);
}

static MetricsStep recording_step(Recording *recording) {
    MetricsStep metrics;
    bool stopped;
    assert_ok(trainer_step(&recording->trainer, &metrics, NULL, &stopped));
    assert_false(stopped);
    return metrics;
}

// ---- what is told --------------------------------------------------------------------------------------------------

static void adamw_is_told_what_the_config_says(void **state) {
    (void)state;
    static const char *const sets[] = {"optimizer.beta1=0.8", "optimizer.beta2=0.75",       "optimizer.eps=1e-6",
                                       "optimizer.clip=0.7",  "optimizer.weight_decay=0.3", "optimizer.lr=0.02"};
    Recording recording;
    recording_open(&recording, sets, 6);
    for (int i = 0; i < 3; i++)
        recording_step(&recording);
    assert_int_equal(recorded.adamw_count, 6);
    for (int i = 0; i < recorded.adamw_count; i++) {
        const AdamwCall *call = &recorded.adamw[i];
        assert_true(call->beta1 == 0.8f && call->beta2 == 0.75f && call->eps == 1e-6f && call->max_norm == 0.7f);
        assert_true(call->weight_decay == (i % 2 ? 0.0f : 0.3f)); // matrices first, then vectors, which do not decay
    }
    recording_close(&recording);
}

static void no_clipping_is_told_as_zero(void **state) {
    (void)state;
    static const char *const sets[] = {"optimizer.clip=0"};
    Recording recording;
    recording_open(&recording, sets, 1);
    recording_step(&recording);
    assert_true(recorded.adamw[0].max_norm == 0 && recorded.adamw[1].max_norm == 0);
    recording_close(&recording);
}

// The tiny config: 3 steps of warm-up to 0.01, then half a cosine down to a tenth of it with step 20.
static double expected_lr(int step) {
    if (step < 3) return 0.01 * step / 3;
    return 0.001 + (0.01 - 0.001) * (1 + cos(3.14159265358979323846 * (step - 3) / 17)) / 2;
}

static void every_step_has_its_own_learning_rate(void **state) {
    (void)state;
    Recording recording;
    recording_open(&recording, NULL, 0);
    for (int step = 1; step <= STEPS; step++) {
        MetricsStep metrics = recording_step(&recording);
        float lr = recorded.adamw[2 * step - 2].lr;
        assert_true(fabs(lr - expected_lr(step)) <= 0x1p-23 * expected_lr(step)); // rounded to float once
        assert_true(recorded.adamw[2 * step - 1].lr == lr);
        assert_true(metrics.lr == lr); // and metrics.jsonl says the one that was used
    }
    recording_close(&recording);
}

// 1 - beta^n with n the steps that moments have seen, the one under way included.
static void assert_bias_of(int call, int n) {
    assert_true(recorded.adamw[call].bias1 == (float)(1 - pow((double)0.9f, n)));
    assert_true(recorded.adamw[call].bias2 == (float)(1 - pow((double)0.95f, n)));
}

static void a_skipped_step_counts_for_the_schedule_and_not_for_adam(void **state) {
    (void)state;
    static const bool refused[] = {false, false, true, true, false, false, true, false};
    Recording recording;
    recording_open(&recording, NULL, 0);
    int applied = 0, skipped = 0;
    for (int step = 1; step <= 8; step++) {
        recorded.refuse = refused[step - 1];
        MetricsStep metrics = recording_step(&recording);
        assert_int_equal(metrics.skipped, refused[step - 1]);
        assert_bias_of(2 * step - 2, applied + 1);
        assert_bias_of(2 * step - 1, applied + 1);
        assert_true(fabs(recorded.adamw[2 * step - 2].lr - expected_lr(step)) <= 0x1p-23 * expected_lr(step));
        applied += !refused[step - 1];
        skipped += refused[step - 1];
        assert_int_equal(metrics.skipped_total, skipped);
        assert_int_equal(recording.trainer.applied, applied);
        assert_int_equal(metrics.step, step);
        assert_int_equal(metrics.tokens, step * 2 * 2 * 32); // its data is not taken again
    }
    recording_close(&recording);
}

// Stochastic rounding: other draws in every step, and in a run with another seed.
static void every_step_rounds_by_its_own_seed(void **state) {
    (void)state;
    static const char *const seeds[] = {"train.seed=100", "train.seed=5000"};
    uint64_t seen[6];
    for (int run = 0; run < 2; run++) {
        Recording recording;
        recording_open(&recording, &seeds[run], 1);
        for (int i = 0; i < 3; i++) {
            recording_step(&recording);
            seen[3 * run + i] = recorded.adamw[2 * i].seed;
        }
        recording_close(&recording);
    }
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < i; k++)
            assert_true(seen[i] != seen[k]);
}

static void without_a_spike_factor_only_what_is_not_finite_is_refused(void **state) {
    (void)state;
    Recording recording;
    recording_open(&recording, NULL, 0);
    for (int i = 0; i < 6; i++)
        recording_step(&recording);
    for (int i = 0; i < 6; i++)
        assert_true(isinf(recorded.guard[i].loss_limit) && isinf(recorded.guard[i].norm_limit));
    recording_close(&recording);
}

// The guard sees the sum over the step's 128 targets, so its limit is that many times the mean's.
static void the_spike_limit_follows_the_accepted_losses(void **state) {
    (void)state;
    static const char *const sets[] = {"train.spike_factor=1.5", "train.spike_window=4"};
    Recording recording;
    recording_open(&recording, sets, 2);
    double first = recording_step(&recording).loss; // a quarter of the window is enough
    assert_true(isinf(recorded.guard[0].loss_limit));
    recorded.refuse = true;
    recording_step(&recording); // does not move the limit
    recorded.refuse = false;
    double second = recording_step(&recording).loss;
    recording_step(&recording);
    float one = (float)(1.5 * first), two = (float)(1.5 * (first + second) / 2);
    assert_true(recorded.guard[1].loss_limit == (float)((double)one * 128));
    assert_true(recorded.guard[2].loss_limit == (float)((double)one * 128));
    assert_true(fabs(recorded.guard[3].loss_limit / ((double)two * 128) - 1) <= 0x1p-23);
    assert_true(isinf(recorded.guard[3].norm_limit));
    recording_close(&recording);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_is_told_what_the_config_says),
        cmocka_unit_test(no_clipping_is_told_as_zero),
        cmocka_unit_test(every_step_has_its_own_learning_rate),
        cmocka_unit_test(a_skipped_step_counts_for_the_schedule_and_not_for_adam),
        cmocka_unit_test(every_step_rounds_by_its_own_seed),
        cmocka_unit_test(without_a_spike_factor_only_what_is_not_finite_is_refused),
        cmocka_unit_test(the_spike_limit_follows_the_accepted_losses),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
