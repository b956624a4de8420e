// Checkpoints of many ranks: the same files whatever the mesh, loaded by any other, and never one that looks complete
// when a rank has failed. The ranks are writers in one process, each with its layout and memory; no model runs.
#include "model/small_models.h"

#include "base/clock.h"
#include "crash.h"
#include "faults.h"
#include "train/checkpoint.h"
#include "train/checkpoint_box.h"

#include <errno.h>

enum { RANKS_MAX = 60, FILES = 3, STATES = 3 };

static const char *const files[FILES] = {"model.safetensors", "adam_m.safetensors", "adam_v.safetensors"};
static const ModelState states[STATES] = {MODEL_WEIGHTS, MODEL_M, MODEL_V};
static char *memory, *folder;
static Ops *ops;

static int make_directory(void **state) {
    (void)state;
    memory = memory_directory();
    folder = path_join(memory, "checkpoints");
    assert_ok(ops_cpu_create(&ops));
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    ops_cpu_destroy(ops);
    assert_ok(dir_remove(memory));
    free(memory), free(folder);
    return 0;
}

// ---- ranks ----------------------------------------------------------------------------------------------------------

// A whole parameter as this rank has it, with values that depend on the element of the HF tensor alone; what an uneven
// cut pads with is zero. `salt` makes another model of it.
static float *param_values(const Layout *layout, const LayoutParam *param, ModelState state, uint64_t salt) {
    float *host = xcalloc((size_t)param->count, sizeof *host);
    for (int k = 0; k < layout_slice_count(layout, param); k++) {
        LayoutSlice slice = layout_slice(layout, param, k);
        uint64_t all_cols = (uint64_t)slice.shape[slice.dims - 1], key = salt * 4 + state;
        for (const char *c = slice.name; *c; c++)
            key = key * 31 + (unsigned char)*c;
        for (int64_t row = 0; row < slice.rows; row++)
            for (int64_t col = 0; col < slice.cols; col++) {
                uint64_t element = (uint64_t)(slice.row + row) * all_cols + (uint64_t)(slice.col + col);
                uint64_t mixed = (key + element) * 0x9e3779b97f4a7c15u;
                host[slice.at + row * slice.stride + col] = (float)((double)(mixed >> 20) * 0x1p-44 - 0.5);
            }
    }
    return host;
}

// A model that can be saved and loaded, and no more: creating a real one takes the other ranks.
static Model *rank_model(LayoutRequest request, int rank) {
    Model *model = xcalloc(1, sizeof *model);
    model->ops = ops;
    request.rank = rank;
    assert_ok(layout_build(&model->layout, &request));
    for (int kind = LAYOUT_WEIGHTS; kind <= LAYOUT_MOMENTS; kind++)
        if (model->layout.bytes[kind]) model->memory[kind] = xcalloc(1, (size_t)model->layout.bytes[kind]);
    return model;
}

static void rank_fill(Model *model, uint64_t salt) {
    for (int i = 0; i < model->layout.param_count; i++)
        for (int s = 0; s < STATES; s++) {
            float *host = param_values(&model->layout, &model->layout.params[i], states[s], salt);
            model_write_param(model, &model->layout.params[i], states[s], host);
            free(host);
        }
}

static void rank_free(Model *model) {
    for (int kind = 0; kind < LAYOUT_KIND_COUNT; kind++)
        free(model->memory[kind]);
    layout_free(&model->layout);
    free(model);
}

// ---- groups of writers ----------------------------------------------------------------------------------------------

typedef struct Group {
    int ranks;
    Model *models[RANKS_MAX];
    CheckpointWriter *writers[RANKS_MAX];
} Group;

static void group_models(Group *group, LayoutRequest request, uint64_t salt) {
    *group = (Group){.ranks = (int)mesh_ranks(&request.mesh)};
    assert_true(group->ranks <= RANKS_MAX);
    for (int r = 0; r < group->ranks; r++) {
        group->models[r] = rank_model(request, r);
        rank_fill(group->models[r], salt);
    }
}

static void group_writers(Group *group, double limit) {
    CheckpointPolicy policy = {.keep_last = 1, .async = true, .limit_seconds = limit};
    for (int r = 0; r < group->ranks; r++)
        assert_ok(
            checkpoint_writer_open(&group->writers[r], folder, &group->models[r]->layout, &policy, r, group->ranks));
}

