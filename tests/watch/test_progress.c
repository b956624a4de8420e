// What a run shows on the terminal.
#include "caught.h"

#include "base/clock.h"
#include "watch/progress.h"

// Prints of one call of `show`, malloc'd.
static Status (*show)(void);
static Status call_show(int argc, char **argv) {
    (void)argc, (void)argv;
    return show();
}

static char *shown(Status (*what)(void)) {
    static char *text;
    show = what;
    assert_ok(command_caught(&text, call_show, 0, NULL));
    return text;
}

static MetricsStep a_step(int64_t number) {
    return (MetricsStep){.step = number,
                         .tokens = 1000 * number,
                         .loss = 3.14159,
                         .lr = 3e-4,
                         .grad_norm = 0.5,
                         .tokens_per_second = 12345.6,
                         .tflops = 1.25,
                         .memory_bytes = 3 * 0x1p29,
                         .memory_fraction = 0.25,
                         .data_wait = 0.015};
}

static Progress plain(void) {
    Progress progress = {.mode = PROGRESS_PLAIN, .print_every = 10, .total_steps = 40};
    progress_begin(&progress);
    return progress;
}

static Status show_one(void) {
    Progress progress = plain();
    MetricsStep step = a_step(1);
    progress_step(&progress, &step);
    return NULL;
}

static void a_line_says_loss_rate_speed_and_memory(void **state) {
    (void)state;
    char *text = shown(show_one);
    assert_string_equal(text, "step 1/40  1.00K tok  loss 3.1416  lr 3.00e-04  norm 0.500  12,346 tok/s  1.25 TFLOP/s  "
                              "1.50 GiB 25%  wait 1.5%\n");
    free(text);
}

static Status show_everything(void) {
    static const ExpertLoad loads[] = {{1.5, 0.875, 0}, {2.25, 0.75, 3}};
    Progress progress = plain();
    MetricsStep step = a_step(10);
    step.mfu = 0.5;
    step.loss_aux = 1.25;
    step.moe = loads;
    step.moe_count = 2;
    step.skipped = true;
    progress_step(&progress, &step);
    step = a_step(20); // the load was not taken again: it is still shown
    progress_step(&progress, &step);
    return NULL;
}

static void experts_mfu_and_skipped_steps_are_shown(void **state) {
    (void)state;
    char *text = shown(show_everything), *second = strchr(text, '\n') + 1;
    static const char *const parts[] = {"  aux 1.250  load 2.25x ent 0.75 dead 3  lr ", "  MFU 50.0%", "  SKIPPED\n"};
    for (int i = 0; i < 3; i++) {
        const char *at = strstr(text, parts[i]);
        assert_true(at && at < second);
    }
    assert_non_null(strstr(second, "  load 2.25x ent 0.75 dead 3  lr "));
    assert_null(strstr(second, "SKIPPED"));
    assert_null(strstr(second, "MFU"));
    free(text);
}

static Status show_many(void) {
    Progress progress = plain();
    progress.first_step = 4; // resumed
    for (int64_t i = 5; i <= 40; i++) {
        MetricsStep step = a_step(i);
        step.skipped = i == 17;
        progress_step(&progress, &step);
    }
    return NULL;
}

static void plain_lines_come_at_the_start_every_so_often_when_skipped_and_at_the_end(void **state) {
    (void)state;
    static const int expected[] = {5, 10, 17, 20, 30, 40};
    char *text = shown(show_many);
    int count = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        assert_int_equal(atoi(line + strlen("step ")), expected[count++]);
    assert_int_equal(count, 6);
    free(text);
}

static Status show_time_left(void) {
    Progress progress = plain();
    MetricsStep step = a_step(10);
    progress.warm = clock_seconds() - 90; // nine steps of ten seconds since the first
    progress_step(&progress, &step);
    progress.hours = 0.05; // 180 seconds, sooner than the 30 steps to come
    progress_step(&progress, &step);
    return NULL;
}

static void the_time_left_is_the_sooner_of_steps_and_hours(void **state) {
    (void)state;
    char *text = shown(show_time_left), *second = strchr(text, '\n') + 1;
    const char *eta = strstr(text, "  ETA 5m 0");
    assert_true(eta && eta < second);
    assert_true(strstr(second, "  ETA 3m 00s\n") || strstr(second, "  ETA 2m 5"));
    free(text);
}

static Status show_off(void) {
    Progress progress = {.mode = PROGRESS_OFF, .print_every = 1, .total_steps = 2};
    MetricsStep step = a_step(1);
    progress_begin(&progress);
    progress_step(&progress, &step);
    progress_evaluation(&progress, 1, &(Evaluation){.loss = 1});
    progress_say(&progress, "hello");
    return NULL;
}

static void off_shows_nothing(void **state) {
    (void)state;
    char *text = shown(show_off);
    assert_string_equal(text, "");
    free(text);
}

static Status show_live(void) {
    Progress progress = {.mode = PROGRESS_LIVE, .print_every = 1, .total_steps = 40};
    MetricsStep step = a_step(10);
    progress_begin(&progress);
    progress_step(&progress, &step);
    progress_say(&progress, "between");
    return NULL;
}

static void a_message_does_not_tear_the_live_line(void **state) {
    (void)state;
    char *text = shown(show_live);
    assert_true(text_starts_with(text, "\r\033[K[#####...............] step 10/40  "));
    assert_true(text_ends_with(text, "\r\033[Kbetween\n"));
    assert_true(strchr(text, '\n') == text + strlen(text) - 1); // the live line has none
    free(text);
}

