// Parameters under the names that Hugging Face files have for them.
#include "model/layout.h"

#include <assert.h>
#include <stdio.h>

int layout_hf_part_count(const Layout *layout, const LayoutParam *param) {
    switch (param->id) {
    case PARAM_QKV: return 3;
    case PARAM_GATE_UP: return 2;
    case PARAM_EXPERT_GATE_UP: return 2 * layout->request.config.experts;
    case PARAM_EXPERT_DOWN: return layout->request.config.experts;
    default: return 1;
    }
}

// A whole parameter, or rows [first, first + rows) of one, under the name after "model.layers.N.".
static HfPart hf_part(const LayoutParam *param, const char *name, int64_t first_row, int64_t rows) {
    HfPart result = {.dims = param->dims == 1 ? 1 : 2};
    int64_t cols = param->global_shape[param->dims - 1];
    if (param->dims == 1) {
        result.shape[0] = cols;
        result.count = cols;
    } else {
        result.shape[0] = rows;
        result.shape[1] = cols;
        result.offset = first_row * cols;
        result.count = rows * cols;
    }
    if (param->layer < 0)
        snprintf(result.name, sizeof result.name, "%s.weight", name);
    else
        snprintf(result.name, sizeof result.name, "model.layers.%d.%s.weight", param->layer, name);
    return result;
}

HfPart layout_hf_part(const Layout *layout, const LayoutParam *param, int index) {
    const ModelConfig *c = &layout->request.config;
    int64_t q = model_attention_dim(c), kv = (int64_t)c->kv_heads * c->head_dim, f = c->moe_ffn;
    char name[64];
    switch (param->id) {
    case PARAM_EMBEDDING: return hf_part(param, "model.embed_tokens", 0, c->vocab);
    case PARAM_HEAD: return hf_part(param, "lm_head", 0, c->vocab);
    case PARAM_FINAL_NORM: return hf_part(param, "model.norm", 0, 0);
    case PARAM_ATTN_NORM: return hf_part(param, "input_layernorm", 0, 0);
    case PARAM_MLP_NORM: return hf_part(param, "post_attention_layernorm", 0, 0);
    case PARAM_Q_NORM: return hf_part(param, "self_attn.q_norm", 0, 0);
    case PARAM_K_NORM: return hf_part(param, "self_attn.k_norm", 0, 0);
    case PARAM_QKV:
        if (index == 0) return hf_part(param, "self_attn.q_proj", 0, q);
        return hf_part(param, index == 1 ? "self_attn.k_proj" : "self_attn.v_proj", q + (index - 1) * kv, kv);
    case PARAM_O: return hf_part(param, "self_attn.o_proj", 0, c->hidden);
    case PARAM_GATE_UP: return hf_part(param, index ? "mlp.up_proj" : "mlp.gate_proj", index * (int64_t)c->ffn, c->ffn);
    case PARAM_DOWN: return hf_part(param, "mlp.down_proj", 0, c->hidden);
    case PARAM_ROUTER: return hf_part(param, "mlp.gate", 0, c->experts);
    case PARAM_EXPERT_GATE_UP:
        snprintf(name, sizeof name, "mlp.experts.%d.%s", index / 2, index % 2 ? "up_proj" : "gate_proj");
        return hf_part(param, name, index * f, f);
    case PARAM_EXPERT_DOWN:
        snprintf(name, sizeof name, "mlp.experts.%d.down_proj", index);
        return hf_part(param, name, index * (int64_t)c->hidden, c->hidden);
    case PARAM_ID_COUNT: break;
    }
    assert(!"no such parameter");
    return (HfPart){0};
}
