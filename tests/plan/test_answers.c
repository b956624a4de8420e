// Planning answers against the figures of the documents that they come from: the training-time calculator of "How to
// train your tiny MoE", a 1B Llama on H100s, SmolLM-360M on one A100, Qwen3-30B-A3B on 8 H200, and the workbook of
// Llama 3.1 405B. Where a document rounds, the tolerance is half a unit of its last digit.
#include "catalogue.h"
#include "plan/checkpointing.h"
#include "plan/cost.h"
#include "plan/data_budget.h"
#include "plan/numbers.h"
#include "plan/search.h"
#include "plan/throughput.h"

#include <math.h>
#include <string.h>

static Hardware hardware;
static PlanNumbersReport numbers;
static PlanReport report;
static PlanNodes nodes;

static int set_up(void **state) {
    (void)state;
    catalogue_load(&hardware);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    hardware_free(&hardware);
    return 0;
}

static void plan_of(const char *gpu, int gpus, PlanNumbers asked) {
    PlanMachine machine = catalogue_machine(gpu, "hearth", gpus);
    if (asked.precision == PRECISION_FP32) asked.precision = PRECISION_BF16; // 0: not given
    assert_ok(plan_numbers(&numbers, &hardware, &machine, &asked));
}

// ---- time from bare numbers -----------------------------------------------------------------------------------------

static void bare_numbers_give_the_calculators_hours_days_and_months(void **state) {
    static const struct {
        const char *gpu;
        int gpus;
        PlanNumbers asked;
        double hours, hours_half, days, days_half, months; // 0: not printed
    } cases[] = {
        {"rtx-pro-6000-maxq", 4, {.parameters = 8e9, .tokens = 160e9, .mfu = 0.35}, 3472, 0.5, 144.7, 0.05, 4.82},
        {"rtx-pro-6000-maxq", 4, {.parameters = 1e9, .tokens = 20e9, .mfu = 0.35}, 54.2, 0.05, 2.26, 0.005, 0},
        {"rtx-pro-6000-maxq", 4, {.parameters = 5e8, .tokens = 10e9, .mfu = 0.35}, 13.56, 0.005, 0, 0, 0},
        // The calculator's H100 has 1000 TFLOP/s.
        {"h100-sxm", 8, {.parameters = 8e9, .tokens = 160e9, .mfu = 0.55, .peak = 1e15}, 484.8, 0.05, 20.2, 0.005, 0},
        {"h100-sxm", 1, {.parameters = 1e9, .tokens = 20e9, .mfu = 0.15, .peak = 1e15}, 222.2, 0.05, 0, 0, 0},
        {"h100-sxm", 1, {.parameters = 1e9, .tokens = 20e9, .mfu = 0.55, .peak = 1e15}, 60.6, 0.05, 0, 0, 0},
        {"h100-sxm", 1, {.parameters = 1e9, .tokens = 20e9, .mfu = 0.85, .peak = 1e15}, 39.2, 0.05, 0, 0, 0},
        // The workbook: "~68 days" at 40 % of 989 TFLOP/s.
        {"h100-sxm", 16384, {.parameters = 405e9, .tokens = 15.6e12, .mfu = 0.40, .peak = 989e12}, 0, 0, 68, 0.5, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        plan_of(cases[i].gpu, cases[i].gpus, cases[i].asked);
        PlanSpan span = plan_span(numbers.budget.seconds);
        if (cases[i].hours > 0) assert_near(span.hours, cases[i].hours, cases[i].hours_half);
        if (cases[i].days > 0) assert_near(span.days, cases[i].days, cases[i].days_half);
        if (cases[i].months > 0) assert_near(span.months, cases[i].months, 0.005);
        assert_near(numbers.mfu, cases[i].asked.mfu, 1e-12);
    }
}

static void the_8b_on_eight_h100_costs_what_the_document_says(void **state) {
    (void)state;
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 8);
    machine.gpu.usd_per_hour = 3; // a node at 24 dollars
    PlanNumbers asked = {.parameters = 8e9, .mfu = 0.5, .peak = 1e15, .precision = PRECISION_BF16};
    assert_ok(plan_numbers(&numbers, &hardware, &machine, &asked));
    assert_near(numbers.budget.tokens, 160e9, 1); // 20 per parameter, when none are given
    assert_near(plan_span(numbers.budget.seconds).days, 22, 0.5);
    // 12,672 is 22 days x 24 h x 24 dollars, with 22.22 days rounded first: 1 % low.
    assert_near(numbers.budget.cost / 12672, 1, 0.0102);
}

