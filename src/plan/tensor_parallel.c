#include "plan/tensor_parallel.h"

#include "plan/collectives.h"
#include "plan/memory.h"

#include <math.h>

double plan_tp_shard_params(double d_in, double d_out, double tp) {
    return d_in * (d_out / tp);
}

double plan_tp_weight_bytes(double layers, double hidden, double bytes_per, double tp) {
    return layers * 12 * hidden * hidden * bytes_per / tp;
}

double plan_tp_phase_bytes(double batch, double seq, double hidden, double bytes_per, double tp) {
    return plan_ring_phase_bytes(plan_activation_tensor_bytes(batch, seq, hidden, bytes_per), tp);
}

double plan_tp_allreduce_bytes(double batch, double seq, double hidden, double bytes_per, double tp) {
    return plan_ring_allreduce_bytes(plan_activation_tensor_bytes(batch, seq, hidden, bytes_per), tp);
}

double plan_tp_overhead(double layers, double allreduces_forward, double allreduce_s, double compute_s) {
    return layers * allreduces_forward * 2 * allreduce_s / compute_s;
}

double plan_heads_per_rank(double heads, double tp) {
    return heads / tp;
}

double plan_kv_heads_per_rank(double kv_heads, double tp) {
    return fmax(1, kv_heads / tp);
}

double plan_kv_replicas(double kv_heads, double tp) {
    return fmax(1, tp / kv_heads);
}
