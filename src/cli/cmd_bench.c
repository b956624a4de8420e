// hearth bench: what this machine can do.
#include "base/file.h"
#include "base/log.h"
#include "base/range.h"
#include "base/text.h"
#include "base/threads.h"
#include "bench/bench_step.h"
#include "cli/args.h"
#include "cli/bench_commands.h"
#include "cli/commands.h"
#include "cli/launch.h"
#include "dist/device.h"
#include "model/fp8.h"
#include "plan/flops.h"
#include "train/prediction.h"
#include "train/ranks.h"
#include "watch/timeline_svg.h"

#include <stdlib.h>
#include <string.h>

enum { ACCUM_MAX = 1 << 16, STEPS_MAX = 60 };

static Status routing_parse(MoeForce *force, const char *name) {
    static const char *const names[] = {"natural", "balanced", "worst"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) == 0) {
            *force = (MoeForce)i;
            return NULL;
        }
    }
    return status_usage("--routing must be natural, balanced or worst, not \"%s\"", name);
}

Status bench_model_read(ModelConfig *config, const char *name, int64_t layers) {
    TRY(file_exists(name) ? model_config_read(config, name) : model_preset(config, name));
    if (layers > config->layers) return status_usage("the model has only %d layers", config->layers);
    if (layers > 0) config->layers = (int)layers;
    for (int i = config->layers; i < MODEL_LAYERS_MAX; i++)
        config->sparse[i] = false;
    return NULL;
}

Status bench_check_shape(int64_t seq, int64_t micro_batch) {
    TRY(check_number("--seq", (double)seq, 1, INT32_MAX));
    TRY(check_number("--micro-batch", (double)micro_batch, 1, INT32_MAX));
    if (micro_batch > INT32_MAX / seq) return status_usage("--seq times --micro-batch must be below 2^31");
    return NULL;
}

// The dense peak that the planner would take for this device, in TFLOP/s; 0 where nobody knows it. The peak of a CPU is
// too loose a bound to call a share of it MFU.
static double device_peak(Ops *ops, const BenchStep *bench) {
    if (ops->kind != DEVICE_CUDA) return 0;
    Prediction *prediction = xcalloc(1, sizeof *prediction);
    Status status =
        prediction_make(prediction, &bench->request, bench->accum, ops->device, (double)ops->memory_total(ops), 1);
    double peak = status ? 0 : prediction->plan.step.peak / 1e12;
    if (status) log_warn("no MFU, give the peak with --peak-tflops: %s", status_message(status));
    status_free(status);
    free(prediction);
    return peak;
}

static void print_json(const BenchStep *bench, const BenchResult *result, const char *model, const char *routing,
                       const Ops *ops, double peak_tflops) {
    const LayoutRequest *request = &bench->request;
    double flops[3], ranks = (double)mesh_ranks(&request->mesh);
    bench_flops_per_token(&request->config, request->seq, flops);
    json_t *split = json_object();
    for (int i = 0; i < CATEGORY_COUNT; i++)
        json_object_set_new(split, op_category_name((OpCategory)i), json_real(result->split_ms[i]));
    json_object_set_new(split, "gaps", json_real(result->gaps_ms));
    json_t *json =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:f, s:f, s:f}", "model", model, "device",
                  device_kind_name(ops->kind), "layers", request->config.layers, "seq", request->seq, "micro_batch",
                  request->micro_batch, "accum", bench->accum, "precision", precision_name(request->precision),
                  "recompute", recompute_name(request->recompute), "tok_s", result->tokens_per_second, "step_ms",
                  1e3 * result->step_seconds, "spread", result->spread);
    if (request->precision == PRECISION_FP8) {
        char text[FP8_TEXT];
        fp8_describe(result->fp8, text);
        json_object_set_new(json, "fp8", json_string(text));
    }
    if (request->tf32) json_object_set_new(json, "tf32", json_true());
    if (request->config.experts) json_object_set_new(json, "routing", json_string(routing));
    json_object_set_new(json, "tflops", json_real(flops[0] * result->tokens_per_second / 1e12));
    if (peak_tflops > 0) {
        static const char *const names[3] = {"mfu", "mfu_causal", "mfu_6n"};
        for (int i = 0; i < 3; i++)
            json_object_set_new(json, names[i],
                                json_real(plan_mfu(flops[i], result->tokens_per_second, peak_tflops * 1e12, ranks)));
    }
    json_object_set_new(json, "memory_predicted_gib", json_real((double)result->predicted_bytes / 0x1p30));
    if (ops->kind == DEVICE_CUDA) // what is free on a CPU's machine changes by itself
        json_object_set_new(json, "memory_used_gib", json_real((double)result->used_bytes / 0x1p30));
    json_object_set_new(json, "start_s", json_real(result->start_seconds));
    json_object_set_new(json, "split_step_ms", json_real(result->split_step_ms));
    json_object_set_new(json, "split_ms", split);
    json_object_set_new(json, "loss", json_real(result->loss));
    if (ranks > 1) json_object_set_new(json, "comm", bench_comm_json(&result->comm));
    if (bench->timeline) {
        const SimulateResult *measured = &bench->timeline->measured, *simulated = &bench->timeline->simulated;
        json_object_set_new(json, "timeline",
                            json_pack("{s:f,s:f,s:f,s:f}", "compute_ms", 1e3 * measured->compute_end, "idle",
                                      measured->bubble, "simulated_compute_ms", 1e3 * simulated->compute_end,
                                      "simulated_idle", simulated->bubble));
    }
    char *text = json_dumps(json, JSON_REAL_PRECISION(6));
    printf("%s\n", text);
    free(text);
    json_decref(json);
}

