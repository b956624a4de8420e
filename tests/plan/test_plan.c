// The plan: exact memory, a step whose parts add up, and the worked examples of docs/planning.md.
#include "catalogue.h"
#include "plan/calibration.h"

static PlanReport report; // large

static void predicted_memory_is_the_layouts_total(void **state) {
    (void)state;
    for (int i = 0; i < model_preset_count(); i++)
        for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++)
            for (int precision = 0; precision < PRECISION_COUNT; precision++)
                for (int device = DEVICE_CPU; device <= DEVICE_CUDA; device++) {
                    PlanMachine machine = catalogue_machine(device == DEVICE_CPU ? "cpu" : "h100-sxm", "hearth", 1);
                    PlanRun run = preset_run(model_preset_name(i), 2, 512, 1);
                    PlanPrediction prediction;
                    Layout layout;
                    run.layout.recompute = (Recompute)recompute;
                    run.layout.precision = (Precision)precision;
                    run.layout.device = (DeviceKind)device;
                    assert_ok(plan_predict(&prediction, &machine, &run));
                    assert_ok(layout_build(&layout, &run.layout));
                    assert_true(prediction.memory.exact);
                    assert_true(prediction.memory.total == (double)layout.total_bytes);
                    layout_free(&layout);
                }
}

static double gemm_seconds(const PlanMachine *machine, const PlanRun *run) {
    PlanPrediction prediction;
    assert_ok(plan_predict(&prediction, machine, run));
    return prediction.step.part[CATEGORY_GEMM];
}

// bf16's rates, which are measured; without any of these the GPU's own for fp16. SwiGLU and the rotary are fused in
// bf16 alone, so products take a little longer, never less.
static void fp16_has_the_rates_of_bf16(void **state) {
    (void)state;
    PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 1);
    PlanRun bf16 = preset_run("llama-3.2-1b", 4, 2048, 1), fp16 = bf16;
    fp16.layout.precision = PRECISION_FP16;
    assert_int_equal(step_dtype(&machine, &fp16.layout), HARDWARE_BF16);
    double share = gemm_seconds(&machine, &fp16) / gemm_seconds(&machine, &bf16);
    assert_true(share >= 1 && share < 1.15);
    machine.gpu.peak[HARDWARE_BF16] = 0;
    assert_int_equal(step_dtype(&machine, &fp16.layout), HARDWARE_FP16);
    assert_int_equal(step_dtype(&machine, &bf16.layout), HARDWARE_FP32);
}

static void tf32_speeds_up_linear_layers_alone(void **state) {
    (void)state;
    PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 1);
    PlanRun run = preset_run("qwen3-moe-500m", 4, 2048, 1);
    PlanPrediction plain, tf32;
    run.layout.precision = PRECISION_FP32;
    assert_ok(plan_predict(&plain, &machine, &run));
    run.layout.tf32 = true;
    assert_ok(plan_predict(&tf32, &machine, &run));
    assert_near(tf32.step.peak, machine.gpu.peak[HARDWARE_TF32], 0);
    assert_true(tf32.step.part[CATEGORY_GEMM] < 0.5 * plain.step.part[CATEGORY_GEMM]);
    assert_near(tf32.step.part[CATEGORY_ATTENTION], plain.step.part[CATEGORY_ATTENTION], 0);
    assert_near(tf32.step.part[CATEGORY_GROUPED], plain.step.part[CATEGORY_GROUPED], 0);
    assert_true(tf32.memory.total == plain.memory.total);
    machine.gpu.peak[HARDWARE_TF32] = 0; // nobody knows: fp32's
    assert_int_equal(step_dtype(&machine, &run.layout), HARDWARE_FP32);
}

static void the_parts_of_a_step_add_up(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 64);
    PlanRun run = preset_run("qwen3-30b-a3b", 1, 8192, 8);
    PlanPrediction prediction;
    (void)state;
    run.layout.mesh = (Mesh){.dp = 4, .tp = 2, .pp = 4, .ep = 4, .cp = 2, .etp = 1, .zero = 1};
    run.calibration = 1.25;
    assert_ok(plan_predict(&prediction, &machine, &run));
    const StepModel *s = &prediction.step;
    double sum = 0;
    for (int i = 0; i < STEP_PART_COUNT; i++) {
        assert_true(s->part[i] >= 0);
        sum += s->part[i];
    }
    assert_near(sum / s->seconds, 1, 1e-12);
    assert_near(s->tokens, 1.0 * 8192 * 4 * 8, 0);
    assert_near(s->tokens_per_second, s->tokens / s->seconds, 1e-6);
    for (int axis = STEP_TENSOR; axis <= STEP_DATA_PARALLEL; axis++)
        assert_true(s->axis[axis].bytes > 0);
}

