// Time to train, tokens in a budget, and what two measured rates say about the cost of a step.
#pragma once

double plan_chinchilla_tokens(double params); // 20 per parameter
double plan_train_seconds(double params, double tokens, double peak, double gpus, double mfu);
double plan_compute_seconds(double params, double tokens_per_gpu, double peak, double mfu); // 6NT on one GPU
double plan_flop_budget(double seconds, double peak, double gpus, double mfu);
double plan_token_budget(double params, double seconds, double peak, double gpus, double mfu);

double plan_tokens_per_second(double flops_per_token, double peak, double gpus, double mfu);
double plan_seconds_for_tokens(double tokens, double tokens_per_s);
double plan_rate_for_seconds(double tokens, double seconds);
double plan_step_seconds(double global_tokens, double tokens_per_s_per_gpu, double gpus);

double plan_relative_gain(double now, double before); // 0.5 for half as much again
double plan_scaling_efficiency(double tokens_per_s_n, double n, double tokens_per_s_1);

// A step is accum * c + o: c compute of one micro-step, o what is paid once per optimizer step (all-reduce, optimizer,
// sync). Two rates at different accumulation give both; tokens_per_micro counts all ranks.
double plan_step_overhead(double tokens_per_micro, double rate_a, double accum_a, double rate_b, double accum_b);
double plan_micro_seconds(double tokens_per_micro, double rate_a, double accum_a, double rate_b, double accum_b);
// The rate at `accum`, from the rate without accumulation and the part of its step that is paid once.
double plan_rate_with_accum(double tokens_per_micro, double rate_1, double overhead_s, double accum);
