// A run directory as the report reads it: growing, torn, old, or written by somebody who means harm.
#include "run_folder.h"

#include "watch/run_read.h"

static RunRecord read_run(void) {
    RunRecord run;
    assert_ok(run_read(&run, run_folder));
    return run;
}

static void steps_and_validations_are_read_with_what_is_missing_as_nan(void **state) {
    (void)state;
    run_folder_write("metrics.jsonl",
                     "{\"step\":1,\"tokens\":64,\"loss\":5.5,\"lr\":0.1,\"grad_norm\":2,\"tok_s\":640,\"tflops\":0.5,"
                     "\"memory_bytes\":4096,\"memory_fraction\":0.25,\"data_wait\":0.125,\"seconds\":0.1,\"elapsed\":3,"
                     "\"grad_accum\":2,\"skipped\":false,\"new_key\":[1,{\"a\":2}],"
                     "\"split_ms\":{\"gemm\":30,\"attention\":10,\"unheard_of\":5}}\n"
                     "{\"step\":2,\"tokens\":128,\"loss\":null,\"skipped\":true,\"elapsed\":4}\n"
                     "{\"step\":2,\"tokens\":128,\"eval\":\"full\",\"val_loss\":4.5,\"perplexity\":90}\n");
    RunRecord run = read_run();
    assert_int_equal(run.step_count, 2);
    assert_int_equal(run.eval_count, 1);
    assert_int_equal(run.lines_passed_over, 0);
    const RunStep *s = &run.steps[0];
    assert_true(s->step == 1 && s->tokens == 64 && s->loss == 5.5 && s->lr == 0.1 && s->norm == 2 && s->rate == 640);
    assert_true(s->tflops == 0.5 && s->memory == 4096 && s->memory_fraction == 0.25 && s->data_wait == 0.125);
    assert_true(s->seconds == 0.1 && s->time == 3 && s->accum == 2 && !s->skipped && isnan(s->mfu));
    assert_int_equal(s->split, 0);
    assert_true(run.splits[0].seconds[STEP_GEMM] == 0.03 && run.splits[0].seconds[STEP_ATTENTION] == 0.01);
    assert_true(run.splits[0].seconds[STEP_OPTIMIZER] == 0);
    assert_true(isnan(run.steps[1].loss) && run.steps[1].skipped && run.steps[1].split == -1);
    assert_true(run.evals[0].full && run.evals[0].loss == 4.5 && run.evals[0].time == 4);
    assert_true(isnan(run.evals[0].bits_per_byte));
    run_record_free(&run);
}

static void the_clock_goes_on_over_a_resume(void **state) {
    (void)state;
    run_folder_write("metrics.jsonl", "{\"step\":1,\"loss\":1,\"elapsed\":10}\n{\"step\":2,\"loss\":1,\"elapsed\":20}\n"
                                      "{\"step\":3,\"loss\":1,\"elapsed\":5}\n{\"step\":4,\"loss\":1,\"elapsed\":7}\n");
    RunRecord run = read_run();
    assert_true(run.steps[1].time == 20 && run.steps[2].time == 25 && run.steps[3].time == 27);
    run_record_free(&run);
}

static void a_line_that_is_still_being_written_is_left_out(void **state) {
    (void)state;
    run_folder_write("metrics.jsonl", "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":1}");
    RunRecord run = read_run();
    assert_int_equal(run.step_count, 1);
    assert_int_equal(run.lines_passed_over, 0);
    run_record_free(&run);
}

static void lines_that_make_no_sense_are_passed_over_and_counted(void **state) {
    (void)state;
    run_folder_write("metrics.jsonl",
                     "\n[1,2]\n7\n{\"step\":1\n{\"step\":\"one\",\"loss\":1}\n{\"loss\":1}\n{\"step\":1}\n\xff\xfe\n"
                     "{\"step\":1,\"loss\":1e999}\n{\"step\":99999999999999999999,\"loss\":1}\n"
                     "{\"step\":3,\"loss\":\"<b>\",\"memory_bytes\":1e300,\"tokens\":[],\"seconds\":{},\"split_ms\":[1]"
                     ",\"moe_layers\":7}\n");
    run_folder_write("config.toml", "this is [not toml");
    run_folder_write("plan.json", "{");
    run_folder_write("environment.json", "null");
    RunRecord run = read_run();
    assert_int_equal(run.lines_passed_over, 10);
    assert_int_equal(run.step_count, 1);
    assert_true(isnan(run.steps[0].loss) && isnan(run.steps[0].memory) && isnan(run.steps[0].tokens) &&
                run.steps[0].split == -1);
    assert_int_equal(run.load_count, 0);
    assert_null(run_setting(&run, "train.seq"));
    assert_true(isnan(run_plan_number(&run, "devices")) && run_plan_part(&run, STEP_GEMM) == 0);
    run_record_free(&run);
}

