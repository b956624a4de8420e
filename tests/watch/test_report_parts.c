// The figures of a report, its pictures, and that nothing from a file becomes part of the page.
#include "run_folder.h"

#include "watch/chart.h"
#include "watch/html.h"
#include "watch/report.h"

#include <float.h>

// Ten steps of 100 ms with 1000 tokens: 10 % waits for data, 5 % for ranks; steps 4 and 8 are taken apart.
static void write_run(double products_ms) {
    TextBuffer text = {0};
    for (int i = 1; i <= 10; i++) {
        text_buffer_format(&text,
                           "{\"step\":%d,\"tokens\":%d,\"loss\":%d,\"tok_s\":10000,\"mfu\":0.25,\"tflops\":2,"
                           "\"memory_bytes\":%d,\"data_wait\":0.1,\"comm_wait\":0.05,\"seconds\":%g,\"elapsed\":%d,"
                           "\"grad_accum\":1",
                           i, 1000 * i, 12 - i, 100 + i,
                           i == 1  ? 5.0
                           : i % 4 ? 0.1
                                   : 0.3,
                           360 * i);
        if (i % 4 == 0)
            text_buffer_format(&text, ",\"split_ms\":{\"gemm\":%g,\"attention\":10,\"elementwise\":8,\"optimizer\":2}",
                               products_ms);
        text_buffer_format(&text, "}\n");
    }
    text_buffer_format(&text, "{\"step\":8,\"tokens\":8000,\"eval\":\"subset\",\"val_loss\":4,\"perplexity\":55}\n"
                              "{\"step\":10,\"tokens\":10000,\"eval\":\"full\",\"val_loss\":3,\"perplexity\":20,"
                              "\"bits_per_byte\":1.5}\n");
    run_folder_write("metrics.jsonl", text.data);
    run_folder_write(
        "plan.json",
        "{\"prediction\":{\"device\":\"x\",\"devices\":2,\"calibration\":1.25,\"peak_flops\":5e10,"
        "\"flops_per_token\":1e6,\"batch_tokens\":1000,\"mfu\":0.5,\"mfu_causal\":0.4,\"step_seconds\":0.04,"
        "\"tokens_per_second\":25000,\"memory_bytes\":{\"total\":100},"
        "\"step_parts\":{\"gemm\":0.02,\"attention\":0.005,\"elementwise\":0.01}}}");
    text_buffer_free(&text);
}

static ReportRun open_run(void) {
    ReportRun run = {.usd_per_hour = 3, .watts = 500, .pue = 1.2};
    assert_ok(run_read(&run.record, run_folder));
    return run;
}

static void assert_near(double value, double expected) {
    assert_true(fabs(value - expected) <= 1e-12 * fabs(expected)); // a few roundings of doubles
}

static void the_figures_are_those_of_the_warm_steps(void **state) {
    (void)state;
    write_run(30);
    ReportRun run = open_run();
    RunFigures f = report_figures(&run);
    assert_int_equal(f.first, 3);
    assert_int_equal(f.measured, 5); // 5, 6, 7, 9, 10
    assert_near(f.step_seconds, 0.1);
    assert_near(f.rate, 10000);
    assert_near(f.mfu, 0.25);
    assert_near(f.data_wait, 0.1);
    assert_near(f.memory, 110);
    assert_near(f.tokens, 10000);
    assert_near(f.cost, 2 * 3); // two devices for an hour
    assert_true(!f.watts_measured);
    assert_near(f.energy, 2 * 0.5 * 1.2); // kWh
    assert_true(f.eval->full && f.perplexity == 20);
    run_record_free(&run.record);
}

static void energy_is_what_the_gpu_drew_where_that_is_known(void **state) {
    (void)state;
    write_run(30);
    ReportRun run = open_run();
    for (size_t i = 0; i < run.record.step_count; i++)
        run.record.steps[i].power = i < 3 ? 10 : 250; // cold steps do not count
    RunFigures f = report_figures(&run);
    assert_true(f.watts_measured);
    assert_near(f.energy, 2 * 0.25 * 1.2);
    run_record_free(&run.record);
}

