// Built-in architectures: the models of the shipped configs, two of demo size, and shapes that people plan with.
#include "base/text.h"
#include "model/config.h"

#include <string.h>

typedef struct Preset {
    const char *name;
    ModelConfig config;
} Preset;

#define COMMON .norm_eps = 1e-5f, .init_std = 0.02f, .bos = -1, .eos = -1, .sparse_step = 1
#define LLAMA3_ROPE                                                                                \
    .rope_theta = 500000.0, .rope_type = ROPE_LLAMA3, .rope_low_freq = 1.0, .rope_high_freq = 4.0, \
    .rope_original_positions = 8192

static const Preset presets[] = {
    {"demo-llama",
     {COMMON, .arch = MODEL_LLAMA, .vocab = 512, .hidden = 160, .layers = 4, .heads = 5, .kv_heads = 5, .head_dim = 32,
      .ffn = 448, .max_positions = 2048, .tied = true, .rope_theta = 10000.0}},
    {"demo-moe",
     {COMMON, .arch = MODEL_QWEN3_MOE, .vocab = 512, .hidden = 128, .layers = 4, .heads = 4, .kv_heads = 2,
      .head_dim = 32, .ffn = 384, .max_positions = 2048, .rope_theta = 10000.0, .experts = 8, .top_k = 2,
      .moe_ffn = 128, .norm_topk = true, .aux_coef = 0.01f}},
    {"smollm-360m",
     {COMMON, .arch = MODEL_LLAMA, .vocab = 49152, .hidden = 960, .layers = 32, .heads = 15, .kv_heads = 5,
      .head_dim = 64, .ffn = 2560, .max_positions = 2048, .tied = true, .rope_theta = 10000.0}},
    {"llama-3.2-1b",
     {COMMON, LLAMA3_ROPE, .arch = MODEL_LLAMA, .vocab = 128256, .hidden = 2048, .layers = 16, .heads = 32,
      .kv_heads = 8, .head_dim = 64, .ffn = 8192, .max_positions = 131072, .tied = true, .rope_factor = 32.0}},
    {"qwen3-moe-500m",
     {COMMON, .arch = MODEL_QWEN3_MOE, .vocab = 151936, .hidden = 896, .layers = 12, .heads = 16, .kv_heads = 16,
      .head_dim = 56, .ffn = 4096, .max_positions = 32768, .rope_theta = 1000000.0, .experts = 16, .top_k = 2,
      .moe_ffn = 512, .norm_topk = true, .aux_coef = 0.01f}},
    {"qwen3-30b-a3b",
     {COMMON, .arch = MODEL_QWEN3_MOE, .vocab = 151936, .hidden = 2048, .layers = 48, .heads = 32, .kv_heads = 4,
      .head_dim = 128, .ffn = 6144, .max_positions = 40960, .rope_theta = 1000000.0, .experts = 128, .top_k = 8,
      .moe_ffn = 768, .norm_topk = true, .aux_coef = 0.001f}},
    {"qwen3-0.6b",
     {COMMON, .arch = MODEL_QWEN3, .vocab = 151936, .hidden = 1024, .layers = 28, .heads = 16, .kv_heads = 8,
      .head_dim = 128, .ffn = 3072, .max_positions = 40960, .tied = true, .rope_theta = 1000000.0}},
    {"llama-2-7b",
     {COMMON, .arch = MODEL_LLAMA, .vocab = 32000, .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 32,
      .head_dim = 128, .ffn = 11008, .max_positions = 4096, .rope_theta = 10000.0}},
    {"llama-2-13b",
     {COMMON, .arch = MODEL_LLAMA, .vocab = 32000, .hidden = 5120, .layers = 40, .heads = 40, .kv_heads = 40,
      .head_dim = 128, .ffn = 13824, .max_positions = 4096, .rope_theta = 10000.0}},
    {"llama-3-8b",
     {COMMON, .arch = MODEL_LLAMA, .vocab = 128256, .hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 8,
      .head_dim = 128, .ffn = 14336, .max_positions = 8192, .rope_theta = 500000.0}},
    {"llama-3-70b",
     {COMMON, .arch = MODEL_LLAMA, .vocab = 128256, .hidden = 8192, .layers = 80, .heads = 64, .kv_heads = 8,
      .head_dim = 128, .ffn = 28672, .max_positions = 8192, .rope_theta = 500000.0}},
    {"llama-3.1-405b",
     {COMMON, LLAMA3_ROPE, .arch = MODEL_LLAMA, .vocab = 128256, .hidden = 16384, .layers = 126, .heads = 128,
      .kv_heads = 8, .head_dim = 128, .ffn = 53248, .max_positions = 131072, .rope_factor = 8.0}},
};

int model_preset_count(void) {
    return (int)(sizeof presets / sizeof presets[0]);
}

const char *model_preset_name(int index) {
    return presets[index].name;
}

Status model_preset(ModelConfig *config, const char *name) {
    const char *names[sizeof presets / sizeof presets[0]];
    for (int i = 0; i < model_preset_count(); i++) {
        names[i] = presets[i].name;
        if (strcmp(name, presets[i].name) != 0) continue;
        *config = presets[i].config;
        for (int layer = 0; layer < config->layers; layer++)
            config->sparse[layer] = config->experts > 0;
        if (config->arch != MODEL_LLAMA) config->norm_eps = 1e-6f;
        return NULL;
    }
    TextBuffer list = {0};
    for (int i = 0; i < model_preset_count(); i++)
        text_buffer_format(&list, "%s%s", i ? ", " : "", names[i]);
    const char *nearest = text_nearest(name, names, (size_t)model_preset_count());
    Status status = status_usage("no model preset is called \"%s\"", name);
    status = nearest ? status_hint(status, "did you mean %s? The presets are: %s", nearest, list.data)
                     : status_hint(status, "the presets are: %s", list.data);
    text_buffer_free(&list);
    return status;
}