static void thirty_hours_of_an_a100_are_six_billion_tokens(void **state) {
    (void)state;
    plan_of("a100-sxm", 1, (PlanNumbers){.parameters = 360e6, .tokens = 6e9, .mfu = 0.4, .hours = 30});
    assert_near(numbers.hours_tokens / 1e9, 6.24, 0.005); // 312 TFLOP/s x 0.4 x 30 h / (6 x 360M); "approximately 6B"
    assert_near(numbers.budget.tokens / numbers.budget.chinchilla_tokens, 0.83, 0.005); // "roughly 83 %"
}

static void active_parameters_set_the_time_and_all_of_them_the_memory(void **state) {
    (void)state;
    plan_of("h200-sxm", 8, (PlanNumbers){.parameters = 30.5e9, .active = 3.35e9, .tokens = 1e12, .mfu = 0.127});
    assert_near(numbers.rate / 8, 6260, 15); // run 7 of Qwen3-30B-A3B: 29.9 % with attention, 12.7 % of 6N
    assert_near(numbers.state_bytes, 16 * 30.5e9, 1);
    assert_string_equal(numbers.typical.name, "nvlink-moe");
}

static void states_are_those_of_the_workbook(void **state) {
    (void)state;
    plan_of("a100-sxm", 64, (PlanNumbers){.parameters = 7e9, .tokens = 1e9});
    assert_near(numbers.state_bytes / 1e9, 112, 1e-9);          // no ZeRO: more than an A100
    assert_near(numbers.state_bytes_sharded / 1e9, 1.75, 1e-9); // stage 3 on 64
    assert_true(numbers.fits);
    plan_of("a100-sxm", 1, (PlanNumbers){.parameters = 7e9, .tokens = 1e9});
    assert_false(numbers.fits);
}

// ---- typical MFU ----------------------------------------------------------------------------------------------------

static double mfu_6n(const char *preset, const char *gpu, double rate, int gpus) {
    PlanMachine machine = catalogue_machine(gpu, "hearth", gpus);
    PlanRun run = preset_run(preset, 1, 2048, 1);
    double active = (double)model_parameters(&run.layout.config).active;
    return plan_mfu_6n(active, rate, machine.gpu.peak[HARDWARE_BF16], gpus);
}