// Two all-reduces a layer in each direction; the forward pass that full recompute repeats needs one of them again.
static void full_recompute_repeats_one_of_four_all_reduces(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 2);
    double seconds[2];
    (void)state;
    for (int full = 0; full < 2; full++) {
        PlanRun run = preset_run("smollm-360m", 1, 512, 1);
        PlanPrediction prediction;
        run.layout.mesh = (Mesh){.dp = 1, .tp = 2, .pp = 1, .ep = 1, .cp = 1, .etp = 1};
        run.layout.config.heads = 16; // 15 of them do not divide by 2
        run.layout.config.kv_heads = 4;
        run.layout.recompute = full ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        assert_ok(plan_predict(&prediction, &machine, &run));
        seconds[full] = prediction.step.part[STEP_TENSOR];
    }
    assert_near(seconds[1] / seconds[0], 5.0 / 4, 1e-9);
}

// Keys and values go cp - 1 hops forward, backward, and where the forward pass runs again; their gradients, in float,
// cp hops.
static void context_parallel_traffic_is_that_of_the_ring(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 4);
    (void)state;
    for (int full = 0; full < 2; full++) {
        PlanRun run = preset_run("llama-3.2-1b", 1, 8192, 3);
        PlanPrediction prediction;
        run.layout.mesh.cp = 4;
        run.layout.recompute = full ? RECOMPUTE_FULL : RECOMPUTE_SELECTIVE;
        assert_ok(plan_predict(&prediction, &machine, &run));
        double keys = 8192 / 4 * 2 * 8 * 64, hop = keys * 2, sums = keys * 4; // 8 KV heads of 64, in 16 layers
        double micro_step = 16 * ((2 + full) * 3 * hop + 4 * sums);
        assert_near(prediction.step.axis[STEP_CONTEXT].bytes, 3 * micro_step, 0);
    }
}

// ZeRO 3 gathers the weights for the forward pass and for the backward pass of every micro-batch. Of blocks in FP8 a
// byte each travels, of the embedding (tied) and the norms bf16.
static void zero_3_gathers_blocks_in_fp8(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 4);
    (void)state;
    for (int fp8 = 0; fp8 < 2; fp8++) {
        PlanRun run = preset_run("llama-3.2-1b", 1, 8192, 3);
        PlanPrediction prediction;
        run.layout.mesh.dp = 4;
        run.layout.mesh.zero = 3;
        run.layout.precision = fp8 ? PRECISION_FP8 : PRECISION_BF16;
        assert_ok(plan_predict(&prediction, &machine, &run));
        double all = (double)model_parameters(&run.layout.config).total;
        double blocks = 16.0 * 2048 * (3072 + 2048 + 3 * 8192); // QKV, O, gate, up and down of 16 layers
        double gathered = 2 * all - (fp8 ? blocks : 0);
        assert_near(prediction.step.axis[STEP_DATA_PARALLEL].bytes, 3 * 3.0 / 4 * (4 * all + 2 * gathered), 0);
    }
}

static void ops_have_the_flops_of_the_formula(void **state) {
    PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 1);
    static const char *const presets[] = {"smollm-360m", "llama-3.2-1b", "llama-3-8b"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        PlanRun run = preset_run(presets[i], 1, 2048, 1);
        PlanPrediction prediction;
        assert_ok(plan_predict(&prediction, &machine, &run));
        double flops = 0;
        for (int k = 0; k < prediction.step.op_count; k++)
            flops += prediction.step.ops[k].flops;
        // Causal attention runs 7 products of the lower triangle where the formula counts 6; norms are no products.
        const ModelConfig *c = &run.layout.config;
        double attention =
            plan_attention_flops_per_token(c->layers, c->heads, c->head_dim, 2048, PLAN_ATTENTION_CAUSAL);
        double expected = (prediction.step.flops_per_token_causal + attention / 6) * 2048;
        assert_near(flops / expected, 1, 1e-3);
    }
}