// Steps that are shorter than the counter's have no joules of their own; the next line that has some has theirs too.
static void a_counter_of_energy_goes_before_readings_of_power(void **state) {
    (void)state;
    write_run(30);
    ReportRun run = open_run();
    RunStep *steps = run.record.steps;
    size_t count = run.record.step_count;
    assert_int_equal(count, 10);
    for (size_t i = 0; i < count; i++) {
        steps[i].power = 400;
        steps[i].energy = i < 3 ? 1e6 : i % 2 ? 125 * (steps[i].time - steps[i - 2].time) : NAN;
    }
    RunFigures f = report_figures(&run);
    assert_true(f.watts_measured);
    assert_near(f.watts, 125);
    steps[3].energy = steps[5].energy = steps[7].energy = NAN; // one line is no stretch of time
    assert_near(report_figures(&run).watts, 400);
    run_record_free(&run.record);
}

static void alarms_are_on_the_page_with_what_to_do(void **state) {
    (void)state;
    write_run(30);
    run_folder_write("alarms.jsonl",
                     "{\"step\":7,\"alarm\":\"loss\",\"message\":\"a <spike>\",\"advice\":\"lower it\"}\n{}\n");
    ReportRun run = open_run();
    assert_int_equal(run.record.alarm_count, 1);
    TextBuffer out = {0};
    report_write(&run, 1, &out);
    assert_non_null(strstr(out.data, "<td class=\"r\">7</td><td>a &lt;spike&gt;</td><td>lower it</td>"));
    text_buffer_free(&out);
    run_record_free(&run.record);
}

static void the_waterfall_falls_from_the_step_to_the_peak_without_a_gap(void **state) {
    (void)state;
    static const double expected[] = {0.1, 0.01, 0.005, 0.035, 0.002, 0.008, 0.04, 0.02, 0.02, 0.012, 0.008};
    write_run(30);
    ReportRun run = open_run();
    RunFigures figures = report_figures(&run);
    Waterfall w = report_waterfall(&run.record, &figures);
    assert_int_equal(w.count, 11);
    double level = w.rows[0].seconds;
    for (int i = 0; i < w.count; i++) {
        assert_true(fabs(w.rows[i].seconds - expected[i]) < 1e-12); // of at most 0.1
        if (w.rows[i].kind == WATERFALL_LOSS) level -= w.rows[i].seconds;
        if (w.rows[i].kind == WATERFALL_LEVEL) assert_true(fabs(w.rows[i].seconds - level) < 1e-12);
    }
    assert_true(w.profiled && w.shrunk == 1);
    char *sentence = report_sentence(&run, &figures, &w);
    assert_non_null(strstr(sentence, "gaps between operations: 35 % of a step (35 of 100 ms)"));
    assert_non_null(strstr(sentence, "Try a larger train.micro_batch."));
    assert_null(strstr(sentence, "The planner"));
    free(sentence);
    run.facts = (LossFacts){.known = true, .change = {.what = "micro_batch 8", .gain = 0.1}};
    sentence = report_sentence(&run, &figures, &w);
    assert_non_null(strstr(sentence, "The planner expects 10 % more tokens/s from micro_batch 8."));
    free(sentence);
    run_record_free(&run.record);
}

static void parts_that_take_longer_than_a_step_are_shrunk_to_fit(void **state) {
    (void)state;
    write_run(150); // 170 ms in all, where 85 are left
    ReportRun run = open_run();
    RunFigures figures = report_figures(&run);
    Waterfall w = report_waterfall(&run.record, &figures);
    assert_near(w.shrunk, 0.5);
    assert_near(w.part[STEP_GEMM], 0.075);
    assert_true(w.part[STEP_LAUNCH] == 0);
    run_record_free(&run.record);
}

// Gaps of 1 %, products at their rates, memory-bound ops below theirs.
static void a_step_at_the_rates_of_its_device_is_told_so(void **state) {
    (void)state;
    write_run(64);
    ReportRun run = open_run();
    RunFigures figures = report_figures(&run);
    figures.data_wait = figures.comm_wait = 0;
    figures.step_seconds = 0.085;
    json_t *prediction = json_object_get(run.record.plan, "prediction"), *parts;
    parts = json_object_get(prediction, "step_parts");
    json_object_set_new(parts, "gemm", json_real(1.25 * 0.065)); // of a calibration of 1.25
    json_object_set_new(parts, "attention", json_real(1.25 * 0.010));
    json_object_set_new(prediction, "peak_flops", json_real(1e10)); // two devices take 40 ms
    Waterfall w = report_waterfall(&run.record, &figures);
    assert_string_equal(w.rows[w.worst].name, "norms, rotary, SwiGLU, loss"); // 8 of 85 ms, predicted 8
    assert_string_equal(w.rows[w.count - 2].name, "kept from the peak by shapes and clocks");
    run.facts = (LossFacts){.known = true, .gpu = true, .precision = PRECISION_BF16};
    char *sentence = report_sentence(&run, &figures, &w);
    assert_non_null(strstr(sentence, "(8 of 85 ms), at the floor that memory bandwidth sets. Nothing is to be had"));
    assert_non_null(strstr(sentence, "Products and attention are 87 % of the step, at the rates of this device"));
    free(sentence);
    run_record_free(&run.record);
}

