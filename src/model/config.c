#include "model/config.h"

#include "base/file.h"
#include "base/text.h"
#include "model/config_keys.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// The defaults are those of LlamaConfig, Qwen3Config and Qwen3MoeConfig in transformers 5.
typedef struct ArchRow {
    bool qk_norm, experts;
    int kv_heads; // 0: as many as heads
    int head_dim; // 0: hidden / heads
    int max_positions;
    bool tied;
    double rope_theta;
    float norm_eps, init_std;
    int top_k;
    bool norm_topk;
    float aux_coef;
} ArchRow;

static const ArchRow arch_rows[MODEL_ARCH_COUNT] = {
    [MODEL_LLAMA] = {.max_positions = 2048, .rope_theta = 10000.0, .norm_eps = 1e-6f, .init_std = 0.02f},
    [MODEL_QWEN3] = {.qk_norm = true,
                     .kv_heads = 32,
                     .head_dim = 128,
                     .max_positions = 32768,
                     .rope_theta = 10000.0,
                     .norm_eps = 1e-6f,
                     .init_std = 0.02f},
    [MODEL_QWEN3_MOE] = {.qk_norm = true,
                         .experts = true,
                         .kv_heads = 4,
                         .max_positions = 32768,
                         .rope_theta = 10000.0,
                         .norm_eps = 1e-6f,
                         .init_std = 0.02f,
                         .top_k = 8,
                         .aux_coef = 0.001f},
};

#define MODEL_ARCH_NAME(id, type, name) name,
#define MODEL_ARCH_TYPE(id, type, name) type,
static const char *const arch_names[] = {MODEL_ARCH_LIST(MODEL_ARCH_NAME)}; // of "architectures"
static const char *const arch_types[] = {MODEL_ARCH_LIST(MODEL_ARCH_TYPE)}; // of "model_type"

const char *model_arch_name(ModelArch arch) {
    return arch_names[arch];
}

const char *model_arch_type(ModelArch arch) {
    return arch_types[arch];
}

bool model_qk_norm(const ModelConfig *config) {
    return arch_rows[config->arch].qk_norm;
}

bool model_has_experts(const ModelConfig *config) {
    return arch_rows[config->arch].experts;
}

bool model_arch_parse(ModelArch *arch, const char *type) {
    for (int i = 0; i < MODEL_ARCH_COUNT; i++) {
        if (strcmp(type, arch_types[i]) != 0) continue;
        *arch = (ModelArch)i;
        return true;
    }
    return false;
}

void model_config_defaults(ModelConfig *config, ModelArch arch) {
    const ArchRow *row = &arch_rows[arch];
    *config = (ModelConfig){.arch = arch,
                            .kv_heads = row->kv_heads,
                            .head_dim = row->head_dim,
                            .max_positions = row->max_positions,
                            .norm_eps = row->norm_eps,
                            .init_std = row->init_std,
                            .tied = row->tied,
                            .rope_theta = row->rope_theta,
                            .top_k = row->top_k,
                            .norm_topk = row->norm_topk,
                            .aux_coef = row->aux_coef,
                            .sparse_step = 1,
                            .bos = -1,
                            .eos = -1};
}

void model_config_derive(ModelConfig *config) {
    if (!config->kv_heads) config->kv_heads = config->heads;
    if (!config->head_dim && config->heads) config->head_dim = config->hidden / config->heads;
}

// ---- reading --------------------------------------------------------------------------------------------------------

static Status unknown_arch(const char *name, const char *where) {
    TextBuffer known = {0};
    for (int i = 0; i < MODEL_ARCH_COUNT; i++)
        text_buffer_format(&known, "%s%s", i == 0 ? "" : i + 1 < MODEL_ARCH_COUNT ? ", " : " and ", arch_names[i]);
    Status status = status_hint(status_at(status_usage("architecture \"%s\" is not supported", name), where, 0, 0),
                                "hearth trains %s", known.data);
    text_buffer_free(&known);
    return status;
}

