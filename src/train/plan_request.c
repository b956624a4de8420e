#include "train/plan_request.h"

#include "base/file.h"
#include "base/range.h"
#include "base/threads.h"
#include "ops/cpu/level.h"
#include "train/prediction.h"
#include "train/ranks.h"
#include "train/schedule.h"
#include "train/setup.h"
#include "watch/plan_parts.h"
#include "watch/plan_text.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOT_GIVEN       (-DBL_MAX)
#define COUNT_NOT_GIVEN INT64_MIN

// ---- the options ----------------------------------------------------------------------------------------------------

#define KEY(index, name, key, value_name, help) \
    { name, PLAN_OPTION_KEY, offsetof(PlanRequest, keys[index]), key, 0, 0, value_name, help }
#define TEXT(name, field, value_name, help) \
    { name, PLAN_OPTION_TEXT, offsetof(PlanRequest, field), NULL, 0, 0, value_name, help }
#define COUNT(name, field, min, max, value_name, help) \
    { name, PLAN_OPTION_INT, offsetof(PlanRequest, field), NULL, min, max, value_name, help }
#define NUMBER(name, field, min, max, value_name, help) \
    { name, PLAN_OPTION_DOUBLE, offsetof(PlanRequest, field), NULL, min, max, value_name, help }
#define FLAG(name, field, help) \
    { name, PLAN_OPTION_FLAG, offsetof(PlanRequest, field), NULL, 0, 0, NULL, help }

const PlanOption plan_options[] = {
    KEY(0, "--tokens", "train.tokens", "N", "tokens to train on: 10B, or 20x for 20 per parameter (the default)"),
    KEY(1, "--seq", "train.seq", "N", "sequence length"),
    KEY(2, "--micro-batch", "train.micro_batch", "N", "sequences of a micro-step on one rank"),
    KEY(3, "--accum", "train.grad_accum", "N", "micro-steps of an optimizer step"),
    KEY(4, "--batch-tokens", "train.batch_tokens", "N", "tokens of an optimizer step, instead of --accum"),
    KEY(5, "--precision", "train.precision", "P", "fp32, bf16, bf16-pure, fp8 or fp16"),
    KEY(6, "--recompute", "recompute.mode", "MODE", "none, selective or full"),
    KEY(7, "--dp", "parallelism.data", "N", "data-parallel ranks (default: what the others leave)"),
    KEY(8, "--tp", "parallelism.tensor", "N", "tensor-parallel ranks"),
    KEY(9, "--pp", "parallelism.pipeline", "N", "pipeline stages"),
    KEY(10, "--cp", "parallelism.context", "N", "context-parallel ranks"),
    KEY(11, "--ep", "parallelism.expert", "N", "expert-parallel ranks"),
    KEY(12, "--etp", "parallelism.expert_tensor", "N", "tensor-parallel ranks inside experts"),
    KEY(13, "--zero", "parallelism.zero", "N", "ZeRO stage 0 to 3"),
    KEY(14, "--reduce-dtype", "parallelism.reduce_dtype", "T", "gradients on the wire: float32 or bfloat16"),
    TEXT("--gpu", gpu, "NAME", "device of the hardware catalogue (default: the one measured here, else h100-sxm)"),
    COUNT("--gpus", gpus, 1, 1e7, "N", "devices in all"),
    COUNT("--nodes", nodes, 1, 1e6, "N", "nodes"),
    COUNT("--gpus-per-node", gpus_per_node, 1, 1e5, "N", "devices of a node (default 8)"),
    TEXT("--node", node, "NAME", "node of the catalogue"),
    TEXT("--cluster", cluster, "NAME", "cluster of the catalogue"),
    COUNT("--cores", cores, 1, 1e5, "N", "cores of a CPU run (default: of this machine)"),
    NUMBER("--hours", hours, 1e-3, 1e7, "H", "how many tokens fit into this time"),
    NUMBER("--target-hours", target_hours, 1e-3, 1e7, "H", "the largest model of this family for this time"),
    COUNT("--vocab", vocab, 1, 1 << 24, "N", "compare with this vocabulary"),
    NUMBER("--mfu", mfu, 1e-6, 1, "F", "assume this utilisation (0.4) instead of the modelled step"),
    TEXT("--mfu-count", mfu_count, "C", "FLOPs that --mfu counts: torchtitan, causal or 6n"),
    NUMBER("--tok-s", rate, 1e-6, 1e15, "R", "measured tokens/s of all devices instead of the modelled step"),
    COUNT("--virtual-stages", virtual_stages, 1, 256, "N", "chunks of layers per pipeline stage"),
    FLAG("--eager", eager, "without compilation or recorded graphs"),
    NUMBER("--price", price, 0, 1e6, "USD", "per GPU-hour"),
    NUMBER("--kwh", kwh, 0, 1e6, "USD", "price of electricity"),
    NUMBER("--pue", pue, 1, 100, "F", "power of the building over power of the devices"),
    NUMBER("--mtbf-hours", mtbf_hours, 1e-6, 1e9, "H", "time between failures of the whole job"),
    NUMBER("--checkpoint-GBps", checkpoint, 1e-6, 1e9, "R", "storage bandwidth of a node"),
    NUMBER("--memory-limit", memory_limit, 1e-3, 1, "F", "share of memory that may be used (0.85)"),
    COUNT("--keep", keep, 1, 1e9, "N", "checkpoints kept on storage (default: what the config keeps)"),
    NUMBER("--storage-price", storage_price, 0, 1e3, "USD", "per GB-month"),
    TEXT("--software", software, "NAME", "training program: hearth, or torchtitan as fitted to logs"),
    TEXT("--hardware", hardware, "FILE", "more or other hardware"),
    FLAG("--compare-nodes", compare_nodes, "the run on every node of the catalogue"),
    FLAG("--no-machine", no_machine, "leave the measured profile of this machine aside"),
    FLAG("--no-calibration", no_calibration, "leave the history of earlier runs aside"),
};
const int plan_option_count = (int)(sizeof plan_options / sizeof plan_options[0]);

