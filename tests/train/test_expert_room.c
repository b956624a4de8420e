// Room for the rows of experts: how much there is, when it is too little, and what growing it does to a model.
#include "../model/small_models.h"

#include "model/fp8.h"
#include "train/expert_room.h"

// One of four ranks that share eight experts, without the others.
static LayoutRequest shared_experts(double headroom) {
    LayoutRequest request = small_request(SMALL_MOE);
    request.config.experts = 8;
    request.mesh.dp = request.mesh.ep = 4;
    request.expert_headroom = headroom;
    return request;
}

static Model alone_of(Ops *ops, const LayoutRequest *request) {
    Model model = {.ops = ops};
    assert_ok(layout_build(&model.layout, request));
    model.tokens = model.layout.tokens;
    for (int kind = 0; kind < LAYOUT_KIND_COUNT; kind++)
        if (model.layout.bytes[kind])
            assert_ok(ops->alloc(ops, &model.memory[kind], (size_t)model.layout.bytes[kind], "test"));
    return model;
}

static Model alone_of_four(Ops *ops, double headroom) {
    LayoutRequest request = shared_experts(headroom);
    return alone_of(ops, &request);
}

static void release(Model *model) {
    int64_t current, peak;
    for (int kind = 0; kind < LAYOUT_KIND_COUNT; kind++)
        if (model->memory[kind]) model->ops->free(model->ops, model->memory[kind], (size_t)model->layout.bytes[kind]);
    layout_free(&model->layout);
    ops_cpu_allocated(model->ops, &current, &peak);
    assert_int_equal(current, 0);
    ops_cpu_destroy(model->ops);
}

