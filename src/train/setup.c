// Turning a configuration into a model shape, a layout and open data, with every mistake blamed on its line.
#include "train/setup.h"

#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"

#include <stdlib.h>
#include <string.h>

// ---- model ---------------------------------------------------------------------------------------------------------

static Status model_base_shape(const Config *config, ModelConfig *model) {
    if (config->model.preset[0]) return config_blame(config, "model.preset", model_preset(model, config->model.preset));
    if (config->model.config[0])
        return config_blame(config, "model.config", model_config_read(model, config->model.config));
    if (config->model.init[0]) return config_blame(config, "model.init", model_config_read(model, config->model.init));
    ModelArch arch = MODEL_LLAMA;
    if (config->model.arch[0]) model_arch_parse(&arch, config->model.arch); // the config's table knows the same names
    model_config_defaults(model, arch);
    // HF's tenth of it is for all layers together; here each layer has its own, and experts would collapse.
    if (model_has_experts(model)) model->aux_coef = 0.01f;
    const char *missing = !config->model.hidden   ? "hidden"
                          : !config->model.layers ? "layers"
                          : !config->model.heads  ? "heads"
                                                  : NULL;
    if (!missing) return NULL;
    return config_blame(
        config, "model.preset",
        status_hint(status_usage("[model] does not say which model: model.%s is missing", missing),
                    "set model.preset, model.config or model.init, or write out hidden, layers, heads and ffn"));
}

static bool written_out(const Config *config) { // sizes, instead of the name of a model
    return !config->model.preset[0] && !config->model.config[0] && !config->model.init[0];
}

static void overlay_int(int *field, int64_t value) {
    if (value) *field = (int)value;
}

static void overlay_sizes(const Config *config, ModelConfig *model) {
    const char *tied = config->model.tie_embeddings;
    overlay_int(&model->hidden, config->model.hidden);
    overlay_int(&model->layers, config->model.layers);
    overlay_int(&model->heads, config->model.heads);
    overlay_int(&model->kv_heads, config->model.kv_heads);
    overlay_int(&model->head_dim, config->model.head_dim);
    overlay_int(&model->ffn, config->model.ffn);
    overlay_int(&model->vocab, config->model.vocab);
    overlay_int(&model->max_positions, config->model.max_seq);
    overlay_int(&model->experts, config->model.experts);
    overlay_int(&model->top_k, config->model.top_k);
    overlay_int(&model->moe_ffn, config->model.expert_ffn);
    if (config->model.rope_theta > 0) model->rope_theta = config->model.rope_theta;
    if (config->model.norm_eps > 0) model->norm_eps = (float)config->model.norm_eps;
    if (config->model.init_std > 0) model->init_std = (float)config->model.init_std;
    if (config->model.aux_coef >= 0) model->aux_coef = (float)config->model.aux_coef;
    if (tied[0]) model->tied = strcmp(tied, "true") == 0;
}

static void fill_shape_gaps(const Config *config, int64_t fallback_vocab, ModelConfig *model) {
    model_config_derive(model);
    if (!model->vocab) model->vocab = (int)fallback_vocab;
    // No layer has it, but a config.json must state it, and a checkpoint is read back by its config.json.
    if (!model->ffn && model->layers && model_sparse_layers(model) == model->layers) model->ffn = model->moe_ffn;
    if (written_out(config) && !config->model.max_seq && config->train.seq > model->max_positions)
        model->max_positions = (int)config->train.seq;
}

// A preset or config.json says which layers are sparse, be it none. Sizes written out mean all of a mixture of experts
// and none of the others; layers added are like the last one.
static void set_sparse_layers(const Config *config, int layers_before, ModelConfig *model) {
    bool moe = model_has_experts(model), all = written_out(config);
    for (int i = all ? 0 : layers_before; i < model->layers; i++)
        model->sparse[i] = all ? moe : model->sparse[layers_before - 1];
    if (!moe) model->experts = model->top_k = model->moe_ffn = 0;
}