static void *option_field(PlanRequest *request, const PlanOption *option) {
    return (char *)request + option->at;
}

void plan_request_init(PlanRequest *request) {
    *request = (PlanRequest){.software = "hearth", .mfu_count = "torchtitan"};
    for (int i = 0; i < plan_option_count; i++) {
        void *field = option_field(request, &plan_options[i]);
        if (plan_options[i].kind == PLAN_OPTION_INT) *(int64_t *)field = COUNT_NOT_GIVEN;
        if (plan_options[i].kind == PLAN_OPTION_DOUBLE) *(double *)field = NOT_GIVEN;
    }
}

Status plan_request_set(PlanRequest *request, const PlanOption *option, const char *text) {
    void *field = option_field(request, option);
    switch (option->kind) {
    case PLAN_OPTION_KEY:
    case PLAN_OPTION_TEXT: *(const char **)field = text; return NULL;
    case PLAN_OPTION_FLAG: *(bool *)field = true; return NULL;
    case PLAN_OPTION_INT:
        if (text_to_int64(text, field)) return NULL;
        return status_usage("%s takes a whole number, not \"%s\"", option->name, text);
    case PLAN_OPTION_DOUBLE:
        if (text_to_double(text, field)) return NULL;
        return status_usage("%s takes a number, not \"%s\"", option->name, text);
    }
    return NULL;
}

Status plan_request_check(PlanRequest *request) {
    for (int i = 0; i < plan_option_count; i++) {
        const PlanOption *option = &plan_options[i];
        void *field = option_field(request, option);
        int64_t *count = option->kind == PLAN_OPTION_INT ? field : NULL;
        double *number = option->kind == PLAN_OPTION_DOUBLE ? field : NULL;
        bool given = count ? *count != COUNT_NOT_GIVEN : number && *number != NOT_GIVEN;
        if (given)
            TRY(check_number(option->name, count ? (double)*count : *number, option->min, option->max));
        else if (count)
            *count = 0;
        else if (number && option->min > 0)
            *number = 0;
    }
    return NULL;
}

// ---- from a request to a machine and a run --------------------------------------------------------------------------

// What is written as a path is a file, there or not: only a bare word can be a preset.
static bool names_file(const char *name) {
    return file_exists(name) || text_ends_with(name, ".toml") || strchr(name, '/');
}

static Status read_config(Config *config, const PlanRequest *request) {
    const char **sets = xmalloc((size_t)(plan_option_count + request->set_count + 1) * sizeof *sets);
    char *made[PLAN_REQUEST_KEYS_MAX + 1];
    int count = 0, made_count = 0;
    bool file = request->name && !request->preset_only && names_file(request->name);
    if (request->name && !file) sets[count++] = made[made_count++] = text_format("model.preset=%s", request->name);
    for (int i = 0; i < plan_option_count; i++) {
        if (plan_options[i].kind != PLAN_OPTION_KEY) continue;
        const char *value = *(const char *const *)((const char *)request + plan_options[i].at);
        if (value) sets[count++] = made[made_count++] = text_format("%s=%s", plan_options[i].key, value);
    }
    for (int i = 0; i < request->set_count; i++)
        sets[count++] = request->sets[i];
    Status status = config_read(config, file ? request->name : NULL, sets, count);
    for (int i = 0; i < made_count; i++)
        free(made[i]);
    free(sets);
    return status;
}