static void room_is_a_multiple_of_the_share_and_at_most_what_any_routing_needs(void **state) {
    (void)state;
    const int64_t share = 2 * 21 * 2; // tokens x top_k: as many slots as one rank routes
    const struct {
        double headroom;
        int64_t rows;
        bool bounded;
    } rows[] = {{1, share, true},   {0, 2 * share, true}, {1.26, 106, true},
                {3.99, 336, false}, {4, 336, false},      {99, 336, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        LayoutRequest request = shared_experts(rows[i].headroom);
        assert_int_equal(layout_expert_rows(&request), rows[i].rows);
        assert_int_equal(layout_rows_bounded(&request), rows[i].bounded);
    }
    LayoutRequest one = shared_experts(1);
    one.mesh = MESH_SINGLE; // its own tokens are all that there are
    assert_int_equal(layout_expert_rows(&one), share);
    assert_false(layout_rows_bounded(&one));
    LayoutRequest wide = shared_experts(99); // one expert a rank: it gets one of a token's two choices
    wide.mesh.dp = wide.mesh.ep = 8;
    assert_int_equal(layout_expert_rows(&wide), 8 * 2 * 21);
}

static void growing_makes_room_and_leaves_the_parameters_where_they_are(void **state) {
    (void)state;
    Ops *ops;
    assert_ok(ops_cpu_create(&ops));
    Model model = alone_of_four(ops, 1);
    const LayoutParam *params = model.layout.params;
    void *weights = model.memory[LAYOUT_WEIGHTS], *constants = model.memory[LAYOUT_CONSTANTS];
    model.recorded[0][1].runs = 3;
    assert_ok(expert_room_grow(&model, "a test", 85));
    assert_int_equal(model.layout.rows, 2 * 84); // twice, where what is needed is less
    assert_ok(expert_room_grow(&model, "a test", 2 * 84 + 1));
    assert_int_equal(model.layout.rows, 4 * 84); // which is all that can be needed
    assert_false(layout_rows_bounded(&model.layout.request));
    assert_int_equal(model_act(&model, ACT_TOKEN_OF_ROW, 0).rows, 4 * 84);
    assert_true(model.layout.params == params && model.memory[LAYOUT_WEIGHTS] == weights);
    assert_true(model.memory[LAYOUT_CONSTANTS] == constants && model.recorded[0][1].runs == 0);
    int64_t current, peak;
    ops_cpu_allocated(ops, &current, &peak);
    assert_true(current == model.layout.total_bytes && peak == current);
    release(&model);
}

static void much_more_than_twice_is_made_room_for_at_once(void **state) {
    (void)state;
    Ops *ops;
    assert_ok(ops_cpu_create(&ops));
    Model model = alone_of_four(ops, 1);
    assert_ok(expert_room_grow(&model, "a test", 250));
    assert_int_equal(model.layout.rows, 313); // a quarter more than was needed
    release(&model);
}

static Model alone_in_fp8(Ops *ops) { // in sizes that FP8 takes
    LayoutRequest request = shared_experts(1);
    request.precision = PRECISION_FP8;
    request.config.moe_ffn = 32;
    request.seq = 24;
    return alone_of(ops, &request);
}

// Copies of the experts' weights may be made anew for each product, where there are more bytes of them than FP8 saves
// of the rows' gate and up: more rows are no reason to keep them, since what is there already stays where it is.
static void in_fp8_growing_leaves_the_copies_of_weights_as_they_are(void **state) {
    (void)state;
    Ops *ops;
    assert_ok(ops_cpu_create(&ops));
    Model model = alone_in_fp8(ops);
    assert_true(model.layout.fp8_passing);
    int64_t bytes = model.layout.bytes[LAYOUT_FP8], current, peak;
    assert_ok(expert_room_grow(&model, "a test", 4 * 96));
    assert_int_equal(model.layout.rows, 4 * 96); // 3 matrices of 48 x 2 experts are fewer than that
    assert_true(model.layout.fp8_passing);
    assert_int_equal(model.layout.bytes[LAYOUT_FP8], bytes);
    assert_false(layout_rows_bounded(&model.layout.request));
    assert_true(tensor_present(model_const(&model, CONST_FP8_BEFORE))); // of the step that was refused
    ops_cpu_allocated(ops, &current, &peak);
    assert_int_equal(current, model.layout.total_bytes);
    release(&model);
}

// Those of activations and gradients; weights have theirs of themselves.
static void a_refused_step_gives_its_fp8_scales_back(void **state) {
    (void)state;
    Ops *ops;
    assert_ok(ops_cpu_create(&ops));
    Model model = alone_in_fp8(ops);
    float *scales = model_const(&model, CONST_FP8_SCALE).data, *largest = model_const(&model, CONST_FP8_AMAX).data;
    int64_t cols = model_const(&model, CONST_FP8_SCALE).cols;
    for (int64_t i = 0; i < FP8_SLOTS * cols; i++)
        scales[i] = ldexpf(1, (int)(i % 7)), largest[i] = 0x1p-20f;
    fp8_scales(&model);
    for (int64_t i = 0; i < FP8_FIRST_WEIGHT * cols; i++)
        assert_true(scales[i] < 0x1p-20f);
    assert_ok(expert_room_grow(&model, "a test", 4 * 96));
    fp8_scales_undo(&model);
    for (int64_t i = 0; i < FP8_SLOTS * cols; i++)
        assert_true(scales[i] == ldexpf(1, (int)(i % 7)));
    release(&model);
}

static Status no_memory(Ops *ops, void **memory, size_t bytes, const char *what) {
    (void)ops, (void)memory;
    return status_runtime("no memory for %s (%zu bytes)", what, bytes);
}

static void without_memory_the_error_names_the_key(void **state) {
    (void)state;
    Ops *ops;
    assert_ok(ops_cpu_create(&ops));
    Model model = alone_of_four(ops, 1.5);
    ops->alloc = no_memory;
    Status status = expert_room_grow(&model, "step 7", 200);
    assert_non_null(status);
    const char *parts[] = {"step 7 needs 200 expert rows", "room for 126", "parallelism.expert_headroom = 3",
                           "train.micro_batch"};
    for (int i = 0; i < 4; i++)
        if (!strstr(status_text(status), parts[i])) fail_msg("%s is not in: %s", parts[i], status_text(status));
    status_free(status);
    release(&model);
}

static void degrees_that_experts_cannot_be_cut_by_are_refused_with_the_nearest(void **state) {
    (void)state;
    const struct {
        int dp, tp, ep, etp;
        const char *message;
    } rows[] = {
        {6, 1, 3, 1, "experts 8 does not divide by the expert-parallel degree 3"},
        {6, 1, 3, 1, "parallelism.expert = 2"},
        {12, 1, 3, 1, "parallelism.expert = 4"}, // 2 is as near, and holds more
        {4, 1, 8, 1, "parallelism.expert = 4"},
        {6, 1, 4, 1, "data x context x tensor ranks 6 does not divide by the expert-parallel degrees"},
        {6, 1, 4, 1, "parallelism.expert = 2"},
        {5, 1, 1, 5, "parallelism.expert_tensor = 1"}, // of a width of 24
        {2, 2, 4, 2, "parallelism.expert = 2"},
        {2, 2, 1, 3, "parallelism.expert_tensor = 4"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        LayoutRequest request = shared_experts(0);
        request.mesh =
            (Mesh){.dp = rows[i].dp, .tp = rows[i].tp, .pp = 1, .ep = rows[i].ep, .cp = 1, .etp = rows[i].etp};
        assert_error(layout_check_experts(&request), rows[i].message);
    }
    LayoutRequest dense = small_request(SMALL_LLAMA);
    dense.mesh.dp = dense.mesh.ep = 2;
    assert_error(layout_check_experts(&dense), "needs a model with experts");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(room_is_a_multiple_of_the_share_and_at_most_what_any_routing_needs),
        cmocka_unit_test(growing_makes_room_and_leaves_the_parameters_where_they_are),
        cmocka_unit_test(much_more_than_twice_is_made_room_for_at_once),
        cmocka_unit_test(in_fp8_growing_leaves_the_copies_of_weights_as_they_are),
        cmocka_unit_test(a_refused_step_gives_its_fp8_scales_back),
        cmocka_unit_test(without_memory_the_error_names_the_key),
        cmocka_unit_test(degrees_that_experts_cannot_be_cut_by_are_refused_with_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
