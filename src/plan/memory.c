#include "plan/memory.h"

#include "plan/rounding.h"

double plan_bytes(double params, double bytes_per_param) {
    return params * bytes_per_param;
}

double plan_state_bytes_sharded(double params, double bytes_per_param, double shards) {
    return params * bytes_per_param / shards;
}

double plan_zero_state_bytes(double params, double stage, double ranks) {
    double weights = PLAN_WEIGHT_BYTES / (stage >= 3 ? ranks : 1);
    double grads = PLAN_GRAD_BYTES / (stage >= 2 ? ranks : 1);
    double optimizer = PLAN_OPTIMIZER_BYTES / (stage >= 1 ? ranks : 1);
    return params * (weights + grads + optimizer);
}

double plan_zero1_optimizer_bytes(double params, double ranks) {
    return plan_state_bytes_sharded(params, PLAN_OPTIMIZER_BYTES, ranks);
}

double plan_zero12_comm_bytes(double params, double share) {
    return 2 * PLAN_GRAD_BYTES * params * share;
}

double plan_zero3_comm_bytes(double params, double share) {
    return (2 * PLAN_WEIGHT_BYTES + PLAN_GRAD_BYTES) * params * share;
}

double plan_activation_tensor_bytes(double batch, double seq, double hidden, double bytes_per) {
    return batch * seq * hidden * bytes_per;
}

double plan_activation_bytes(double tensors, double batch, double seq, double hidden, double layers, double bytes_per) {
    return tensors * layers * plan_activation_tensor_bytes(batch, seq, hidden, bytes_per);
}

double plan_attention_score_bytes(double batch, double heads, double seq, double bytes_per, double layers) {
    return batch * heads * seq * seq * bytes_per * layers;
}

double plan_memory_slope(double bytes_a, double tokens_a, double bytes_b, double tokens_b) {
    return (bytes_a - bytes_b) / (tokens_a - tokens_b);
}

double plan_memory_static(double bytes_a, double tokens_a, double bytes_b, double tokens_b) {
    return bytes_a - plan_memory_slope(bytes_a, tokens_a, bytes_b, tokens_b) * tokens_a;
}

double plan_memory_capacity(double used_bytes, double used_fraction) {
    return used_bytes / used_fraction;
}

double plan_max_local_batch(double capacity, double limit, double static_bytes, double bytes_per_token, double seq) {
    return fmax(0, plan_floor((capacity * limit - static_bytes) / (bytes_per_token * seq)));
}