static void typical_mfu_is_what_its_sources_measured(void **state) {
    static const struct {
        const char *gpu;
        int gpus;
        bool moe;
        const char *name;
    } classes[] = {
        {"a100-sxm", 1, false, "one-dense"},
        {"rtx-4090", 1, true, "one-moe"},
        {"h100-sxm", 8, false, "nvlink-dense"},
        {"h100-sxm", 1023, false, "nvlink-dense"},
        {"h100-sxm", 1024, false, "nvlink-dense-large"},
        {"h200-sxm", 8, true, "nvlink-moe"},
        {"rtx-pro-6000-maxq", 4, false, "pcie-dense"},
        {"rtx-pro-6000-maxq", 4, true, "pcie-moe"},
        {"cpu", 2, false, "cpu"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        const HardwareGpu *gpu;
        assert_ok(hardware_find_gpu(&hardware, classes[i].gpu, &gpu));
        HardwareTypical typical = hardware_typical(&hardware, gpu, classes[i].gpus, classes[i].moe);
        assert_string_equal(typical.name, classes[i].name);
        assert_true(typical.source[0] && typical.low <= typical.high);
    }
    const HardwareGpu *home, *h100;
    assert_ok(hardware_find_gpu(&hardware, "rtx-pro-6000-maxq", &home));
    assert_ok(hardware_find_gpu(&hardware, "h100-sxm", &h100));
    HardwareTypical at_home = hardware_typical(&hardware, home, 4, false);
    HardwareTypical moe_at_home = hardware_typical(&hardware, home, 4, true);
    HardwareTypical llama = hardware_typical(&hardware, h100, 16384, false);
    HardwareTypical node = hardware_typical(&hardware, h100, 8, false);
    HardwareTypical moe = hardware_typical(&hardware, h100, 8, true);
    assert_near(at_home.low, 0.30, 1e-12); // "30 to 35 %"
    assert_near(at_home.high, 0.35, 1e-12);
    assert_near(llama.low, 0.38, 1e-12); // "38 to 43 %"
    assert_near(llama.high, 0.43, 1e-12);
    // Rates that were published, as 6N; the table has whole per cents.
    assert_near(moe_at_home.low, mfu_6n("qwen3-moe-500m", "rtx-pro-6000-maxq", 118168, 4), 0.005);
    assert_near(moe_at_home.high, mfu_6n("qwen3-moe-500m", "rtx-pro-6000-maxq", 210377, 4), 0.005);
    assert_near(moe.low, mfu_6n("qwen3-30b-a3b", "h200-sxm", 8 * 6260, 8), 0.005);
    assert_near(node.low, mfu_6n("llama-3-8b", "h100-sxm", 8 * 6514, 8), 0.005);
    assert_near(0.39, mfu_6n("smollm-360m", "a100-sxm", 56533, 1), 0.005); // named in the source of one-dense
}

static void without_an_mfu_the_middle_of_the_class_is_taken(void **state) {
    (void)state;
    plan_of("h100-sxm", 64, (PlanNumbers){.parameters = 8e9, .tokens = 15e12});
    assert_true(numbers.assumed);
    assert_near(numbers.mfu, (numbers.typical.low + numbers.typical.high) / 2, 1e-12);
    assert_near(numbers.seconds_low * numbers.typical.low, numbers.budget.seconds * numbers.mfu, 1);
    assert_near(numbers.seconds_high * numbers.typical.high, numbers.budget.seconds * numbers.mfu, 1);
    // 6 x 8e9 x 15e12 / (64 x 989.4e12 x 0.36): a year.
    assert_near(plan_span(numbers.budget.seconds).days, 365.6, 0.05);
}

// ---- crashes and storage --------------------------------------------------------------------------------------------

static void crashes_cost_what_the_workbook_says(void **state) {
    double mtbf = 24 * 3600, write = 98, recovery = 98;
    (void)state;
    double crashes = plan_expected_crashes(30 * 86400.0, mtbf);
    assert_near(crashes, 30, 1e-12);
    // "~30 crashes x $618 = ~$18,500": 618 does not follow from the document's inputs, 608 to 613 do.
    assert_near(crashes * plan_crash_cost(512, 2, plan_young_interval(mtbf, write), recovery) / 18500, 1, 0.0125);
    // Of each day 98 s of recovery, half an interval of 4115 s and the writes, which take as much: 4.87 %.
    double lost = (4115.27 + 98) / 86400;
    assert_near(plan_calendar_seconds(30 * 86400.0, mtbf, write, recovery), 30 * 86400 / (1 - lost), 5);
}

static void crashes_never_let_a_run_end_that_fails_faster_than_it_recovers(void **state) {
    (void)state;
    plan_of("h100-sxm", 64, (PlanNumbers){.parameters = 8e9, .tokens = 1e12, .mtbf_hours = 0.15}); // recovery 600 s
    assert_true(isinf(numbers.budget.calendar_seconds) && isinf(numbers.budget.crashes));
    plan_of("h100-sxm", 64, (PlanNumbers){.parameters = 8e9, .tokens = 1e12, .mtbf_hours = 0.25});
    assert_true(isfinite(numbers.budget.calendar_seconds));
    assert_true(numbers.budget.calendar_seconds > 2 * numbers.budget.seconds);
}

static void the_405b_takes_its_77_days_with_crashes(void **state) {
    (void)state;
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 16384);
    machine.gpu.usd_per_hour = 2;
    PlanNumbers asked = {.parameters = 405e9, .tokens = 15.6e12, .mfu = 0.4, .precision = PRECISION_BF16};
    assert_ok(plan_numbers(&numbers, &hardware, &machine, &asked));
    // "The actual wall-clock time was ~77 days", ~60 million dollars. The document has no recovery time or storage;
    // with the catalogue's it is 79.6 days, and 75.4 if writes cost nothing: 4 %.
    assert_near(plan_span(numbers.budget.calendar_seconds).days / 77, 1, 0.04);
    assert_near(numbers.budget.calendar_cost / 60.5e6, 1, 0.04);
    // One failure in 50,000 GPU-hours; Llama 3 saw 419 in 54 days on so many GPUs, which are 50,700.
    double in_54_days = plan_expected_crashes(54 * 86400.0, numbers.budget.mtbf);
    assert_near(in_54_days / 419, 1, 0.015);
    assert_near(numbers.budget.crashes, numbers.budget.calendar_seconds / numbers.budget.mtbf, 1e-6);
    assert_near(numbers.budget.crashes_cost, numbers.budget.crashes * numbers.budget.crash_cost, 1);
}

