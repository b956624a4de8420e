#include "plan/flops.h"

double plan_attention_flops_per_token(double layers, double heads, double head_dim, double seq, double attention) {
    return attention * layers * heads * head_dim * seq;
}

double plan_flops_per_token(double matmul_params, double layers, double heads, double head_dim, double seq,
                            double attention) {
    return 6 * matmul_params + plan_attention_flops_per_token(layers, heads, head_dim, seq, attention);
}

double plan_train_flops(double params, double tokens) {
    return 6 * params * tokens;
}

double plan_peak_flops(double sms, double flop_per_clock_per_sm, double clock_hz) {
    return sms * flop_per_clock_per_sm * clock_hz;
}

double plan_peak_dense_from_sparse(double sparse_flops) {
    return sparse_flops / 2;
}

double plan_effective_flops(double peak, double gpus, double mfu) {
    return peak * gpus * mfu;
}

double plan_mfu(double flops_per_token, double tokens_per_s, double peak, double gpus) {
    return flops_per_token * tokens_per_s / (peak * gpus);
}

double plan_mfu_6n(double params, double tokens_per_s, double peak, double gpus) {
    return plan_mfu(6 * params, tokens_per_s, peak, gpus);
}

double plan_mfu_from_seconds(double params, double tokens, double peak, double gpus, double seconds) {
    return plan_train_flops(params, tokens) / (peak * gpus * seconds);
}

double plan_mfu_without_world_size(double reported, double world_size) {
    return reported / world_size;
}

double plan_mfu_with_exposed_comm(double mfu, double compute_s, double comm_s) {
    return mfu * compute_s / (compute_s + comm_s);
}

double plan_params_from_mfu(double mfu, double tokens_per_s, double peak, double gpus) {
    return mfu * peak * gpus / (6 * tokens_per_s);
}

double plan_achieved_flops(double flops_per_token, double tokens_per_s_per_gpu) {
    return flops_per_token * tokens_per_s_per_gpu;
}

double plan_flops_per_token_from_log(double flops_per_gpu, double tokens_per_s_per_gpu) {
    return flops_per_gpu / tokens_per_s_per_gpu;
}

double plan_peak_from_log(double flops_per_gpu, double mfu) {
    return flops_per_gpu / mfu;
}