// What was not measured, or was measured op by op and is much longer than in its step, is at no floor: norms of 160 ms
// in a step of 100, and norms that stand as predicted.
static void nothing_is_said_of_floors_that_were_not_measured(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        write_run(30);
        if (i) run_folder_write("metrics.jsonl", "{\"step\":1,\"loss\":2,\"tokens\":5,\"tok_s\":9,\"seconds\":0.23}\n");
        ReportRun run = open_run();
        for (size_t k = 0; k < run.record.split_count; k++)
            run.record.splits[k].seconds[STEP_ELEMENTWISE] = 0.16;
        json_t *prediction = json_object_get(run.record.plan, "prediction");
        json_object_set_new(prediction, "calibration", json_real(1));
        json_object_set_new(json_object_get(prediction, "step_parts"), "elementwise", json_real(0.2));
        RunFigures figures = report_figures(&run);
        Waterfall w = report_waterfall(&run.record, &figures);
        char *sentence = report_sentence(&run, &figures, &w);
        assert_true(text_starts_with(sentence, "The biggest loss of time is norms"));
        assert_null(strstr(sentence, "floor"));
        assert_null(strstr(sentence, "at the rates of this device for"));
        free(sentence);
        run_record_free(&run.record);
    }
}

static void without_a_profile_the_parts_are_the_predicted_ones_and_it_says_so(void **state) {
    (void)state;
    write_run(30);
    run_folder_write("metrics.jsonl", "{\"step\":1,\"loss\":2,\"tokens\":5,\"tok_s\":50,\"seconds\":0.1}\n");
    ReportRun run = open_run();
    RunFigures figures = report_figures(&run);
    Waterfall w = report_waterfall(&run.record, &figures);
    assert_true(!w.profiled && w.part[STEP_ELEMENTWISE] == 0.01);
    assert_true(fabs(w.part[STEP_LAUNCH] - 0.065) < 1e-12);
    char *sentence = report_sentence(&run, &figures, &w);
    assert_non_null(strstr(sentence, "hearth train --profile"));
    free(sentence);
    run_record_free(&run.record);
}

static void with_a_profile_the_parts_are_its_own_and_it_is_on_the_page(void **state) {
    (void)state;
    write_run(30);
    char *folder = path_join(run_folder, "profile");
    assert_ok(dir_make(folder));
    free(folder);
    run_folder_write(
        "profile/summary.json",
        "{\"step_seconds\":0.1,\"steps\":2,\"first_step\":7,\"trace\":\"step-7.json\",\"parts\":{\"gemm\":"
        "0.01,\"elementwise\":0.02,\"gaps\":0.055},\"ops\":[{\"name\":\"<b>\",\"category\":\"gemm\",\"pass\":"
        "\"backward\",\"seconds\":0.01,\"floor_seconds\":0.004}]}");
    ReportRun run = open_run();
    RunFigures figures = report_figures(&run);
    Waterfall w = report_waterfall(&run.record, &figures);
    assert_true(w.shrunk == 1 && w.profiled && w.by_profile && w.part[STEP_ELEMENTWISE] == 0.02 &&
                w.part[STEP_OPTIMIZER] == 0);
    TextBuffer out = {0};
    report_write(&run, 1, &out);
    static const char *const parts[] = {
        "<h2>Profile</h2>",    "The biggest loss of time is gaps between operations: 55 %",
        "profile/step-7.json", "&lt;b&gt; (backward)",
        "2.50</td>",           "Its parts are those of the profile below"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(out.data, parts[i])) fail_msg("no \"%s\" on the page", parts[i]);
    text_buffer_free(&out);
    run_record_free(&run.record);
}