static void storage_is_the_dataset_and_the_checkpoints_that_are_kept(void **state) {
    (void)state;
    plan_of("h100-sxm", 8, (PlanNumbers){.parameters = 8e9, .mfu = 0.5, .checkpoints = 2});
    // 160B tokens of 4 bytes and 2 x 8e9 x 12 bytes: 640 + 192 GB, at 0.023 dollars.
    assert_near(numbers.budget.stored_bytes / 1e9, 832, 1e-6);
    assert_near(numbers.budget.storage_month_cost, 19.136, 1e-9);
    double months = plan_span(numbers.budget.calendar_seconds).months;
    assert_near(numbers.budget.storage_cost, 19.136 * months, 1e-9);
    assert_near(plan_storage_cost(1e12, 2, 0.05), 100, 1e-9); // 1000 GB for two months
    assert_near(plan_token_bytes(65536), 2, 0);
    assert_near(plan_token_bytes(65537), 4, 0);
    assert_near(plan_token_bytes(0), 4, 0); // not known
    // A vocabulary of 49,152 fits in 16 bits, one of 128,256 does not.
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 1);
    PlanRun small = preset_run("smollm-360m", 1, 2048, 1), large = preset_run("llama-3.2-1b", 1, 2048, 1);
    assert_ok(plan_report(&report, "360M", &machine, &small, &(PlanQuestions){.tokens = 1e9}));
    assert_near(report.budget.dataset_bytes, 2e9, 1);
    assert_ok(plan_report(&report, "1B", &machine, &large, &(PlanQuestions){.tokens = 1e9}));
    assert_near(report.budget.dataset_bytes, 4e9, 1);
}

// ---- words ----------------------------------------------------------------------------------------------------------