// "architectures" names the model's class, "model_type" the config's: either will do, both must agree.
static Status read_arch(ModelArch *arch, const json_t *root, const char *where) {
    const json_t *list = json_object_get(root, "architectures");
    const char *name = NULL, *type = NULL;
    if (list && !json_is_null(list)) {
        name = json_string_value(json_array_get(list, 0));
        if (!name || json_array_size(list) != 1)
            return status_at(status_usage("\"architectures\" must be a list of one name"), where, 0, 0);
    }
    TRY(json_get_text(root, "model_type", &type, where));
    if (!name && !type)
        return status_at(status_usage("neither \"architectures\" nor \"model_type\" is given"), where, 0, 0);
    int row = 0;
    while (row < MODEL_ARCH_COUNT && strcmp(name ? name : type, name ? arch_names[row] : arch_types[row]) != 0)
        row++;
    if (row == MODEL_ARCH_COUNT) return unknown_arch(name ? name : type, where);
    if (type && strcmp(type, arch_types[row]) != 0)
        return status_at(status_usage("\"architectures\" names %s, and \"model_type\" is \"%s\", not \"%s\"", name,
                                      type, arch_types[row]),
                         where, 0, 0);
    *arch = (ModelArch)row;
    return NULL;
}

// A required positive integer that fits an int.
static Status need_int(const json_t *root, const char *key, int *value, const char *where) {
    int64_t wide = -1;
    TRY(json_get_int(root, key, &wide, where));
    if (!json_has(root, key)) return status_at(status_usage("\"%s\" is missing", key), where, 0, 0);
    if (wide < 1 || wide > INT32_MAX)
        return status_at(status_usage("\"%s\" must be between 1 and 2147483647, not %lld", key, (long long)wide), where,
                         0, 0);
    *value = (int)wide;
    return NULL;
}

static Status read_llama3_rope(ModelConfig *config, const json_t *root, const json_t *scaling, const char *where) {
    int64_t original = config->max_positions;
    config->rope_type = ROPE_LLAMA3;
    TRY(json_get_double(scaling, "factor", &config->rope_factor, where));
    TRY(json_get_double(scaling, "low_freq_factor", &config->rope_low_freq, where));
    TRY(json_get_double(scaling, "high_freq_factor", &config->rope_high_freq, where));
    TRY(json_get_int(scaling, "original_max_position_embeddings", &original, where));
    TRY(json_get_int(root, "original_max_position_embeddings", &original, where)); // has the last word, as in HF
    if (config->rope_factor < 1 || config->rope_low_freq <= 0 || original < 1 || original > INT32_MAX ||
        config->rope_high_freq <= config->rope_low_freq)
        return status_at(status_usage("llama3 RoPE needs factor >= 1, 0 < low_freq_factor < high_freq_factor and "
                                      "original_max_position_embeddings >= 1"),
                         where, 0, 0);
    config->rope_original_positions = (int)original;
    return NULL;
}

// Newer files: rope_parameters {rope_theta, rope_type, ...}. Older: rope_theta beside rope_scaling {rope_type|type,
// ...}, which comes first where both are there.
static Status read_rope(ModelConfig *config, const json_t *root, const char *where) {
    const json_t *scaling = json_object_get(root, "rope_scaling");
    if (json_object_size(scaling) == 0) scaling = json_object_get(root, "rope_parameters");
    double partial = 1.0;
    const char *type = "default";
    TRY(json_get_double(root, "rope_theta", &config->rope_theta, where));
    TRY(json_get_double(root, "partial_rotary_factor", &partial, where));
    if (scaling && !json_is_null(scaling) && !json_is_object(scaling))
        return status_at(status_usage("\"rope_parameters\" must be an object"), where, 0, 0);
    TRY(json_get_text(scaling, "type", &type, where));
    TRY(json_get_text(scaling, "rope_type", &type, where));
    TRY(json_get_double(scaling, "rope_theta", &config->rope_theta, where));
    TRY(json_get_double(scaling, "partial_rotary_factor", &partial, where));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)scaling, key, value) if (json_is_object(value)) return status_at(
        status_usage("\"rope_parameters\" of each kind of layer (\"%s\") are not supported", key), where, 0, 0);
    if (strcmp(type, "llama3") == 0)
        TRY(read_llama3_rope(config, root, scaling, where));
    else if (strcmp(type, "default") != 0)
        return status_hint(status_at(status_usage("RoPE type \"%s\" is not supported", type), where, 0, 0),
                           "hearth computes the types default and llama3");
    if (partial != 1.0)
        return status_at(status_usage("a partial_rotary_factor other than 1 is not supported"), where, 0, 0);
    if (!(config->rope_theta > 0)) return status_at(status_usage("\"rope_theta\" must be positive"), where, 0, 0);
    return NULL;
}