static void expert_load_is_read_by_layer(void **state) {
    (void)state;
    run_folder_write("metrics.jsonl",
                     "{\"step\":4,\"loss\":1,\"moe_layers\":{\"load_max\":[1.5,null,3],\"entropy\":[1],"
                     "\"dead\":[0,1]}}\n{\"step\":5,\"loss\":1,\"moe_layers\":{\"load_max\":[2]}}\n");
    RunRecord run = read_run();
    assert_int_equal(run.load_count, 2);
    assert_true(run.loads[0].step == 4 && run.loads[0].layers == 3 && run.loads[1].layers == 1);
    assert_true(run.loads[0].most[0] == 1.5 && isnan(run.loads[0].most[1]) && run.loads[0].most[2] == 3);
    assert_true(run.loads[0].dead[1] == 1 && run.loads[0].dead[2] == 0);
    run_record_free(&run);
}

static void settings_plan_samples_and_an_environment_of_either_form_are_read(void **state) {
    (void)state;
    run_folder_write("metrics.jsonl", "");
    run_folder_write("config.toml",
                     "[train]\nseq = 256\nname = \"a\"\n[data]\ntrain = [\"x\", \"y\"]\nok = true\nf = 0.5\n");
    run_folder_write("plan.json",
                     "{\"prediction\":{\"devices\":2,\"step_parts\":{\"gemm\":0.5,\"launch gaps\":0.25}}}");
    run_folder_write("environment.json", "{\"host\":\"h\"}");
    run_folder_write("samples.jsonl", "{\"step\":7,\"prompt\":\"a\",\"text\":\"b\"}\n{\"step\":8}\n");
    RunRecord run = read_run();
    assert_string_equal(run_setting(&run, "train.seq"), "256");
    assert_string_equal(run_setting(&run, "data.train"), "x, y");
    assert_string_equal(run_setting(&run, "data.ok"), "true");
    assert_string_equal(run_setting(&run, "data.f"), "0.5");
    assert_true(run_plan_number(&run, "devices") == 2 && run_plan_part(&run, STEP_LAUNCH) == 0.25);
    assert_int_equal(json_array_size(run.environment), 1);
    assert_int_equal(run.sample_count, 1);
    assert_true(run.samples[0].step == 7);
    assert_string_equal(run.samples[0].text, "b");
    run_record_free(&run);
    run_folder_write("environment.json", "[{\"host\":\"h\"},{\"host\":\"i\"}]");
    run = read_run();
    assert_int_equal(json_array_size(run.environment), 2);
    run_record_free(&run);
}

static void what_is_no_run_is_refused_by_name(void **state) {
    (void)state;
    RunRecord run;
    assert_error(run_read(&run, "/nowhere/at/all"), "there is no run directory /nowhere/at/all");
    run_record_free(&run);
    assert_error(run_read(&run, run_folder), "has no metrics.jsonl");
    run_record_free(&run);
}

static void a_run_has_the_name_of_its_directory(void **state) {
    (void)state;
    run_folder_write("metrics.jsonl", "");
    char *slash = text_format("%s/.//", run_folder);
    RunRecord run;
    assert_ok(run_read(&run, slash));
    assert_string_equal(run.name, path_name(run_folder));
    run_record_free(&run);
    free(slash);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, run_folder_make, run_folder_remove)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(steps_and_validations_are_read_with_what_is_missing_as_nan),
        TEST(the_clock_goes_on_over_a_resume),
        TEST(a_line_that_is_still_being_written_is_left_out),
        TEST(lines_that_make_no_sense_are_passed_over_and_counted),
        TEST(expert_load_is_read_by_layer),
        TEST(settings_plan_samples_and_an_environment_of_either_form_are_read),
        TEST(what_is_no_run_is_refused_by_name),
        TEST(a_run_has_the_name_of_its_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