static void group_save(Group *group, int64_t step) {
    for (int r = group->ranks - 1; r >= 0; r--) // the others before rank 0, so that they wait for it
        assert_ok(checkpoint_save(group->writers[r], group->models[r], step,
                                  r ? NULL : json_pack("{s:I}", "step", (json_int_t)step)));
}

// Waits for all; the status is rank 0's. Whether another rank failed: *other.
static Status group_wait(Group *group, int64_t *done, Status *other) {
    int64_t mine;
    Status status = checkpoint_poll(group->writers[0], true, done);
    if (other) *other = NULL;
    for (int r = 1; r < group->ranks; r++) {
        Status failed = checkpoint_poll(group->writers[r], true, &mine);
        assert_int_equal(mine < 0, failed != NULL);
        if (other && !*other)
            *other = failed;
        else if (other)
            status_free(failed);
        else
            assert_ok(failed);
    }
    return status;
}

static void group_close(Group *group) {
    for (int r = 0; r < group->ranks; r++) {
        checkpoint_writer_close(group->writers[r]);
        group->writers[r] = NULL;
    }
}

static void group_free(Group *group) {
    for (int r = 0; r < group->ranks; r++)
        rank_free(group->models[r]);
}

static void syncs_off(void) {
    static Faults none = {.kind = IO_KINDS};
    faults_start(&none);
}

static char *step_file(int64_t step, const char *name) {
    return text_format("%s/step-%lld/%s", folder, (long long)step, name);
}

static void write_group(LayoutRequest request, uint64_t salt, int64_t step) {
    Group group;
    int64_t done;
    group_models(&group, request, salt);
    group_writers(&group, 60);
    group_save(&group, step);
    assert_ok(group_wait(&group, &done, NULL));
    assert_int_equal(done, step);
    group_close(&group);
    group_free(&group);
}

static const char *mesh_text(const Mesh *mesh) {
    static char text[128];
    snprintf(text, sizeof text, "dp %d tp %d pp %d ep %d cp %d etp %d zero %d", mesh->dp, mesh->tp, mesh->pp, mesh->ep,
             mesh->cp, mesh->etp, mesh->zero);
    return text;
}

// ---- the same files -------------------------------------------------------------------------------------------------

typedef struct Bytes {
    char *data;
    size_t size;
} Bytes;

static void read_step(int64_t step, Bytes bytes[FILES]) {
    for (int i = 0; i < FILES; i++) {
        char *path = step_file(step, files[i]);
        assert_ok(file_read(&bytes[i].data, &bytes[i].size, path));
        free(path);
    }
}

static void free_step(Bytes bytes[FILES]) {
    for (int i = 0; i < FILES; i++)
        free(bytes[i].data);
}

static void assert_step_is(int64_t step, const Bytes expected[FILES], const char *what) {
    Bytes bytes[FILES];
    char *path = step_file(step, "");
    Status status = checkpoint_verify(path);
    if (status) fail_msg("%s: %s", what, status_text(status));
    read_step(step, bytes);
    for (int i = 0; i < FILES; i++)
        if (bytes[i].size != expected[i].size || memcmp(bytes[i].data, expected[i].data, bytes[i].size) != 0)
            fail_msg("%s: %s is not that of one rank", what, files[i]);
    free_step(bytes);
    char **names;
    size_t count;
    assert_ok(dir_list(&names, &count, path));
    if (count != FILES + 3) fail_msg("%s: something is left over: %s %s", what, names[0], names[count - 1]);
    names_free(names, count);
    free(path);
}

static const Mesh meshes[] = {
    {2, 1, 1, 1, 1, 1, 0}, {2, 1, 1, 1, 1, 1, 1}, {2, 1, 1, 1, 1, 1, 2}, {2, 1, 1, 1, 1, 1, 3},  {3, 1, 1, 1, 1, 1, 0},
    {3, 1, 1, 1, 1, 1, 1}, {3, 1, 1, 1, 1, 1, 2}, {3, 1, 1, 1, 1, 1, 3}, {1, 2, 1, 1, 1, 1, 0},  {1, 6, 1, 1, 1, 1, 0},
    {2, 2, 1, 1, 1, 1, 3}, {1, 1, 2, 1, 1, 1, 0}, {2, 1, 3, 1, 1, 1, 1}, {1, 2, 2, 1, 1, 1, 0},  {1, 2, 1, 1, 2, 1, 1},
    {5, 1, 1, 5, 1, 1, 0}, {1, 2, 1, 1, 1, 2, 0}, {5, 2, 2, 5, 1, 2, 1}, {10, 1, 1, 5, 1, 1, 3}, {5, 6, 1, 5, 1, 3, 2},
};
enum { MESHES = sizeof meshes / sizeof *meshes };

