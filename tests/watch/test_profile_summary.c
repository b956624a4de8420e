// What a profile comes to: every moment in one part, the sentence that its biggest loss deserves, and a timeline that
// is sorted and nested.
#include "testing.h"

#include "watch/profile_summary.h"
#include "watch/trace_json.h"

enum { GEMM = CATEGORY_GEMM, ATTENTION = CATEGORY_ATTENTION, COPY = CATEGORY_COPY };

static double sum_of(const double part[PROFILE_PART_COUNT]) {
    double sum = 0;
    for (int i = 0; i < PROFILE_PART_COUNT; i++)
        sum += part[i];
    return sum;
}

// Times are whole numbers and small: sums of them are exact.
static void every_moment_is_in_one_part(void **state) {
    (void)state;
    ProfileSpan spans[] = {
        {(ProfilePart)GEMM, 9, 14},      // from before the step
        {(ProfilePart)COPY, 12, 16},     // behind the product, then beside an exchange
        {PROFILE_COMMUNICATION, 13, 17}, // hidden, then not
        {PROFILE_DATA, 17, 19},          {(ProfilePart)ATTENTION, 20, 22}, {(ProfilePart)GEMM, 21, 24},
        {PROFILE_DATA, 23, 25},          {(ProfilePart)COPY, 28, 40}, // beyond the end
        {(ProfilePart)GEMM, 50, 60},                                  // of another step
    };
    double part[PROFILE_PART_COUNT] = {0};
    profile_take_parts(spans, sizeof spans / sizeof *spans, 10, 30, part);
    assert_true(part[GEMM] == 4 + 3);
    assert_true(part[ATTENTION] == 1);
    assert_true(part[PROFILE_COMMUNICATION] == 3);
    assert_true(part[PROFILE_DATA] == 2 + 1);
    assert_true(part[COPY] == 2);
    assert_true(part[PROFILE_GAPS] == 1 + 3);
    assert_true(sum_of(part) == 20);
    profile_take_parts(spans, 0, 0, 5, part);
    assert_true(part[PROFILE_GAPS] == 4 + 5);
}

// A step of 100 ms: products and attention at their floor, but for the part that the caller makes larger.
static ProfileSummary made_up(int part, double seconds) {
    ProfileSummary s = {.step_seconds = 0.1, .steps = 1, .ranks = 1};
    s.part[GEMM] = s.floor[GEMM] = 0.03;
    s.part[ATTENTION] = s.floor[ATTENTION] = 0.01;
    s.part[CATEGORY_ELEMENTWISE] = 0.01;
    s.part[CATEGORY_OPTIMIZER] = 0.005;
    if (part >= 0) s.part[part] = seconds;
    return s;
}

static void expect_sentence(const ProfileSummary *summary, const char *name, const char *advice) {
    LossTable table = profile_losses(summary);
    char *sentence = loss_sentence(&table, &(LossFacts){0});
    if (!strstr(sentence, name) || !strstr(sentence, advice))
        fail_msg("expected \"%s\" and \"%s\" in: %s", name, advice, sentence);
    free(sentence);
}

static void the_sentence_names_the_biggest_loss(void **state) {
    (void)state;
    static const struct {
        int part;
        const char *name, *advice;
    } losses[] = {
        {PROFILE_DATA, "waiting for data: 30 % of a step (30 of 100 ms)", "data.prefetch"},
        {PROFILE_COMMUNICATION, "waiting for other ranks: 30 %", "train.batch_tokens"},
        {PROFILE_GAPS, "gaps between operations: 30 %", "train.micro_batch"},
        {CATEGORY_ELEMENTWISE, "norms, rotary, SwiGLU, loss: 30 %", ""},
        {CATEGORY_ROUTING, "routing of experts: 30 %", "train.micro_batch"},
        {CATEGORY_COPY, "copies: 30 %", "train.micro_batch"},
        {CATEGORY_OPTIMIZER, "optimizer: 30 %", "train.batch_tokens"},
        {GEMM, "products and attention below the rates of this device: 27 %", "hearth bench"}, // 57 ms, floor 30
    };
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        ProfileSummary s = made_up(losses[i].part, losses[i].part == GEMM ? 0.057 : 0.03);
        expect_sentence(&s, losses[i].name, losses[i].advice);
    }
    ProfileSummary s = made_up(-1, 0);
    s.recompute = 0.02;
    expect_sentence(&s, "recomputation in the backward pass: 20 %", "recompute.mode");
    s = made_up(GEMM, 0.9); // whose floor nobody knows is no loss
    s.floor[GEMM] = 0;
    expect_sentence(&s, "norms, rotary", "");
    s = (ProfileSummary){0};
    expect_sentence(&s, "Nothing was lost", "");
}