// A GPU's memory holds more than what was predicted of the model.
static void memory_is_compared_with_what_was_predicted_and_the_rest_is_named(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        write_run(30);
        run_folder_write("environment.json", i < 2 ? "[{\"libraries\":{\"CUDA\":\"13.0\"}}]" : "[{}]");
        ReportRun run = open_run();
        json_t *memory = json_object_get(json_object_get(run.record.plan, "prediction"), "memory_bytes");
        json_object_set_new(memory, "total", json_real(0x1p31));
        for (size_t k = 0; k < run.record.step_count; k++) {
            run.record.steps[k].memory = 0x1p31 + 0x1p29;
            if (i == 0) run.record.steps[k].memory_own = 0x1p31;
        }
        TextBuffer out = {0};
        report_write(&run, 1, &out);
        const char *const row = i ? "2.00 GiB</td><td class=\"r\">2.50 GiB</td><td class=\"r above\">-20.0 %"
                                  : "2.00 GiB</td><td class=\"r\">2.00 GiB</td><td class=\"r\">+0.0 %";
        assert_non_null(strstr(out.data, row));
        assert_true(!strstr(out.data, "Beside it the device had 512.0 MiB in use") == (i != 0));
        assert_true(!strstr(out.data, "The 512.0 MiB between them are the context") == (i != 1));
        text_buffer_free(&out);
        run_record_free(&run.record);
    }
}

// A run whose warm steps are at the power limit half of the time, at 1500 and 1600 MHz.
static void the_page_of_a_gpu_says_its_clock_and_what_holds_it_back(void **state) {
    (void)state;
    write_run(30);
    ReportRun run = open_run();
    TextBuffer out = {0};
    report_write(&run, 1, &out);
    assert_null(strstr(out.data, "GPU clock"));
    assert_null(strstr(out.data, "Time that the GPU is held back"));
    text_buffer_free(&out);
    for (size_t i = 3; i < run.record.step_count; i++) {
        RunStep *s = &run.record.steps[i];
        s->seconds = 0.1, s->clock = 1550, s->capped = 0.5, s->throttled = 0;
    }
    run.record.steps[3].clock = 1500, run.record.steps[4].clock = 1600;
    report_write(&run, 1, &out);
    assert_non_null(strstr(out.data, "GPU clock</span><b>1550 MHz</b><small>at its power limit: 50 %</small>"));
    assert_non_null(strstr(out.data, "Time that the GPU is held back"));
    text_buffer_free(&out);
    run_record_free(&run.record);
}

// The first steps choose kernels and record graphs: as slow as they are, they would press the others flat.
static void curves_of_speed_leave_the_warm_up_out(void **state) {
    (void)state;
    write_run(30);
    ReportRun run = open_run();
    run.record.steps[0].rate = 1, run.record.steps[2].rate = 2e6;
    TextBuffer out = {0};
    report_write(&run, 1, &out);
    const char *figure = strstr(out.data, "<b>Tokens a second"), *end = figure ? strstr(figure, "</figure>") : NULL;
    assert_non_null(end);
    for (const char *at = figure; (at = strstr(at, "tok/s ")) && at < end; at++)
        assert_true(text_starts_with(at, "tok/s 10K"));
    text_buffer_free(&out);
    run_record_free(&run.record);
}

static void losses_are_compared_between_lines_and_smoothed_around_them(void **state) {
    (void)state;
    write_run(30);
    ReportRun run = open_run();
    double values[40], *smooth;
    for (int i = 0; i < 40; i++)
        values[i] = i == 20 ? NAN : i; // a line stays a line, and the window of 9 has 4 on each side
    smooth = report_smooth(values, 40);
    assert_near(smooth[10], 10);
    assert_true(smooth[0] == 0 && fabs(smooth[1] - 1) < 1e-12);
    assert_near(smooth[39], (35 + 36 + 37 + 38 + 39) / 5.0);
    assert_near(smooth[24], (21 + 22 + 23 + 24 + 25 + 26 + 27 + 28) / 8.0);
    free(smooth);
    double line[10];
    for (int i = 0; i < 10; i++)
        line[i] = 10 - i;
    assert_near(report_loss_at(&run.record, line, 2500), 8.5);
    assert_near(report_loss_at(&run.record, line, 10000), 1);
    assert_true(isnan(report_loss_at(&run.record, line, 10001)));
    assert_near(report_validation_at(&run.record, 9000), 3.5);
    assert_near(report_validation_at(&run.record, 8000), 4);
    assert_true(isnan(report_validation_at(&run.record, 7000)) && isnan(report_validation_at(&run.record, 11000)));
    run_record_free(&run.record);
}

// ---- pictures -------------------------------------------------------------------------------------------------------