static bool mesh_fits(const LayoutRequest *request, const Mesh *mesh) {
    return request->config.experts || mesh->ep * mesh->etp == 1;
}

static LayoutRequest model_request(int which, Precision precision) {
    LayoutRequest request = small_request((SmallModel)which);
    request.seq = 24;
    request.precision = precision;
    return request;
}

static void every_mesh_writes_the_files_of_one_rank(void **state) {
    (void)state;
    syncs_off();
    for (int which = 0; which < SMALL_COUNT; which++)
        for (int p = 0; p < 3; p += which == SMALL_LLAMA ? 1 : 3) {
            LayoutRequest request = model_request(which, (Precision)(p % 3));
            Bytes expected[FILES];
            write_group(request, 7, 1);
            read_step(1, expected);
            for (int i = 0; i < MESHES; i++) {
                request.mesh = meshes[i];
                if (!mesh_fits(&request, &meshes[i])) continue;
                write_group(request, 7, 2);
                assert_step_is(2, expected, mesh_text(&meshes[i]));
            }
            free_step(expected);
            assert_ok(dir_remove(folder));
        }
    faults_stop();
}

// ---- loading --------------------------------------------------------------------------------------------------------

static void assert_loaded(LayoutRequest request, uint64_t salt, const char *path) {
    for (int r = 0; r < (int)mesh_ranks(&request.mesh); r++) {
        Model *expected = rank_model(request, r), *loaded = rank_model(request, r);
        json_t *state = NULL;
        rank_fill(expected, salt);
        assert_ok(checkpoint_load(loaded, path, true, &state));
        assert_int_equal(json_integer_value(json_object_get(state, "step")), 3);
        json_decref(state);
        for (int kind = LAYOUT_WEIGHTS; kind <= LAYOUT_MOMENTS; kind++)
            if (kind != LAYOUT_GRADIENTS && expected->memory[kind] &&
                memcmp(expected->memory[kind], loaded->memory[kind], (size_t)expected->layout.bytes[kind]) != 0)
                fail_msg("%s, rank %d: %s differ", mesh_text(&request.mesh), r, layout_kind_name((LayoutKind)kind));
        rank_free(expected);
        rank_free(loaded);
    }
}

static void a_checkpoint_of_any_mesh_loads_on_any_other(void **state) {
    (void)state;
    static const int writers[] = {7, 9, 18}; // of meshes: ZeRO 3, shared KV heads, experts
    syncs_off();
    for (int which = 0; which < SMALL_COUNT; which++)
        for (int w = 0; w < 3; w++) {
            LayoutRequest request = model_request(which, which == SMALL_QWEN3 ? PRECISION_FP32 : PRECISION_BF16);
            request.mesh = meshes[writers[w]];
            if (!mesh_fits(&request, &request.mesh)) continue;
            write_group(request, 11 + (uint64_t)w, 3);
            char *path = step_file(3, "");
            for (int i = 0; i < MESHES; i++) {
                request.mesh = meshes[i];
                if (mesh_fits(&request, &meshes[i])) assert_loaded(request, 11 + (uint64_t)w, path);
            }
            request.mesh = MESH_SINGLE;
            assert_loaded(request, 11 + (uint64_t)w, path);
            free(path);
            assert_ok(dir_remove(folder));
        }
    faults_stop();
}

static void a_tensor_of_another_shape_is_not_loaded(void **state) {
    (void)state;
    syncs_off();
    LayoutRequest request = model_request(SMALL_QWEN3, PRECISION_FP32);
    write_group(request, 1, 3);
    char *path = step_file(3, "");
    request.config.ffn = 144;
    request.mesh.tp = 2; // whose share of it is as large as the whole was
    Model *model = rank_model(request, 1);
    assert_error(checkpoint_load(model, path, true, NULL), "has another size than the config says");
    rank_free(model);
    free(path);
    assert_ok(dir_remove(folder));
    faults_stop();
}

// ---- boxes ----------------------------------------------------------------------------------------------------------

