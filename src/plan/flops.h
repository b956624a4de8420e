// FLOPs of training and model FLOPs utilisation (MFU). Peaks are dense FLOP/s of a named dtype, MFU is a fraction, and
// recomputed activations are not counted. MFU means something only together with its FLOPs-per-token convention:
//   torchtitan  6 * matmul parameters + 12 L H hd S   (hearth's default)
//   causal      6 * matmul parameters +  6 L H hd S   (only the half of the scores that a causal model needs)
//   6N          6 * N                                 (no attention; N as the author counts it)
#pragma once

// FLOPs per token, layer, head, head dimension and position: the value of the enum is the factor.
typedef enum PlanAttention {
    PLAN_ATTENTION_NONE = 0,
    PLAN_ATTENTION_CAUSAL = 6,
    PLAN_ATTENTION_FULL = 12,
} PlanAttention;

double plan_attention_flops_per_token(double layers, double heads, double head_dim, double seq, double attention);
double plan_flops_per_token(double matmul_params, double layers, double heads, double head_dim, double seq,
                            double attention);
double plan_train_flops(double params, double tokens); // 6 N D

double plan_peak_flops(double sms, double flop_per_clock_per_sm, double clock_hz);
double plan_peak_dense_from_sparse(double sparse_flops); // 2:4 sparsity doubles the headline
double plan_effective_flops(double peak, double gpus, double mfu);

double plan_mfu(double flops_per_token, double tokens_per_s, double peak, double gpus);
double plan_mfu_6n(double params, double tokens_per_s, double peak, double gpus);
double plan_mfu_from_seconds(double params, double tokens, double peak, double gpus, double seconds);
double plan_mfu_without_world_size(double reported, double world_size); // the true one when world size was forgotten
double plan_mfu_with_exposed_comm(double mfu, double compute_s, double comm_s);

// Inversions of what a log prints.
double plan_params_from_mfu(double mfu, double tokens_per_s, double peak, double gpus);
double plan_achieved_flops(double flops_per_token, double tokens_per_s_per_gpu);
double plan_flops_per_token_from_log(double flops_per_gpu, double tokens_per_s_per_gpu);
double plan_peak_from_log(double flops_per_gpu, double mfu);
