// The figures that a step and an evaluation report. The loader is this file's own: it says how long it was waited for.
#include "tiny_folder.h"

#include "data/loader.h"
#include "train/evaluate.h"
#include "train/setup.h"
#include "train/trainer.h"

// ---- a loader that claims to have been waited for -------------------------------------------------------------------

static double claimed_wait; // seconds per batch

struct Loader {
    const Samples *samples;
    int micro_batch;
    uint64_t next;
    LoaderBatch batch;
};

Status loader_start(Loader **out, const Samples *samples, int micro_batch, int rank, int ranks, int depth,
                    uint64_t first_sample) {
    (void)rank, (void)ranks, (void)depth;
    size_t tokens = (size_t)micro_batch * (size_t)samples->seq;
    Loader *loader = xcalloc(1, sizeof *loader);
    *loader = (Loader){.samples = samples, .micro_batch = micro_batch, .next = first_sample};
    loader->batch.ids = xmalloc(tokens * sizeof(int32_t));
    loader->batch.targets = xmalloc(tokens * sizeof(int32_t));
    *out = loader;
    return NULL;
}

Status loader_next(Loader *loader, const LoaderBatch **batch, double *waited) {
    int valid;
    for (int row = 0; row < loader->micro_batch; row++) {
        size_t at = (size_t)row * (size_t)loader->samples->seq;
        TRY(samples_read(loader->samples, loader->next++, loader->batch.ids + at, loader->batch.targets + at, NULL,
                         &valid));
    }
    *waited += claimed_wait;
    *batch = &loader->batch;
    return NULL;
}

void loader_stop(Loader *loader) {
    if (!loader) return;
    free(loader->batch.ids);
    free(loader->batch.targets);
    free(loader);
}

// ---- tests ----------------------------------------------------------------------------------------------------------

static void open_trainer(Trainer *trainer, Config *config, const char *const *sets, int set_count) {
    char *path = tiny_config(directory, "figures.toml", 20, "");
    assert_ok(config_read(config, path, sets, set_count));
    assert_ok(trainer_open(trainer, config));
    free(path);
}

static void close_trainer(Trainer *trainer, Config *config) {
    trainer_close(trainer);
    config_free(config);
}

static bool nearly(double a, double b) { // a few roundings apart
    return fabs(a - b) <= 0x1p-50 * fabs(b);
}

static void speed_is_the_tokens_of_the_step_over_its_seconds(void **state) {
    (void)state;
    Config config;
    Trainer trainer;
    MetricsStep step;
    bool stopped;
    double seconds = 0;
    open_trainer(&trainer, &config, NULL, 0);
    for (int i = 0; i < 3; i++) {
        assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
        seconds += step.seconds;
        assert_true(step.seconds > 0 && step.elapsed >= seconds); // of the whole process
        assert_true(nearly(step.tokens_per_second * step.seconds, 2 * 2 * 32));
        assert_true(nearly(step.tflops * 1e12, trainer.flops_per_token * step.tokens_per_second));
    }
    close_trainer(&trainer, &config);
}

static void data_wait_is_the_share_of_the_step_spent_waiting(void **state) {
    (void)state;
    Config config;
    Trainer trainer;
    MetricsStep step;
    bool stopped;
    open_trainer(&trainer, &config, NULL, 0);
    claimed_wait = 0;
    assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
    assert_true(step.data_wait == 0);
    claimed_wait = 0.25;
    for (int i = 0; i < 2; i++) { // of each step alone: two micro-batches
        assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
        assert_true(nearly(step.data_wait * step.seconds, 0.5));
    }
    claimed_wait = 0;
    close_trainer(&trainer, &config);
}

// The router's z-loss is in the gradients and not in the loss that is reported.
static void the_z_loss_changes_the_gradients(void **state) {
    (void)state;
    const char *sets[] = {"model.arch=qwen3_moe", "model.experts=4",  "model.top_k=2",
                          "model.expert_ffn=32",  "model.aux_coef=0", "model.z_coef=0"};
    MetricsStep without, with, more;
    Config config;
    Trainer trainer;
    bool stopped;
    MetricsStep *const steps[] = {&without, &with, &more};
    static const char *const coefs[] = {"model.z_coef=0", "model.z_coef=10", "model.z_coef=1000"};
    for (int i = 0; i < 3; i++) {
        sets[5] = coefs[i];
        open_trainer(&trainer, &config, sets, 6);
        assert_ok(trainer_step(&trainer, steps[i], NULL, &stopped));
        close_trainer(&trainer, &config);
    }
    assert_true(with.loss == without.loss && more.loss == without.loss);
    assert_true(with.grad_norm > 1.001 * without.grad_norm);
    assert_true(more.grad_norm > 10 * with.grad_norm); // linear in the coefficient once it outweighs the rest
}

// ---- validation -----------------------------------------------------------------------------------------------------

