// Which products are in FP8 before a run begins: what is raced, with what memory, and what is said where none can be.
#include "fp8_models.h"

#include "base/text.h"

#include <unistd.h>

// Which race is asked for: nobody has to run it.
static char *race_asked_for;

static bool recall_all(Ops *ops, const char *key, int *value) {
    (void)ops;
    free(race_asked_for);
    race_asked_for = text_copy(key);
    *value = FP8_ALL;
    return true;
}

static char *layer_race(LayoutRequest request) {
    Ops *ops;
    assert_ok(ops_create(&ops, "cpu"));
    DeviceKind kind = ops->kind;
    ops->kind = DEVICE_CUDA;
    ops->choice_recall = recall_all;
    request.fp8_off = FP8_HEAD; // its race is another
    assert_ok(fp8_choose(ops, &request, NULL));
    assert_int_equal(request.fp8_off, FP8_HEAD);
    ops->kind = kind;
    ops_destroy(ops);
    char *key = race_asked_for;
    race_asked_for = NULL;
    return key;
}

// A layer is raced with the experts that a rank has, which may be all that its memory has room for.
static void a_race_is_of_the_experts_of_a_rank(void **state) {
    (void)state;
    LayoutRequest whole = fp8_request(SMALL_MOE, PRECISION_FP8), shared = whole, few = whole;
    shared.config.experts = 8;
    shared.mesh.ep = 2;
    whole.config.experts = 4;
    few.config.experts = few.config.top_k;
    char *of_whole = layer_race(whole), *of_shared = layer_race(shared), *of_few = layer_race(few);
    assert_string_equal(of_whole, of_shared);
    shared.mesh.ep = shared.config.experts; // one each: fewer than a token visits
    char *of_one = layer_race(shared);
    assert_string_equal(of_one, of_few);
    free(of_whole), free(of_shared), free(of_few), free(of_one);
}

// What attention's backward pass was lent by each of the models of a race.
static struct {
    void (*bind)(Ops *ops, void *memory, size_t bytes);
    size_t most[8];
    int models;
} lent;

static void note_workspace(Ops *ops, void *memory, size_t bytes) {
    size_t *most = &lent.most[lent.models - 1];
    if (bytes > *most) *most = bytes;
    lent.bind(ops, memory, bytes);
}

static Status (*alloc_block)(Ops *ops, void **memory, size_t bytes, const char *what);

static Status note_block(Ops *ops, void **memory, size_t bytes, const char *what) {
    if (strcmp(what, layout_kind_name(LAYOUT_WEIGHTS)) == 0) lent.models++;
    assert_true(lent.models > 0 && lent.models <= 8);
    return alloc_block(ops, memory, bytes, what);
}

static double always_long(Ops *ops, int from, int to) {
    (void)ops, (void)from, (void)to;
    return 1000;
}

static bool recall_none(Ops *ops, const char *key, int *value) {
    (void)ops, (void)key, (void)value;
    return false;
}

// A layer alone leaves attention less memory in bf16 than in FP8, and less than in the model: with kernels that need
// some, the race would be one of attention.
static void the_models_of_a_race_lend_attention_what_the_run_does(void **state) {
    (void)state;
    for (int which = SMALL_LLAMA; which < SMALL_COUNT; which++) {
        LayoutRequest request = fp8_request((SmallModel)which, PRECISION_FP8);
        request.device = DEVICE_CUDA;
        request.config.vocab = 1 << 22; // whose logits make room for more than the usual workspace
        request.logits_rows = 0;
        request.fp8_off = FP8_HEAD; // its race is another
        Layout layout;
        assert_ok(layout_build(&layout, &request));
        int64_t expected = layout_activation(&layout, ACT_SCRATCH, -1, STEP_BACKWARD)->bytes;
        assert_true(expected > layout.bytes[LAYOUT_WORKSPACE]);
        layout_free(&layout);
        Ops *ops;
        assert_ok(ops_create(&ops, "cpu"));
        DeviceKind kind = ops->kind;
        memset(&lent, 0, sizeof lent);
        lent.bind = ops->bind_workspace, alloc_block = ops->alloc;
        ops->kind = DEVICE_CUDA;
        ops->bind_workspace = note_workspace, ops->alloc = note_block;
        ops->mark_elapsed = always_long, ops->choice_recall = recall_none;
        assert_ok(fp8_choose(ops, &request, NULL));
        ops->kind = kind;
        ops_destroy(ops);
        assert_int_equal(lent.models, which == SMALL_MOE ? 4 : 2); // of experts, and of the dense layers beside them
        for (int i = 0; i < lent.models; i++)
            assert_int_equal(lent.most[i], expected);
    }
}