static void a_chart_of_many_points_keeps_its_peaks_and_stays_small(void **state) {
    (void)state;
    enum { MANY = 100000 };
    double *x = xmalloc(MANY * sizeof *x), *y = xmalloc(MANY * sizeof *y);
    for (int i = 0; i < MANY; i++)
        x[i] = i, y[i] = i % 2;
    y[54321] = 10, y[77777] = -10;
    Chart chart = {.title = "t", .x_name = "x"};
    chart_add(&chart, "line", CHART_LINE, 0, x, y, MANY);
    TextBuffer out = {0};
    chart_write(&chart, &out);
    assert_true(out.length < 60000);
    // The axis reaches 4 % beyond both: from 10 to 242 pixels for -10.8 to 10.8.
    char high[32], low[32];
    snprintf(high, sizeof high, ",%.1f ", 242 - 232 * (20.8 / 21.6));
    snprintf(low, sizeof low, ",%.1f ", 242 - 232 * (0.8 / 21.6));
    assert_non_null(strstr(out.data, high));
    assert_non_null(strstr(out.data, low));
    text_buffer_free(&out);
}

static void a_chart_without_a_point_is_not_there(void **state) {
    (void)state;
    double *x = xmalloc(2 * sizeof *x), *y = xmalloc(2 * sizeof *y);
    x[0] = 1, x[1] = 2, y[0] = NAN, y[1] = INFINITY;
    Chart chart = {.title = "t", .x_name = "x"};
    chart_add(&chart, "line", CHART_LINE, 0, x, y, 2);
    TextBuffer out = {0};
    chart_write(&chart, &out);
    assert_int_equal(out.length, 0);
}

// No difference of these is a number other than 0 and infinity: where on the axis they are cannot be said. Fewer points
// than columns, and more.
static void a_chart_of_numbers_without_a_difference_is_drawn(void **state) {
    (void)state;
    static const double pairs[][2] = {{-DBL_MAX, DBL_MAX}, {DBL_MAX, DBL_MAX}, {-DBL_MAX, -DBL_MAX}, {5e-324, 5e-324}};
    for (size_t pair = 0; pair < sizeof pairs / sizeof *pairs; pair++)
        for (size_t count = 2; count <= 2000; count += 1998) {
            double *x = xmalloc(count * sizeof *x), *y = xmalloc(count * sizeof *y);
            for (size_t i = 0; i < count; i++)
                x[i] = y[i] = pairs[pair][i % 2];
            Chart chart = {.title = "t", .x_name = "x"};
            chart_add(&chart, "line", CHART_LINE, 0, x, y, count);
            TextBuffer out = {0};
            chart_write(&chart, &out);
            assert_non_null(strstr(out.data, "<title>")); // each is in one of the bands
            assert_null(strstr(out.data, "nan"));
            assert_null(strstr(out.data, "inf"));
            text_buffer_free(&out);
        }
}

static void values_have_units(void **state) {
    (void)state;
    char text[48];
    assert_string_equal(chart_value(text, 5400, 7200, CHART_TIME), "90 min");
    assert_string_equal(chart_value(text, 0x1p31, 0x1p32, CHART_BYTES), "2 GiB");
    assert_string_equal(chart_value(text, 0.25, 1, CHART_PERCENT), "25 %");
    assert_string_equal(chart_value(text, 1.5e6, 4e6, CHART_COUNT), "1.5M");
    assert_string_equal(chart_value(text, 0, 4e6, CHART_COUNT), "0");
}

// ---- the page -------------------------------------------------------------------------------------------------------