static Status read_moe(ModelConfig *config, const json_t *root, const char *where) {
    const char *experts_key = json_has(root, "num_local_experts") ? "num_local_experts" : "num_experts";
    TRY(need_int(root, experts_key, &config->experts, where));
    if (json_has(root, "num_experts_per_tok")) TRY(need_int(root, "num_experts_per_tok", &config->top_k, where));
    TRY(need_int(root, "moe_intermediate_size", &config->moe_ffn, where));
    double coef = text_float_value(config->aux_coef);
    int64_t step = config->sparse_step;
    TRY(json_get_bool(root, "norm_topk_prob", &config->norm_topk, where));
    TRY(json_get_double(root, "router_aux_loss_coef", &coef, where));
    TRY(json_get_int(root, "decoder_sparse_step", &step, where));
    if (step < 1 || step > INT32_MAX)
        return status_at(status_usage("\"decoder_sparse_step\" must be between 1 and 2147483647"), where, 0, 0);
    config->aux_coef = (float)coef;
    config->sparse_step = (int)step;
    for (int i = 0; i < config->layers; i++)
        config->sparse[i] = (i + 1) % step == 0;
    json_t *dense = json_object_get(root, "mlp_only_layers"), *item;
    size_t index;
    if (dense && !json_is_null(dense) && !json_is_array(dense))
        return status_at(status_usage("\"mlp_only_layers\" must be a list of layers"), where, 0, 0);
    json_array_foreach(dense, index, item) {
        int64_t layer = json_is_integer(item) ? json_integer_value(item) : -1;
        if (layer < 0 || layer >= config->layers)
            return status_at(
                status_usage("\"mlp_only_layers\" names layer %lld of %d", (long long)layer, config->layers), where, 0,
                0);
        config->sparse[layer] = false;
    }
    return NULL;
}

static Status check_values(const json_t *root, const char *where) {
    const char *activation = "silu";
    TRY(json_get_text(root, "hidden_act", &activation, where));
    if (strcmp(activation, "silu") != 0 && strcmp(activation, "swish") != 0) // two names of one function
        return status_at(status_usage("hidden_act \"%s\" is not supported (only silu)", activation), where, 0, 0);
    json_t *types = json_object_get(root, "layer_types"), *item;
    size_t index;
    json_array_foreach(types, index, item) {
        const char *type = json_string_value(item);
        if (!type || strcmp(type, "full_attention") != 0)
            return status_at(
                status_usage("layer type \"%s\" is not supported (only full_attention)", type ? type : "?"), where, 0,
                0);
    }
    return NULL;
}

static Status read_heads(ModelConfig *config, const json_t *root, const char *where) {
    const json_t *kv_heads = json_object_get(root, "num_key_value_heads");
    if (json_is_null(kv_heads)) config->kv_heads = 0; // not the default of a missing key
    if (json_has(root, "num_key_value_heads")) TRY(need_int(root, "num_key_value_heads", &config->kv_heads, where));
    if (json_has(root, "head_dim")) TRY(need_int(root, "head_dim", &config->head_dim, where));
    if (!config->head_dim && config->hidden % config->heads)
        return status_at(status_usage("\"hidden_size\" %d does not divide by \"num_attention_heads\" %d and no "
                                      "\"head_dim\" is given",
                                      config->hidden, config->heads),
                         where, 0, 0);
    model_config_derive(config);
    return NULL;
}

Status model_config_parse(ModelConfig *config, const json_t *root, const char *where) {
    if (!json_is_object(root)) return status_at(status_usage("a model config is a JSON object"), where, 0, 0);
    ModelArch arch = MODEL_LLAMA;
    TRY(read_arch(&arch, root, where));
    TRY(model_config_check_keys(root, where));
    TRY(check_values(root, where));
    model_config_defaults(config, arch);
    TRY(need_int(root, "vocab_size", &config->vocab, where));
    TRY(need_int(root, "hidden_size", &config->hidden, where));
    TRY(need_int(root, "num_hidden_layers", &config->layers, where));
    TRY(need_int(root, "num_attention_heads", &config->heads, where));
    TRY(need_int(root, "intermediate_size", &config->ffn, where));
    if (config->layers > MODEL_LAYERS_MAX)
        return status_at(
            status_usage("\"num_hidden_layers\" is %d, at most %d are supported", config->layers, MODEL_LAYERS_MAX),
            where, 0, 0);
    TRY(read_heads(config, root, where));
    if (json_has(root, "max_position_embeddings"))
        TRY(need_int(root, "max_position_embeddings", &config->max_positions, where));
    double eps = text_float_value(config->norm_eps), std = text_float_value(config->init_std);
    TRY(json_get_double(root, "rms_norm_eps", &eps, where));
    TRY(json_get_double(root, "initializer_range", &std, where));
    TRY(json_get_bool(root, "tie_word_embeddings", &config->tied, where));
    config->norm_eps = (float)eps;
    config->init_std = (float)std;
    if (json_is_integer(json_object_get(root, "bos_token_id")))
        TRY(json_get_int(root, "bos_token_id", &config->bos, where));
    if (json_is_integer(json_object_get(root, "eos_token_id")))
        TRY(json_get_int(root, "eos_token_id", &config->eos, where));
    TRY(read_rope(config, root, where));
    if (model_has_experts(config)) TRY(read_moe(config, root, where));
    return model_config_check(config, where);
}

