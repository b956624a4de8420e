// Tensor parallelism: shards, heads per rank, and the all-reduces of activations that sit on the critical path.
#pragma once

double plan_tp_shard_params(double d_in, double d_out, double tp);
double plan_tp_weight_bytes(double layers, double hidden, double bytes_per,
                            double tp); // 12 d^2 per layer, no embeddings
double plan_tp_phase_bytes(double batch, double seq, double hidden, double bytes_per, double tp); // one ring phase
double plan_tp_allreduce_bytes(double batch, double seq, double hidden, double bytes_per, double tp);
// Communication over compute; backward repeats the forward all-reduces.
double plan_tp_overhead(double layers, double allreduces_forward, double allreduce_s, double compute_s);

double plan_heads_per_rank(double heads, double tp);
double plan_kv_heads_per_rank(double kv_heads, double tp); // 1 once heads are replicated
double plan_kv_replicas(double kv_heads, double tp);       // copies of each KV head
