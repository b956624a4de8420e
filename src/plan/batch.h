// Batches: tokens in one, gradient accumulation to reach a target, optimizer steps in a run, and what accumulation
// costs.
#pragma once

double plan_tokens_per_batch(double micro_batch, double ranks, double seq, double accum);
double plan_tokens_seen(double micro_batch, double ranks, double seq, double steps);
double plan_batches(double tokens, double tokens_per_batch);         // whole ones
double plan_optimizer_steps(double tokens, double tokens_per_batch); // the last one may be partial
// Accumulation 1, 2, ..., accum_max over equal shares of the first ramp_tokens, then accum_max.
double plan_optimizer_steps_ramped(double tokens, double ramp_tokens, double accum_max, double tokens_per_micro);

double plan_effective_batch(double micro_batch, double accum, double dp);
double plan_accum_ceil(double target_batch, double micro_batch, double dp); // at least the target
double plan_accum_nearest(double target_tokens, double tokens_per_micro);   // ties to even, never below 1
double plan_accum_pow2(double target_tokens, double tokens_per_micro);      // the next power of two

// One all-reduce per optimizer step, none of it hidden.
double plan_accum_step_seconds(double accum, double micro_s, double allreduce_s);
double plan_accum_sequences_per_second(double batch, double accum, double micro_s, double allreduce_s);
double plan_accum_comm_saved(double accum, double allreduce_s);
double plan_accum_comm_fraction(double accum, double micro_s, double allreduce_s, double allreduces);
// Step cost in units of one micro-step at base_micro; `recompute` is the factor that recomputation puts on the time.
double plan_accum_recompute_cost(double target_batch, double micro_batch, double dp, double base_micro,
                                 double recompute);