// Beyond these no machine trains, and the products of sizes would not fit the integers that count them.
enum { SIZE_MAX_SUPPORTED = 1 << 24 };
static const double PARAMETERS_MAX = 1e15;
static const float VALUE_MAX = 1e30f; // finite, and read back as it is written

static Status check_sizes(const ModelConfig *config) {
    const double hidden = config->hidden, ffn = fmax(config->ffn, (double)config->moe_ffn * config->experts);
    const double attention = ((double)config->heads + 2.0 * config->kv_heads) * config->head_dim;
    const struct {
        const char *name;
        double size;
    } sizes[] = {{"the vocabulary", config->vocab},
                 {"the hidden size", hidden},
                 {"the width of an MLP", fmax(config->ffn, config->moe_ffn)},
                 {"the number of experts", config->experts},
                 {"the width of attention (heads and KV heads times head_dim)", attention}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].size > SIZE_MAX_SUPPORTED)
            return status_usage("%s is %.0f, at most %d is supported", sizes[i].name, sizes[i].size,
                                SIZE_MAX_SUPPORTED);
    double parameters = hidden * (2.0 * config->vocab + config->layers * (2 * attention + 3 * ffn + config->experts));
    if (parameters > PARAMETERS_MAX)
        return status_usage("a model of %.3g parameters is beyond what is supported (%.0g)", parameters,
                            PARAMETERS_MAX);
    return NULL;
}

Status model_config_check(const ModelConfig *config, const char *where) {
    Status status = check_sizes(config);
    if (status) return status_at(status, where, 0, 0);
    if (config->heads % config->kv_heads) {
        status = status_usage("%d attention heads do not divide by %d KV heads", config->heads, config->kv_heads);
        if (config->kv_heads == arch_rows[config->arch].kv_heads)
            status = status_hint(status, "%d is what %s assumes when num_key_value_heads (kv_heads) is not given",
                                 config->kv_heads, arch_names[config->arch]);
    } else if (config->head_dim % 2)
        status = status_usage("head_dim %d is odd; rotary embedding turns pairs", config->head_dim);
    else if (config->experts && config->top_k > config->experts)
        status = status_usage("a token chooses %d of only %d experts", config->top_k, config->experts);
    else if (!(config->norm_eps > 0 && config->norm_eps < 1))
        status = status_usage("rms_norm_eps %g is out of range", (double)config->norm_eps);
    else if (!(config->init_std >= 0 && config->init_std <= VALUE_MAX))
        status = status_usage("initializer_range %g is out of range", (double)config->init_std);
    else if (!(fabsf(config->aux_coef) <= VALUE_MAX))
        status = status_usage("router_aux_loss_coef %g is out of range", (double)config->aux_coef);
    return status_at(status, where, 0, 0);
}

Status model_config_read(ModelConfig *config, const char *path) {
    char *file = file_is_directory(path) ? path_join(path, "config.json") : text_copy(path);
    json_t *root = NULL;
    Status status = json_read_file(&root, file);
    if (!status) status = model_config_parse(config, root, file);
    json_decref(root);
    free(file);
    return status;
}

// ---- writing --------------------------------------------------------------------------------------------------------

static json_t *rope_json(const ModelConfig *config) {
    if (config->rope_type == ROPE_DEFAULT)
        return json_pack("{s:f, s:s}", "rope_theta", config->rope_theta, "rope_type", "default");
    return json_pack("{s:f, s:f, s:f, s:i, s:f, s:s}", "factor", config->rope_factor, "high_freq_factor",
                     config->rope_high_freq, "low_freq_factor", config->rope_low_freq,
                     "original_max_position_embeddings", config->rope_original_positions, "rope_theta",
                     config->rope_theta, "rope_type", "llama3");
}

static json_t *token_json(int64_t id) {
    return id < 0 ? json_null() : json_integer(id);
}