// ---- what a race decides --------------------------------------------------------------------------------------------

// A clock that shows made-up times, and the choice that comes of them.
static struct {
    const int *milliseconds; // of each look in turn; 0: the last one stays
    int looks, at, kept;
} made_up;

static double made_up_elapsed(Ops *ops, int from, int to) {
    enum { LOOK = 3 }; // rounds
    (void)ops, (void)from, (void)to;
    double shown = made_up.milliseconds[made_up.at];
    if (++made_up.looks % LOOK == 0 && made_up.milliseconds[made_up.at + 1]) made_up.at++;
    return shown;
}

static void keep_choice(Ops *ops, const char *key, int value) {
    (void)ops, (void)key;
    made_up.kept = value;
}

static unsigned choice_by(const int *milliseconds) {
    LayoutRequest request = fp8_request(SMALL_LLAMA, PRECISION_FP8);
    request.fp8_off = FP8_HEAD; // its race is another
    Ops *ops;
    assert_ok(ops_create(&ops, "cpu"));
    DeviceKind kind = ops->kind;
    memset(&made_up, 0, sizeof made_up);
    made_up.milliseconds = milliseconds;
    ops->kind = DEVICE_CUDA;
    ops->mark_elapsed = made_up_elapsed, ops->choice_recall = recall_none, ops->choice_keep = keep_choice;
    assert_ok(fp8_choose(ops, &request, NULL));
    ops->kind = kind;
    ops_destroy(ops);
    return (unsigned)made_up.kept;
}

// bf16, all of attention in FP8, then without QKV's forward product; with it and without it again, and so on. The rest,
// and the MLP in FP8, are slow.
static void a_product_leaves_fp8_when_that_is_faster_each_time(void **state) {
    (void)state;
    static const int each_time[] = {1000, 900, 800, 900, 800, 900, 800, 2000, 0};
    static const int only_then[] = {1000, 1005, 900, 1005, 900, 1005, 900, 2000, 0}; // faster than bf16
    static const int once[] = {1000, 900, 800, 790, 800, 2000, 0};
    static const int twice[] = {1000, 900, 800, 900, 800, 790, 800, 2000, 0};
    unsigned attention = FP8_ALL & ~(FP8_HEAD | FP8_MLP | FP8_EXPERTS);
    assert_int_equal(choice_by(each_time), attention & ~FP8_QKV_FORWARD);
    assert_int_equal(choice_by(only_then), attention & ~FP8_QKV_FORWARD);
    assert_int_equal(choice_by(once), attention);
    assert_int_equal(choice_by(twice), attention);
}

// By less than a difference that repeats.
static void a_layer_that_is_hardly_faster_in_fp8_stays_in_bf16(void **state) {
    (void)state;
    assert_int_equal(choice_by((const int[]){1000, 998, 2000, 0}), 0);
    assert_int_not_equal(choice_by((const int[]){1000, 990, 2000, 0}), 0);
}