// What hearth did on one H200 (docs/performance-log.md). The catalogue has rates of single ops of smollm-360m and
// qwen3-moe-500m; steps of models that it has no ops of, or old ones (FP8 without the head: SwiGLU was a pass of its
// own), are met as well.
static void predictions_for_an_h200_are_near_what_it_did(void **state) {
    static const struct {
        const char *preset;
        int layers; // 0: as the preset has
        int micro_batch, seq, accum;
        double tokens_per_second, tolerance;
        Precision precision;
        unsigned fp8_off;
    } cases[] = {{"smollm-360m", 0, 64, 512, 8, 234004, 0.05, PRECISION_BF16, 0},
                 {"smollm-360m", 0, 16, 2048, 8, 200980, 0.05, PRECISION_BF16, 0},
                 {"llama-3.2-1b", 0, 8, 4096, 4, 72963, 0.05, PRECISION_BF16, 0},
                 {"qwen3-moe-500m", 0, 8, 4096, 4, 293023, 0.06, PRECISION_BF16, 0},
                 {"qwen3-30b-a3b", 4, 4, 4096, 2, 136211, 0.06, PRECISION_BF16, 0},
                 {"smollm-360m", 0, 64, 512, 8, 294207, 0.04, PRECISION_FP8, FP8_HEAD | FP8_O_FORWARD},
                 {"smollm-360m", 0, 16, 2048, 8, 243471, 0.04, PRECISION_FP8, FP8_HEAD | FP8_QKV_FORWARD},
                 {"llama-3.2-1b", 0, 8, 4096, 4, 97168, 0.04, PRECISION_FP8, FP8_HEAD},
                 {"smollm-360m", 0, 64, 512, 8, 311755, 0.04, PRECISION_FP8, 0},
                 {"smollm-360m", 0, 16, 2048, 8, 256776, 0.04, PRECISION_FP8, 0},
                 {"llama-3.2-1b", 0, 8, 4096, 4, 107631, 0.04, PRECISION_FP8, 0},
                 {"qwen3-moe-500m", 0, 8, 4096, 4, 373471, 0.05, PRECISION_FP8, 0},
                 {"qwen3-30b-a3b", 4, 4, 4096, 2, 176012, 0.05, PRECISION_FP8, 0}};
    PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 1);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        PlanRun run = preset_run(cases[i].preset, cases[i].micro_batch, cases[i].seq, cases[i].accum);
        PlanPrediction prediction;
        if (cases[i].layers) run.layout.config.layers = cases[i].layers;
        run.layout.precision = cases[i].precision;
        run.layout.fp8_off = cases[i].fp8_off;
        assert_ok(plan_predict(&prediction, &machine, &run));
        assert_near(prediction.step.tokens_per_second / cases[i].tokens_per_second, 1, cases[i].tolerance);
    }
}

// A profile counts SwiGLU inside linear_swiglu_* as gemm and the rotary inside attention as attention: so does a plan.
static void passes_inside_an_op_count_where_the_op_does(void **state) {
    PlanMachine machine = catalogue_machine("h100-pcie", "hearth", 1);
    PlanRun run = preset_run("smollm-360m", 8, 512, 1);
    PlanPrediction prediction;
    (void)state;
    machine.gpu.efficiency.rope_hidden = 0; // so that there is something to count
    assert_ok(plan_predict(&prediction, &machine, &run));
    static const struct {
        const char *name;
        StepPart part;
    } lines[] = {
        {"SwiGLU", STEP_GEMM}, {"SwiGLU backward", STEP_GEMM}, {"RoPE", STEP_GEMM}, {"RoPE backward", STEP_ATTENTION}};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        bool found = false;
        for (int k = 0; k < prediction.step.op_count; k++) {
            const StepOp *op = &prediction.step.ops[k];
            if (strcmp(op->name, lines[i].name) != 0) continue;
            found = true;
            assert_int_equal(op->part, lines[i].part);
        }
        assert_true(found);
    }
}

static StepOp forward_line(const PlanMachine *machine, const PlanRun *run, const char *name) {
    PlanPrediction prediction;
    assert_ok(plan_predict(&prediction, machine, run));
    for (int i = 0; i < prediction.step.op_count; i++)
        if (prediction.step.ops[i].pass == STEP_FORWARD && strcmp(prediction.step.ops[i].name, name) == 0)
            return prediction.step.ops[i];
    fail_msg("no line is called %s", name);
    return (StepOp){0};
}

// Gate and up in bf16 in, their codes and hidden's out: 7 bytes of each number of hidden, of every token or expert row.
static void what_fp8_hides_of_swiglu_is_the_devices(void **state) {
    static const struct {
        const char *preset, *swiglu, *product;
        StepPart inside;
        int hidden, ffn, least_rows; // of a layer
    } cases[] = {{"smollm-360m", "SwiGLU", "gate_up, FP8", STEP_GEMM, 960, 2560, 8 * 512},
                 {"qwen3-moe-500m", "SwiGLU (experts)", "experts gate_up, FP8", STEP_GROUPED, 896, 512, 2 * 8 * 512}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 1);
        PlanRun run = preset_run(cases[i].preset, 8, 512, 1);
        run.layout.precision = PRECISION_FP8;
        machine.gpu.efficiency.swiglu_fp8_hidden = 0;
        StepOp apart = forward_line(&machine, &run, cases[i].swiglu);
        StepOp product = forward_line(&machine, &run, cases[i].product);
        double rows = product.flops / (2.0 * cases[i].hidden * 2 * cases[i].ffn),
               least = (double)cases[i].least_rows * run.layout.config.layers;
        assert_true(rows >= least && rows < (cases[i].inside == STEP_GEMM ? 1 + 1e-12 : 1.2) * least); // experts' pad
        assert_int_equal(apart.part, STEP_ELEMENTWISE);
        assert_near(apart.bytes, 7 * cases[i].ffn * rows, 1e-12);
        machine.gpu.efficiency.swiglu_fp8_hidden = 0.75;
        StepOp inside = forward_line(&machine, &run, cases[i].swiglu);
        assert_int_equal(inside.part, cases[i].inside);
        assert_near(inside.bytes, apart.bytes / 4, 0);
        assert_near(forward_line(&machine, &run, cases[i].product).seconds, product.seconds, 0);
    }
}