static void the_sentence_says_where_and_why(void **state) {
    (void)state;
    ProfileSummary s = made_up(PROFILE_GAPS, 0.03);
    expect_sentence(&s, "replayed from a graph already", "larger train.micro_batch");
    snprintf(s.no_graph, sizeof s.no_graph, "train.graph = false");
    expect_sentence(&s, "no recorded graph (train.graph = false)", "train.micro_batch");
    s = made_up(PROFILE_COMMUNICATION, 0.03);
    snprintf(s.waited_for, sizeof s.waited_for, "all_reduce of dp");
    expect_sentence(&s, "most of all in all_reduce of dp", "");
    s = made_up(GEMM, 0.08);
    s.ops[0] = (ProfileOp){"down", GEMM, STEP_FORWARD, 1, 0.04, 0.04}; // takes more, loses nothing
    s.ops[1] = (ProfileOp){"gate_up", GEMM, STEP_FORWARD, 1, 0.03, 0.01};
    s.op_count = 2;
    expect_sentence(&s, "\"gate_up\" at 3 times its floor", "");
}

static void the_ten_most_expensive_ops_are_kept(void **state) {
    (void)state;
    ProfileOp ops[14];
    ProfileSummary s = {.step_seconds = 1};
    for (int i = 0; i < 14; i++) {
        ops[i] = (ProfileOp){"", i % 2 ? GEMM : ATTENTION, i == 13 ? STEP_RECOMPUTE : STEP_FORWARD,
                             1,  (i * 5 % 14) + 1,         0.5};
        snprintf(ops[i].name, sizeof ops[i].name, "op %d", i);
    }
    profile_take_ops(&s, ops, 14);
    assert_int_equal(s.op_count, PROFILE_OPS_SHOWN);
    for (int i = 0; i < s.op_count; i++)
        assert_true(s.ops[i].seconds == 14 - i);
    assert_true(s.floor[GEMM] == 3.5 && s.floor[ATTENTION] == 3.5); // of all, not of those shown
    assert_true(s.recompute == 13 * 5 % 14 + 1);
}

static void the_summary_comes_back_from_its_file(void **state) {
    (void)state;
    ProfileSummary s = made_up(PROFILE_DATA, 0.02), back;
    s.first_step = 8;
    s.recompute = 0.001;
    s.hidden = 0.002;
    snprintf(s.no_graph, sizeof s.no_graph, "because");
    snprintf(s.trace, sizeof s.trace, "step-8.json");
    s.ops[s.op_count++] = (ProfileOp){"gate_up, input gradient", GEMM, STEP_BACKWARD, 6, 0.03, 0.02};
    s.ops[s.op_count++] = (ProfileOp){"attention", ATTENTION, STEP_RECOMPUTE, 6, 0.02, 0};
    json_t *root = profile_json(&s, &(LossFacts){0});
    assert_non_null(root);
    assert_false(json_is_true(json_object_get(root, "graph_recorded")));
    assert_true(profile_read(&back, root));
    json_t *again = profile_json(&back, &(LossFacts){0});
    assert_true(json_equal(root, again));
    json_decref(again);
    json_decref(root);
}