static void text_means_itself_on_a_page(void **state) {
    (void)state;
    static const char hostile[] = "<a href=\"x\">'&\t\xc3\xa4\x00\x1b\xff\xc2\x85\xef\xbf\xbf";
    TextBuffer out = {0};
    html_add(&out, hostile, sizeof hostile - 1);
    assert_string_equal(out.data, "&lt;a href=&quot;x&quot;&gt;&#39;&amp;\t\xc3\xa4\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                                  "\xef\xbf\xbd\xef\xbf\xbd");
    text_buffer_free(&out);
}

static void nothing_from_a_file_becomes_markup(void **state) {
    (void)state;
    static const char evil[] = "<script>alert(1)</script>";
    char text[1024];
    write_run(30);
    snprintf(text, sizeof text,
             "[train]\nprecision = \"%s\"\nseq = \"%s\"\n[model]\npreset = \"%s\"\n[\"%s\"]\na = 1\n", evil, evil, evil,
             evil);
    run_folder_write("config.toml", text);
    snprintf(text, sizeof text, "[{\"host\":\"%s\",\"%s\":{\"%s\":\"%s\"},\"started\":\"%s\"}]", evil, evil, evil, evil,
             evil);
    run_folder_write("environment.json", text);
    snprintf(text, sizeof text, "{\"step\":1,\"prompt\":\"%s\",\"text\":\"%s\"}\n", evil, evil);
    run_folder_write("samples.jsonl", text);
    snprintf(text, sizeof text, "{\"prediction\":{\"device\":\"%s\",\"devices\":1}}", evil);
    run_folder_write("plan.json", text);
    ReportRun runs[2] = {open_run(), open_run()};
    free(runs[1].record.name);
    runs[1].record.name = text_copy(evil);
    TextBuffer out = {0};
    report_write(runs, 2, &out);
    assert_null(strstr(out.data, "<script"));
    assert_non_null(strstr(out.data, "&lt;script&gt;"));
    text_buffer_free(&out);
    run_record_free(&runs[0].record);
    run_record_free(&runs[1].record);
}

static void the_ladder_names_what_changed_and_what_it_brought(void **state) {
    (void)state;
    write_run(30);
    run_folder_write("config.toml", "[train]\nseq = 256\nname = \"a\"\n[optimizer]\nlr = 0.1\n");
    ReportRun runs[2] = {open_run()};
    run_folder_write("config.toml", "[train]\nseq = 256\nname = \"b\"\n[optimizer]\nlr = 0.2\n");
    runs[1] = open_run();
    for (size_t i = 0; i < runs[1].record.step_count; i++)
        runs[1].record.steps[i].loss -= 0.5, runs[1].record.steps[i].rate *= 1.25;
    TextBuffer out = {0};
    report_write(runs, 2, &out);
    assert_non_null(strstr(out.data, "<code>optimizer.lr</code> 0.1 → <b>0.2</b>"));
    assert_null(strstr(out.data, "<code>train.seq</code> "));
    assert_null(strstr(out.data, "<code>train.name</code> "));
    assert_non_null(strstr(out.data, "-0.5000"));
    assert_non_null(strstr(out.data, "+25.0 %"));
    text_buffer_free(&out);
    run_record_free(&runs[0].record);
    run_record_free(&runs[1].record);
}

static void a_run_without_a_single_step_still_has_a_page(void **state) {
    (void)state;
    run_folder_write("metrics.jsonl", "");
    ReportRun run = open_run();
    TextBuffer out = {0};
    report_write(&run, 1, &out);
    assert_non_null(strstr(out.data, "No step of this run was measured"));
    assert_null(strstr(out.data, "nan"));
    text_buffer_free(&out);
    run_record_free(&run.record);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, run_folder_make, run_folder_remove)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_figures_are_those_of_the_warm_steps),
        TEST(energy_is_what_the_gpu_drew_where_that_is_known),
        TEST(a_counter_of_energy_goes_before_readings_of_power),
        TEST(alarms_are_on_the_page_with_what_to_do),
        TEST(the_waterfall_falls_from_the_step_to_the_peak_without_a_gap),
        TEST(parts_that_take_longer_than_a_step_are_shrunk_to_fit),
        TEST(a_step_at_the_rates_of_its_device_is_told_so),
        TEST(nothing_is_said_of_floors_that_were_not_measured),
        TEST(without_a_profile_the_parts_are_the_predicted_ones_and_it_says_so),
        TEST(with_a_profile_the_parts_are_its_own_and_it_is_on_the_page),
        TEST(memory_is_compared_with_what_was_predicted_and_the_rest_is_named),
        TEST(the_page_of_a_gpu_says_its_clock_and_what_holds_it_back),
        TEST(curves_of_speed_leave_the_warm_up_out),
        TEST(losses_are_compared_between_lines_and_smoothed_around_them),
        TEST(a_chart_of_many_points_keeps_its_peaks_and_stays_small),
        TEST(a_chart_without_a_point_is_not_there),
        TEST(a_chart_of_numbers_without_a_difference_is_drawn),
        TEST(values_have_units),
        TEST(text_means_itself_on_a_page),
        TEST(nothing_from_a_file_becomes_markup),
        TEST(the_ladder_names_what_changed_and_what_it_brought),
        TEST(a_run_without_a_single_step_still_has_a_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