// ---- what a pipeline stage keeps -----------------------------------------------------------------------------------

// Activations of the layers of one micro-batch, and what is kept once however many are in flight.
static void kept_bytes(const Layout *layout, int64_t *layers, int64_t *once) {
    *layers = *once = 0;
    for (int i = 0; i < layout->activation_count; i++)
        if (layout->activations[i].kept)
            *(layout->activations[i].in_flight ? layers : once) += layout->activations[i].bytes;
}

static void a_stage_keeps_as_many_activations_as_its_schedule_has_in_flight(void **state) {
    static const char *const presets[] = {"smollm-360m", "qwen3-moe-500m"};
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int pp = 1; pp <= 4; pp *= 2) {
            PlanMachine machine = catalogue_machine("h100-sxm", "hearth", pp);
            PlanRun run = preset_run(presets[i], 2, 512, 2 * pp);
            run.layout.mesh.pp = pp;
            assert_ok(plan_report(&report, presets[i], &machine, &run, &(PlanQuestions){0}));
            assert_int_equal(report.stash_count, pp > 1 ? pp : 0);
            for (int stage = 0; stage < report.stash_count; stage++) {
                LayoutRequest request = run.layout;
                Layout layout;
                int64_t layers, once, in_flight = pp - stage; // 1F1B
                request.rank = stage * mesh_stage_ranks(&request.mesh);
                assert_ok(layout_build(&layout, &request));
                kept_bytes(&layout, &layers, &once);
                assert_true(layers > 0);
                assert_int_equal(plan_in_flight(&run, stage), in_flight);
                assert_near(report.in_flight[stage], (double)in_flight, 0);
                assert_near(report.stash[stage], (double)(in_flight * layers + once), 0);
                layout_free(&layout);
            }
        }
}

static void virtual_stages_raise_what_is_in_flight(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 4);
    PlanRun run = preset_run("smollm-360m", 1, 512, 8);
    (void)state;
    run.layout.mesh.pp = 4;
    LayoutRequest request = run.layout;
    Layout layout;
    assert_ok(layout_build(&layout, &request));
    int64_t layers, once, end = layout.tokens * request.config.hidden * 2; // the last layer's output, for the head
    kept_bytes(&layout, &layers, &once);
    layout_free(&layout);
    run.virtual_stages = 2;
    assert_ok(plan_report(&report, "interleaved", &machine, &run, &(PlanQuestions){0}));
    assert_near(report.stash[0], (double)(once + 11 * layers / 2), 0);
    assert_near(report.stash[3], (double)(once + 5 * (layers / 2 + end)), 0);
    assert_near(report.in_flight[0], (2 * 3 + 1 * 4 + 1) / 2.0, 0); // chunks of half a stage
    assert_near(report.in_flight[3], (2 * 0 + 1 * 4 + 1) / 2.0, 0);
    run.grad_accum = 4;
    assert_int_equal(plan_in_flight(&run, 0), 2 * 4); // never more than there are
}

static void virtual_stages_that_cannot_be_are_neither_planned_nor_advised(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 8);
    PlanRun run = preset_run("llama-3-8b", 1, 2048, 6);
    PlanPrediction prediction;
    (void)state;
    run.layout.mesh.pp = 4, run.layout.mesh.dp = 2;
    run.virtual_stages = 2;
    assert_error(plan_predict(&prediction, &machine, &run), "micro-batches (6) that divide by the stages (4)");
    plan_limit_virtual_stages(&run);
    assert_int_equal(run.virtual_stages, 1);
    assert_ok(plan_report(&report, "llama-3-8b", &machine, &run, &(PlanQuestions){0}));
    for (int i = 0; i < report.change_count; i++)
        assert_null(strstr(report.changes[i].what, "virtual stages"));
    run.grad_accum = 8, run.virtual_stages = 2;
    assert_ok(plan_predict(&prediction, &machine, &run));
    plan_limit_virtual_stages(&run);
    assert_int_equal(run.virtual_stages, 2);
    run.virtual_stages = 16; // 64 chunks of 32 layers
    assert_error(plan_predict(&prediction, &machine, &run), "32 layers cannot fill 4 x 16 virtual stages");
}

static void the_room_of_expert_buffers_is_stated_where_experts_are_cut(void **state) {
    PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 8);
    PlanRun run = preset_run("qwen3-30b-a3b", 1, 4096, 1); // 128 experts, 8 chosen
    PlanPrediction prediction;
    Layout layout;
    (void)state;
    run.layout.mesh.dp = 8;
    assert_ok(plan_predict(&prediction, &machine, &run));
    assert_int_equal(prediction.memory.expert_rows, 0); // all slots have room: there is no bound to state
    run.layout.mesh.ep = 8;
    assert_ok(plan_predict(&prediction, &machine, &run));
    assert_ok(layout_build(&layout, &run.layout));
    assert_int_equal(prediction.memory.expert_rows, layout.rows);
    assert_int_equal(prediction.memory.expert_rows_mean, 4096 * 8);
    assert_int_equal(prediction.memory.expert_rows_most, 8 * 4096 * 8); // all eight choices of all ranks' tokens
    layout_free(&layout);
    machine.gpus = run.layout.mesh.dp = run.layout.mesh.ep = 32; // four experts a rank: half of a token's choices
    assert_ok(plan_predict(&prediction, &machine, &run));
    assert_int_equal(prediction.memory.expert_rows_most, 32 * 4096 * 4);
}

