// Hugging Face directories in and out.
#include "small_models.h"

#include "model/hf.h"
#include "model/safetensors.h"

static char *temporary_directory(void) {
    char *path = text_copy("/tmp/hearth-hf-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

static void save_model(Model *model, const char *directory, DType dtype, int64_t shard_bytes) {
    ModelSnapshot snapshot = {0};
    assert_ok(model_snapshot(model, &snapshot, false));
    assert_ok(hf_save(&model->layout, &snapshot, directory, dtype, shard_bytes));
    model_snapshot_free(&snapshot);
}

static void check_round_trip(Ops *ops, const char *fixture) {
    LayoutRequest request = {.mesh = MESH_SINGLE, .micro_batch = 1, .seq = 8, .threads = threads_count()};
    Model *model;
    assert_ok(model_config_read(&request.config, fixture));
    assert_ok(model_create(&model, ops, &request));
    assert_ok(hf_load_weights(model, fixture));
    char *out = temporary_directory();
    save_model(model, out, DTYPE_F32, 0);
    char *from_path = path_join(fixture, "model.safetensors"), *to_path = path_join(out, "model.safetensors");
    Safetensors from, to;
    assert_ok(safetensors_open(&from, from_path));
    assert_ok(safetensors_open(&to, to_path));
    assert_int_equal(from.count, to.count);
    for (int i = 0; i < from.count; i++) {
        const SafeTensor *a = &from.tensors[i], *b = &to.tensors[i];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->dtype, b->dtype);
        assert_int_equal(a->dims, b->dims);
        for (int k = 0; k < a->dims; k++)
            assert_int_equal(a->shape[k], b->shape[k]);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    ModelConfig again;
    assert_ok(model_config_read(&again, out));
    assert_memory_equal(&again, &request.config, sizeof again);
    safetensors_close(&from);
    safetensors_close(&to);
    model_destroy(model);
    assert_ok(dir_remove(out));
    free(out);
    free(from_path);
    free(to_path);
}

static void check_round_trips(const char *fixtures) {
    char **names;
    size_t count;
    Ops *ops;
    assert_ok(ops_create(&ops, "cpu"));
    assert_ok(dir_list(&names, &count, fixtures));
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        char *fixture = path_join(fixtures, names[i]);
        check_round_trip(ops, fixture);
        free(fixture);
    }
    names_free(names, count);
    ops_destroy(ops);
}

static void test_import_then_export_is_the_same_tensor_set(void **state) {
    (void)state;
    check_round_trips(fixture_path("models"));
    const char *shared = shared_root("fixtures");
    if (!shared) return;
    char *fixtures = path_join(shared, "fixtures");
    check_round_trips(fixtures);
    free(fixtures);
}

static void test_sharded_files_load_like_one(void **state) {
    (void)state;
    Ops *ops;
    Model *model;
    LayoutRequest request = small_request(SMALL_MOE);
    assert_ok(ops_create(&ops, "cpu"));
    assert_ok(model_create(&model, ops, &request));
    model_init_weights(model, 5, false);
    char *out = temporary_directory(), *index = path_join(out, "model.safetensors.index.json");
    save_model(model, out, DTYPE_F32, 20000);
    assert_true(file_exists(index));
    ModelSnapshot before = {0}, after = {0};
    assert_ok(model_snapshot(model, &before, false));
    model_init_weights(model, 6, false);
    assert_ok(hf_load_weights(model, out));
    assert_ok(model_snapshot(model, &after, false));
    assert_memory_equal(before.weights, after.weights, (size_t)model->layout.bytes[LAYOUT_WEIGHTS]);
    model_snapshot_free(&before);
    model_snapshot_free(&after);
    model_destroy(model);
    ops_destroy(ops);
    assert_ok(dir_remove(out));
    free(out);
    free(index);
}

static void test_weights_that_do_not_fit_the_config_are_refused(void **state) {
    (void)state;
    Ops *ops;
    Model *model, *other;
    LayoutRequest request = small_request(SMALL_LLAMA);
    assert_ok(ops_create(&ops, "cpu"));
    assert_ok(model_create(&model, ops, &request));
    model_init_weights(model, 5, false);
    char *out = temporary_directory();
    save_model(model, out, DTYPE_BF16, 0);
    struct {
        LayoutRequest request;
        const char *error;
    } table[3] = {{small_request(SMALL_LLAMA), "model.layers.3."},
                  {small_request(SMALL_LLAMA), "has shape [97, 48], the config needs [101, 48]"},
                  {small_request(SMALL_LLAMA), "is not part of the model"}};
    table[0].request.config.layers = 4;
    table[1].request.config.vocab = 101;
    table[2].request.config.layers = 2;
    for (int i = 0; i < 3; i++) {
        assert_ok(model_create(&other, ops, &table[i].request));
        assert_error(hf_load_weights(other, out), table[i].error);
        model_destroy(other);
    }
    assert_error(hf_load_weights(model, "/tmp"), "no model.safetensors");
    model_destroy(model);
    ops_destroy(ops);
    assert_ok(dir_remove(out));
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_import_then_export_is_the_same_tensor_set),
        cmocka_unit_test(test_sharded_files_load_like_one),
        cmocka_unit_test(test_weights_that_do_not_fit_the_config_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