static Status show_evaluations(void) {
    Progress progress = plain();
    Evaluation eval = {.loss = 1.25, .perplexity = 3.4903, .targets = 320, .seconds = 0.25};
    progress_evaluation(&progress, 20, &eval);
    eval.full = true;
    progress_evaluation(&progress, 40, &eval);
    eval.loss = 654, eval.perplexity = exp(654);
    progress_evaluation(&progress, 60, &eval);
    return NULL;
}

static void an_evaluation_says_what_it_is_of(void **state) {
    (void)state;
    char *text = shown(show_evaluations);
    assert_string_equal(text,
                        "step 20  validation loss 1.2500  perplexity 3.49  (fixed subset, 320 targets, 0.2s)\n"
                        "step 40  validation loss 1.2500  perplexity 3.49  (all data, 320 targets, 0.2s)\n"
                        "step 60  validation loss 654.0000  perplexity 1.07e+284  (all data, 320 targets, 0.2s)\n");
    free(text);
}

static const ProgressBanner banner = {.run = "runs/x",
                                      .model = "tiny",
                                      .device = "cpu",
                                      .precision = "bf16",
                                      .parameters = 1500000,
                                      .active_parameters = 1200000,
                                      .micro_batch = 8,
                                      .seq = 512,
                                      .grad_accum = 4,
                                      .ranks = 1,
                                      .batch_tokens = 16384,
                                      .total_steps = 1000,
                                      .total_tokens = 16384000,
                                      .data_tokens = 8192000,
                                      .memory_bytes = 0x1p30,
                                      .memory_total = 0x1p32};

static Status show_banner(void) {
    progress_banner(&banner, stdout);
    return NULL;
}

static Status show_full_banner(void) {
    ProgressBanner full = banner;
    full.asked_batch_tokens = 16000;
    full.batch_warmup_tokens = 1000000;
    full.hours = 2;
    full.predicted_seconds = 90;
    full.resumed_step = 100;
    progress_banner(&full, stdout);
    return NULL;
}

static void the_banner_says_what_will_run(void **state) {
    (void)state;
    char *text = shown(show_banner), *full = shown(show_full_banner);
    assert_string_equal(text, "run        runs/x\n"
                              "model      tiny: 1.50M parameters, 1.20M active; bf16 on cpu\n"
                              "batch      local 8 x 512 tokens, accumulation 4, ranks 1: global 16,384 tokens\n"
                              "data       8.19M tokens: 2.00 epochs\n"
                              "length     1,000 steps, 16.4M tokens\n"
                              "memory     1.00 GiB predicted, 25.0% of 4.00 GiB\n");
    static const char *const parts[] = {
        "runs/x (resumed)\n", "batch_tokens = 16,000 rounded to 16,384: whole micro-batches of 4,096 tokens\n",
        "accumulation rises from 1 to 4 over the first 1.00M tokens\n",
        "1,000 steps, 16.4M tokens, at most 2 hours, continuing after step 100; predicted 1m 30s\n"};
    for (int i = 0; i < 4; i++)
        if (!strstr(full, parts[i])) fail_msg("%s is not in\n%s", parts[i], full);
    free(text);
    free(full);
}

static Status show_curve(void) {
    static const double losses[] = {8, 4, 2, 1};
    progress_curve(stdout, losses, 4, 72, 4);
    progress_curve(stdout, losses, 1, 72, 4); // one point is no curve
    return NULL;
}

static void the_curve_falls_by_the_logarithm(void **state) {
    (void)state;
    char *text = shown(show_curve);
    assert_string_equal(text, "   8.000 |*   \n"
                              "   4.000 | *  \n"
                              "   2.000 |  * \n"
                              "   1.000 |   *\n"
                              "         +----\n"
                              "          1  4 steps\n");
    free(text);
}

// Ten steps in five columns: means of 8, 4, 2, 1 and 1 on four rows that are a factor of two apart.
static void a_column_of_the_curve_is_the_mean_of_its_steps(void **state) {
    (void)state;
    const double losses[10] = {9, 7, 5, 3, 2, 2, 1.5, 0.5, 1, 1};
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    progress_curve(file, losses, 10, 5, 4);
    fclose(file);
    assert_string_equal(text, "   8.000 |*    \n"
                              "   4.000 | *   \n"
                              "   2.000 |  *  \n"
                              "   1.000 |   **\n"
                              "         +-----\n"
                              "          1  10 steps\n");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_says_loss_rate_speed_and_memory),
        cmocka_unit_test(experts_mfu_and_skipped_steps_are_shown),
        cmocka_unit_test(plain_lines_come_at_the_start_every_so_often_when_skipped_and_at_the_end),
        cmocka_unit_test(the_time_left_is_the_sooner_of_steps_and_hours),
        cmocka_unit_test(off_shows_nothing),
        cmocka_unit_test(a_message_does_not_tear_the_live_line),
        cmocka_unit_test(an_evaluation_says_what_it_is_of),
        cmocka_unit_test(the_banner_says_what_will_run),
        cmocka_unit_test(the_curve_falls_by_the_logarithm),
        cmocka_unit_test(a_column_of_the_curve_is_the_mean_of_its_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