// ---- worked examples ------------------------------------------------------------------------------------------------

static void seven_logged_runs_of_30b_rank_as_measured(void **state) {
    static const struct {
        Mesh mesh;
        int micro_batch, seq;
        Recompute recompute;
        bool eager;
        double tokens_per_second; // per GPU, logged
        double memory_fraction;
    } runs[] = {
        {{.dp = 2, .tp = 4, .pp = 1, .ep = 2, .cp = 1, .etp = 4, .zero = 3}, 2, 4096, RECOMPUTE_FULL, true, 829, .4535},
        {{.dp = 2, .tp = 4, .pp = 1, .ep = 2, .cp = 1, .etp = 4, .zero = 3},
         12,
         8192,
         RECOMPUTE_SELECTIVE,
         false,
         2228,
         .8361},
        {{.dp = 2, .tp = 4, .pp = 1, .ep = 2, .cp = 1, .etp = 4, .zero = 3},
         16,
         8192,
         RECOMPUTE_SELECTIVE,
         false,
         1588,
         .9665},
        {{.dp = 8, .tp = 1, .pp = 1, .ep = 8, .cp = 1, .etp = 1, .zero = 3},
         8,
         8192,
         RECOMPUTE_SELECTIVE,
         false,
         4959,
         .9621},
        {{.dp = 8, .tp = 1, .pp = 1, .ep = 8, .cp = 1, .etp = 1, .zero = 3},
         6,
         8192,
         RECOMPUTE_SELECTIVE,
         false,
         5748,
         .8260},
        {{.dp = 8, .tp = 1, .pp = 1, .ep = 4, .cp = 1, .etp = 1, .zero = 3},
         6,
         8192,
         RECOMPUTE_SELECTIVE,
         false,
         6512,
         .8337},
        {{.dp = 8, .tp = 1, .pp = 1, .ep = 4, .cp = 1, .etp = 1, .zero = 3},
         4,
         12288,
         RECOMPUTE_SELECTIVE,
         false,
         6260,
         .8303},
    };
    enum { RUNS = sizeof runs / sizeof runs[0] };
    PlanMachine machine = catalogue_machine("h200-sxm", "torchtitan", 8);
    double rate[RUNS];
    (void)state;
    for (int i = 0; i < RUNS; i++) {
        PlanRun run = preset_run("qwen3-30b-a3b", runs[i].micro_batch, runs[i].seq, 1);
        PlanPrediction prediction;
        run.layout.mesh = runs[i].mesh;
        run.layout.recompute = runs[i].recompute;
        run.eager = runs[i].eager;
        assert_ok(plan_predict(&prediction, &machine, &run));
        rate[i] = prediction.step.tokens_per_second / 8;
        printf("run %d: predicted %5.0f, logged %5.0f tokens/s per GPU; memory %.1f and %.1f %%\n", i + 1, rate[i],
               runs[i].tokens_per_second, 100 * prediction.memory.fraction, 100 * runs[i].memory_fraction);
        assert_near(prediction.memory.fraction, runs[i].memory_fraction, 0.035);
    }
    for (int i = 0; i < RUNS; i++)
        for (int k = 0; k < RUNS; k++)
            assert_true((rate[i] > rate[k]) == (runs[i].tokens_per_second > runs[k].tokens_per_second));
}

static void plan_of_405b(PlanQuestions questions) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 16384);
    PlanRun run = preset_run("llama-3.1-405b", 1, 8192, 4);
    machine.gpu.usd_per_hour = 2;
    run.layout.mesh = (Mesh){.dp = 128, .tp = 8, .pp = 16, .ep = 1, .cp = 1, .etp = 1, .zero = 1};
    run.layout.recompute = RECOMPUTE_FULL;
    run.layout.reduce = DTYPE_BF16;
    assert_ok(plan_report(&report, "405B", &machine, &run, &questions));
}

