#include "plan/batch.h"

#include "plan/rounding.h"

double plan_tokens_per_batch(double micro_batch, double ranks, double seq, double accum) {
    return micro_batch * ranks * seq * accum;
}

double plan_tokens_seen(double micro_batch, double ranks, double seq, double steps) {
    return plan_tokens_per_batch(micro_batch, ranks, seq, 1) * steps;
}

double plan_batches(double tokens, double tokens_per_batch) {
    return plan_floor(tokens / tokens_per_batch);
}

double plan_optimizer_steps(double tokens, double tokens_per_batch) {
    return tokens / tokens_per_batch;
}

double plan_optimizer_steps_ramped(double tokens, double ramp_tokens, double accum_max, double tokens_per_micro) {
    double bucket = ramp_tokens / accum_max, steps = 0;
    for (double accum = 1; accum <= accum_max; accum++)
        steps += bucket / (accum * tokens_per_micro);
    return steps + (tokens - ramp_tokens) / (accum_max * tokens_per_micro);
}

double plan_effective_batch(double micro_batch, double accum, double dp) {
    return micro_batch * accum * dp;
}

double plan_accum_ceil(double target_batch, double micro_batch, double dp) {
    return plan_ceil(target_batch / (micro_batch * dp));
}

double plan_accum_nearest(double target_tokens, double tokens_per_micro) {
    return fmax(1, rint(target_tokens / tokens_per_micro));
}

double plan_accum_pow2(double target_tokens, double tokens_per_micro) {
    double accum = 1;
    while (accum * tokens_per_micro < target_tokens)
        accum *= 2;
    return accum;
}

double plan_accum_step_seconds(double accum, double micro_s, double allreduce_s) {
    return accum * micro_s + allreduce_s;
}

double plan_accum_sequences_per_second(double batch, double accum, double micro_s, double allreduce_s) {
    return batch / plan_accum_step_seconds(accum, micro_s, allreduce_s);
}

double plan_accum_comm_saved(double accum, double allreduce_s) {
    return (accum - 1) * allreduce_s;
}

double plan_accum_comm_fraction(double accum, double micro_s, double allreduce_s, double allreduces) {
    double comm = allreduces * allreduce_s;
    return comm / (accum * micro_s + comm);
}

double plan_accum_recompute_cost(double target_batch, double micro_batch, double dp, double base_micro,
                                 double recompute) {
    return plan_accum_ceil(target_batch, micro_batch, dp) * (micro_batch / base_micro) * recompute;
}