static Status check_widths(const Config *config, const ModelConfig *model) {
    const char *missing = NULL;
    if (model_sparse_layers(model) < model->layers && model->ffn < 1) missing = "model.ffn";
    if (model_sparse_layers(model) && model->experts < 1)
        missing = "model.experts";
    else if (model_sparse_layers(model) && model->top_k < 1)
        missing = "model.top_k";
    else if (model_sparse_layers(model) && model->moe_ffn < 1)
        missing = "model.expert_ffn";
    if (missing) return config_blame(config, missing, status_usage("[model] leaves out %s", missing));
    const struct {
        const char *key;
        int64_t value;
    } of_experts[] = {{"model.experts", config->model.experts},
                      {"model.top_k", config->model.top_k},
                      {"model.expert_ffn", config->model.expert_ffn}};
    for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++)
        if (of_experts[i].value && !model_sparse_layers(model))
            return config_blame(config, of_experts[i].key,
                                status_hint(status_usage("%s = %lld, and the model has no sparse layers",
                                                         of_experts[i].key, (long long)of_experts[i].value),
                                            "a mixture of experts has model.arch = \"qwen3_moe\""));
    return NULL;
}

// A preset, config.json or HF directory has its architecture; another one beside it would be another model.
static Status check_arch(const Config *config, const ModelConfig *model) {
    ModelArch asked = model->arch;
    if (config->model.arch[0]) model_arch_parse(&asked, config->model.arch); // the config's table knows the same names
    if (asked == model->arch) return NULL;
    return config_blame(
        config, "model.arch",
        status_hint(status_usage("model.arch = \"%s\", and %s is of the architecture %s", config->model.arch,
                                 setup_model_name(config), model_arch_type(model->arch)),
                    "leave model.arch out, or write the sizes out instead of naming a model"));
}

Status setup_model(const Config *config, int64_t fallback_vocab, ModelConfig *model) {
    TRY(model_base_shape(config, model));
    TRY(check_arch(config, model));
    int layers_before = model->layers;
    overlay_sizes(config, model);
    set_sparse_layers(config, layers_before, model);
    fill_shape_gaps(config, fallback_vocab, model);
    const char *key = config->model.init[0]     ? "model.init"
                      : config->model.config[0] ? "model.config"
                      : config->model.preset[0] ? "model.preset"
                      : config->model.heads     ? "model.heads"
                                                : "model.hidden";
    if (!model->vocab)
        return config_blame(config, key,
                            status_hint(status_usage("nothing says how large the vocabulary is"),
                                        "set model.vocab, or data.train or data.tokenizer"));
    TRY(check_widths(config, model));
    TRY(config_blame(config, key, model_config_check(model, config->file)));
    if (config->train.seq > model->max_positions)
        return config_blame(config, "train.seq",
                            status_hint(status_usage("train.seq = %lld is longer than the model's %d positions",
                                                     (long long)config->train.seq, model->max_positions),
                                        "raise model.max_seq if the model is meant to be trained longer"));
    return NULL;
}

void setup_resolve(Config *config, const ModelConfig *model) {
    config->model.arch = model_arch_type(model->arch);
    config->model.hidden = model->hidden;
    config->model.layers = model->layers;
    config->model.heads = model->heads;
    config->model.kv_heads = model->kv_heads;
    config->model.head_dim = model->head_dim;
    config->model.ffn = model->ffn;
    config->model.vocab = model->vocab;
    config->model.max_seq = model->max_positions;
    config->model.experts = model->experts;
    config->model.top_k = model->top_k;
    config->model.expert_ffn = model->moe_ffn;
    config->model.rope_theta = model->rope_theta;
    config->model.norm_eps = text_float_value(model->norm_eps);
    config->model.init_std = text_float_value(model->init_std);
    config->model.aux_coef = text_float_value(model->aux_coef);
    config->model.tie_embeddings = model->tied ? "true" : "false";
}

static const char *absolute_text(Config *config, const char *path) {
    if (!path[0]) return path;
    char *whole = path_absolute(path);
    const char *kept = arena_copy(&config->arena, whole, strlen(whole));
    free(whole);
    return kept;
}

