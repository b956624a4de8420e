// hearth plan: what a run needs, how long it takes and what holds it back, before anything runs. The options that make
// the plan are those of train/plan_request.h; here are those that say how it is shown.
#include "base/clock.h"
#include "base/file.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/plan_write.h"
#include "plan/calc.h"
#include "train/plan_numbers.h"
#include "train/plan_request.h"
#include "watch/plan_parts.h"
#include "watch/plan_text.h"
#include "watch/timeline_svg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct PlanArgs {
    PlanRequest request;
    NumbersArgs numbers;
    ArgList sets;
    const char *html, *svg, *schedule, *seqs, *write;
    bool json, search, ops;
} PlanArgs;

// Options that say nothing without another one, or beside it.
static Status check_together(const PlanArgs *args) {
    const PlanRequest *request = &args->request;
    const struct {
        const char *option;
        bool given;
    } of_one_plan[] = {
        {"--hours", request->hours > 0}, {"--target-hours", request->target_hours > 0},
        {"--vocab", request->vocab > 0}, {"--mfu", request->mfu > 0},
        {"--tok-s", request->rate > 0},  {"--mtbf-hours", request->mtbf_hours > 0},
        {"--schedule", args->schedule},  {"--compare-nodes", request->compare_nodes},
    };
    for (size_t i = 0; args->search && i < sizeof of_one_plan / sizeof of_one_plan[0]; i++)
        if (of_one_plan[i].given)
            return status_hint(status_usage("%s does not go with --search", of_one_plan[i].option),
                               "search first, then plan the way that it finds with %s", of_one_plan[i].option);
    if (args->write && !args->search)
        return status_hint(status_usage("--write needs --search"), "it writes the way that the search recommends");
    if (args->svg && !args->schedule)
        return status_hint(status_usage("--svg needs --schedule"), "it draws the simulated step: --schedule 1f1b");
    PipelineSchedule schedule = PIPELINE_1F1B;
    if (args->schedule) TRY(pipeline_schedule_parse(&schedule, args->schedule));
    if (schedule == PIPELINE_INTERLEAVED && request->virtual_stages < 2)
        return status_hint(status_usage("--schedule interleaved needs --virtual-stages of 2 or more"),
                           "--virtual-stages 2; one chunk of layers per stage is --schedule 1f1b");
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

static void mark_what_runs(SearchResult *result, const Config *config) {
    for (int i = 0; i < result->found_count; i++) {
        Status refused = plan_mesh_refused(config, &result->found[i].mesh);
        result->found[i].runs = !refused;
        status_free(refused);
    }
}

static void build_section(Document *document, const Config *config, const PlanReport *report) {
    if (!plan_tells_build(&report->machine)) return;
    Status refused = plan_mesh_refused(config, &report->run.layout.mesh);
    const char *lacks = plan_build_lacks(&report->machine);
    document_section(document, "This build", "l", "");
    if (refused)
        document_note(document, "hearth does not train on this mesh: %s", status_message(refused));
    else
        document_note(document,
                      "hearth trains on this mesh: hearth train --ranks %d on one node, mpirun or srun on several%s%s",
                      report->machine.gpus, lacks ? "; for these devices this build lacks " : "", lacks ? lacks : "");
    status_free(refused);
}

// ---- the questions --------------------------------------------------------------------------------------------

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

static Status plan_one(const PlanSetup *setup, const PlanArgs *args) {
    PlanReport *report = xmalloc(sizeof *report);
    Status status = plan_setup_report(report, setup, &args->request);
    Document *document = status ? NULL : plan_document(report, args->ops || args->html);
    if (!status && args->schedule) status = simulate_plan(document, report, args);
    if (!status) {
        PlanNodes *nodes = plan_setup_nodes(setup, report, &args->request);
        json_t *json = plan_setup_json(setup, report, nodes);
        build_section(document, &setup->config, report);
        if (nodes) plan_nodes_section(document, nodes, report->machine.gpus);
        free(nodes);
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

// The fastest way of the search that hearth trains, as a configuration.
static Status write_recommended(const SearchResult *result, const PlanSetup *setup, const PlanArgs *args) {
    const PlanMachine *machine = &setup->machine;
    int best = 0;
    while (best < result->found_count && !result->found[best].runs)
        best++;
    if (best == result->found_count)
        return status_runtime("hearth trains on none of the ways that were found: %s was not written", args->write);
    const SearchCandidate *c = &result->found[best];
    char *head = text_format("# The fastest way that `hearth plan %s --search` found on %d x %s:\n"
                             "# %.0f tokens/s, %.1f %% MFU, %.1f %% of memory.\n\n",
                             args->request.name, machine->gpus, machine->gpu.title, c->tokens_per_second, 100 * c->mfu,
                             100 * c->memory_fraction);
    Status status = plan_write_config(args->write, &setup->config, c, head);
    if (!status) fprintf(stderr, "wrote %s: %.0f tokens/s\n", args->write, c->tokens_per_second);
    free(head);
    return status;
}

static Status plan_search(const PlanSetup *setup, const PlanArgs *args) {
    const PlanMachine *machine = &setup->machine;
    double limit = args->request.memory_limit;
    PlanReport report = {.machine = *machine, .run = setup->run};
    SearchSpace space = {.batch_tokens = (double)setup->config.train.batch_tokens,
                         .memory_limit = limit > 0 ? limit : PLAN_MEMORY_LIMIT};
    SearchResult result;
    snprintf(report.name, sizeof report.name, "%s", args->request.name);
    TRY(parse_seqs(&space, &setup->run, args->seqs));
    double start = clock_seconds();
    TRY(search_run(&result, machine, &setup->run, &space));
    mark_what_runs(&result, &setup->config);
    Document *document =
        search_document(&report, &result, space.memory_limit, clock_seconds() - start, plan_build_lacks(machine));
    bool none = !result.found_count;
    Status status = show_plan(document, search_json(&result), args);
    if (!status && args->write && !none) status = write_recommended(&result, setup, args);
    search_free(&result);
    if (!status && none) status = status_runtime(NOTHING_FITS, 100 * space.memory_limit);
    return status;
}

static Status plan_of_numbers(const PlanSetup *setup, const PlanArgs *args) {
    PlanNumbersReport *report = xmalloc(sizeof *report);
    Status status = numbers_args_plan(report, &args->numbers, setup, &args->request);
    if (!status) status = show_plan(numbers_document(report), numbers_json(report), args);
    if (!status && !report->fits) // last, below what was shown
        status = status_runtime("the plan does not fit: its states need %.0f %% of the memory of all devices",
                                100 * report->state_bytes_sharded / setup->machine.gpu.memory);
    free(report);
    return status;
}

static Status run_plan(PlanArgs *args) {
    PlanSetup setup;
    TRY(plan_request_check(&args->request));
    TRY(check_together(args));
    TRY(numbers_args_check(&args->numbers, &args->request,
                           args->search     ? "--search"
                           : args->schedule ? "--schedule"
                           : args->ops      ? "--ops"
                           : args->seqs     ? "--seqs"
                                            : NULL));
    TRY(args->numbers.params ? plan_setup_machine(&setup, &args->request) : plan_setup(&setup, &args->request));
    Status status = args->numbers.params ? plan_of_numbers(&setup, args)
                    : args->search       ? plan_search(&setup, args)
                                         : plan_one(&setup, args);
    plan_setup_free(&setup);
    return status;
}

static Arg option_arg(PlanRequest *request, const PlanOption *option) {
    static const ArgKind kinds[] = {[PLAN_OPTION_KEY] = ARG_TEXT,
                                    [PLAN_OPTION_TEXT] = ARG_TEXT,
                                    [PLAN_OPTION_INT] = ARG_INT,
                                    [PLAN_OPTION_DOUBLE] = ARG_DOUBLE,
                                    [PLAN_OPTION_FLAG] = ARG_FLAG};
    return (Arg){option->name, kinds[option->kind], (char *)request + option->at, option->value_name, option->help};
}

Status cmd_plan(int argc, char **argv) {
    PlanArgs a = {0};
    plan_request_init(&a.request);
    const Arg own[] = {
        {"--params", ARG_TEXT, &a.numbers.params, "N",
         "parameters (8B) instead of a model: time and cost from bare numbers"},
        {"--active-params", ARG_TEXT, &a.numbers.active_params, "N", "of these, the ones that a token meets (MoE)"},
        {"--peak-tflops", ARG_TEXT, &a.numbers.peak_tflops, "T", "dense peak of a device, with --params"},
        {"--schedule", ARG_TEXT, &a.schedule, "S", "simulate the step: gpipe, 1f1b or interleaved"},
        {"--svg", ARG_TEXT, &a.svg, "FILE", "timeline of the simulated step"},
        {"--search", ARG_FLAG, &a.search, NULL, "try all ways to cut and batch, show the fastest"},
        {"--write", ARG_TEXT, &a.write, "FILE", "write the way that the search recommends as a config"},
        {"--seqs", ARG_TEXT, &a.seqs, "N,N", "sequence lengths that the search tries"},
        {"--ops", ARG_FLAG, &a.ops, NULL, "also list every op"},
        {"--json", ARG_FLAG, &a.json, NULL, "one JSON object"},
        {"--html", ARG_TEXT, &a.html, "FILE", "one self-contained page"},
        {"--set", ARG_LIST, &a.sets, "KEY=VALUE", "override one key of the configuration"},
    };
    int arg_count = plan_option_count + ARG_COUNT(own);
    Arg *args = xmalloc((size_t)arg_count * sizeof *args);
    for (int i = 0; i < plan_option_count; i++)
        args[i] = option_arg(&a.request, &plan_options[i]);
    memcpy(args + plan_option_count, own, sizeof own);
    const ArgCommand command = {
        .usage = "hearth plan CONFIG.toml | PRESET | --params N [options]",
        .summary =
            "Every number of a run before it starts: memory, speed, time, cost, bottleneck. A preset is named as in\n"
            "`hearth config --presets`. Examples: hearth plan smollm-360m --gpu h200-sxm --seq 2048 --hours 30\n"
            "                                     hearth plan --params 8B --tokens 15T --gpus 64 --gpu h100-sxm",
        .args = args,
        .arg_count = arg_count,
        .words_min = 0,
        .words_max = 1,
    };
    ArgList words;
    bool helped;
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        a.request.name = words.count ? words.items[0] : NULL;
        a.request.sets = a.sets.items;
        a.request.set_count = a.sets.count;
        status = run_plan(&a);
    }
    free(args);
    free(words.items);
    free(a.sets.items);
    return status;
}