// Without --gpu: the node's device, the CPU if the config says so, the one that was measured here, else a common one.
static Status default_gpu(const Hardware *hardware, const HardwareNode *node, const Config *config,
                          const HardwareGpu **gpu) {
    CpuBf16 bf16;
    if (node) return hardware_find_gpu(hardware, node->gpu, gpu);
    if (strcmp(config->train.device, "cpu") == 0) {
        TRY(cpu_bf16(&bf16));
        return hardware_find_cpu(hardware, cpu_device_name(bf16), gpu);
    }
    for (int i = 0; i < hardware->gpu_count; i++) {
        *gpu = &hardware->gpus[i];
        if ((*gpu)->measured) return NULL;
    }
    return hardware_find_gpu(hardware, "h100-sxm", gpu);
}

static Status make_machine(PlanMachine *machine, const Hardware *hardware, const PlanRequest *request,
                           const Config *config) {
    const HardwareGpu *gpu;
    const HardwareNode *node = NULL;
    const HardwareCluster *cluster = NULL;
    const HardwareSoftware *software;
    if (request->cluster) TRY(hardware_find_cluster(hardware, request->cluster, &cluster));
    if (request->node || cluster)
        TRY(hardware_find_node(hardware, request->node ? request->node : cluster->node, &node));
    TRY(request->gpu ? hardware_find_gpu(hardware, request->gpu, &gpu) : default_gpu(hardware, node, config, &gpu));
    if (node && strcmp(gpu->name, node->gpu) != 0)
        return status_hint(status_usage("--gpu %s, and the node %s has %s", gpu->name, node->name, node->gpu),
                           "leave --gpu out, or name its --nodes and --gpus-per-node instead of a node");
    TRY(hardware_find_software(hardware, request->software, &software));
    int64_t nodes = request->nodes ? request->nodes : cluster ? (int64_t)cluster->nodes : 0;
    int64_t others = !gpu->cpu ? 8 : nodes || !request->gpus ? 1 : request->gpus; // ranks on CPUs are on this machine
    int64_t per_node = request->gpus_per_node ? request->gpus_per_node : node ? (int64_t)node->gpus : others;
    int64_t gpus = request->gpus ? request->gpus : nodes ? nodes * per_node : node ? (int64_t)node->gpus : 1;
    if (nodes && !request->gpus_per_node && request->gpus) per_node = (gpus + nodes - 1) / nodes;
    if (gpus > 10000000) return status_usage("%lld GPUs are more than the planner takes", (long long)gpus);
    int cores = request->cores ? (int)request->cores : threads_count();
    *machine = plan_machine(hardware, gpu, node, software, (int)gpus, (int)per_node, cores);
    if (gpu->cpu && !gpu->measured) // of this machine; the catalogue cannot know
        machine->gpu.memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / machine->gpus_per_node;
    if (request->price >= 0) machine->gpu.usd_per_hour = request->price;
    if (request->kwh >= 0) machine->defaults.usd_per_kwh = request->kwh;
    if (request->pue > 0) machine->defaults.pue = request->pue;
    if (request->storage_price >= 0) {
        machine->defaults.usd_per_gb_month = request->storage_price;
        machine->defaults.usd_per_gb_month_source[0] = '\0'; // the user's own
    }
    if (request->checkpoint > 0) machine->defaults.checkpoint_bandwidth = request->checkpoint * 1e9;
    return NULL;
}

static Status make_run(PlanRun *run, const PlanMachine *machine, const PlanRequest *request, const Config *config) {
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
            return status_hint(status_usage("%d GPUs do not divide by tp %d x pp %d x cp %d%s", machine->gpus, mesh->tp,
                                            mesh->pp, mesh->cp, islands > 1 ? " x the islands" : ""),
                               "%lld or a multiple of it, or a smaller degree", (long long)others);
        mesh->dp = (int)(machine->gpus / others);
    }
    *run = (PlanRun){.layout = layout,
                     .grad_accum = (int)batch_plan(config, mesh->dp * islands).grad_accum,
                     .virtual_stages = request->virtual_stages ? (int)request->virtual_stages : layout_chunks(&layout),
                     .outer_every = (double)config->diloco.every,
                     .outer_bytes = strcmp(config->diloco.exchange, "bfloat16") == 0 ? 2 : 4,
                     .eager = request->eager,
                     .calibration = 1};
    if (request->no_calibration || strcmp(machine->software.name, "hearth") != 0) return NULL;
    PlanCalibration calibration;
    TRY(prediction_calibration(&calibration, machine, run));
    run->calibration = calibration.factor;
    return NULL;
}

