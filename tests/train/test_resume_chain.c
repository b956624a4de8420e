// Resuming where it is hardest: with steps that were skipped, a spike guard at work, accumulation, over the edge of an
// epoch, and again and again. Every loss, norm and decision and all weights must be those of the undisturbed run, bit
// for bit.
#include "tiny_run.h"

#include "train/checkpoint.h"
#include "train/trainer.h"

enum { STEPS = 36 };

static char *directory;

static int make_directory(void **state) {
    (void)state;
    directory = tiny_directory();
    char *data = path_join(directory, "short"); // an epoch is a few steps
    SynthRequest request = {data, "bytes", 0, 7, 2, 1, false};
    SynthResult result;
    assert_ok(synth_write(&request, &result));
    free(data);
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    return 0;
}

typedef struct Curve {
    double loss[STEPS + 1], norm[STEPS + 1], lr[STEPS + 1];
    bool skipped[STEPS + 1];
    int skips;
} Curve;

static void take_step(Trainer *trainer, Curve *curve) {
    MetricsStep step;
    bool stopped;
    assert_ok(trainer_step(trainer, &step, NULL, &stopped));
    curve->loss[step.step] = step.loss;
    curve->norm[step.step] = step.grad_norm;
    curve->lr[step.step] = step.lr;
    curve->skipped[step.step] = step.skipped;
    curve->skips += step.skipped;
}

// A limit just above the median of the last losses: some steps pass, some do not. The guard needs eight accepted losses
// before it acts, so one that forgot them would let the next steps pass.
static const char *const guarded[] = {
    "train.spike_factor=1.001", "train.spike_window=32", "train.max_skips=1000", "model.init_std=0.3",
    "optimizer.lr=1e-4",        "train.grad_accum=2",    "eval.every=0"};
enum { GUARDED = sizeof guarded / sizeof *guarded };

static void read_config(Config *config, const char *const *more, int count) {
    const char *sets[GUARDED + 9];
    memcpy(sets, guarded, sizeof guarded);
    for (int i = 0; i < count; i++)
        sets[GUARDED + i] = more[i];
    char *path = tiny_config(directory, "chain.toml", STEPS, ""), *data = text_format("data.train=%s/short", directory);
    sets[GUARDED + count] = data;
    assert_ok(config_read(config, path, sets, GUARDED + count + 1));
    free(data);
    free(path);
}

static void assert_same_state(Trainer *a, Trainer *b) {
    static const ModelState states[] = {MODEL_WEIGHTS, MODEL_M, MODEL_V};
    const Layout *layout = &a->model->layout;
    for (int i = 0; i < layout->param_count; i++)
        for (int s = 0; s < 3; s++) {
            size_t bytes = (size_t)layout->params[i].count * sizeof(float);
            float *one = xmalloc(bytes), *two = xmalloc(bytes);
            model_read_param(a->model, &layout->params[i], states[s], one);
            model_read_param(b->model, &layout->params[i], states[s], two);
            assert_memory_equal(one, two, bytes);
            free(one);
            free(two);
        }
    json_t *left = trainer_state(a), *right = trainer_state(b); // position, guard, schedule, router's bias
    assert_true(json_equal(left, right));
    json_decref(left);
    json_decref(right);
}

// Writes a checkpoint, closes everything, and goes on from the file.
static void resume_here(Trainer *trainer, const Config *config, const char *folder) {
    CheckpointWriter *writer;
    int64_t step = trainer->step;
    bool same_config, same_data;
    CheckpointPolicy policy = {.keep_last = 1};
    assert_ok(checkpoint_writer_open(&writer, folder, &trainer->model->layout, &policy, 0, 1));
    assert_ok(checkpoint_save(writer, trainer->model, step, trainer_state(trainer)));
    int64_t done;
    assert_ok(checkpoint_poll(writer, true, &done));
    assert_int_equal(done, step);
    checkpoint_writer_close(writer);
    trainer_close(trainer);
    char *path = text_format("%s/step-%lld", folder, (long long)step);
    assert_ok(trainer_open(trainer, config));
    assert_ok(trainer_restore(trainer, path, &same_config, &same_data));
    assert_true(same_config && same_data);
    assert_int_equal(trainer->step, step);
    free(path);
}

// Resumed after each step for which `at` says so.
static void assert_resumes_with_the_same_bits(const char *const *sets, int count, bool (*at)(int step)) {
    char *folder = path_join(directory, "chain");
    Config config;
    Trainer straight, chained;
    Curve one = {0}, two = {0};
    status_free(dir_remove(folder));
    read_config(&config, sets, count);
    assert_ok(trainer_open(&straight, &config));
    assert_ok(trainer_open(&chained, &config));
    if (straight.train.windows * 2 >= STEPS * 4) fail_msg("%d windows", (int)straight.train.windows); // two epochs
    assert_true(straight.train.windows % 4 != 0); // whose edges are within steps
    for (int i = 1; i <= STEPS; i++) {
        take_step(&straight, &one);
        take_step(&chained, &two);
        if (at(i)) resume_here(&chained, &config, folder);
    }
    assert_memory_equal(&one, &two, sizeof one);
    assert_same_state(&straight, &chained);
    if (one.skips < 4 || one.skips > STEPS - 12) fail_msg("%d of %d steps were skipped", one.skips, STEPS);
    trainer_close(&straight);
    trainer_close(&chained);
    config_free(&config);
    free(folder);
}

static bool after_every_step(int step) {
    return step < STEPS;
}

static bool now_and_then(int step) { // twice in a row, too
    return step % 9 == 0 || step == 19 || step == 20;
}

static void resumed_after_every_step(void **state) {
    (void)state;
    assert_resumes_with_the_same_bits(NULL, 0, after_every_step);
}

static void resumed_with_master_weights_and_masked_documents(void **state) {
    (void)state;
    static const char *const sets[] = {"train.precision=bf16", "data.mask_documents=true"};
    assert_resumes_with_the_same_bits(sets, 2, now_and_then);
}

static void resumed_while_the_batch_grows(void **state) {
    (void)state;
    static const char *const sets[] = {"train.precision=bf16-pure", "train.batch_warmup_tokens=1500"};
    assert_resumes_with_the_same_bits(sets, 2, now_and_then);
}

static void resumed_with_experts_and_their_bias(void **state) {
    (void)state;
    static const char *const sets[] = {"model.arch=qwen3_moe", "model.experts=4",   "model.top_k=2",
                                       "model.expert_ffn=32",  "model.z_coef=0.01", "model.router_bias_rate=0.01"};
    assert_resumes_with_the_same_bits(sets, 6, now_and_then);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumed_after_every_step),
        cmocka_unit_test(resumed_with_master_weights_and_masked_documents),
        cmocka_unit_test(resumed_while_the_batch_grows),
        cmocka_unit_test(resumed_with_experts_and_their_bias),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
