// The size of a checkpoint as the plan states it is what the trainer writes.
#include "catalogue.h"
#include "train/checkpoint.h"
#include "train/tiny_run.h"
#include "train/trainer.h"

static PlanReport report; // large

// Bytes of the tensors in a safetensors file: all behind the length of the header and the header.
static double tensor_bytes(const char *folder, const char *name) {
    char *path = path_join(folder, name);
    FileMap map;
    uint64_t header;
    assert_ok(file_map(&map, path));
    memcpy(&header, map.data, sizeof header);
    double bytes = (double)(map.size - sizeof header - header);
    file_unmap(&map);
    free(path);
    return bytes;
}

static double written_bytes(const char *directory, const Trainer *trainer, const char *precision) {
    static const char *const files[] = {"model.safetensors", "adam_m.safetensors", "adam_v.safetensors"};
    char *folder = path_join(directory, precision), *saved = path_join(folder, "step-0");
    CheckpointWriter *writer;
    CheckpointPolicy policy = {.keep_last = 1};
    int64_t done;
    assert_ok(checkpoint_writer_open(&writer, folder, &trainer->model->layout, &policy, 0, 1));
    assert_ok(checkpoint_save(writer, trainer->model, 0, json_object()));
    assert_ok(checkpoint_poll(writer, true, &done));
    checkpoint_writer_close(writer);
    double bytes = 0;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        bytes += tensor_bytes(saved, files[i]);
    free(saved);
    free(folder);
    return bytes;
}

static void the_planned_size_is_what_is_written_in_every_precision(void **state) {
    static const char *const sets[] = {"train.precision=fp32", "train.precision=bf16", "train.precision=bf16-pure"};
    char *directory = tiny_directory(), *path = tiny_config(directory, "size.toml", 50, "");
    PlanMachine machine = catalogue_machine("cpu", "hearth", 1);
    (void)state;
    for (int i = 0; i < 3; i++) {
        Config config;
        Trainer trainer;
        assert_ok(config_read(&config, path, &sets[i], 1));
        assert_ok(trainer_open(&trainer, &config));
        PlanRun run = preset_run("demo-llama", 1, 32, 1);
        run.layout = trainer.model->layout.request;
        assert_ok(plan_report(&report, "tiny", &machine, &run, &(PlanQuestions){0}));
        assert_near(report.budget.checkpoint_bytes, written_bytes(directory, &trainer, strchr(sets[i], '=') + 1), 0);
        trainer_close(&trainer);
        config_free(&config);
    }
    assert_ok(dir_remove(directory));
    free(path);
    free(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_planned_size_is_what_is_written_in_every_precision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