static void a_summary_that_makes_no_sense_does_no_harm(void **state) {
    (void)state;
    static const char *const texts[] = {
        "[]",
        "{}",
        "3",
        "{\"step_seconds\":-1}",
        "{\"step_seconds\":\"x\"}",
        ("{\"step_seconds\":1,\"steps\":1e99,\"parts\":3,\"floors\":[],\"ops\":[3,{},{\"name\":\"x\"},{\"name\":\"\","
         "\"category\":\"gemm\"},{\"name\":\"y\",\"category\":\"gemm\",\"seconds\":-4,\"pass\":7}]}"),
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        json_t *root = json_loads(texts[i], JSON_DECODE_ANY, NULL);
        ProfileSummary s;
        assert_non_null(root);
        bool read = profile_read(&s, root);
        assert_true(read == (i == 5));
        if (read) assert_true(s.op_count == 1 && s.ops[0].seconds == 0 && s.part[GEMM] == 0);
        json_decref(root);
    }
}

static void the_rows_add_up_and_those_inside_to_the_one_above(void **state) {
    (void)state;
    ProfileSummary s = {.step_seconds = 1};
    ProfileRow rows[PROFILE_ROWS];
    for (int i = 0; i < PROFILE_PART_COUNT; i++)
        s.part[i] = i + 1;
    int count = profile_rows(&s, rows);
    double outer = 0, inner = 0, memory = 0;
    for (int i = 0; i < count; i++) {
        *(rows[i].inside ? &inner : &outer) += rows[i].seconds;
        if (strcmp(rows[i].name, "memory-bound") == 0) memory = rows[i].seconds;
    }
    assert_true(outer == sum_of(s.part));
    assert_true(inner == s.part[CATEGORY_GROUPED] + memory && memory > 0);
}

// ---- the timeline ---------------------------------------------------------------------------------------------------

static json_t *joined(const char *const *lines, int count) {
    TextBuffer out = {0};
    json_error_t error;
    trace_join(lines, count, &out);
    json_t *root = json_loads(out.data, JSON_REJECT_DUPLICATES, &error);
    if (!root) fail_msg("%s in:\n%s", error.text, out.data);
    text_buffer_free(&out);
    json_t *events = json_incref(json_object_get(root, "traceEvents"));
    json_decref(root);
    assert_true(json_is_array(events));
    return events;
}

static double number(const json_t *event, const char *key) {
    return json_number_value(json_object_get(event, key));
}

static const char *text(const json_t *event, const char *key) {
    return json_string_value(json_object_get(event, key));
}