static void boxes_that_miss_or_repeat_an_element_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *boxes, *error; // of a tensor of 4 x 6
    } table[] = {
        {"[\"0:4,0:6 00000000000000ff\"]", NULL},
        {"[\"1:3,0:6 1\", \"0:1,0:6 2\", \"3:4,0:2 3\", \"3:4,2:6 4\"]", NULL},
        {"[\"0:4,0:3 1\", \"0:2,3:6 1\", \"2:4,3:6 1\"]", NULL},
        {"[]", "24 of 24 elements are in no part"},
        {"[\"0:3,0:6 1\", \"3:4,0:5 1\"]", "1 of 24 elements are in no part"},
        {"[\"0:4,0:6 1\", \"2:3,5:6 1\"]", "row 2, column 5 is there twice"},
        {"[\"0:2,0:6 1\", \"1:3,0:6 1\"]", "row 1, column 0 is there twice"}, // as many elements as the tensor has
        {"[\"0:4,0:7 1\"]", "outside of 4 x 6"},
        {"[\"0:5,0:6 1\"]", "outside of 4 x 6"},
        {"[\"0:4,0:6\"]", "entry 1 is not of the form"},
        {"[\"0:4,0:6 1x\"]", "entry 1 is not of the form"},
        {"[\"0:4,0:6 1\", \"2:2,0:6 1\"]", "entry 2 is not of the form"},
        {"[\"-1:4,0:6 1\"]", "entry 1 is not of the form"},
        {"[4]", "entry 1 is not of the form"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        json_t *json = json_loads(table[i].boxes, 0, NULL);
        CheckpointBox *boxes;
        int count;
        Status status = checkpoint_boxes_read(&boxes, &count, json, 4, 6);
        if (table[i].error)
            assert_error(status, table[i].error);
        else
            assert_ok(status);
        if (i == 0) assert_int_equal(boxes[0].hash, 0xff);
        free(boxes);
        json_decref(json);
    }
}

static json_t *manifest_tensor(json_t *manifest, const char *file, const char *name) {
    return json_object_get(json_object_get(json_object_get(manifest, "xxh64"), file), name);
}

static void a_manifest_whose_boxes_do_not_cover_a_tensor_is_refused(void **state) {
    (void)state;
    static const char *const tensor = "model.layers.1.mlp.down_proj.weight";
    syncs_off();
    LayoutRequest request = model_request(SMALL_QWEN3, PRECISION_FP32);
    request.mesh.tp = 2; // two boxes of columns
    write_group(request, 1, 3);
    char *path = step_file(3, "manifest.json"), *step = step_file(3, "");
    json_t *manifest = NULL;
    assert_ok(json_read_file(&manifest, path));
    assert_int_equal(json_integer_value(json_object_get(manifest, "version")), 3);
    json_t *boxes = manifest_tensor(manifest, files[1], tensor);
    assert_int_equal(json_array_size(boxes), 2);
    json_t *last = json_incref(json_array_get(boxes, 1));
    json_array_remove(boxes, 1);
    assert_ok(json_write_file(manifest, path));
    assert_error(checkpoint_verify(step), "are in no part");
    json_array_append(boxes, last);
    json_array_append(boxes, last);
    assert_ok(json_write_file(manifest, path));
    assert_error(checkpoint_verify(step), "is there twice");
    json_array_remove(boxes, 2);
    assert_ok(json_write_file(manifest, path));
    assert_ok(checkpoint_verify(step));
    json_decref(last);
    json_decref(manifest);
    free(path), free(step);
    assert_ok(dir_remove(folder));
    faults_stop();
}

// As earlier versions wrote it: one checksum for a tensor.
static void a_manifest_of_version_2_is_still_read(void **state) {
    (void)state;
    syncs_off();
    write_group(model_request(SMALL_MOE, PRECISION_FP32), 1, 3);
    char *path = step_file(3, "manifest.json"), *step = step_file(3, "");
    json_t *manifest = NULL, *boxes;
    assert_ok(json_read_file(&manifest, path));
    for (int i = 0; i < FILES; i++) {
        json_t *hashes = json_object_get(json_object_get(manifest, "xxh64"), files[i]);
        const char *name;
        void *next;
        json_object_foreach_safe(hashes, next, name, boxes) {
            assert_int_equal(json_array_size(boxes), 1);
            const char *box = json_string_value(json_array_get(boxes, 0));
            json_object_set_new(hashes, name, json_string(strchr(box, ' ') + 1));
        }
    }
    json_object_set_new(manifest, "version", json_integer(2));
    assert_ok(json_write_file(manifest, path));
    assert_ok(checkpoint_verify(step));
    json_object_set_new(json_object_get(json_object_get(manifest, "xxh64"), files[2]), "model.norm.weight",
                        json_string("0123456789abcdef"));
    assert_ok(json_write_file(manifest, path));
    assert_error(checkpoint_verify(step), "tensor \"model.norm.weight\" is damaged");
    json_decref(manifest);
    free(path), free(step);
    assert_ok(dir_remove(folder));
    faults_stop();
}

