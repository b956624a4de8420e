#include "serve/planner_api.h"

#include "base/text.h"
#include "model/config.h"
#include "plan/calc.h"
#include "train/plan_numbers.h"
#include "train/plan_request.h"
#include "train/prediction.h"
#include "watch/plan_text.h"

#include <stdlib.h>
#include <string.h>

// ---- the plan -------------------------------------------------------------------------------------------------------

// What a page may not ask for: a file of the server's, and a search over sizes of models, which takes seconds.
static const char *const planner_refused[] = {"--hardware", "--target-hours"};

// Sizes of a model that may stand beside the preset.
static const char *const planner_sizes[] = {
    "hidden", "layers",         "heads", "kv_heads", "head_dim", "ffn",
    "vocab",  "tie_embeddings", "arch",  "experts",  "top_k",    "expert_ffn",
};
enum { SIZE_COUNT = sizeof planner_sizes / sizeof planner_sizes[0] };

static const PlanOption *option_named(const char *name) {
    for (size_t i = 0; i < sizeof planner_refused / sizeof planner_refused[0]; i++)
        if (strcmp(planner_refused[i] + 2, name) == 0) return NULL;
    for (int i = 0; i < plan_option_count; i++)
        if (strcmp(plan_options[i].name + 2, name) == 0) return &plan_options[i];
    return NULL;
}

static bool is_size(const char *name) {
    if (!text_starts_with(name, "model.")) return false;
    for (int i = 0; i < SIZE_COUNT; i++)
        if (strcmp(planner_sizes[i], name + strlen("model.")) == 0) return true;
    return false;
}

// In place of a model: how large it is.
static const char **number_named(NumbersArgs *numbers, const char *name) {
    if (strcmp(name, "params") == 0) return &numbers->params;
    if (strcmp(name, "active-params") == 0) return &numbers->active_params;
    return strcmp(name, "peak-tflops") == 0 ? &numbers->peak_tflops : NULL;
}

static bool is_known(const char *name) {
    NumbersArgs unused;
    return strcmp(name, "model") == 0 || option_named(name) || is_size(name) || number_named(&unused, name);
}

static Status unknown_parameter(const char *name) {
    const char **names = xmalloc((size_t)plan_option_count * sizeof *names);
    int count = 0;
    for (int i = 0; i < plan_option_count; i++)
        if (option_named(plan_options[i].name + 2)) names[count++] = plan_options[i].name + 2;
    const char *nearest = text_nearest(name, names, (size_t)count);
    free(names);
    Status status = status_usage("the planner has no parameter \"%s\"", name);
    if (nearest) return status_hint(status, "did you mean %s?", nearest);
    return status_hint(status, "they are the options of `hearth plan` without their dashes, model, and model.layers "
                               "and the other sizes of a model");
}

static Status given_once(const ServeParameter *parameters, int index) {
    for (int i = 0; i < index; i++)
        if (strcmp(parameters[i].name, parameters[index].name) == 0)
            return status_usage("%s is given twice", parameters[index].name);
    return NULL;
}

// For a shell: in quotes unless it is plain.
static void add_word(TextBuffer *out, const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+=:/";
    if (*word && word[strspn(word, plain)] == 0) {
        text_buffer_format(out, " %s", word);
        return;
    }
    text_buffer_format(out, " '");
    for (; *word; word++)
        text_buffer_format(out, *word == '\'' ? "'\\''" : "%c", *word);
    text_buffer_format(out, "'");
}

static Status flag_is(const ServeParameter *parameter, bool *on) {
    const char *value = parameter->value;
    *on = strcmp(value, "true") == 0 || strcmp(value, "1") == 0;
    if (*on || strcmp(value, "false") == 0 || strcmp(value, "0") == 0) return NULL;
    return status_usage("%s is true or false, not \"%s\"", parameter->name, value);
}

typedef struct PlannerWords { // a request and the command line that says the same
    PlanRequest request;
    NumbersArgs numbers;
    TextBuffer command;
    const char **sets;
    char **made; // what sets points to
} PlannerWords;