static void the_405b_plan_has_the_workbooks_numbers(void **state) {
    (void)state;
    plan_of_405b((PlanQuestions){.tokens = 15.6e12, .mfu = 0.40, .count = PLAN_ATTENTION_NONE});
    assert_true(report.parameters.total == 405853388800);
    assert_near(report.budget.seconds / 86400, 67.8, 0.15);        // days at 40 % of 6N
    assert_near(report.budget.petaflop_days / 439.68e3, 1, 0.001); // 6 x 405.85e9 x 15.6e12
    assert_near(report.bubble_of_ideal, 15.0 / 4, 1e-12);
    assert_near(report.bubble_of_wall, 15.0 / 19, 1e-12);
    // Weights of a middle stage: 8 layers of 3.188e9 over 8 ranks, 2 bytes each: 6.38 GB.
    assert_near((double)report.prediction.memory.bytes[LAYOUT_WEIGHTS] / 1e9, 6.38, 0.01);
    // ZeRO 1: reduce-scatter of bf16 gradients and all-gather of bf16 weights are the all-reduce's 12.65 GB.
    assert_near(report.prediction.step.axis[STEP_DATA_PARALLEL].bytes / 1e9, 12.65, 0.01);
    assert_true(report.prediction.step.axis[STEP_DATA_PARALLEL].between_nodes);
    assert_false(report.prediction.step.axis[STEP_TENSOR].between_nodes);
    assert_int_equal(report.bottleneck, STEP_BUBBLE);
}

static void gradients_in_bf16_halve_what_data_parallel_ranks_send(void **state) {
    PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 4);
    PlanRun run = preset_run("qwen3-moe-500m", 4, 4096, 4);
    PlanPrediction whole, half;
    (void)state;
    run.layout.mesh.dp = 4;
    assert_ok(plan_predict(&whole, &machine, &run));
    run.layout.reduce = DTYPE_BF16;
    assert_ok(plan_predict(&half, &machine, &run));
    assert_near(half.step.axis[STEP_DATA_PARALLEL].bytes / whole.step.axis[STEP_DATA_PARALLEL].bytes, 0.5, 1e-12);
}

static void ten_billion_tokens_take_13_2_hours_at_the_measured_rate(void **state) {
    PlanMachine machine = catalogue_machine("rtx-pro-6000-maxq", "hearth", 4);
    PlanRun run = preset_run("qwen3-moe-500m", 6, 4096, 10);
    PlanQuestions questions = {.tokens = 10e9, .rate = 210377, .vocab = 32000};
    (void)state;
    run.layout.mesh.dp = 4;
    assert_ok(plan_report(&report, "500M", &machine, &run, &questions));
    assert_near(report.budget.seconds / 3600, 13.2, 0.005);
    assert_near(100 * report.mfu, 21.3, 0.05);
    assert_true(report.vocab[1].parameters.active == 129105088);
    assert_true(report.vocab[1].tokens_per_second > report.vocab[0].tokens_per_second);
}

// ---- questions, advice, warnings ------------------------------------------------------------------------------------

static void hours_give_tokens_and_the_largest_model_meets_its_time(void **state) {
    PlanMachine machine = catalogue_machine("h200-sxm", "hearth", 1);
    PlanRun run = preset_run("smollm-360m", 16, 2048, 8);
    PlanQuestions questions = {.hours = 30, .target_hours = 12};
    (void)state;
    assert_ok(plan_report(&report, "360M", &machine, &run, &questions));
    assert_near(report.hours_tokens, report.rate * 30 * 3600, 1);
    assert_true(report.largest.found);
    assert_true(report.largest.seconds <= 12 * 3600);
    assert_true(report.largest.seconds > 8 * 3600); // a larger one would not make it, so it is near
    assert_near(report.largest.tokens, 20.0 * (double)report.largest.parameters.total, 1);
}

static void named_changes_gain_what_a_new_plan_says(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 8);
    PlanRun run = preset_run("qwen3-30b-a3b", 1, 4096, 8);
    (void)state;
    run.layout.mesh = (Mesh){.dp = 2, .tp = 4, .pp = 1, .ep = 2, .cp = 1, .etp = 4, .zero = 3};
    run.layout.recompute = RECOMPUTE_FULL;
    assert_ok(plan_report(&report, "30B", &machine, &run, &(PlanQuestions){0}));
    assert_int_equal(report.change_count, 2);
    assert_true(report.changes[0].gain >= report.changes[1].gain && report.changes[1].gain > 0);
    for (int i = 0; i < 2; i++)
        assert_near(report.changes[i].tokens_per_second / report.prediction.step.tokens_per_second - 1,
                    report.changes[i].gain, 1e-12);
}

static bool warned(const char *part) {
    for (int i = 0; i < report.warning_count; i++)
        if (strstr(report.warnings[i], part)) return true;
    return false;
}

static void memory_is_warned_of_above_the_limit_that_was_asked_for(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 1);
    PlanRun run = preset_run("smollm-360m", 1, 2048, 1);
    (void)state;
    assert_ok(plan_report(&report, "360M", &machine, &run, &(PlanQuestions){0}));
    machine.gpu.memory = report.prediction.memory.total / 0.9;
    assert_ok(plan_report(&report, "360M", &machine, &run, &(PlanQuestions){0}));
    assert_true(warned("memory 90.0 %: above 85 % little room"));
    assert_ok(plan_report(&report, "360M", &machine, &run, &(PlanQuestions){.memory_limit = 0.91}));
    assert_false(warned("memory"));
    assert_ok(plan_report(&report, "360M", &machine, &run, &(PlanQuestions){.memory_limit = 0.7}));
    assert_true(warned("memory 90.0 %: above 70 % little room"));
    machine.gpu.memory = report.prediction.memory.total / 0.96;
    assert_ok(plan_report(&report, "360M", &machine, &run, &(PlanQuestions){.memory_limit = 0.99}));
    assert_true(warned("memory 96.0 %: above 95 % a run thrashes"));
}

