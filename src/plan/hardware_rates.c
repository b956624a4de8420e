// How fast a product or an attention runs: a smooth default curve, corrected by measured points. A correction is the
// ratio of measured to default, averaged with weights that fall with the squared distance in log2 of the sizes: exact
// at a measured shape, the nearest shapes' ratio beside it.
#include "plan/hardware.h"

#include <math.h>

typedef struct Blend {
    double weight, sum;
} Blend;

static double log_distance(double a, double b) {
    double d = log2(a / b);
    return d * d;
}

static void blend_add(Blend *blend, double distance, double ratio) {
    double weight = 1 / (distance + 1e-4);
    blend->weight += weight;
    blend->sum += weight * ratio;
}

// Tiles of 128 x 256 results are dealt to the processors in turn; in the last round some have none. Of a grouped
// product's weight gradients with few experts that is much.
static double share_of_rounds(const HardwareGpu *gpu, double groups, double m, double n) {
    double tiles = groups * ceil(m / 128) * ceil(n / 256);
    return tiles > 0 && gpu->processors > 0 ? tiles / (ceil(tiles / gpu->processors) * gpu->processors) : 1;
}

static double gemm_share(const HardwareGpu *gpu, HardwareDtype dtype) {
    const HardwareEfficiency *e = &gpu->efficiency;
    return dtype == HARDWARE_BF16 && e->gemm_bf16 > 0 ? e->gemm_bf16 : e->gemm;
}

static double gemm_curve(const HardwareGpu *gpu, HardwareDtype dtype, bool grouped, double m, double n, double k) {
    const HardwareEfficiency *e = &gpu->efficiency;
    double h = e->gemm_half;
    return gpu->peak[dtype] * gemm_share(gpu, dtype) * (grouped ? e->grouped : 1) * m / (m + h) * n / (n + h) * k /
           (k + h);
}

double hardware_gemm_rate(const HardwareGpu *gpu, HardwareDtype dtype, double groups, double m, double n, double k) {
    bool grouped = groups > 0;
    Blend blend = {0};
    double log_m = log2(m), log_n = log2(n), log_k = log2(k);
    for (int i = 0; i < gpu->gemm_count; i++) {
        const HardwareGemm *point = &gpu->gemms[i];
        if (point->dtype != dtype || point->grouped != grouped) continue;
        double dm = log_m - point->log_m, dn = log_n - point->log_n, dk = log_k - point->log_k;
        blend_add(&blend, dm * dm + dn * dn + dk * dk,
                  point->flops / (gemm_curve(gpu, dtype, grouped, point->m, point->n, point->k) *
                                  share_of_rounds(gpu, point->groups, point->m, point->n)));
    }
    double rate = gemm_curve(gpu, dtype, grouped, m, n, k) * share_of_rounds(gpu, groups, m, n);
    return fmin(rate * (blend.weight > 0 ? blend.sum / blend.weight : 1), gpu->peak[dtype]);
}

// Kernels work on heads padded to 32.
static double padded_head(double head_dim) {
    return ceil(head_dim / 32) * 32;
}

// A CPU's softmax works on floats whatever is multiplied: a score takes the same time in bf16 as in fp32, at any size
// of heads, and only the products beside it become faster or more. What the catalogue says is of fp32 and heads of 64;
// what products alone would leave of that time is the softmax.
static double cpu_attention_share(const HardwareGpu *cpu, HardwareDtype dtype, double head_dim, double share) {
    double softmax = fmax(0, 1 / share - 1 / cpu->efficiency.gemm);
    return 1 / (1 / gemm_share(cpu, dtype) + softmax * 64 / head_dim * cpu->peak[dtype] / cpu->peak[HARDWARE_FP32]);
}

// The share of the peak grows with the size of a head: on a GPU by its logarithm.
static double attention_curve(const HardwareGpu *gpu, HardwareDtype dtype, double head_dim, double seq, bool backward) {
    const HardwareEfficiency *e = &gpu->efficiency;
    double padded = padded_head(head_dim), step = fmin(fmax(log2(padded / 64), -1.5), 1.25);
    double small = backward ? e->attention_backward_64 : e->attention_forward_64;
    double large = backward ? e->attention_backward_128 : e->attention_forward_128;
    double half = backward ? e->attention_backward_half : e->attention_forward_half;
    if (gpu->cpu && gpu->peak[HARDWARE_FP32] > 0)
        return gpu->peak[dtype] * cpu_attention_share(gpu, dtype, head_dim, small) * seq / (seq + half);
    double share = fmax(small + (large - small) * step, 0.1 * small);
    return gpu->peak[dtype] * share * head_dim / padded * seq / (seq + half);
}

double hardware_attention_rate(const HardwareGpu *gpu, HardwareDtype dtype, double head_dim, double seq,
                               bool backward) {
    Blend same = {0},
          others = {0}; // other sizes of heads have other kernels: asked where nothing was measured for this one
    for (int i = 0; i < gpu->attention_count; i++) {
        const HardwareAttention *point = &gpu->attentions[i];
        if (point->dtype != dtype) continue;
        double measured = backward ? point->backward : point->forward;
        blend_add(padded_head(point->head_dim) == padded_head(head_dim) ? &same : &others,
                  log_distance(head_dim, point->head_dim) + log_distance(seq, point->seq),
                  measured / attention_curve(gpu, dtype, point->head_dim, point->seq, backward));
    }
    Blend blend = same.weight > 0 ? same : others;
    double rate =
        attention_curve(gpu, dtype, head_dim, seq, backward) * (blend.weight > 0 ? blend.sum / blend.weight : 1);
    return fmin(rate, gpu->peak[dtype]);
}

void hardware_share_cpu(HardwareGpu *cpu, double cores_of_rank, double cores_of_all) {
    double share = cores_of_rank / (cpu->cores > 0 ? cpu->cores : cores_of_all);
    for (int i = 0; i < HARDWARE_DTYPE_COUNT; i++)
        cpu->peak[i] *= cores_of_rank;
    for (int i = 0; i < cpu->gemm_count; i++)
        cpu->gemms[i].flops *= share;
    for (int i = 0; i < cpu->attention_count; i++)
        cpu->attentions[i].forward *= share, cpu->attentions[i].backward *= share;
    cpu->bandwidth *= share;
    cpu->memory *= cores_of_rank / cores_of_all;
}