void setup_resolve_paths(Config *config) {
    ConfigTexts *lists[] = {&config->data.train, &config->data.val};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (int k = 0; k < lists[i]->count; k++)
            lists[i]->items[k] = absolute_text(config, lists[i]->items[k]);
    if (strcmp(config->data.tokenizer, "bytes") != 0)
        config->data.tokenizer = absolute_text(config, config->data.tokenizer);
    config->model.config = absolute_text(config, config->model.config);
    config->model.init = absolute_text(config, config->model.init);
}

const char *setup_model_name(const Config *config) {
    if (config->model.preset[0]) return config->model.preset;
    if (config->model.init[0]) return config->model.init;
    if (config->model.config[0]) return config->model.config;
    return config->file ? path_name(config->file) : "custom";
}

// Chunks of layers on each rank of a pipeline.
static Status setup_chunks(const Config *config, LayoutRequest *request) {
    PipelineSchedule schedule;
    int pp = request->mesh.pp, given = (int)config->parallelism.virtual_stages;
    int each = (int)config->parallelism.layers_per_stage, layers = request->config.layers;
    TRY(pipeline_schedule_parse(&schedule, config->parallelism.schedule));
    request->schedule = schedule;
    if (pp == 1) return NULL; // there is nothing to order
    if (schedule != PIPELINE_INTERLEAVED) {
        if (given <= 1) return NULL;
        return config_blame(config, "parallelism.virtual_stages",
                            status_hint(status_usage("virtual stages need the interleaved schedule"),
                                        "set parallelism.schedule = \"interleaved\""));
    }
    if (!given && each) {
        given = (layers + each - 1) / each / pp;
        if (given < 1 || (layers + each - 1) / each % pp)
            return config_blame(config, "parallelism.layers_per_stage",
                                status_usage("%d layers in chunks of %d are %d, which do not divide by %d stages",
                                             layers, each, (layers + each - 1) / each, pp));
    }
    request->virtual_stages = given ? given : 2;
    if (request->virtual_stages == 1)
        return config_blame(config, "parallelism.virtual_stages",
                            status_hint(status_usage("an interleaved pipeline has at least 2 chunks on each rank"),
                                        "one chunk is parallelism.schedule = \"1f1b\""));
    return NULL;
}

Status setup_micro_batches(const Config *config, LayoutRequest *request, const BatchPlan *batch) {
    request->micro_batches = (int)batch->grad_accum;
    if (request->mesh.pp == 1 || layout_chunks(request) == 1) return NULL;
    TRY(config_blame(config, "train.grad_accum",
                     pipeline_schedule_check(layout_schedule(request), request->mesh.pp, layout_chunks(request),
                                             request->micro_batches)));
    if (!batch->warmup_tokens || batch->grad_accum == 1) return NULL;
    return config_blame(
        config, "train.batch_warmup_tokens",
        status_hint(status_usage("an interleaved pipeline takes whole rounds of %d micro-batches, and a "
                                 "growing batch begins with one",
                                 request->mesh.pp),
                    "leave it out, or set parallelism.schedule = \"1f1b\""));
}

Status setup_layout(const Config *config, const ModelConfig *model, DeviceKind device, LayoutRequest *request) {
    *request = (LayoutRequest){.config = *model,
                               .mesh = MESH_SINGLE,
                               .micro_batch = (int)config->train.micro_batch,
                               .seq = (int)config->train.seq,
                               .logits_rows = config->recompute.logits_rows,
                               .device = device,
                               .threads = threads_count(),
                               .documents = config->data.mask_documents,
                               .expert_headroom = config->parallelism.expert_headroom};
    request->mesh.dp = config->parallelism.data > 0 ? (int)config->parallelism.data : 1;
    request->mesh.tp = (int)config->parallelism.tensor;
    request->mesh.pp = (int)config->parallelism.pipeline;
    request->mesh.ep = (int)config->parallelism.expert;
    request->mesh.cp = (int)config->parallelism.context;
    request->mesh.etp = (int)config->parallelism.expert_tensor;
    request->mesh.zero = (int)config->parallelism.zero;
    TRY(setup_chunks(config, request));
    request->islands = config->diloco.every ? (int)config->diloco.islands : 0;
    if (strcmp(config->parallelism.reduce_dtype, "bfloat16") == 0) request->reduce = DTYPE_BF16;
    TRY(config_blame(config, "train.precision", precision_parse(&request->precision, config->train.precision)));
    if (strcmp(config->train.fp8_head, "off") == 0) request->fp8_off = FP8_HEAD;
    request->tf32 = config->train.tf32;
    TRY(config_blame(config, "train.tf32", layout_check_tf32(request)));
    return config_blame(config, "recompute.mode", recompute_parse(&request->recompute, config->recompute.mode));
}