Status plan_setup_machine(PlanSetup *setup, const PlanRequest *request) {
    TRY(read_config(&setup->config, request));
    Status status = prediction_hardware(&setup->hardware, request->hardware, !request->no_machine);
    if (status) {
        config_free(&setup->config);
        return status;
    }
    status = make_machine(&setup->machine, &setup->hardware, request, &setup->config);
    if (status) plan_setup_free(setup);
    return status;
}

Status plan_setup(PlanSetup *setup, const PlanRequest *request) {
    TRY(plan_setup_machine(setup, request));
    Status status = make_run(&setup->run, &setup->machine, request, &setup->config);
    if (status) plan_setup_free(setup);
    return status;
}

void plan_setup_free(PlanSetup *setup) {
    hardware_free(&setup->hardware);
    config_free(&setup->config);
}

// ---- the report -----------------------------------------------------------------------------------------------------

// As the trainer counts: the first of train.tokens and train.steps, with the warm-up of the batch.
static void set_length(PlanQuestions *questions, const PlanRun *run, const Config *config) {
    int64_t parameters = model_parameters(&run->layout.config).total, tokens = run_tokens(config, parameters);
    BatchPlan batch = batch_plan(config, run->layout.mesh.dp * plan_islands(run));
    int64_t steps = run_steps(config, &batch, parameters);
    double trained = batch_tokens(&batch, steps);
    questions->steps = (double)steps;
    questions->checkpoints = (double)config->checkpoint.keep_last + config->checkpoint.keep_best;
    if (config->checkpoint.keep_every) // steps that it divides
        questions->checkpoints += floor((double)steps / (double)config->checkpoint.keep_every);
    questions->tokens = tokens && (double)tokens < trained ? (double)tokens : trained;
}

Status plan_setup_report(PlanReport *report, const PlanSetup *setup, const PlanRequest *request) {
    PlanQuestions questions = {
        .hours = request->hours > 0 ? request->hours : setup->config.train.hours,
        .target_hours = request->target_hours,
        .vocab = (int)request->vocab,
        .mfu = request->mfu,
        .count = PLAN_ATTENTION_FULL,
        .rate = request->rate,
        .mtbf_hours = request->mtbf_hours,
        .memory_limit = request->memory_limit,
    };
    if (strcmp(request->mfu_count, "6n") == 0)
        questions.count = PLAN_ATTENTION_NONE;
    else if (strcmp(request->mfu_count, "causal") == 0)
        questions.count = PLAN_ATTENTION_CAUSAL;
    else if (strcmp(request->mfu_count, "torchtitan") != 0)
        return status_usage("--mfu-count must be torchtitan, causal or 6n, not \"%s\"", request->mfu_count);
    set_length(&questions, &setup->run, &setup->config);
    if (request->keep) questions.checkpoints = (double)request->keep;
    return plan_report(report, request->name, &setup->machine, &setup->run, &questions);
}

PlanNodes *plan_setup_nodes(const PlanSetup *setup, const PlanReport *report, const PlanRequest *request) {
    if (!request->compare_nodes) return NULL;
    PlanNodes *nodes = xmalloc(sizeof *nodes);
    plan_nodes_of_report(nodes, &setup->hardware, report);
    return nodes;
}

json_t *plan_setup_json(const PlanSetup *setup, const PlanReport *report, const PlanNodes *nodes) {
    json_t *root = plan_report_json(report);
    if (nodes) json_object_update_new(root, plan_nodes_json(nodes));
    if (!plan_tells_build(&setup->machine)) return root;
    Status refused = plan_mesh_refused(&setup->config, &report->run.layout.mesh);
    json_object_set_new(root, "trains_here", json_boolean(!refused && !plan_build_lacks(&setup->machine)));
    status_free(refused);
    return root;
}

// ---- what this build can do -----------------------------------------------------------------------------------------

bool plan_tells_build(const PlanMachine *machine) {
    return machine->gpus > 1 && strcmp(machine->software.name, "hearth") == 0;
}

Status plan_mesh_refused(const Config *config, const Mesh *mesh) {
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

const char *plan_build_lacks(const PlanMachine *machine) {
    bool cuda = machine->gpu.cpu, mpi = machine->gpus == 1;
#ifdef HEARTH_HAVE_CUDA
    cuda = true;
#endif
#ifdef HEARTH_HAVE_MPI
    mpi = true;
#endif
    return cuda ? (mpi ? NULL : "MPI") : mpi ? "CUDA" : "CUDA and MPI";
}