// ---- ranks that fail ------------------------------------------------------------------------------------------------

static LayoutRequest pair_request(int zero) {
    LayoutRequest request = model_request(SMALL_LLAMA, PRECISION_BF16);
    request.config.layers = 1;
    request.config.hidden = 24;
    request.config.vocab = 31;
    request.mesh.dp = 2;
    request.mesh.zero = zero;
    return request;
}

static void ranks_that_write_nothing_are_named(void **state) {
    (void)state;
    LayoutRequest request = pair_request(1);
    request.mesh.dp = 4;
    Group group;
    int64_t done;
    syncs_off();
    group_models(&group, request, 5);
    group_writers(&group, 60);
    group_save(&group, 1);
    assert_ok(group_wait(&group, &done, NULL));
    group_close(&group);
    group_writers(&group, 1);
    double before = clock_seconds();
    for (int r = 1; r >= 0; r--) // ranks 2 and 3 stay away
        assert_ok(checkpoint_save(group.writers[r], group.models[r], 2, json_object()));
    Status status = checkpoint_poll(group.writers[0], true, &done);
    assert_int_equal(done, -1);
    assert_true(clock_seconds() - before >= 1);
    assert_error(status, "the checkpoint of step 2 was not written: ranks 2, 3 have not written their part of step 2 "
                         "within 1 s");
    assert_ok(checkpoint_poll(group.writers[1], true, &done));
    assert_int_equal(done, 2); // its part
    // Rank 0 stays away.
    assert_ok(checkpoint_save(group.writers[1], group.models[1], 3, NULL));
    status = checkpoint_poll(group.writers[1], true, &done);
    assert_error(status, "rank 0 has not begun with the checkpoint of step 3 within 1 s");
    int64_t *steps;
    int count;
    assert_ok(checkpoint_steps(folder, &steps, &count));
    assert_true(count == 1 && steps[0] == 1);
    free(steps);
    group_close(&group);
    group_writers(&group, 60); // clears away what is left
    char **names;
    size_t name_count;
    assert_ok(dir_list(&names, &name_count, folder));
    assert_int_equal(name_count, 1);
    names_free(names, name_count);
    group_close(&group);
    group_free(&group);
    assert_ok(dir_remove(folder));
    faults_stop();
}

static void ranks_that_write_the_same_piece_make_no_checkpoint(void **state) {
    (void)state;
    Group group;
    int64_t done;
    Status other;
    syncs_off();
    group_models(&group, pair_request(2), 5);
    rank_free(group.models[1]);
    group.models[1] = rank_model(pair_request(2), 0);
    rank_fill(group.models[1], 5);
    group_writers(&group, 60);
    group_save(&group, 1);
    Status status = group_wait(&group, &done, &other);
    assert_ok(other);
    assert_error(status, "is there twice");
    assert_int_equal(done, -1);
    char *path = step_file(1, "");
    assert_false(file_exists(path));
    free(path);
    group_close(&group);
    group_free(&group);
    assert_ok(dir_remove(folder));
    faults_stop();
}