static void the_timeline_is_sorted_nested_and_in_microseconds(void **state) {
    (void)state;
    TraceTrack tracks[] = {{"steps", false}, {"stream", true}};
    TraceEvent events[] = {
        {0, "inner", "work", NULL, 1.0000004, 1.0000008, 0, 0},
        {0, "outer", "work", NULL, 1.0000004, 1.000003, 0, 8},
        {1, "second", "k", text_copy("\"layer\":3"), 1.000002, 1.000005, 0, 0},
        {1, "first", "k", NULL, 1.000001, 1.000003, 0, 0},
        {1, "third \"\\\n\x01", "k", NULL, 1.000003, 1.000004, 0, 0},
        {-1, "memory", NULL, NULL, 1.000002, 1.000002, 7, 0},
        {0, "before", "work", NULL, 0.5, 0.6, 0, 0}, // of a clock that goes wrong
    };
    TextBuffer lines = {0}, other = {0};
    trace_lines(events, 7, tracks, 2, 0, "rank 0", 1, &lines);
    TraceEvent far = {0, "far", "work", NULL, 11.0000015, 11.000002, 0, 0};
    trace_lines(&far, 1, tracks, 1, 1, "rank 1", 11, &other); // its clock is ten seconds ahead
    json_t *all = joined((const char *const[]){lines.data, other.data}, 2);
    double last = -1, outer_end = 0, lane_of_first = 0;
    int ranges = 0, far_at = -1, names = 0;
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *event = json_array_get(all, i);
        names += *text(event, "ph") == 'M';
        if (*text(event, "ph") == 'M') continue;
        assert_true(number(event, "ts") >= last && number(event, "ts") >= 0);
        last = number(event, "ts");
        if (*text(event, "ph") == 'C') {
            assert_true(number(json_object_get(event, "args"), "value") == 7);
            continue;
        }
        assert_true(number(event, "dur") >= 0);
        ranges++;
        const char *name = text(event, "name");
        if (strcmp(name, "outer 7") == 0) outer_end = last + number(event, "dur");
        if (strcmp(name, "inner") == 0) assert_true(outer_end > 0 && last + number(event, "dur") <= outer_end);
        if (strcmp(name, "first") == 0) lane_of_first = number(event, "tid");
        if (strcmp(name, "second") == 0) {
            assert_true(number(event, "tid") == lane_of_first + 1); // beside it
            assert_true(fabs(last - 2) < 1e-9 && fabs(number(event, "dur") - 3) < 1e-9);
            assert_true(number(json_object_get(event, "args"), "layer") == 3);
        }
        if (strcmp(name, "third \"\\??") == 0) assert_true(number(event, "tid") == lane_of_first); // free again
        if (strcmp(name, "far") == 0) {
            far_at = (int)i;
            assert_true(number(event, "pid") == 1 && fabs(last - 1.5) < 1e-9);
        }
    }
    assert_int_equal(ranges, 7);
    assert_int_equal(names, 2 + 3 + 1); // processes, tracks and the second lane, the other's track
    assert_true(far_at > 0);
    json_decref(all);
    for (int i = 0; i < 7; i++)
        free(events[i].args);
    text_buffer_free(&lines);
    text_buffer_free(&other);
    all = joined(NULL, 0);
    assert_int_equal(json_array_size(all), 0);
    json_decref(all);
}

// 0.5 of 10 microseconds are the drain of the kernel before; 3 of 10 ran beside it.
static void a_kernel_that_begins_while_another_ends_stays_in_its_lane(void **state) {
    (void)state;
    TraceTrack track = {"stream", true};
    TraceEvent events[] = {{0, "first", "k", NULL, 1, 1.00001, 0, 0},
                           {0, "second", "k", NULL, 1.0000095, 1.0000195, 0, 0},
                           {0, "third", "k", NULL, 1.0000165, 1.0000265, 0, 0}};
    TextBuffer lines = {0};
    trace_lines(events, 3, &track, 1, 0, "rank 0", 1, &lines);
    json_t *all = joined((const char *const[]){lines.data}, 1);
    size_t count = json_array_size(all);
    const json_t *first = json_array_get(all, count - 3), *second = json_array_get(all, count - 2);
    const json_t *third = json_array_get(all, count - 1);
    assert_true(number(second, "tid") == number(first, "tid") && number(third, "tid") == number(first, "tid") + 1);
    assert_true(fabs(number(second, "ts") - 10) < 1e-9 && fabs(number(second, "dur") - 9.5) < 1e-9);
    assert_true(fabs(number(third, "ts") - 16.5) < 1e-9);
    json_decref(all);
    text_buffer_free(&lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_moment_is_in_one_part),
        cmocka_unit_test(the_sentence_names_the_biggest_loss),
        cmocka_unit_test(the_sentence_says_where_and_why),
        cmocka_unit_test(the_ten_most_expensive_ops_are_kept),
        cmocka_unit_test(the_summary_comes_back_from_its_file),
        cmocka_unit_test(a_summary_that_makes_no_sense_does_no_harm),
        cmocka_unit_test(the_rows_add_up_and_those_inside_to_the_one_above),
        cmocka_unit_test(the_timeline_is_sorted_nested_and_in_microseconds),
        cmocka_unit_test(a_kernel_that_begins_while_another_ends_stays_in_its_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
