// Bytes of model states, shards and activations in closed form. What a run of hearth really allocates comes from
// model/layout; these are the formulas to reason with.
#pragma once

// Mixed-precision Adam: half-precision weights 2 and gradients 2, fp32 master weights 4 and moments 8 bytes per
// parameter.
enum { PLAN_WEIGHT_BYTES = 2, PLAN_GRAD_BYTES = 2, PLAN_OPTIMIZER_BYTES = 12, PLAN_CHECKPOINT_BYTES = 14 };

double plan_bytes(double params, double bytes_per_param);
double plan_state_bytes_sharded(double params, double bytes_per_param, double shards);
// Stage 0 shards nothing, 1 the optimizer states, 2 the gradients too, 3 the weights too.
double plan_zero_state_bytes(double params, double stage, double ranks);
double plan_zero1_optimizer_bytes(double params, double ranks);
// Bytes each rank sends per step: two phases of the half-precision parameters, three for stage 3 (all-gather forward,
// all-gather backward, reduce-scatter). `share` is the part of a phase that leaves the rank: (N-1)/N, or 1 for large N.
double plan_zero12_comm_bytes(double params, double share);
double plan_zero3_comm_bytes(double params, double share);

double plan_activation_tensor_bytes(double batch, double seq, double hidden, double bytes_per);
double plan_activation_bytes(double tensors, double batch, double seq, double hidden, double layers, double bytes_per);
double plan_attention_score_bytes(double batch, double heads, double seq, double bytes_per, double layers);

// Memory as states + slope * tokens per GPU, from two measured points.
double plan_memory_slope(double bytes_a, double tokens_a, double bytes_b, double tokens_b);
double plan_memory_static(double bytes_a, double tokens_a, double bytes_b, double tokens_b);
double plan_memory_capacity(double used_bytes, double used_fraction);
double plan_max_local_batch(double capacity, double limit, double static_bytes, double bytes_per_token, double seq);