static void validation_is_in_nats_and_bits_per_byte_of_its_text(void **state) {
    (void)state;
    Config config;
    Trainer trainer;
    Evaluation eval;
    open_trainer(&trainer, &config, NULL, 0);
    assert_ok(evaluate_samples(trainer.model, &trainer.val, 0, &eval));
    const Dataset *data = &trainer.val.mix.datasets[0];
    assert_true(eval.full && data->text_bytes > 0);
    assert_int_equal(eval.targets, trainer.val.windows * 32);
    Evaluation more, part;
    assert_ok(evaluate_samples(trainer.model, &trainer.val, trainer.val.windows + 7, &more)); // more than there is
    assert_true(more.full && more.loss == eval.loss && more.targets == eval.targets);
    assert_ok(evaluate_samples(trainer.model, &trainer.val, 3, &part)); // not a multiple of the micro-batch
    assert_true(!part.full && part.loss != eval.loss);
    assert_int_equal(part.targets, 3 * 32);
    close_trainer(&trainer, &config);
    static const char *const single[] = {"train.micro_batch=1"};
    Evaluation plain;
    open_trainer(&trainer, &config, single, 1);
    assert_ok(evaluate_samples(trainer.model, &trainer.val, 3, &plain)); // what fills up a micro-batch does not count
    assert_true(fabs(part.loss - plain.loss) <= 96 * 0x1p-24 * plain.loss);
    data = &trainer.val.mix.datasets[0];
    assert_true(fabs(eval.loss - log(257)) < 0.1); // fresh weights know nothing
    assert_true(nearly(eval.perplexity, exp(eval.loss)));
    // log2 of the 257 tokens, about one token a byte
    double tokens_per_byte = (double)data->token_count / (double)data->text_bytes;
    assert_true(tokens_per_byte > 1 && tokens_per_byte < 1.1);
    assert_true(nearly(eval.bits_per_byte, log2(exp(1)) * eval.loss * tokens_per_byte));
    close_trainer(&trainer, &config);
}

// ---- seeds ----------------------------------------------------------------------------------------------------------

static MetricsStep first_step(const char *const *sets, int count) {
    Config config;
    Trainer trainer;
    MetricsStep step;
    bool stopped;
    open_trainer(&trainer, &config, sets, count);
    assert_ok(trainer_step(&trainer, &step, NULL, &stopped));
    close_trainer(&trainer, &config);
    return step;
}

static void seeds_of_weights_and_of_data_are_two(void **state) {
    (void)state;
    static const char *const one[] = {"train.seed=1"}, *const two[] = {"train.seed=2"};
    static const char *const fixed_one[] = {"train.seed=1", "data.seed=1"}, *const other[] = {"train.seed=1",
                                                                                              "data.seed=2"};
    static const char *const weights[] = {"train.seed=2", "data.seed=1"}, *const scaled[] = {
                                                                              "train.seed=1",
                                                                              "model.scale_residual=true"};
    double loss = first_step(one, 1).loss;
    assert_true(first_step(one, 1).loss == loss);
    assert_true(first_step(fixed_one, 2).loss == loss); // data.seed follows train.seed unless it is given
    assert_true(first_step(two, 1).loss != loss);
    assert_true(first_step(other, 2).loss != loss);
    assert_true(first_step(weights, 2).loss != loss && first_step(weights, 2).loss != first_step(two, 1).loss);
    assert_true(first_step(scaled, 2).loss != loss);
}

static void assert_same_windows(const Samples *a, const Samples *b, uint64_t count) {
    int32_t one[64], two[64];
    int valid;
    assert_int_equal(a->seq, 32);
    for (uint64_t i = 0; i < count; i++) {
        assert_ok(samples_read(a, i, one, one + 32, NULL, &valid));
        assert_ok(samples_read(b, i, two, two + 32, NULL, &valid));
        assert_memory_equal(one, two, sizeof one);
    }
}

// Of a run with any seed, and of `hearth eval`, which opens the data with seed 0: else losses of two runs could not be
// compared.
static void the_validation_subset_is_the_same_for_every_seed(void **state) {
    (void)state;
    static const char *const seeds[][2] = {{"train.seed=1", "data.seed=-1"}, {"train.seed=2", "data.seed=5"}};
    char *data = path_join(directory, "data"), *path = tiny_config(directory, "seed.toml", 20, "");
    const char *const paths[] = {data};
    Samples plain;
    assert_ok(samples_open(&plain, &(SamplesRequest){.paths = paths, .path_count = 1, .split = "val", .seq = 32}));
    assert_true(plain.windows > 16);
    for (int i = 0; i < 2; i++) {
        Config config;
        Samples train, val;
        assert_ok(config_read(&config, path, seeds[i], 2));
        assert_ok(setup_data(&config, &train, &val));
        assert_same_windows(&val, &plain, 16);
        samples_close(&train);
        samples_close(&val);
        config_free(&config);
    }
    samples_close(&plain);
    free(data);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speed_is_the_tokens_of_the_step_over_its_seconds),
        cmocka_unit_test(data_wait_is_the_share_of_the_step_spent_waiting),
        cmocka_unit_test(the_z_loss_changes_the_gradients),
        cmocka_unit_test(validation_is_in_nats_and_bits_per_byte_of_its_text),
        cmocka_unit_test(seeds_of_weights_and_of_data_are_two),
        cmocka_unit_test(the_validation_subset_is_the_same_for_every_seed),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
