#include "plan/params.h"

static double layer_params(const PlanShape *s, double experts) {
    double attention = 2 * s->hidden * s->heads * s->head_dim + 2 * s->hidden * s->kv_heads * s->head_dim;
    double norms = 2 * s->hidden + (s->qk_norm ? 2 * s->head_dim : 0);
    double router = s->router ? s->hidden * s->experts : 0;
    return attention + norms + router + experts * 3 * s->hidden * s->ffn;
}

static double model_params(const PlanShape *s, double experts, double embeddings) {
    return s->layers * layer_params(s, experts) + s->hidden + embeddings * s->vocab * s->hidden;
}

double plan_params_total(const PlanShape *shape) {
    return model_params(shape, shape->experts, shape->tied ? 1 : 2);
}

double plan_params_active(const PlanShape *shape) {
    return model_params(shape, shape->top_k, shape->tied ? 1 : 2);
}

double plan_params_matmul(const PlanShape *shape) {
    return model_params(shape, shape->top_k, 1);
}

double plan_layer_params_mha(double hidden, double ffn) {
    return 4 * hidden * hidden + 3 * hidden * ffn;
}

double plan_layer_params_gqa(double hidden, double ffn, double heads, double kv_heads) {
    return 2 * hidden * hidden + 2 * hidden * (hidden / heads) * kv_heads + 3 * hidden * ffn;
}

double plan_params_from_layers(double per_layer, double layers, double vocab, double hidden) {
    return per_layer * layers + 2 * vocab * hidden;
}