static Status add_parameter(PlannerWords *words, const ServeParameter *parameter) {
    PlanRequest *request = &words->request;
    const PlanOption *option = option_named(parameter->name);
    const char **number = number_named(&words->numbers, parameter->name);
    bool on = true;
    if (number) {
        *number = parameter->value;
        text_buffer_format(&words->command, " --%s", parameter->name);
        add_word(&words->command, parameter->value);
        return NULL;
    }
    if (is_size(parameter->name)) {
        char *set = text_format("%s=%s", parameter->name, parameter->value);
        words->made[request->set_count] = set;
        words->sets[request->set_count++] = set;
        text_buffer_format(&words->command, " --set");
        add_word(&words->command, set);
        return NULL;
    }
    if (!option) return unknown_parameter(parameter->name);
    if (option->kind == PLAN_OPTION_FLAG) TRY(flag_is(parameter, &on));
    if (!on) return NULL;
    text_buffer_format(&words->command, " %s", option->name);
    if (option->kind != PLAN_OPTION_FLAG) add_word(&words->command, parameter->value);
    return plan_request_set(request, option, parameter->value);
}

// A field that is empty was not filled in.
static Status read_parameters(PlannerWords *words, const ServeParameter *parameters, int count) {
    plan_request_init(&words->request);
    words->request.preset_only = true;
    words->request.sets = words->sets = xcalloc((size_t)count + 1, sizeof *words->sets);
    words->made = xcalloc((size_t)count + 1, sizeof *words->made);
    for (int i = 0; i < count; i++) {
        TRY(given_once(parameters, i));
        if (!is_known(parameters[i].name)) return unknown_parameter(parameters[i].name);
        if (strcmp(parameters[i].name, "model") == 0 && *parameters[i].value) words->request.name = parameters[i].value;
    }
    ModelConfig unused;
    text_buffer_format(&words->command, "hearth plan");
    if (words->request.name) {
        TRY(model_preset(&unused, words->request.name));
        add_word(&words->command, words->request.name);
    }
    for (int i = 0; i < count; i++)
        if (*parameters[i].value && strcmp(parameters[i].name, "model") != 0) TRY(add_parameter(words, &parameters[i]));
    if (!words->request.name && !words->numbers.params)
        return status_hint(status_usage("no model is given"), "model=llama-3.2-1b, or params=8B");
    TRY(plan_request_check(&words->request));
    return numbers_args_check(&words->numbers, &words->request, NULL);
}

static void free_words(PlannerWords *words) {
    for (int i = 0; words->made && i < words->request.set_count; i++)
        free(words->made[i]);
    free(words->made);
    free(words->sets);
    text_buffer_free(&words->command);
}

static json_t *machine_json(const PlanMachine *machine) {
    const HardwareGpu *gpu = &machine->gpu;
    return json_pack("{s:s,s:s,s:b,s:f,s:f,s:f,s:i,s:i,s:f}", "gpu", gpu->name, "title", gpu->title, "measured",
                     gpu->measured, "memory", gpu->memory, "usd_per_hour", gpu->usd_per_hour, "watts", gpu->watts,
                     "gpus", machine->gpus, "gpus_per_node", machine->gpus_per_node, "usd_per_kwh",
                     machine->defaults.usd_per_kwh);
}

static Status make_plan(json_t **plan, double *memory_limit, const PlanSetup *setup, const PlannerWords *words) {
    PlanReport *report = xcalloc(1, sizeof *report);
    Status status = plan_setup_report(report, setup, &words->request);
    if (!status) {
        PlanNodes *nodes = plan_setup_nodes(setup, report, &words->request);
        *plan = plan_setup_json(setup, report, nodes);
        free(nodes);
    }
    *memory_limit = report->questions.memory_limit;
    free(report);
    return status;
}

static Status make_numbers(json_t **plan, const PlanSetup *setup, const PlannerWords *words) {
    PlanNumbersReport *report = xmalloc(sizeof *report);
    Status status = numbers_args_plan(report, &words->numbers, setup, &words->request);
    if (!status) *plan = numbers_json(report);
    free(report);
    return status;
}

static Status make_answer(json_t **root, const PlannerWords *words) {
    PlanSetup setup;
    json_t *plan = NULL;
    double memory_limit = 1;
    bool bare = words->numbers.params != NULL;
    TRY(bare ? plan_setup_machine(&setup, &words->request) : plan_setup(&setup, &words->request));
    Status status = bare ? make_numbers(&plan, &setup, words) : make_plan(&plan, &memory_limit, &setup, words);
    if (!status)
        *root = json_pack("{s:o,s:o,s:f,s:s}", "plan", plan, "machine", machine_json(&setup.machine), "memory_limit",
                          memory_limit, "command", words->command.data);
    plan_setup_free(&setup);
    return status;
}

Status planner_plan(json_t **root, const ServeParameter *parameters, int count) {
    PlannerWords words = {0};
    Status status = read_parameters(&words, parameters, count);
    if (!status) status = make_answer(root, &words);
    free_words(&words);
    return status;
}

// ---- choices --------------------------------------------------------------------------------------------------------