static void overtraining_is_said_in_words(void **state) {
    static const struct {
        double tokens, parameters;
        const char *start;
    } cases[] = {
        {15e12, 8e9, "94 x Chinchilla: far overtrained"}, // Llama 3 8B
        {6e9, 360e6, "0.83 x Chinchilla: about compute-optimal"},
        {160e9, 8e9, "1.00 x Chinchilla: about compute-optimal"},
        {15.6e12, 405e9, "1.93 x Chinchilla: overtrained"},
        {1e9, 1e9, "0.05 x Chinchilla: undertrained"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char words[256];
        plan_chinchilla_words(cases[i].tokens, cases[i].parameters, words, sizeof words);
        if (strncmp(words, cases[i].start, strlen(cases[i].start)) != 0)
            fail_msg("\"%s\" does not begin with \"%s\"", words, cases[i].start);
    }
}

// ---- nodes ----------------------------------------------------------------------------------------------------------

static void check_nodes(const PlanNodes *n, double seconds, double cost) {
    bool here = false;
    assert_true(n->cheapest == 0 && n->fastest >= 0);
    for (int i = 0; i < n->count; i++) {
        const PlanNode *row = &n->rows[i];
        if (!row->fits) continue;
        assert_true(i == 0 || n->rows[i - 1].fits); // those that do not fit come last
        assert_true(row->cost >= n->rows[n->cheapest].cost && row->seconds >= n->rows[n->fastest].seconds);
        if (!row->here) continue;
        here = true;
        assert_near(row->seconds, seconds, 1e-6 * seconds);
        assert_near(row->cost, cost, 1e-6 * cost);
    }
    assert_true(here);
}

static void nodes_name_the_cheapest_and_the_fastest(void **state) {
    (void)state;
    plan_of("rtx-pro-6000-maxq", 4, (PlanNumbers){.parameters = 5e8, .tokens = 10e9, .mfu = 0.35});
    check_nodes(&numbers.nodes, numbers.budget.seconds, numbers.budget.cost);
    assert_string_equal(numbers.nodes.rows[numbers.nodes.fastest].name, "dgx-b200");
    for (int i = 0; i < numbers.nodes.count; i++) {
        const PlanNode *row = &numbers.nodes.rows[i];
        if (strcmp(row->name, "home-4x-pro-6000-maxq") == 0) assert_near(row->seconds / 3600, 13.56, 0.005);
        // As far above its class as 35 % is above the middle of 30 to 35 %: 36 % x 0.35 / 0.325.
        if (strcmp(row->name, "dgx-h100") == 0) assert_near(row->mfu, 0.36 * 0.35 / 0.325, 1e-9);
    }
    plan_of("h100-sxm", 8, (PlanNumbers){.parameters = 30e9, .tokens = 10e9}); // 60 GB a device
    bool small_refused = false;
    for (int i = 0; i < numbers.nodes.count; i++)
        small_refused |= !numbers.nodes.rows[i].fits && strcmp(numbers.nodes.rows[i].name, "rtx-4090-2") == 0;
    assert_true(small_refused);
}

static void nodes_keep_what_was_said_of_the_plans_own_device(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 8);
    PlanNumbers asked = {.parameters = 8e9, .mfu = 0.5, .peak = 500e12, .precision = PRECISION_BF16};
    (void)state;
    machine.gpu.usd_per_hour = 0.01;
    assert_ok(plan_numbers(&numbers, &hardware, &machine, &asked));
    check_nodes(&numbers.nodes, numbers.budget.seconds, numbers.budget.cost);
    assert_string_equal(numbers.nodes.rows[0].name, "dgx-h100");
}

static void nodes_of_a_model_are_planned_like_it(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 8);
    PlanRun run = preset_run("llama-3-8b", 1, 4096, 4);
    (void)state;
    run.layout.mesh.dp = 8;
    run.layout.mesh.zero = 3;
    assert_ok(plan_report(&report, "8B", &machine, &run, &(PlanQuestions){0}));
    plan_nodes_of_report(&nodes, &hardware, &report);
    check_nodes(&nodes, report.budget.seconds, report.budget.cost);
    const HardwareGpu *gpu;
    const HardwareNode *node;
    assert_ok(hardware_find_node(&hardware, "dgx-b200", &node));
    assert_ok(hardware_find_gpu(&hardware, node->gpu, &gpu));
    PlanMachine other = plan_machine(&hardware, gpu, node, &machine.software, 8, 8, 1);
    PlanPrediction prediction;
    assert_ok(plan_predict(&prediction, &other, &run));
    bool seen = false, changed = false;
    for (int i = 0; i < nodes.count; i++) {
        if (strcmp(nodes.rows[i].name, "dgx-b200") == 0) {
            seen = true;
            assert_near(nodes.rows[i].rate, prediction.step.tokens_per_second, 1e-6);
        }
        if (strcmp(nodes.rows[i].name, "rtx-4090-2") == 0) changed = nodes.rows[i].fits && nodes.rows[i].how[0];
    }
    assert_true(seen && changed); // 24 GB: it fits only another way, which is named
}

