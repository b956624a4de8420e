// What does not fit is refused before anything is allocated, with lines that do fit.
#include "testing.h"

#include "train/fit.h"

static Config config;

static int read_config(void **state) {
    (void)state;
    static const char *const sets[] = {"train.micro_batch=16", "train.grad_accum=3"};
    assert_ok(config_read(&config, NULL, sets, 2));
    return 0;
}

static int free_config(void **state) {
    (void)state;
    config_free(&config);
    return 0;
}

static LayoutRequest request_of(const char *preset, DeviceKind device, Recompute recompute) {
    LayoutRequest request = {.mesh = MESH_SINGLE,
                             .precision = PRECISION_BF16,
                             .recompute = recompute,
                             .micro_batch = 16,
                             .seq = 512,
                             .device = device,
                             .threads = 2};
    assert_ok(model_preset(&request.config, preset));
    return request;
}

static int64_t bytes_of(LayoutRequest request, int micro_batch, Recompute recompute) {
    Layout layout;
    request.micro_batch = micro_batch;
    request.recompute = recompute;
    assert_ok(layout_build(&layout, &request));
    int64_t bytes = layout.total_bytes + fit_reserve(request.device);
    layout_free(&layout);
    return bytes;
}

static void the_last_byte_decides(void **state) {
    (void)state;
    static const DeviceKind devices[] = {DEVICE_CPU, DEVICE_CUDA};
    for (int i = 0; i < 2; i++) {
        LayoutRequest request = request_of("smollm-360m", devices[i], RECOMPUTE_NONE);
        int64_t need = bytes_of(request, 16, RECOMPUTE_NONE);
        Fit fit;
        assert_ok(fit_check(&fit, &request, need));
        assert_true(fit.fits);
        assert_int_equal(fit.need, need);
        assert_ok(fit_check(&fit, &request, need - 1));
        assert_false(fit.fits);
    }
    assert_int_equal(fit_reserve(DEVICE_CPU), 0);
    assert_int_equal(fit_reserve(DEVICE_CUDA), 512 << 20);
}

// Against every micro-batch and mode, not against the search that found them.
static void the_suggestions_are_the_best_that_fit(void **state) {
    (void)state;
    static const char *const presets[] = {"smollm-360m", "qwen3-moe-500m"};
    for (int p = 0; p < 4; p++) {
        LayoutRequest request = request_of(presets[p % 2], p / 2 ? DEVICE_CUDA : DEVICE_CPU, RECOMPUTE_NONE);
        int64_t most = bytes_of(request, 16, RECOMPUTE_NONE);
        for (int part = 1; part < 20; part++) {
            int64_t have = most / 20 * part;
            int largest = 0, lightest = -1, full = 0;
            for (int micro_batch = 1; micro_batch < 16; micro_batch++) {
                if (bytes_of(request, micro_batch, RECOMPUTE_NONE) <= have) largest = micro_batch;
                if (bytes_of(request, micro_batch, RECOMPUTE_FULL) <= have) full = micro_batch;
            }
            for (int mode = RECOMPUTE_FULL; mode >= RECOMPUTE_NONE; mode--)
                if (bytes_of(request, 16, (Recompute)mode) <= have) lightest = mode;
            Fit fit;
            assert_ok(fit_check(&fit, &request, have));
            assert_false(fit.fits);
            assert_int_equal(fit.micro_batch, largest);
            assert_int_equal(fit.recompute, lightest);
            assert_int_equal(fit.full_micro_batch, largest || lightest >= 0 ? 0 : full);
        }
    }
}

static void one_sequence_less_is_among_the_suggestions(void **state) {
    (void)state;
    LayoutRequest request = request_of("smollm-360m", DEVICE_CPU, RECOMPUTE_NONE);
    Fit fit;
    assert_ok(fit_check(&fit, &request, bytes_of(request, 15, RECOMPUTE_NONE)));
    assert_false(fit.fits);
    assert_int_equal(fit.micro_batch, 15);
}

static void the_refusal_names_need_have_and_lines(void **state) {
    (void)state;
    LayoutRequest request = request_of("smollm-360m", DEVICE_CUDA, RECOMPUTE_NONE);
    int64_t have = bytes_of(request, 8, RECOMPUTE_NONE) + 1, need = bytes_of(request, 16, RECOMPUTE_NONE);
    Status status = fit_require(&config, &request, (FitMemory){have, INT64_C(8) << 30});
    assert_non_null(status);
    assert_int_equal(status_code(status), STATUS_USAGE);
    char *needs = text_format("needs %.2f GiB (0.50 GiB of it for libraries)", (double)need / 0x1p30);
    char *has = text_format("%.2f of the device's 8.00 GiB", (double)have / 0x1p30);
    static const char *const more[] = {"[train] micro_batch = 8, grad_accum = 6", "[recompute] mode = \"full\"",
                                       "--set train.micro_batch=16"};
    assert_non_null(strstr(status_text(status), needs));
    assert_non_null(strstr(status_text(status), has));
    for (int i = 0; i < 3; i++)
        if (!strstr(status_text(status), more[i])) fail_msg("no %s in: %s", more[i], status_text(status));
    free(needs);
    free(has);
    status_free(status);
}

static void what_fits_in_no_way_says_so(void **state) {
    (void)state;
    LayoutRequest request = request_of("llama-3.2-1b", DEVICE_CUDA, RECOMPUTE_SELECTIVE);
    FitMemory memory = {INT64_C(1) << 30, INT64_C(2) << 30};
    assert_error(fit_require(&config, &request, memory), "not even one sequence with full recompute fits");
}

static void memory_that_is_not_known_refuses_nothing(void **state) {
    (void)state;
    LayoutRequest request = request_of("llama-3.2-1b", DEVICE_CPU, RECOMPUTE_NONE);
    assert_ok(fit_require(&config, &request, (FitMemory){0}));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_byte_decides),
        cmocka_unit_test(the_suggestions_are_the_best_that_fit),
        cmocka_unit_test(one_sequence_less_is_among_the_suggestions),
        cmocka_unit_test(the_refusal_names_need_have_and_lines),
        cmocka_unit_test(what_fits_in_no_way_says_so),
        cmocka_unit_test(memory_that_is_not_known_refuses_nothing),
    };
    return cmocka_run_group_tests(tests, read_config, free_config);
}