// A rank that cannot even write down that it failed says so to the others' steps, which pass it on.
static void nobody_waits_for_a_rank_that_is_known_to_have_failed(void **state) {
    (void)state;
    Group group;
    int64_t done;
    syncs_off();
    group_models(&group, pair_request(3), 5);
    group_writers(&group, 600); // far beyond what a test may take
    assert_false(checkpoint_is_busy(group.writers[0]));
    assert_ok(checkpoint_save(group.writers[0], group.models[0], 1, json_object()));
    assert_true(checkpoint_is_busy(group.writers[0])); // until rank 1 comes
    checkpoint_give_up(group.writers[0], 1);
    assert_error(checkpoint_poll(group.writers[0], true, &done), "rank 1 did not write its part");
    assert_int_equal(done, -1);
    assert_ok(checkpoint_save(group.writers[1], group.models[1], 1, NULL));
    assert_error(checkpoint_poll(group.writers[1], true, &done), "rank 0: rank 1 did not write its part");
    checkpoint_give_up(group.writers[0], 1); // of a write that is over: it does not mean the next one
    group_save(&group, 2);
    assert_ok(group_wait(&group, &done, NULL));
    assert_int_equal(done, 2);
    assert_ok(checkpoint_save(group.writers[1], group.models[1], 3, NULL)); // waits for rank 0
    checkpoint_give_up(group.writers[1], 0);
    assert_error(checkpoint_poll(group.writers[1], true, &done), "rank 0 did not write its part");
    group_close(&group);
    group_free(&group);
    assert_ok(dir_remove(folder));
    faults_stop();
}

// A part of another attempt, left by a process that was late to die, is not taken for the rank's own.
static void a_part_of_another_attempt_does_not_count(void **state) {
    (void)state;
    Group group;
    int64_t done;
    syncs_off();
    group_models(&group, pair_request(3), 5);
    group_writers(&group, 0.5);
    char *beside = path_join(folder, ".writing-step-1"), *ready = path_join(beside, "ready-1");
    char *part = path_join(beside, "part-1-1.json"), *failed = path_join(beside, "failed-1");
    assert_ok(checkpoint_save(group.writers[0], group.models[0], 1, json_object()));
    while (!file_exists(ready) && !file_exists(failed)) {
    }
    assert_ok(file_write_atomic(part, "{\"token\": \"0123456789abcdef\", \"xxh64\": {}}", 42));
    assert_error(checkpoint_poll(group.writers[0], true, &done), "rank 1 has not written its part of step 1");
    group_close(&group);
    group_free(&group);
    free(beside), free(ready), free(part), free(failed);
    assert_ok(dir_remove(folder));
    faults_stop();
}

static void assert_newest(int64_t expected, const char *when) {
    char *path;
    int64_t step = -1;
    Status status = checkpoint_find(folder, &path, &step, NULL, NULL);
    if (status || step != expected)
        fail_msg("%s: %s, step %d", when, status ? status_text(status) : "found", (int)step);
    free(path);
}

// With a checkpoint of step 1 there, the n-th call on files of either rank fails, for every n.
static void write_with_fault(Faults faults, const Bytes old[FILES], const Bytes new[FILES]) {
    Group group;
    int before = descriptors_open(), failures = 0;
    do {
        faults.number++;
        char when[160];
        int64_t done;
        Status other;
        snprintf(when, sizeof when, "%s %d, errno %d", fault_name(faults.kind), faults.number, faults.error);
        syncs_off();
        assert_ok(dir_remove(folder));
        write_group(pair_request(1), 21, 1);
        group_models(&group, pair_request(1), 22);
        group_writers(&group, 60);
        stderr_catch();
        faults_start(&faults);
        group_save(&group, 2);
        Status status = group_wait(&group, &done, &other);
        syncs_off();
        free(stderr_caught());
        if (status && !faults.fired) fail_msg("%s: %s", when, status_text(status));
        if (status && (!strstr(status_text(status), strerror(faults.error)) ||
                       !strstr(status_text(status), "the checkpoint of step 2 was not written")))
            fail_msg("%s on %s: %s", when, faults.path, status_text(status));
        if (other && !status) fail_msg("%s: rank 1 failed alone: %s", when, status_text(other));
        assert_int_equal(done, status ? -1 : 2);
        failures += status != NULL;
        char *final = step_file(2, "");
        if (file_exists(final)) // rank 0 may have failed behind the rename
            assert_step_is(2, new, when);
        else
            assert_step_is(1, old, when);
        assert_true(file_exists(final) || status);
        assert_newest(file_exists(final) ? 2 : 1, when);
        free(final);
        status_free(status);
        status_free(other);
        group_save(&group, 2); // the next try, with nothing in its way
        status = group_wait(&group, &done, NULL);
        if (status) fail_msg("%s, the next try: %s", when, status_text(status));
        assert_step_is(2, new, when);
        char **names;
        size_t count;
        assert_ok(dir_list(&names, &count, folder));
        if (count != 1) fail_msg("%s: something is left over: %s", when, names[0]);
        names_free(names, count);
        group_close(&group);
        group_free(&group);
    } while (faults.fired);
    assert_true(failures > 1);
    faults_stop();
    assert_int_equal(descriptors_open(), before);
}