json_t *model_config_json(const ModelConfig *config) {
    json_t *root = json_pack(
        "{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:b, s:s, s:b, s:f, s:o, s:o, s:o, s:f, s:s}",
        "architectures", arch_names[config->arch], "model_type", arch_types[config->arch], "vocab_size", config->vocab,
        "hidden_size", config->hidden, "num_hidden_layers", config->layers, "num_attention_heads", config->heads,
        "num_key_value_heads", config->kv_heads, "head_dim", config->head_dim, "intermediate_size", config->ffn,
        "max_position_embeddings", config->max_positions, "rms_norm_eps", text_float_value(config->norm_eps),
        "initializer_range", text_float_value(config->init_std), "tie_word_embeddings", config->tied, "hidden_act",
        "silu", "attention_bias", 0, "attention_dropout", 0.0, "bos_token_id", token_json(config->bos), "eos_token_id",
        token_json(config->eos), "rope_parameters", rope_json(config), "rope_theta", config->rope_theta, "torch_dtype",
        "float32");
    if (config->rope_type == ROPE_LLAMA3) json_object_set_new(root, "rope_scaling", rope_json(config));
    if (config->arch == MODEL_LLAMA) json_object_set_new(root, "mlp_bias", json_false());
    if (model_has_experts(config)) {
        json_t *dense = json_array();
        for (int i = 0; i < config->layers; i++)
            if (!config->sparse[i] && (i + 1) % config->sparse_step == 0) json_array_append_new(dense, json_integer(i));
        json_t *moe =
            json_pack("{s:i, s:i, s:i, s:i, s:b, s:f, s:i, s:o}", "num_experts", config->experts, "num_local_experts",
                      config->experts, "num_experts_per_tok", config->top_k, "moe_intermediate_size", config->moe_ffn,
                      "norm_topk_prob", config->norm_topk, "router_aux_loss_coef", text_float_value(config->aux_coef),
                      "decoder_sparse_step", config->sparse_step, "mlp_only_layers", dense);
        json_object_update(root, moe);
        json_decref(moe);
    }
    return root;
}

// ---- derived --------------------------------------------------------------------------------------------------------

int model_sparse_layers(const ModelConfig *config) {
    int count = 0;
    for (int i = 0; i < config->layers; i++)
        count += config->sparse[i];
    return count;
}

ModelParameters model_parameters(const ModelConfig *config) {
    int64_t d = config->hidden, sparse = model_sparse_layers(config), dense = config->layers - sparse;
    int64_t attention = d * model_qkv_dim(config) + (int64_t)model_attention_dim(config) * d + 2 * d +
                        (model_qk_norm(config) ? 2 * config->head_dim : 0);
    int64_t expert = 3 * d * config->moe_ffn, router = d * config->experts;
    int64_t shared = config->layers * attention + dense * 3 * d * config->ffn + sparse * router + d; // + final norm
    ModelParameters count = {.embedding = (int64_t)config->vocab * d};
    int64_t head = config->tied ? 0 : count.embedding;
    count.total = shared + sparse * config->experts * expert + count.embedding + head;
    count.active = shared + sparse * config->top_k * expert + count.embedding + head;
    count.matmul_active = count.active - count.embedding + (config->tied ? count.embedding : 0);
    return count;
}

void model_rope_table(const ModelConfig *config, int positions, float *cos_table, float *sin_table) {
    int half = config->head_dim / 2;
    for (int i = 0; i < half; i++) {
        // HF keeps the frequencies as float: rounding them here gives the same angles at large positions.
        double frequency = (float)(1.0 / pow(config->rope_theta, 2.0 * i / config->head_dim));
        if (config->rope_type == ROPE_LLAMA3) {
            // Wavelengths beyond the original context are stretched by the factor, short ones kept, those between
            // blended.
            double wavelength = 2.0 * M_PI / frequency;
            double low = config->rope_original_positions / config->rope_low_freq;
            double high = config->rope_original_positions / config->rope_high_freq;
            if (wavelength > low) {
                frequency /= config->rope_factor;
            } else if (wavelength > high) {
                double blend = (config->rope_original_positions / wavelength - config->rope_low_freq) /
                               (config->rope_high_freq - config->rope_low_freq);
                frequency = (1 - blend) * frequency / config->rope_factor + blend * frequency;
            }
            frequency = (float)frequency;
        }
        for (int p = 0; p < positions; p++) {
            double angle = (float)(p * frequency);
            cos_table[(int64_t)p * half + i] = (float)cos(angle);
            sin_table[(int64_t)p * half + i] = (float)sin(angle);
        }
    }
}