// ---- data ----------------------------------------------------------------------------------------------------------

static DatasetVerify setup_verify(const Config *config) {
    const char *wanted = config->data.verify;
    return strcmp(wanted, "once") == 0 ? VERIFY_ONCE : strcmp(wanted, "true") == 0 ? VERIFY_ALWAYS : VERIFY_NEVER;
}

static bool has_split(const char *path, const char *split) {
    if (mix_is_file(path)) {
        Mix mix;
        Status status = mix_open(&mix, path, split, VERIFY_NEVER);
        bool opened = !status;
        if (opened) mix_close(&mix);
        status_free(status);
        return opened;
    }
    if (!file_is_directory(path)) return false;
    char *index = path_join(path, DATASET_FILE);
    json_t *root = NULL;
    bool found = false;
    if (file_exists(index)) {
        status_free(dataset_read_json(&root, path));
        const json_t *entry = json_object_get(json_object_get(root, "splits"), split);
        found = json_array_size(json_object_get(entry, "shards")) > 0;
    }
    json_decref(root);
    free(index);
    return found;
}

Status setup_validation(const Config *config, Samples *val) {
    *val = (Samples){0};
    const char **paths = xcalloc((size_t)config->data.train.count + 1, sizeof *paths);
    int count = 0;
    for (int i = 0; i < config->data.train.count; i++)
        if (has_split(config->data.train.items[i], "val")) paths[count++] = config->data.train.items[i];
    bool given = config->data.val.count > 0;
    SamplesRequest request = {.paths = given ? config->data.val.items : paths,
                              .path_count = given ? config->data.val.count : count,
                              .split = "val",
                              .seq = (int)config->train.seq,
                              .mask_documents = config->data.mask_documents,
                              .verify = setup_verify(config),
                              .seed = 0}; // the fixed subset is the same for every run on the same data
    Status status = request.path_count ? samples_open(val, &request) : NULL;
    free(paths);
    return config_blame(config, given ? "data.val" : "data.train", status_context(status, "validation data"));
}

Status setup_data(const Config *config, Samples *train, Samples *val) {
    *train = (Samples){0};
    *val = (Samples){0};
    if (!config->data.train.count)
        return config_blame(config, "data.train",
                            status_hint(status_usage("data.train names no data"),
                                        "give prepared directories or shards; `hearth data synth` makes some"));
    SamplesRequest request = {.paths = config->data.train.items,
                              .path_count = config->data.train.count,
                              .weights = config->data.weights.count ? config->data.weights.items : NULL,
                              .split = "train",
                              .seq = (int)config->train.seq,
                              .mask_documents = config->data.mask_documents,
                              .verify = setup_verify(config),
                              .seed = (uint64_t)(config->data.seed >= 0 ? config->data.seed : config->train.seed)};
    TRY(config_blame(config, "data.train",
                     status_hint(status_context(samples_open(train, &request), "data.train"),
                                 "`hearth data prepare` makes datasets from text, `hearth data synth` from nothing")));
    Status status = setup_validation(config, val);
    if (!status && val->windows && train->mix.datasets[0].tokenizer_hash != val->mix.datasets[0].tokenizer_hash)
        status = config_blame(config, config->data.val.count ? "data.val" : "data.train",
                              status_usage("training and validation data were made with different tokenizers"));
    if (status) {
        samples_close(train);
        samples_close(val);
        return status;
    }
    if (config->eval.every && !val->windows) {
        samples_close(train);
        return config_blame(config, "eval.every",
                            status_hint(status_usage("eval.every is set, but there is no validation data"),
                                        "set data.val, or eval.every = 0"));
    }
    return NULL;
}