static void any_call_of_either_rank_may_fail(void **state) {
    (void)state;
    static const IoKind kinds[] = {IO_OPEN, IO_WRITE, IO_TRUNCATE, IO_SYNC, IO_CLOSE, IO_RENAME};
    Bytes old[FILES], new[FILES];
    syncs_off();
    write_group(pair_request(1), 22, 2);
    read_step(2, new);
    assert_ok(dir_remove(folder));
    write_group(pair_request(1), 21, 1);
    read_step(1, old);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        write_with_fault((Faults){.kind = kinds[i], .error = EIO}, old, new);
    write_with_fault((Faults){.kind = IO_READ, .error = EIO}, old, new);
    write_with_fault((Faults){.kind = IO_KINDS, .error = ENOSPC}, old, new);
    free_step(old);
    free_step(new);
    assert_ok(dir_remove(folder));
}

// Rank 1 alone has no room left; even its reason cannot be written down, but that it failed can.
static void a_full_disk_of_one_rank_fails_the_checkpoint_at_once(void **state) {
    (void)state;
    Group group;
    int64_t done;
    Status other;
    syncs_off();
    group_models(&group, pair_request(0), 5);
    group_writers(&group, 60);
    Faults faults = {.kind = IO_WRITE, .number = 1, .error = ENOSPC, .lasting = true, .where = "/part-1-"};
    faults_start(&faults);
    group_save(&group, 1);
    Status status = group_wait(&group, &done, &other);
    syncs_off();
    assert_true(faults.fired);
    assert_error(status, "rank 1: it failed, and could not write down why");
    assert_error(other, strerror(ENOSPC));
    group_close(&group);
    group_free(&group);
    assert_ok(dir_remove(folder));
    faults_stop();
}

// ---- crashes --------------------------------------------------------------------------------------------------------

static void crash_check(void *context, const char *where, const char *when, bool ended) {
    (void)context;
    char *path;
    int64_t step = -1;
    Status status = checkpoint_find(where, &path, &step, NULL, NULL);
    if (status || !path || (ended && step != 2)) fail_msg("%s: %s", when, status ? status_text(status) : "lost");
    free(path);
}

static void a_crash_at_any_moment_leaves_the_old_or_the_new_checkpoint(void **state) {
    (void)state;
    Group group;
    int64_t done;
    char *replayed = path_join(memory, "replayed");
    LayoutRequest request = pair_request(3);
    request.config.vocab = 7;
    request.config.heads = request.config.kv_heads = 1;
    request.config.ffn = 8;
    request.config.hidden = 8;
    syncs_off();
    write_group(request, 21, 1);
    group_models(&group, request, 22);
    group_writers(&group, 60);
    faults_stop();
    Crash *crash = crash_record(folder);
    group_save(&group, 2);
    Status status = group_wait(&group, &done, NULL);
    crash_stop(crash);
    assert_ok(status);
    group_close(&group);
    group_free(&group);
    assert_true(crash_replay(crash, replayed, crash_check, NULL) > 50);
    crash_free(crash);
    assert_ok(dir_remove(replayed));
    assert_ok(dir_remove(folder));
    free(replayed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mesh_writes_the_files_of_one_rank),
        cmocka_unit_test(a_checkpoint_of_any_mesh_loads_on_any_other),
        cmocka_unit_test(a_tensor_of_another_shape_is_not_loaded),
        cmocka_unit_test(boxes_that_miss_or_repeat_an_element_are_refused),
        cmocka_unit_test(a_manifest_whose_boxes_do_not_cover_a_tensor_is_refused),
        cmocka_unit_test(a_manifest_of_version_2_is_still_read),
        cmocka_unit_test(ranks_that_write_nothing_are_named),
        cmocka_unit_test(ranks_that_write_the_same_piece_make_no_checkpoint),
        cmocka_unit_test(nobody_waits_for_a_rank_that_is_known_to_have_failed),
        cmocka_unit_test(a_part_of_another_attempt_does_not_count),
        cmocka_unit_test(any_call_of_either_rank_may_fail),
        cmocka_unit_test(a_full_disk_of_one_rank_fails_the_checkpoint_at_once),
        cmocka_unit_test(a_crash_at_any_moment_leaves_the_old_or_the_new_checkpoint),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
