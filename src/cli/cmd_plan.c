// hearth plan: what a run needs, how long it takes and what holds it back, before anything runs. Options that name a
// configuration key are turned into one, so that the config table checks them.
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/threads.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/range.h"
#include "plan/calc.h"
#include "train/prediction.h"
#include "train/ranks.h"
#include "train/schedule.h"
#include "train/setup.h"
#include "watch/plan_text.h"
#include "watch/timeline_svg.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEYS_MAX = 20 };

#define NOT_GIVEN       (-DBL_MAX)
#define COUNT_NOT_GIVEN INT64_MIN

// Options that stand for configuration keys.
typedef struct KeyOption {
    const char *option, *key, *value_name, *help;
    const char *value;
} KeyOption;

typedef struct PlanArgs {
    KeyOption keys[KEYS_MAX];
    int key_count;
    ArgList sets;
    const char *gpu, *node, *cluster, *software, *hardware, *html, *svg, *schedule, *seqs, *mfu_count;
    int64_t gpus, nodes, gpus_per_node, cores, virtual_stages, vocab;
    double hours, target_hours, price, mfu, rate, mtbf_hours, checkpoint, kwh, pue, memory_limit;
    bool json, search, eager, no_machine, no_calibration, ops;
} PlanArgs;

static const KeyOption key_options[] = {
    {"--tokens", "train.tokens", "N", "tokens to train on: 10B, or 20x for 20 per parameter (the default)", NULL},
    {"--seq", "train.seq", "N", "sequence length", NULL},
    {"--micro-batch", "train.micro_batch", "N", "sequences of a micro-step on one rank", NULL},
    {"--accum", "train.grad_accum", "N", "micro-steps of an optimizer step", NULL},
    {"--batch-tokens", "train.batch_tokens", "N", "tokens of an optimizer step, instead of --accum", NULL},
    {"--precision", "train.precision", "P", "fp32, bf16, bf16-pure, fp8 or fp16", NULL},
    {"--recompute", "recompute.mode", "MODE", "none, selective or full", NULL},
    {"--dp", "parallelism.data", "N", "data-parallel ranks (default: what the others leave)", NULL},
    {"--tp", "parallelism.tensor", "N", "tensor-parallel ranks", NULL},
    {"--pp", "parallelism.pipeline", "N", "pipeline stages", NULL},
    {"--cp", "parallelism.context", "N", "context-parallel ranks", NULL},
    {"--ep", "parallelism.expert", "N", "expert-parallel ranks", NULL},
    {"--etp", "parallelism.expert_tensor", "N", "tensor-parallel ranks inside experts", NULL},
    {"--zero", "parallelism.zero", "N", "ZeRO stage 0 to 3", NULL},
    {"--reduce-dtype", "parallelism.reduce_dtype", "T", "gradients on the wire: float32 or bfloat16", NULL},
};
_Static_assert(sizeof key_options / sizeof key_options[0] <= KEYS_MAX, "raise KEYS_MAX");

// ---- from options to a machine and a run ----------------------------------------------------------------------------

// What is written as a path is a file, there or not: only a bare word can be a preset.
static bool names_file(const char *name) {
    return file_exists(name) || text_ends_with(name, ".toml") || strchr(name, '/');
}

static Status read_config(Config *config, const PlanArgs *args, const char *name) {
    const char **sets = xmalloc((size_t)(args->key_count + args->sets.count + 1) * sizeof *sets);
    char *made[KEYS_MAX + 1];
    int count = 0, made_count = 0;
    bool file = names_file(name);
    if (!file) sets[count++] = made[made_count++] = text_format("model.preset=%s", name);
    for (int i = 0; i < args->key_count; i++)
        if (args->keys[i].value)
            sets[count++] = made[made_count++] = text_format("%s=%s", args->keys[i].key, args->keys[i].value);
    for (int i = 0; i < args->sets.count; i++)
        sets[count++] = args->sets.items[i];
    Status status = config_read(config, file ? name : NULL, sets, count);
    for (int i = 0; i < made_count; i++)
        free(made[i]);
    free(sets);
    return status;
}