// ---- checklist and FP8 ----------------------------------------------------------------------------------------------

static void the_checklist_finds_the_documents_order_and_more_than_its_gain(void **state) {
    PlanMachine machine = catalogue_machine("h200-sxm", "torchtitan", 8);
    PlanRun run = preset_run("qwen3-30b-a3b", 2, 4096, 1); // run 1: nothing tuned
    (void)state;
    run.layout.mesh = (Mesh){.dp = 2, .tp = 4, .pp = 1, .ep = 2, .cp = 1, .etp = 4};
    run.layout.recompute = RECOMPUTE_FULL;
    run.eager = true;
    assert_ok(plan_report(&report, "run 1", &machine, &run, &(PlanQuestions){0}));
    assert_true(report.checklist_count >= 4);
    assert_string_equal(report.checklist[0].what, "compilation or recorded graphs switched on"); // "a quick win, first"
    double rate = report.prediction.step.tokens_per_second;
    int tensor = -1, batch = -1;
    for (int i = 0; i < report.checklist_count; i++) {
        const PlanChange *c = &report.checklist[i];
        assert_near(c->gain, c->tokens_per_second / rate - 1, 1e-9); // over the line before
        assert_true(c->gain > 0 && c->memory_fraction <= 0.85 + 1e-9);
        rate = c->tokens_per_second;
        if (strstr(c->what, "tp 1 with dp 8")) tensor = i;
        if (batch < 0 && strstr(c->what, "micro_batch")) batch = i;
    }
    assert_true(tensor > 0 && (batch < 0 || tensor < batch)); // "set TP = 1" before "adjust batch size"
    // The document went from 829 to 6,260 tokens/s: 7.55 x.
    assert_true(rate / report.prediction.step.tokens_per_second > 7.55);
}

static void the_checklist_of_a_plan_that_does_not_fit_begins_with_the_way_that_does(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 8);
    PlanRun run = preset_run("llama-3-8b", 4, 8192, 1);
    (void)state;
    run.layout.mesh.dp = 8;
    assert_ok(plan_report(&report, "8B", &machine, &run, &(PlanQuestions){0}));
    assert_false(report.fits);
    assert_true(report.checklist_count >= 1);
    assert_string_equal(report.checklist[0].what, report.fitting.change.what);
    PlanPrediction prediction; // the run that goes with it is the one that was named
    assert_ok(plan_predict(&prediction, &machine, &report.fitting.run));
    assert_near(prediction.step.tokens_per_second, report.fitting.change.tokens_per_second, 1e-6);
    assert_near(prediction.memory.fraction, report.fitting.change.memory_fraction, 1e-12);
}

static void advice_stops_at_the_critical_batch(void **state) {
    PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 1);
    PlanRun run = preset_run("smollm-360m", 2, 2048, 1);
    (void)state;
    for (int few = 0; few < 2; few++) { // few tokens: a high loss at the end, and a small critical batch
        assert_ok(plan_report(&report, "360M", &machine, &run, &(PlanQuestions){.tokens = few ? 4e5 : 7e9}));
        assert_true((2 * report.prediction.step.tokens > report.critical_batch) == few);
        bool larger = false;
        for (int i = 0; i < report.checklist_count; i++)
            larger |= strstr(report.checklist[i].what, "twice the batch") != NULL;
        assert_true(larger == !few);
    }
}

static void a_way_of_the_search_is_planned_as_it_was_found(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 8);
    PlanRun run = preset_run("llama-3.2-1b", 1, 2048, 8);
    SearchSpace space = {.seqs = {2048}, .seq_count = 1, .memory_limit = 0.85};
    SearchResult result;
    bool interleaved = false;
    (void)state;
    run.virtual_stages = 2;
    assert_ok(search_run(&result, &machine, &run, &space));
    for (int i = 0; i < result.found_count; i += 7) {
        const SearchCandidate *c = &result.found[i];
        PlanRun base = run, found;
        base.virtual_stages = 1; // the candidate says
        found = search_candidate_run(c, &base);
        PlanPrediction prediction;
        assert_ok(plan_predict(&prediction, &machine, &found));
        assert_near(prediction.step.tokens_per_second, c->tokens_per_second, 1e-6);
        assert_near(prediction.memory.total, c->memory, 0);
        interleaved |= c->mesh.pp > 1 && c->virtual_stages == 2;
    }
    assert_true(interleaved);
    search_free(&result);
}