static Status write_timeline(const BenchTimeline *timeline, const char *path) {
    const SimulateResult *results[2] = {&timeline->measured, &timeline->simulated};
    static const char *const names[2] = {"measured", "simulated, with the mean times of each stage's passes"};
    TextBuffer svg = {0};
    timeline_svg_pair(results, names, &svg);
    Status status = file_write_atomic(path, svg.data, svg.length);
    text_buffer_free(&svg);
    return status;
}

// The request's mesh is as the options say, but for dp, which is what they leave.
static Status bench_on_ranks(BenchStep *bench, World *world, const char *device, const char *model, const char *routing,
                             double peak, const char *events, const char *timeline_path, const char *profile) {
    Mesh *mesh = &bench->request.mesh;
    int64_t others = mesh_ranks(mesh);
    if (world->size % others)
        return status_usage("%d ranks do not divide by --tp x --cp x --pp = %lld", world->size, (long long)others);
    mesh->dp = (int)(world->size / others);
    Ops *ops;
    TRY(device_open(&ops, world, device));
    Status status = NULL;
    LayoutRequest *request = &bench->request;
    request->device = ops->kind;
    request->rank = world->rank;
    Ranks ranks = {.world = world, .mesh = request->mesh};
    status = layout_check_experts(request);
    if (!status) status = ranks_open(&ranks, ops, request);
    bench->groups = ranks.groups;
    bench->world = world;
    if (!status && peak == 0) peak = device_peak(ops, bench);
    BenchResult result = {0};
    BenchTimeline timeline = {0};
    if (timeline_path) bench->timeline = &timeline;
    BenchProfile profiled = {.world = world, .directory = profile, .accum = bench->accum};
    if (profile) bench->look = bench_profile_steps, bench->look_context = &profiled;
    if (!status) status = bench_step(ops, bench, &result);
    if (!status && world->rank == 0) {
        print_json(bench, &result, model, routing, ops, peak);
        if (events) status = bench_write_events(&result.comm, events);
        if (!status && timeline_path) status = write_timeline(&timeline, timeline_path);
    }
    bench_result_free(&result);
    bench_timeline_free(&timeline);
    ranks_close(&ranks);
    ops_destroy(ops);
    return status;
}