// Ranges of the numbers. Those that were not given become 0, which none of them may be, or stay NOT_GIVEN where a price
// may be nothing.
static Status check_numbers(PlanArgs *args) {
    const struct {
        const char *option;
        int64_t *count; // one of the two
        double *number;
        double min, max;
    } rows[] = {
        {"--gpus", &args->gpus, NULL, 1, 1e7},
        {"--nodes", &args->nodes, NULL, 1, 1e6},
        {"--gpus-per-node", &args->gpus_per_node, NULL, 1, 1e5},
        {"--cores", &args->cores, NULL, 1, 1e5},
        {"--virtual-stages", &args->virtual_stages, NULL, 1, 256},
        {"--vocab", &args->vocab, NULL, 1, 1 << 24},
        {"--hours", NULL, &args->hours, 1e-3, 1e7},
        {"--target-hours", NULL, &args->target_hours, 1e-3, 1e7},
        {"--mfu", NULL, &args->mfu, 1e-6, 1},
        {"--tok-s", NULL, &args->rate, 1e-6, 1e15},
        {"--price", NULL, &args->price, 0, 1e6},
        {"--kwh", NULL, &args->kwh, 0, 1e6},
        {"--pue", NULL, &args->pue, 1, 100},
        {"--mtbf-hours", NULL, &args->mtbf_hours, 1e-6, 1e9},
        {"--checkpoint-GBps", NULL, &args->checkpoint, 1e-6, 1e9},
        {"--memory-limit", NULL, &args->memory_limit, 1e-3, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool given = rows[i].count ? *rows[i].count != COUNT_NOT_GIVEN : *rows[i].number != NOT_GIVEN;
        if (given)
            TRY(check_number(rows[i].option, rows[i].count ? (double)*rows[i].count : *rows[i].number, rows[i].min,
                             rows[i].max));
        else if (rows[i].count)
            *rows[i].count = 0;
        else if (rows[i].min > 0)
            *rows[i].number = 0;
    }
    return NULL;
}

// Options that say nothing without another one, or beside it. After check_numbers: 0 is what was not given.
static Status check_together(const PlanArgs *args) {
    const struct {
        const char *option;
        bool given;
    } of_one_plan[] = {
        {"--hours", args->hours > 0},   {"--target-hours", args->target_hours > 0},
        {"--vocab", args->vocab > 0},   {"--mfu", args->mfu > 0},
        {"--tok-s", args->rate > 0},    {"--mtbf-hours", args->mtbf_hours > 0},
        {"--schedule", args->schedule},
    };
    for (size_t i = 0; args->search && i < sizeof of_one_plan / sizeof of_one_plan[0]; i++)
        if (of_one_plan[i].given)
            return status_hint(status_usage("%s does not go with --search", of_one_plan[i].option),
                               "search first, then plan the way that it finds with %s", of_one_plan[i].option);
    if (args->svg && !args->schedule)
        return status_hint(status_usage("--svg needs --schedule"), "it draws the simulated step: --schedule 1f1b");
    PipelineSchedule schedule = PIPELINE_1F1B;
    if (args->schedule) TRY(pipeline_schedule_parse(&schedule, args->schedule));
    if (schedule == PIPELINE_INTERLEAVED && args->virtual_stages < 2)
        return status_hint(status_usage("--schedule interleaved needs --virtual-stages of 2 or more"),
                           "--virtual-stages 2; one chunk of layers per stage is --schedule 1f1b");
    return NULL;
}

// Without --gpu: the node's device, the CPU if the config says so, the one that was measured here, else a common one.
static const char *default_gpu(const Hardware *hardware, const HardwareNode *node, const Config *config) {
    if (node) return node->gpu;
    if (strcmp(config->train.device, "cpu") == 0) return "cpu";
    for (int i = 0; i < hardware->gpu_count; i++)
        if (hardware->gpus[i].measured) return hardware->gpus[i].name;
    return "h100-sxm";
}

static Status make_machine(PlanMachine *machine, const Hardware *hardware, const PlanArgs *args, const Config *config) {
    const HardwareGpu *gpu;
    const HardwareNode *node = NULL;
    const HardwareCluster *cluster = NULL;
    const HardwareSoftware *software;
    const char *name = args->gpu;
    if (args->cluster) TRY(hardware_find_cluster(hardware, args->cluster, &cluster));
    if (args->node || cluster) TRY(hardware_find_node(hardware, args->node ? args->node : cluster->node, &node));
    if (!name) name = default_gpu(hardware, node, config);
    TRY(hardware_find_gpu(hardware, name, &gpu));
    if (node && strcmp(gpu->name, node->gpu) != 0)
        return status_hint(status_usage("--gpu %s, and the node %s has %s", gpu->name, node->name, node->gpu),
                           "leave --gpu out, or name its --nodes and --gpus-per-node instead of a node");
    TRY(hardware_find_software(hardware, args->software, &software));
    int64_t per_node = args->gpus_per_node ? args->gpus_per_node : node ? (int64_t)node->gpus : gpu->cpu ? 1 : 8;
    int64_t nodes = args->nodes ? args->nodes : cluster ? (int64_t)cluster->nodes : 0;
    int64_t gpus = args->gpus ? args->gpus : nodes ? nodes * per_node : node ? (int64_t)node->gpus : 1;
    if (nodes && !args->gpus_per_node && args->gpus) per_node = (gpus + nodes - 1) / nodes;
    if (gpus > 10000000) return status_usage("%lld GPUs are more than the planner takes", (long long)gpus);
    int cores = args->cores ? (int)args->cores : threads_count();
    *machine = plan_machine(hardware, gpu, node, software, (int)gpus, (int)per_node, cores);
    if (gpu->cpu && !gpu->measured) // of this machine; the catalogue cannot know
        machine->gpu.memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (args->price >= 0) machine->gpu.usd_per_hour = args->price;
    if (args->kwh >= 0) machine->defaults.usd_per_kwh = args->kwh;
    if (args->pue > 0) machine->defaults.pue = args->pue;
    if (args->checkpoint > 0) machine->defaults.checkpoint_bandwidth = args->checkpoint * 1e9;
    return NULL;
}

static Status make_run(PlanRun *run, const PlanMachine *machine, const PlanArgs *args, const Config *config) {
    ModelConfig model;
    LayoutRequest layout;
    TRY(setup_model(config, setup_data_vocab(config), &model));
    TRY(setup_layout(config, &model, machine->gpu.cpu ? DEVICE_CPU : DEVICE_CUDA, &layout));
    if (strcmp(machine->software.name, "hearth") == 0) TRY(layout_check_kernels(&layout));
    Mesh *mesh = &layout.mesh;
    int islands = (int)config->diloco.islands;
    int64_t others = (int64_t)mesh->tp * mesh->pp * mesh->cp * islands;
    if (config->parallelism.data <= 0) {
        if (machine->gpus % others)
            return status_usage("%d GPUs do not divide by tp %d x pp %d x cp %d%s", machine->gpus, mesh->tp, mesh->pp,
                                mesh->cp, islands > 1 ? " x the islands" : "");
        mesh->dp = (int)(machine->gpus / others);
    }
    *run = (PlanRun){.layout = layout,
                     .grad_accum = (int)batch_plan(config, mesh->dp * islands).grad_accum,
                     .virtual_stages = args->virtual_stages ? (int)args->virtual_stages : layout_chunks(&layout),
                     .outer_every = (double)config->diloco.every,
                     .outer_bytes = strcmp(config->diloco.exchange, "bfloat16") == 0 ? 2 : 4,
                     .eager = args->eager,
                     .calibration = 1};
    if (args->no_calibration || strcmp(machine->software.name, "hearth") != 0) return NULL;
    PlanCalibration calibration;
    TRY(prediction_calibration(&calibration, machine, run));
    run->calibration = calibration.factor;
    return NULL;
}

// ---- output ---------------------------------------------------------------------------------------------------------

static Status write_text(const char *path, const TextBuffer *text) {
    TRY(file_write_atomic(path, text->data, text->length));
    fprintf(stderr, "wrote %s\n", path);
    return NULL;
}

// The page goes to its file, beside --json or instead of the text.
static Status show_plan(Document *document, json_t *json, const PlanArgs *args) {
    TextBuffer text = {0};
    Status status = NULL;
    if (args->html) {
        document_html(document, &text);
        status = write_text(args->html, &text);
    }
    if (!status && args->json) {
        char *dump = calc_json_text(json);
        puts(dump);
        free(dump);
    } else if (!args->html) {
        document_text(document, &text);
        fputs(text.data, stdout);
    }
    text_buffer_free(&text);
    document_free(document);
    json_decref(json);
    return status;
}

// ---- what this build can do -----------------------------------------------------------------------------------------

// Why hearth does not train on this mesh; NULL: it does.
static Status mesh_refused(const Config *config, const Mesh *mesh) {
    Config asked = *config; // shares the strings
    Mesh unused;
    asked.parallelism.data = mesh->dp;
    asked.parallelism.tensor = mesh->tp;
    asked.parallelism.pipeline = mesh->pp;
    asked.parallelism.context = mesh->cp;
    asked.parallelism.expert = mesh->ep;
    asked.parallelism.expert_tensor = mesh->etp;
    asked.parallelism.zero = mesh->zero;
    return ranks_mesh(&asked, (int)mesh_ranks(mesh), &unused);
}

static void mark_what_runs(SearchResult *result, const Config *config) {
    for (int i = 0; i < result->found_count; i++) {
        Status refused = mesh_refused(config, &result->found[i].mesh);
        result->found[i].runs = !refused;
        status_free(refused);
    }
}

static const char *build_lacks(const PlanMachine *machine) {
    bool cuda = machine->gpu.cpu, mpi = machine->gpus == 1;
#ifdef HEARTH_HAVE_CUDA
    cuda = true;
#endif
#ifdef HEARTH_HAVE_MPI
    mpi = true;
#endif
    return cuda ? (mpi ? NULL : "MPI") : mpi ? "CUDA" : "CUDA and MPI";
}

static void build_section(Document *document, json_t *json, const Config *config, const PlanReport *report) {
    int gpus = report->machine.gpus;
    if (gpus == 1 || strcmp(report->machine.software.name, "hearth") != 0) return;
    Status refused = mesh_refused(config, &report->run.layout.mesh);
    const char *lacks = build_lacks(&report->machine);
    document_section(document, "This build", "l", "");
    if (refused)
        document_note(document, "hearth does not train on this mesh: %s", status_message(refused));
    else
        document_note(document,
                      "hearth trains on this mesh: hearth train --ranks %d on one node, mpirun or srun on several%s%s",
                      gpus, lacks ? "; for these devices this build lacks " : "", lacks ? lacks : "");
    json_object_set_new(json, "trains_here", json_boolean(!refused && !lacks));
    status_free(refused);
}

// ---- the three questions --------------------------------------------------------------------------------------------

// The stages' times come from the step model: the first has the embedding, the last the head, the others are alike.
static Status simulate_plan(Document *document, const PlanReport *report, const PlanArgs *args) {
    const Mesh *mesh = &report->run.layout.mesh;
    const StepModel *step = &report->prediction.step;
    PipelineSchedule schedule;
    TRY(pipeline_schedule_parse(&schedule, args->schedule));
    double *forward = xmalloc((size_t)mesh->pp * 2 * sizeof *forward), *backward = forward + mesh->pp;
    double fill = step->fill / mesh->pp / (step->forward + step->backward); // mean stage against the busiest
    for (int i = 0; i < mesh->pp; i++) {
        double share = i == step->stage ? 1 : mesh->pp > 1 ? (fill * mesh->pp - 1) / (mesh->pp - 1) : 1;
        forward[i] = step->forward * share;
        backward[i] = step->backward * share;
    }
    int layers = report->run.layout.config.layers / mesh->pp;
    const StepAxis *data = &step->axis[STEP_DATA_PARALLEL], *pipe = &step->axis[STEP_PIPELINE];
    // From ZeRO 2 on there is as much behind every micro-batch; what is simulated is the last one's.
    double behind = data->seconds / (mesh->zero >= 2 ? report->run.grad_accum : 1);
    SimulateRequest request = {.schedule = schedule,
                               .stages = mesh->pp,
                               .micro_batches = report->run.grad_accum,
                               .virtual_stages = schedule == PIPELINE_INTERLEAVED ? report->run.virtual_stages : 1,
                               .forward = forward,
                               .backward = backward,
                               .send = pipe->seconds / (2.0 * report->run.grad_accum * report->run.virtual_stages),
                               .buckets = data->seconds > 0 ? layers : 0,
                               .bucket_seconds = behind / (layers > 0 ? layers : 1),
                               .optimizer = step->part[STEP_OPTIMIZER]};
    SimulateResult result;
    Status status = simulate_run(&result, &request);
    free(forward);
    if (status) return status;
    request.forward = request.backward = NULL;
    simulate_section(document, &request, &result);
    if (args->svg) {
        TextBuffer svg = {0};
        timeline_svg(&result, &svg);
        status = write_text(args->svg, &svg);
        text_buffer_free(&svg);
    }
    simulate_free(&result);
    return status;
}

// As the trainer counts: the first of train.tokens and train.steps, with the warm-up of the batch.
static void set_length(PlanQuestions *questions, const PlanRun *run, const Config *config) {
    int64_t parameters = model_parameters(&run->layout.config).total, tokens = run_tokens(config, parameters);
    BatchPlan batch = batch_plan(config, run->layout.mesh.dp * plan_islands(run));
    int64_t steps = run_steps(config, &batch, parameters);
    double trained = batch_tokens(&batch, steps);
    questions->steps = (double)steps;
    questions->tokens = tokens && (double)tokens < trained ? (double)tokens : trained;
}

static Status plan_one(const char *name, const PlanMachine *machine, const PlanRun *run, const PlanArgs *args,
                       const Config *config) {
    PlanQuestions questions = {
        .hours = args->hours,
        .target_hours = args->target_hours,
        .vocab = (int)args->vocab,
        .mfu = args->mfu,
        .count = PLAN_ATTENTION_FULL,
        .rate = args->rate,
        .mtbf_hours = args->mtbf_hours,
        .memory_limit = args->memory_limit,
    };
    if (strcmp(args->mfu_count, "6n") == 0)
        questions.count = PLAN_ATTENTION_NONE;
    else if (strcmp(args->mfu_count, "causal") == 0)
        questions.count = PLAN_ATTENTION_CAUSAL;
    else if (strcmp(args->mfu_count, "torchtitan") != 0)
        return status_usage("--mfu-count must be torchtitan, causal or 6n, not \"%s\"", args->mfu_count);
    if (args->hours == 0) questions.hours = config->train.hours;
    set_length(&questions, run, config);
    PlanReport *report = xmalloc(sizeof *report);
    Status status = plan_report(report, name, machine, run, &questions);
    Document *document = status ? NULL : plan_document(report, args->ops || args->html);
    if (!status && args->schedule) status = simulate_plan(document, report, args);
    if (!status) {
        json_t *json = plan_report_json(report);
        build_section(document, json, config, report);
        status = show_plan(document, json, args);
    } else {
        document_free(document);
    }
    if (!status && !report->fits) // last, below what was shown
        status = status_runtime("the plan does not fit: it needs %.0f %% of a device's memory",
                                100 * report->prediction.memory.fraction);
    free(report);
    return status;
}

static Status parse_seqs(SearchSpace *space, const PlanRun *run, const char *text) {
    space->seqs[0] = run->layout.seq;
    space->seq_count = 1;
    if (!text) return NULL;
    space->seq_count = 0;
    while (*text) {
        char *end;
        long value = strtol(text, &end, 10);
        if (end == text || (*end && *end != ',') || value < 1 || value > 1 << 22 || space->seq_count == SEARCH_SEQS_MAX)
            return status_usage("--seqs takes up to %d lengths with commas between: 4096,8192", SEARCH_SEQS_MAX);
        space->seqs[space->seq_count++] = (int)value;
        text = *end ? end + 1 : end;
    }
    return NULL;
}

static Status plan_search(const char *name, const PlanMachine *machine, const PlanRun *run, const PlanArgs *args,
                          const Config *config) {
    PlanReport report = {.machine = *machine, .run = *run};
    SearchSpace space = {.batch_tokens = (double)config->train.batch_tokens,
                         .memory_limit = args->memory_limit > 0 ? args->memory_limit : 0.85};
    SearchResult result;
    snprintf(report.name, sizeof report.name, "%s", name);
    TRY(parse_seqs(&space, run, args->seqs));
    double start = clock_seconds();
    TRY(search_run(&result, machine, run, &space));
    mark_what_runs(&result, config);
    Document *document =
        search_document(&report, &result, space.memory_limit, clock_seconds() - start, build_lacks(machine));
    bool none = !result.found_count;
    Status status = show_plan(document, search_json(&result), args);
    search_free(&result);
    if (!status && none) status = status_runtime(NOTHING_FITS, 100 * space.memory_limit);
    return status;
}

static Status run_plan(const char *name, PlanArgs *args) {
    Config config;
    Hardware hardware;
    PlanMachine machine;
    PlanRun run;
    TRY(check_numbers(args));
    TRY(check_together(args));
    TRY(read_config(&config, args, name));
    Status status = prediction_hardware(&hardware, args->hardware, !args->no_machine);
    if (!status) {
        status = make_machine(&machine, &hardware, args, &config);
        if (!status) status = make_run(&run, &machine, args, &config);
        if (!status)
            status = args->search ? plan_search(name, &machine, &run, args, &config)
                                  : plan_one(name, &machine, &run, args, &config);
        hardware_free(&hardware);
    }
    config_free(&config);
    return status;
}

Status cmd_plan(int argc, char **argv) {
    PlanArgs a = {.software = "hearth",
                  .mfu_count = "torchtitan",
                  .gpus = COUNT_NOT_GIVEN,
                  .nodes = COUNT_NOT_GIVEN,
                  .gpus_per_node = COUNT_NOT_GIVEN,
                  .cores = COUNT_NOT_GIVEN,
                  .virtual_stages = COUNT_NOT_GIVEN,
                  .vocab = COUNT_NOT_GIVEN,
                  .hours = NOT_GIVEN,
                  .target_hours = NOT_GIVEN,
                  .price = NOT_GIVEN,
                  .mfu = NOT_GIVEN,
                  .rate = NOT_GIVEN,
                  .mtbf_hours = NOT_GIVEN,
                  .checkpoint = NOT_GIVEN,
                  .kwh = NOT_GIVEN,
                  .pue = NOT_GIVEN,
                  .memory_limit = NOT_GIVEN};
    memcpy(a.keys, key_options, sizeof key_options);
    a.key_count = (int)(sizeof key_options / sizeof key_options[0]);
    const Arg own[] = {
        {"--gpu", ARG_TEXT, &a.gpu, "NAME",
         "device of the hardware catalogue (default: the one measured here, else h100-sxm)"},
        {"--gpus", ARG_INT, &a.gpus, "N", "devices in all"},
        {"--nodes", ARG_INT, &a.nodes, "N", "nodes"},
        {"--gpus-per-node", ARG_INT, &a.gpus_per_node, "N", "devices of a node (default 8)"},
        {"--node", ARG_TEXT, &a.node, "NAME", "node of the catalogue"},
        {"--cluster", ARG_TEXT, &a.cluster, "NAME", "cluster of the catalogue"},
        {"--cores", ARG_INT, &a.cores, "N", "cores of a CPU run (default: of this machine)"},
        {"--hours", ARG_DOUBLE, &a.hours, "H", "how many tokens fit into this time"},
        {"--target-hours", ARG_DOUBLE, &a.target_hours, "H", "the largest model of this family for this time"},
        {"--vocab", ARG_INT, &a.vocab, "N", "compare with this vocabulary"},
        {"--mfu", ARG_DOUBLE, &a.mfu, "F", "assume this utilisation (0.4) instead of the modelled step"},
        {"--mfu-count", ARG_TEXT, &a.mfu_count, "C", "FLOPs that --mfu counts: torchtitan, causal or 6n"},
        {"--tok-s", ARG_DOUBLE, &a.rate, "R", "measured tokens/s of all devices instead of the modelled step"},
        {"--virtual-stages", ARG_INT, &a.virtual_stages, "N", "chunks of layers per pipeline stage"},
        {"--schedule", ARG_TEXT, &a.schedule, "S", "simulate the step: gpipe, 1f1b or interleaved"},
        {"--svg", ARG_TEXT, &a.svg, "FILE", "timeline of the simulated step"},
        {"--eager", ARG_FLAG, &a.eager, NULL, "without compilation or recorded graphs"},
        {"--price", ARG_DOUBLE, &a.price, "USD", "per GPU-hour"},
        {"--kwh", ARG_DOUBLE, &a.kwh, "USD", "price of electricity"},
        {"--pue", ARG_DOUBLE, &a.pue, "F", "power of the building over power of the devices"},
        {"--mtbf-hours", ARG_DOUBLE, &a.mtbf_hours, "H", "time between failures of the whole job"},
        {"--checkpoint-GBps", ARG_DOUBLE, &a.checkpoint, "R", "storage bandwidth of a node"},
        {"--memory-limit", ARG_DOUBLE, &a.memory_limit, "F", "share of memory that may be used (0.85)"},
        {"--search", ARG_FLAG, &a.search, NULL, "try all ways to cut and batch, show the fastest"},
        {"--seqs", ARG_TEXT, &a.seqs, "N,N", "sequence lengths that the search tries"},
        {"--software", ARG_TEXT, &a.software, "NAME", "training program: hearth, or torchtitan as fitted to logs"},
        {"--hardware", ARG_TEXT, &a.hardware, "FILE", "more or other hardware"},
        {"--no-machine", ARG_FLAG, &a.no_machine, NULL, "leave the measured profile of this machine aside"},
        {"--no-calibration", ARG_FLAG, &a.no_calibration, NULL, "leave the history of earlier runs aside"},
        {"--ops", ARG_FLAG, &a.ops, NULL, "also list every op"},
        {"--json", ARG_FLAG, &a.json, NULL, "one JSON object"},
        {"--html", ARG_TEXT, &a.html, "FILE", "one self-contained page"},
        {"--set", ARG_LIST, &a.sets, "KEY=VALUE", "override one key of the configuration"},
    };
    Arg args[KEYS_MAX + ARG_COUNT(own)];
    for (int i = 0; i < a.key_count; i++)
        args[i] = (Arg){a.keys[i].option, ARG_TEXT, &a.keys[i].value, a.keys[i].value_name, a.keys[i].help};
    memcpy(args + a.key_count, own, sizeof own);
    const ArgCommand command = {
        .usage = "hearth plan CONFIG.toml | PRESET [options]",
        .summary =
            "Every number of a run before it starts: memory, speed, time, cost, bottleneck. A preset is named as in\n"
            "`hearth config --presets`. Example: hearth plan smollm-360m --gpu h200-sxm --seq 2048 --hours 30",
        .args = args,
        .arg_count = a.key_count + ARG_COUNT(own),
        .words_min = 1,
        .words_max = 1,
    };
    ArgList words;
    bool helped;
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) status = run_plan(words.items[0], &a);
    free(words.items);
    free(a.sets.items);
    return status;
}