int64_t setup_data_vocab(const Config *config) {
    Mix mix;
    if (config->model.vocab || config->model.preset[0] || !config->data.train.count) return 0;
    Status status = mix_open(&mix, config->data.train.items[0], "train", VERIFY_NEVER);
    int64_t vocab = status || !mix.count ? 0 : (int64_t)mix.datasets[0].vocab_size;
    if (!status) mix_close(&mix);
    status_free(status); // not prepared yet
    return vocab;
}

Status setup_check_init(const Config *config, const Samples *samples) {
    if (!config->model.init[0]) return NULL;
    char *path = path_join(config->model.init, "tokenizer.json");
    Tokenizer *tokenizer = NULL;
    Status status = file_exists(path) ? tokenizer_load(&tokenizer, path) : NULL;
    if (tokenizer && tokenizer_hash(tokenizer) != samples->mix.datasets[0].tokenizer_hash)
        log_warn("the data was made with another tokenizer than %s: tokens mean something else to the model", path);
    tokenizer_free(tokenizer);
    free(path);
    return config_blame(config, "model.init", status);
}

Status setup_check_vocab(const Config *config, const ModelConfig *model, const Samples *samples) {
    uint64_t vocab = samples_vocab(samples);
    if (vocab <= (uint64_t)model->vocab) return NULL;
    return config_blame(config, "data.train",
                        status_hint(status_usage("the data has a vocabulary of %llu, the model only %d rows",
                                                 (unsigned long long)vocab, model->vocab),
                                    "use the tokenizer that belongs to the model, or set model.vocab"));
}

// The tokenizer as a dataset.json names it, beside the dataset or by an absolute path.
static char *dataset_tokenizer(const char *dataset) {
    if (!file_is_directory(dataset)) return NULL;
    char *beside = path_join(dataset, "tokenizer.json");
    if (file_exists(beside)) return beside;
    free(beside);
    json_t *root = NULL;
    status_free(dataset_read_json(&root, dataset));
    const json_t *entry = json_object_get(root, "tokenizer");
    const char *name = json_string_value(json_object_get(entry, "name"));
    char *path = NULL;
    if (name && strcmp(name, "bytes") == 0)
        path = text_copy(name);
    else if (name && file_exists(name))
        path = text_copy(name);
    json_decref(root);
    return path;
}

static bool made_of_bytes(const Dataset *dataset) { // a bare shard names no tokenizer, but has its hash
    Tokenizer *bytes = NULL;
    Status status = tokenizer_load(&bytes, "bytes");
    bool same = !status && tokenizer_hash(bytes) == dataset->tokenizer_hash;
    tokenizer_free(bytes);
    status_free(status);
    return same;
}

Status setup_tokenizer(const Config *config, const Samples *samples, char **path) {
    bool given = config->data.tokenizer[0] != 0;
    *path = given ? text_copy(config->data.tokenizer) : dataset_tokenizer(samples->mix.datasets[0].path);
    if (!*path && made_of_bytes(&samples->mix.datasets[0])) *path = text_copy("bytes");
    if (!*path) {
        log_warn("no tokenizer was found for %s: the run gets no copy, and `hearth sample` will have to be told; "
                 "data.tokenizer names one",
                 samples->mix.datasets[0].path);
        return NULL;
    }
    Tokenizer *tokenizer = NULL;
    Status status = tokenizer_load(&tokenizer, *path);
    if (!status && tokenizer_hash(tokenizer) != samples->mix.datasets[0].tokenizer_hash)
        status = status_hint(status_usage("the shards were not made with the tokenizer %s", *path),
                             "prepare the data again with it, or name the one they were made with");
    tokenizer_free(tokenizer);
    if (!status) return NULL;
    free(*path);
    *path = NULL;
    return config_blame(config, given ? "data.tokenizer" : "data.train", status);
}
