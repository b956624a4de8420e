#include "plan/throughput.h"

#include "plan/flops.h"

double plan_chinchilla_tokens(double params) {
    return 20 * params;
}

double plan_train_seconds(double params, double tokens, double peak, double gpus, double mfu) {
    return plan_train_flops(params, tokens) / plan_effective_flops(peak, gpus, mfu);
}

double plan_compute_seconds(double params, double tokens_per_gpu, double peak, double mfu) {
    return plan_train_seconds(params, tokens_per_gpu, peak, 1, mfu);
}

double plan_flop_budget(double seconds, double peak, double gpus, double mfu) {
    return plan_effective_flops(peak, gpus, mfu) * seconds;
}

double plan_token_budget(double params, double seconds, double peak, double gpus, double mfu) {
    return plan_flop_budget(seconds, peak, gpus, mfu) / (6 * params);
}

double plan_tokens_per_second(double flops_per_token, double peak, double gpus, double mfu) {
    return plan_effective_flops(peak, gpus, mfu) / flops_per_token;
}

double plan_seconds_for_tokens(double tokens, double tokens_per_s) {
    return tokens / tokens_per_s;
}

double plan_rate_for_seconds(double tokens, double seconds) {
    return tokens / seconds;
}

double plan_step_seconds(double global_tokens, double tokens_per_s_per_gpu, double gpus) {
    return global_tokens / (tokens_per_s_per_gpu * gpus);
}

double plan_relative_gain(double now, double before) {
    return now / before - 1;
}

double plan_scaling_efficiency(double tokens_per_s_n, double n, double tokens_per_s_1) {
    return tokens_per_s_n / (n * tokens_per_s_1);
}

double plan_step_overhead(double tokens_per_micro, double rate_a, double accum_a, double rate_b, double accum_b) {
    return (tokens_per_micro / rate_a - tokens_per_micro / rate_b) / (1 / accum_a - 1 / accum_b);
}

double plan_micro_seconds(double tokens_per_micro, double rate_a, double accum_a, double rate_b, double accum_b) {
    return tokens_per_micro / rate_a - plan_step_overhead(tokens_per_micro, rate_a, accum_a, rate_b, accum_b) / accum_a;
}

double plan_rate_with_accum(double tokens_per_micro, double rate_1, double overhead_s, double accum) {
    double micro_s = tokens_per_micro / rate_1 - overhead_s;
    return accum * tokens_per_micro / (accum * micro_s + overhead_s);
}