static void fp8_is_offered_where_the_device_has_it(void **state) {
    PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 1), old = catalogue_machine("a100-sxm", "hearth", 1);
    PlanRun run = preset_run("llama-3.2-1b", 8, 4096, 4);
    PlanPrediction prediction;
    (void)state;
    assert_ok(plan_report(&report, "1B", &machine, &run, &(PlanQuestions){0}));
    run.layout.precision = PRECISION_FP8;
    assert_ok(plan_predict(&prediction, &machine, &run));
    assert_near(report.fp8.tokens_per_second, prediction.step.tokens_per_second, 1e-6);
    assert_true(report.fp8.gain > 0.1);
    assert_ok(plan_report(&report, "1B", &machine, &run, &(PlanQuestions){0}));
    assert_string_equal(report.fp8.what, ""); // it has it already
    run.layout.precision = PRECISION_BF16;
    assert_ok(plan_report(&report, "1B", &old, &run, &(PlanQuestions){0}));
    assert_string_equal(report.fp8.what, "");

    plan_of("h100-sxm", 8, (PlanNumbers){.parameters = 8e9});
    double bf16 = numbers.budget.seconds;
    assert_near(bf16 / numbers.fp8_seconds, 8532.0 / 6667, 0.005); // torchtitan's Llama-3.1-8B
    double promised = numbers.fp8_seconds;
    plan_of("h100-sxm", 8, (PlanNumbers){.parameters = 8e9, .precision = PRECISION_FP8});
    assert_near(numbers.budget.seconds, promised, 1e-3);
    assert_near(numbers.fp8_seconds, 0, 0);
    plan_of("a100-sxm", 8, (PlanNumbers){.parameters = 8e9});
    assert_near(numbers.fp8_seconds, 0, 0);
    PlanNumbers asked = {.parameters = 8e9, .precision = PRECISION_FP8};
    assert_error(plan_numbers(&numbers, &hardware, &old, &asked), "no FP8 units");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bare_numbers_give_the_calculators_hours_days_and_months),
        cmocka_unit_test(the_8b_on_eight_h100_costs_what_the_document_says),
        cmocka_unit_test(thirty_hours_of_an_a100_are_six_billion_tokens),
        cmocka_unit_test(active_parameters_set_the_time_and_all_of_them_the_memory),
        cmocka_unit_test(states_are_those_of_the_workbook),
        cmocka_unit_test(typical_mfu_is_what_its_sources_measured),
        cmocka_unit_test(without_an_mfu_the_middle_of_the_class_is_taken),
        cmocka_unit_test(crashes_cost_what_the_workbook_says),
        cmocka_unit_test(crashes_never_let_a_run_end_that_fails_faster_than_it_recovers),
        cmocka_unit_test(the_405b_takes_its_77_days_with_crashes),
        cmocka_unit_test(storage_is_the_dataset_and_the_checkpoints_that_are_kept),
        cmocka_unit_test(overtraining_is_said_in_words),
        cmocka_unit_test(nodes_name_the_cheapest_and_the_fastest),
        cmocka_unit_test(nodes_keep_what_was_said_of_the_plans_own_device),
        cmocka_unit_test(nodes_of_a_model_are_planned_like_it),
        cmocka_unit_test(the_checklist_finds_the_documents_order_and_more_than_its_gain),
        cmocka_unit_test(the_checklist_of_a_plan_that_does_not_fit_begins_with_the_way_that_does),
        cmocka_unit_test(advice_stops_at_the_critical_batch),
        cmocka_unit_test(a_way_of_the_search_is_planned_as_it_was_found),
        cmocka_unit_test(fp8_is_offered_where_the_device_has_it),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