static void a_gpu_without_fp8_is_refused_before_it_races(void **state) {
    (void)state;
    LayoutRequest fp8 = fp8_request(SMALL_LLAMA, PRECISION_FP8), bf16 = fp8_request(SMALL_LLAMA, PRECISION_BF16);
    Ops *ops;
    assert_ok(ops_create(&ops, "cpu"));
    assert_true(ops->fp8); // emulated
    ops->fp8 = false;
    ops->device = "NVIDIA A100";
    assert_error(fp8_choose(ops, &fp8, NULL), "and NVIDIA A100 has less");
    assert_ok(fp8_choose(ops, &bf16, NULL));
    ops_destroy(ops);
}

static Status no_memory(Ops *ops, void **memory, size_t bytes, const char *what) {
    (void)ops, (void)memory;
    return status_runtime("no memory for %s (%zu bytes)", what, bytes);
}

static void keep_nothing(Ops *ops, const char *key, int value) {
    (void)ops, (void)value;
    fail_msg("%s was kept", key);
}

// A race takes a layer with all of its optimizer's state, of which a rank of the run may have a share only. Where
// nothing has room, whoever makes the model says what would.
static void without_memory_for_a_race_all_products_are_in_fp8(void **state) {
    (void)state;
    LayoutRequest request = fp8_request(SMALL_MOE, PRECISION_FP8);
    Ops *ops;
    assert_ok(ops_create(&ops, "cpu"));
    DeviceKind kind = ops->kind;
    ops->kind = DEVICE_CUDA;
    ops->alloc = no_memory, ops->choice_recall = recall_none, ops->choice_keep = keep_nothing;
    assert_ok(fp8_choose(ops, &request, NULL));
    assert_int_equal(request.fp8_off, 0);
    ops->kind = kind;
    ops_destroy(ops);
}

static char *said_by_choosing(LayoutRequest request) {
    Ops *ops;
    assert_ok(ops_create(&ops, "cpu"));
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO);
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    Status status = fp8_choose(ops, &request, NULL);
    dup2(before, STDERR_FILENO);
    close(before);
    assert_ok(status);
    ops_destroy(ops);
    char *said = xcalloc(4096, 1);
    rewind(file);
    assert_true(fread(said, 1, 4095, file) < 4095);
    fclose(file);
    return said;
}

static void sizes_that_fp8_does_not_take_are_told_of(void **state) {
    (void)state;
    LayoutRequest request = fp8_request(SMALL_LLAMA, PRECISION_FP8);
    request.seq = 21;
    char *said = said_by_choosing(request);
    assert_non_null(strstr(said, "every product stays in bf16"));
    assert_non_null(strstr(said, "the tokens of a rank's micro-batch 42 is not"));
    free(said);
    request.seq = TOKENS / 2;
    said = said_by_choosing(request);
    assert_null(strstr(said, "stay"));
    free(said);
    request.config.vocab = 50257; // the head is a good part of a small model's products
    request.config.ffn = 72;
    said = said_by_choosing(request);
    assert_non_null(strstr(said, "some products stay in bf16"));
    assert_non_null(strstr(said, "the width of the MLP 72, the vocabulary 50257 are not"));
    free(said);
    request.config.ffn = 80;
    request.fp8_off = FP8_HEAD; // as wanted
    said = said_by_choosing(request);
    assert_null(strstr(said, "stay"));
    free(said);
    request.precision = PRECISION_BF16;
    said = said_by_choosing(request);
    assert_string_equal(said, "");
    free(said);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_race_is_of_the_experts_of_a_rank),
        cmocka_unit_test(a_product_leaves_fp8_when_that_is_faster_each_time),
        cmocka_unit_test(a_layer_that_is_hardly_faster_in_fp8_stays_in_bf16),
        cmocka_unit_test(a_gpu_without_fp8_is_refused_before_it_races),
        cmocka_unit_test(without_memory_for_a_race_all_products_are_in_fp8),
        cmocka_unit_test(the_models_of_a_race_lend_attention_what_the_run_does),
        cmocka_unit_test(sizes_that_fp8_does_not_take_are_told_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