static json_t *preset_json(const char *name) {
    ModelConfig c;
    status_free(model_preset(&c, name));
    ModelParameters parameters = model_parameters(&c);
    return json_pack("{s:s,s:I,s:I,s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "name", name, "parameters",
                     (json_int_t)parameters.total, "active_parameters", (json_int_t)parameters.active, "arch",
                     model_arch_type(c.arch), "hidden", c.hidden, "layers", c.layers, "heads", c.heads, "kv_heads",
                     c.kv_heads, "head_dim", c.head_dim, "ffn", c.ffn, "vocab", c.vocab, "experts", c.experts, "top_k",
                     c.top_k, "expert_ffn", c.moe_ffn);
}

static json_t *gpu_json(const HardwareGpu *gpu) {
    return json_pack("{s:s,s:s,s:b,s:b,s:f,s:f,s:f,s:f,s:f,s:f}", "name", gpu->name, "title", gpu->title, "cpu",
                     gpu->cpu, "measured", gpu->measured, "memory", gpu->memory, "bandwidth", gpu->bandwidth,
                     "bf16_flops", gpu->peak[HARDWARE_BF16], "fp8_flops", gpu->peak[HARDWARE_FP8], "watts", gpu->watts,
                     "usd_per_hour", gpu->usd_per_hour);
}

// The words that a key of the configuration takes.
static json_t *choices_json(const char *section, const char *key) {
    json_t *list = json_array();
    for (int i = 0; i < config_key_count; i++) {
        if (strcmp(config_keys[i].section, section) != 0 || strcmp(config_keys[i].key, key) != 0) continue;
        for (const char *word = config_keys[i].choices; *word;) {
            size_t length = strcspn(word, "|");
            json_array_append_new(list, json_stringn(word, length));
            word += length + (word[length] == '|');
        }
    }
    return list;
}

Status planner_lists(json_t **root) {
    Hardware hardware;
    TRY(prediction_hardware(&hardware, NULL, true));
    json_t *presets = json_array(), *gpus = json_array(), *nodes = json_array(), *software = json_array();
    for (int i = 0; i < model_preset_count(); i++)
        json_array_append_new(presets, preset_json(model_preset_name(i)));
    for (int i = 0; i < hardware.gpu_count; i++)
        json_array_append_new(gpus, gpu_json(&hardware.gpus[i]));
    for (int i = 0; i < hardware.node_count; i++) {
        const HardwareNode *node = &hardware.nodes[i];
        json_array_append_new(nodes, json_pack("{s:s,s:s,s:s,s:f,s:f}", "name", node->name, "title", node->title, "gpu",
                                               node->gpu, "gpus", node->gpus, "usd_per_hour", node->usd_per_hour));
    }
    for (int i = 0; i < hardware.software_count; i++)
        json_array_append_new(
            software, json_pack("{s:s,s:s}", "name", hardware.software[i].name, "title", hardware.software[i].title));
    hardware_free(&hardware);
    *root =
        json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "presets", presets, "gpus", gpus, "nodes", nodes, "software", software,
                  "precisions", choices_json("train", "precision"), "recomputes", choices_json("recompute", "mode"));
    return NULL;
}

// ---- the calculator -------------------------------------------------------------------------------------------------

static Status calculate(json_t **root, const char *quantity, const char *value, const char *const *words, int count) {
    if (value) {
        CalcSolution solution;
        TRY(calc_solve(&solution, quantity, value, words, count));
        *root = calc_solution_json(&solution);
        calc_solution_free(&solution);
        return NULL;
    }
    CalcResult result;
    TRY(calc_evaluate(&result, quantity, words, count));
    *root = calc_result_json(&result);
    calc_result_free(&result);
    return NULL;
}

Status planner_calc(json_t **root, const ServeParameter *parameters, int count) {
    const char *quantity = NULL, *value = NULL;
    char **words = xcalloc((size_t)count + 1, sizeof *words);
    int word_count = 0;
    for (int i = 0; i < count; i++) {
        const ServeParameter *p = &parameters[i];
        if (strcmp(p->name, "quantity") == 0)
            quantity = p->value;
        else if (strcmp(p->name, "value") == 0)
            value = *p->value ? p->value : value;
        else if (*p->value)
            words[word_count++] = text_format("%s=%s", p->name, p->value);
    }
    Status status = quantity ? calculate(root, quantity, value, (const char *const *)words, word_count)
                             : status_hint(status_usage("no quantity is given"), "quantity=train_hours");
    for (int i = 0; i < word_count; i++)
        free(words[i]);
    free(words);
    return status;
}