static void warnings_name_what_is_wrong(void **state) {
    PlanMachine machine = catalogue_machine("h100-sxm", "hearth", 16);
    PlanRun run = preset_run("llama-3-8b", 4, 8192, 64);
    (void)state;
    run.layout.mesh.tp = 16;
    assert_ok(plan_report(&report, "8B", &machine, &run, &(PlanQuestions){.mfu = 0.8, .count = PLAN_ATTENTION_FULL}));
    assert_true(warned("crosses nodes"));
    assert_true(warned("8 KV heads do not divide by tp 16"));
    assert_true(warned("MFU 80 %"));
    run.layout.mesh.tp = 8, run.layout.mesh.dp = 2;
    run.layout.micro_batch = 64;
    assert_ok(plan_report(&report, "8B", &machine, &run, &(PlanQuestions){0}));
    assert_true(warned("does not fit"));
    assert_true(warned("critical batch"));
    run.layout.mesh.dp = 4;
    assert_error(plan_report(&report, "8B", &machine, &run, &(PlanQuestions){0}), "needs 32 GPUs, there are 16");
    run.layout.mesh.dp = 2;
    assert_error(plan_report(&report, "8B", &machine, &run, &(PlanQuestions){.mfu = 1.2}), "cannot be");
}

static void an_outdated_profile_is_warned_of(void **state) {
    (void)state;
    PlanMachine machine = catalogue_machine("cpu", "hearth", 1);
    PlanRun run = preset_run("demo-llama", 4, 256, 1);
    run.layout.device = DEVICE_CPU;
    for (int outdated = 0; outdated < 2; outdated++) {
        machine.gpu.measured = true, machine.gpu.outdated = outdated;
        assert_ok(plan_report(&report, "demo", &machine, &run, &(PlanQuestions){0}));
        assert_int_equal(warned("run `hearth bench machine` again"), outdated);
    }
}

static void fp8_where_there_is_none_is_warned_of(void **state) {
    const struct {
        const char *gpu;
        DeviceKind device;
        const char *warning;
    } rows[] = {{"a100-sxm", DEVICE_CUDA, "has no FP8 units"}, {"cpu", DEVICE_CPU, "is emulated"}};
    (void)state;
    PlanRun run = preset_run("smollm-360m", 2, 2048, 1);
    run.layout.precision = PRECISION_FP8;
    for (int i = 0; i < 2; i++) {
        PlanMachine machine = catalogue_machine(rows[i].gpu, "hearth", 1),
                    h200 = catalogue_machine("h200-sxm", "hearth", 1);
        run.layout.device = rows[i].device;
        assert_ok(plan_report(&report, "360M", &machine, &run, &(PlanQuestions){0}));
        assert_true(warned(rows[i].warning));
        run.layout.device = DEVICE_CUDA;
        assert_ok(plan_report(&report, "360M", &h200, &run, &(PlanQuestions){0}));
        assert_false(warned("FP8"));
    }
}

// Two islands of a node each do twice the work of one, but for the share of a meeting that each step has to pay.
static void islands_multiply_the_tokens_and_pay_for_their_meetings(void **state) {
    PlanMachine one = catalogue_machine("h100-sxm", "hearth", 8), two = catalogue_machine("h100-sxm", "hearth", 16);
    PlanRun run = preset_run("llama-3.2-1b", 4, 4096, 1);
    PlanPrediction alone, together;
    (void)state;
    run.layout.mesh.dp = 8;
    assert_ok(plan_predict(&alone, &one, &run));
    run.layout.islands = 2;
    run.outer_every = 50;
    run.outer_bytes = 4;
    assert_ok(plan_report(&report, "islands", &two, &run, &(PlanQuestions){0}));
    together = report.prediction;
    assert_near(together.step.tokens, 2 * alone.step.tokens, 0);
    const StepAxis *outer = &together.step.axis[STEP_OUTER];
    Layout layout;
    assert_ok(layout_build(&layout, &run.layout));
    assert_true(outer->between_nodes && outer->ranks == 2);
    // An all-reduce of two sends as many bytes as there are; each rank has an eighth of the model.
    assert_near(outer->bytes, 4.0 * (double)layout.shard_count / 50, 1e-6);
    assert_near((double)layout.shard_count / (1235814400.0 / 8), 1, 1e-3);
    assert_near(outer->exposed, outer->bytes / (two.nic_bandwidth * two.gpu.efficiency.link) + 2 * two.nic_latency / 50,
                1e-9);
    assert_near(together.step.seconds - alone.step.seconds, outer->exposed, 1e-6);
    // Anchor and momentum are in host memory: the device has room for what it had before, and padding.
    assert_int_equal(together.memory.bytes[LAYOUT_OUTER] >= 8 * layout.shard_count, 1);
    assert_near(together.memory.total / alone.memory.total, 1, 1e-4);
    assert_near(report.budget.checkpoint_bytes / (double)report.parameters.total, 2 * 12 + 8, 1e-9);
    layout_free(&layout);
}