static Status bench_step_command(int argc, char **argv) {
    const char *model = NULL, *precision = "bf16", *recompute = "none", *routing = "natural", *device = "auto",
               *events = NULL, *reduce = "float32";
    int64_t seq = 512, micro_batch = 8, accum = 1, layers = 0, steps = 8, logits_rows = 0, count = 0, tensor = 1,
            context = 1, zero = 0, expert = 1, expert_tensor = 1, stages = 1, chunks = 0;
    const char *schedule = "1f1b", *timeline = NULL, *profile = NULL;
    double peak = 0, embedding_std = 0, headroom = 0;
    bool tf32 = false;
    const Arg options[] = {
        {"--model", ARG_TEXT, &model, "NAME", "preset, or a directory with a config.json"},
        {"--seq", ARG_INT, &seq, "S", "sequence length (512)"},
        {"--micro-batch", ARG_INT, &micro_batch, "B", "sequences in a micro-batch (8)"},
        {"--accum", ARG_INT, &accum, "A", "micro-batches in a step (1)"},
        {"--precision", ARG_TEXT, &precision, "P", "fp32, bf16, bf16-pure, fp8 or fp16 (bf16)"},
        {"--tf32", ARG_FLAG, &tf32, NULL, "with fp32 on a GPU: products round their inputs to TF32"},
        {"--recompute", ARG_TEXT, &recompute, "R", "none, selective or full (none)"},
        {"--layers", ARG_INT, &layers, "N", "only the first N layers of the model"},
        {"--routing", ARG_TEXT, &routing, "HOW", "MoE: natural (the random router's), balanced or worst"},
        {"--steps", ARG_INT, &steps, "N", "steps timed after the warm-up (8, at most 60)"},
        {"--logits-rows", ARG_INT, &logits_rows, "N", "rows of one LM-head chunk (default: chosen)"},
        {"--peak-tflops", ARG_DOUBLE, &peak, "P", "dense peak of this device for the MFU (default: the catalogue's)"},
        {"--embedding-std", ARG_DOUBLE, &embedding_std, "S", "first values of the embedding (default: init_std)"},
        {"--device", ARG_TEXT, &device, "D", "auto, cpu or cuda"},
        {"--ranks", ARG_INT, &count, "N", "start N ranks on this machine; micro-batch and accumulation are of each"},
        {"--tp", ARG_INT, &tensor, "N", "of which so many share every layer (1); the others have data of their own"},
        {"--pp", ARG_INT, &stages, "N", "stages of a pipeline (1)"},
        {"--schedule", ARG_TEXT, &schedule, "NAME", "of the pipeline: 1f1b, gpipe or interleaved (1f1b)"},
        {"--virtual-stages", ARG_INT, &chunks, "N", "chunks of layers on each rank, interleaved (2)"},
        {"--cp", ARG_INT, &context, "N", "of which so many share every sequence (1)"},
        {"--ep", ARG_INT, &expert, "N", "ranks that share the experts (1)"},
        {"--etp", ARG_INT, &expert_tensor, "N", "ranks that share every expert (1)"},
        {"--expert-headroom", ARG_DOUBLE, &headroom, "X",
         "with --ep: rows that a rank has room for at first, over its share (2)"},
        {"--zero", ARG_INT, &zero, "Z", "ZeRO stage 0 to 3 (0)"},
        {"--reduce-dtype", ARG_TEXT, &reduce, "T", "gradients on the wire: float32 or bfloat16 (float32)"},
        {"--events", ARG_TEXT, &events, "FILE",
         "each operation between ranks beside the layers' backward passes, as rank 0 saw them: a table, or JSON "
         "(*.json)"},
        {"--timeline", ARG_TEXT, &timeline, "FILE", "one more step of the pipeline as an SVG, measured and simulated"},
        {"--profile", ARG_TEXT, &profile, "DIR",
         "three more steps as a timeline for Perfetto, and where their time went, as hearth train --profile writes"},
    };
    const ArgCommand command = {
        "hearth bench step --model NAME [options]",
        "Times training steps on random tokens (forward, backward, clip, AdamW) and prints one "
        "JSON line: median step,\ntok/s, MFU by three conventions, memory, and where the time goes: split_ms, gaps "
        "included, adds up to\nsplit_step_ms, one more step that runs op by op and is slower than step_ms where a "
        "graph is "
        "replayed there.",
        options,
        ARG_COUNT(options),
        0,
        0};
    ArgList words;
    bool helped;
    TRY(args_parse(&command, argc, argv, &words, &helped));
    free(words.items);
    if (helped) return NULL;
    if (!model) return status_hint(status_usage("--model is needed"), "a preset such as smollm-360m");
    TRY(bench_check_shape(seq, micro_batch));
    TRY(check_number("--accum", (double)accum, 1, ACCUM_MAX));
    TRY(check_number("--steps", (double)steps, 1, STEPS_MAX));
    TRY(check_number("--layers", (double)layers, 0, MODEL_LAYERS_MAX));
    TRY(check_number("--logits-rows", (double)logits_rows, 0, INT32_MAX));
    TRY(check_number("--peak-tflops", peak, 0, 1e7));
    TRY(check_number("--embedding-std", embedding_std, 0, 1e3));
    TRY(check_number("--tp", (double)tensor, 1, 1 << 14));
    TRY(check_number("--cp", (double)context, 1, 1 << 14));
    TRY(check_number("--ep", (double)expert, 1, 1 << 12));
    TRY(check_number("--etp", (double)expert_tensor, 1, 1 << 12));
    TRY(check_number("--expert-headroom", headroom, 0, 1 << 12));
    TRY(check_number("--zero", (double)zero, 0, 3));
    TRY(check_number("--pp", (double)stages, 1, 1 << 16));
    TRY(check_number("--virtual-stages", (double)chunks, 0, 256));
    PipelineSchedule order;
    TRY(pipeline_schedule_parse(&order, schedule));
    if (order == PIPELINE_INTERLEAVED && !chunks) chunks = 2;
    if (stages > 1) TRY(pipeline_schedule_check(order, (int)stages, chunks ? (int)chunks : 1, (int)accum));
    if (timeline && stages == 1) return status_hint(status_usage("--timeline draws a pipeline"), "--pp 2 and more");
    bool launched;
    int code;
    TRY(launch_ranks(count, &launched, &code));
    if (launched) exit(code);
    if (events && !world_launched()) return status_hint(status_usage("--events is of several ranks"), "add --ranks N");
    BenchStep bench = {.accum = (int)accum, .steps = (int)steps, .embedding_std = embedding_std};
    LayoutRequest *request = &bench.request;
    *request = (LayoutRequest){.mesh = MESH_SINGLE,
                               .schedule = order,
                               .virtual_stages = (int)chunks,
                               .micro_batches = (int)accum,
                               .expert_headroom = headroom,
                               .seq = (int)seq,
                               .micro_batch = (int)micro_batch,
                               .logits_rows = logits_rows,
                               .threads = threads_count()};
    request->mesh.tp = (int)tensor;
    request->mesh.cp = (int)context;
    request->mesh.ep = (int)expert;
    request->mesh.etp = (int)expert_tensor;
    request->mesh.zero = (int)zero;
    TRY(bench_model_read(&request->config, model, layers));
    TRY(precision_parse(&request->precision, precision));
    request->tf32 = tf32;
    TRY(recompute_parse(&request->recompute, recompute));
    TRY(routing_parse(&bench.force, routing));
    if (strcmp(reduce, "bfloat16") == 0)
        request->reduce = DTYPE_BF16;
    else if (strcmp(reduce, "float32") != 0)
        return status_usage("--reduce-dtype must be float32 or bfloat16, not \"%s\"", reduce);
    request->mesh.pp = (int)stages;
    World *world;
    TRY(launch_open_world(&world));
    Status status = bench_on_ranks(&bench, world, device, model, routing, peak, events, timeline, profile);
    if (status && world->size > 1) world_abort(world, status);
    world_close(world);
    return status;
}

Status cmd_bench(int argc, char **argv) {
    static const Command table[] = {
        {"step", "whole training steps of a model: tok/s, MFU, memory, time split", bench_step_command},
        {"ops", "each op at a model's shapes, against its floor", bench_ops_command},
        {"energy", "joules of products and of whole steps, FP8 against bf16", bench_energy_command},
        {"comm", "collectives between ranks: time, algorithm and bus bandwidth", bench_comm_command},
        {"machine", "a profile of this machine for the planner", bench_machine_command}};
    return commands_run("hearth bench", "hearth bench measures this machine.", table, ARG_COUNT(table), argc, argv);
}