static void calibration_is_the_bounded_median_of_the_last_runs(void **state) {
    PlanOutcome steps[12];
    (void)state;
    assert_near(plan_calibrate(NULL, 0).factor, 1, 0);
    for (int i = 0; i < 12; i++)
        steps[i] = (PlanOutcome){1, i < 4 ? 100 : i % 2 ? 1.1 : 1.2}; // the first four are out of the window
    PlanCalibration c = plan_calibrate(steps, 12);
    assert_int_equal(c.runs, CALIBRATION_WINDOW);
    assert_near(c.factor, 1.1, 0); // the lower of the middle two
    assert_near(c.spread, 1.2 / 1.1, 1e-12);
    assert_false(c.bounded);
    for (int i = 0; i < 12; i++)
        steps[i].measured = 9;
    c = plan_calibrate(steps, 12);
    assert_near(c.factor, CALIBRATION_MOST, 0);
    assert_true(c.bounded);
    steps[11].measured = 0;
    assert_int_equal(plan_calibrate(steps + 11, 1).runs, 0);
    assert_near(plan_error_percent((PlanOutcome){110, 100}), 10, 1e-9);
}

// Half of the runs may have shared the machine with others, the newest among them; a slowdown that stays is learned.
static void runs_on_a_busy_machine_teach_nothing_until_they_are_most(void **state) {
    PlanOutcome steps[CALIBRATION_WINDOW];
    (void)state;
    for (int slow = 0; slow <= CALIBRATION_WINDOW; slow++) {
        for (int i = 0; i < CALIBRATION_WINDOW; i++)
            steps[i] = (PlanOutcome){1, i < CALIBRATION_WINDOW - slow ? 1.1 : 1.8};
        assert_near(plan_calibrate(steps, CALIBRATION_WINDOW).factor, slow <= CALIBRATION_WINDOW / 2 ? 1.1 : 1.8, 0);
    }
    assert_near(plan_calibrate((PlanOutcome[]){{1, 1.1}, {1, 25}}, 2).factor, 1.1, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predicted_memory_is_the_layouts_total),
        cmocka_unit_test(fp16_has_the_rates_of_bf16),
        cmocka_unit_test(tf32_speeds_up_linear_layers_alone),
        cmocka_unit_test(the_parts_of_a_step_add_up),
        cmocka_unit_test(gradients_in_bf16_halve_what_data_parallel_ranks_send),
        cmocka_unit_test(full_recompute_repeats_one_of_four_all_reduces),
        cmocka_unit_test(context_parallel_traffic_is_that_of_the_ring),
        cmocka_unit_test(zero_3_gathers_blocks_in_fp8),
        cmocka_unit_test(ops_have_the_flops_of_the_formula),
        cmocka_unit_test(predictions_for_an_h200_are_near_what_it_did),
        cmocka_unit_test(passes_inside_an_op_count_where_the_op_does),
        cmocka_unit_test(what_fp8_hides_of_swiglu_is_the_devices),
        cmocka_unit_test(a_stage_keeps_as_many_activations_as_its_schedule_has_in_flight),
        cmocka_unit_test(virtual_stages_raise_what_is_in_flight),
        cmocka_unit_test(virtual_stages_that_cannot_be_are_neither_planned_nor_advised),
        cmocka_unit_test(the_room_of_expert_buffers_is_stated_where_experts_are_cut),
        cmocka_unit_test(seven_logged_runs_of_30b_rank_as_measured),
        cmocka_unit_test(the_405b_plan_has_the_workbooks_numbers),
        cmocka_unit_test(ten_billion_tokens_take_13_2_hours_at_the_measured_rate),
        cmocka_unit_test(hours_give_tokens_and_the_largest_model_meets_its_time),
        cmocka_unit_test(named_changes_gain_what_a_new_plan_says),
        cmocka_unit_test(memory_is_warned_of_above_the_limit_that_was_asked_for),
        cmocka_unit_test(warnings_name_what_is_wrong),
        cmocka_unit_test(an_outdated_profile_is_warned_of),
        cmocka_unit_test(fp8_where_there_is_none_is_warned_of),
        cmocka_unit_test(islands_multiply_the_tokens_and_pay_for_their_meetings),
        cmocka_unit_test(calibration_is_the_bounded_median_of_the_last_runs),
        cmocka_unit_test(runs_on_a_busy_machine_teach_nothing_until_they_are_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
