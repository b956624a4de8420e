// The hardware catalogue: GPUs, nodes, clusters, and the software that runs on them, as a TOML document describes them
// (configs/hardware.toml). Documents merge in order, so a user's file and the profile that `hearth bench` measures
// replace single values of the catalogue. Everything is kept in base units: FLOP/s, bytes, bytes/s, seconds, watts.
//
// Peaks are dense and belong to a dtype; the doubled figures for 2:4 sparsity are never used. Bandwidth of a link is
// one direction of one GPU.
#pragma once

#include "base/status.h"
#include "base/toml.h"

#include <stdbool.h>

enum {
    HARDWARE_NAME_MAX = 48,
    HARDWARE_TITLE_MAX = 96,
    HARDWARE_SOURCE_MAX = 240,
    HARDWARE_GEMMS_MAX = 96,
    HARDWARE_ATTENTIONS_MAX = 24,
};

typedef enum HardwareDtype {
    HARDWARE_FP32,
    HARDWARE_TF32,
    HARDWARE_BF16,
    HARDWARE_FP16,
    HARDWARE_FP8,
    HARDWARE_DTYPE_COUNT,
} HardwareDtype;
const char *hardware_dtype_name(HardwareDtype dtype);

// How `hearth bench machine` measures a CPU, which its profile says: raise it when that changes what rates mean.
// Without the number (0) its ops ran in a loop on the same operands, out of caches.
enum { HARDWARE_CPU_METHOD = 1 };

// What a kernel reaches of the peak when nobody measured it. A product of [m,k] by [k,n] runs at
// gemm * m/(m+h) * n/(n+h) * k/(k+h) of the peak with h = gemm_half; attention at seq/(seq+h) of its share.
typedef struct HardwareEfficiency {
    double gemm, gemm_half;
    double gemm_bf16; // in gemm's place where bf16 has units of its own that are harder to feed: AMX; 0: as gemm
    double grouped;   // of a grouped product (MoE), relative to a plain one of the same shape
    double attention_forward_64, attention_forward_128;
    double attention_backward_64, attention_backward_128;
    double attention_forward_half, attention_backward_half; // sequence lengths
    double memory;                                          // of the memory bandwidth: copies and the optimizer
    double elementwise;       // of that, what hearth's norms, SwiGLU, loss and gathering of rows reach
    double scattered;         // and QK-norm (single heads) and the rest of routing
    double link;              // of a link's bandwidth, for collectives
    double swiglu_hidden;     // share of SwiGLU's own time that goes away inside the products beside it (bf16)
    double swiglu_fp8_hidden; // and forward in FP8, inside the gate-up product. Of both, what is left moves its bytes
                              // at the rate of copies, as the product beside it does, not at that of `elementwise`
    double rope_hidden;   // and of the rotary's, at head_dim 64 without documents: inside the QKV product, and backward
                          // inside attention, where alone it is measured
    double sustained;     // of their rates, what products and attention keep in a whole step at the power limit
    double sustained_fp8; // and of theirs, products in FP8
    double launch_gap;    // seconds between two kernels
} HardwareEfficiency;

typedef struct HardwareGemm { // one measured product
    HardwareDtype dtype;
    bool grouped;
    double groups; // products side by side, of a grouped one; 0: not known
    double m, n, k;
    double flops;               // FLOP/s reached
    double log_m, log_n, log_k; // base 2, kept because the search asks thousands of times
} HardwareGemm;

typedef struct HardwareAttention { // measured, causal FLOPs counted
    HardwareDtype dtype;
    double head_dim, seq;
    double forward, backward; // FLOP/s reached
} HardwareAttention;

typedef struct HardwareGpu {
    char name[HARDWARE_NAME_MAX], title[HARDWARE_TITLE_MAX], link[HARDWARE_TITLE_MAX];
    bool cpu;
    double cores;      // of a CPU, that its measured rates are of; 0: the peaks are of one core, the rest of all
    double processors; // that tiles of a product are dealt to; 0: not known
    double peak[HARDWARE_DTYPE_COUNT]; // 0: the chip has no such unit
    double memory;                     // bytes a program can use
    double bandwidth;                  // of the memory
    double link_bandwidth, link_latency;
    double nic_bandwidth, nic_latency; // to another node, per GPU
    double host_bandwidth;             // host to device
    double watts, usd_per_hour;
    HardwareEfficiency efficiency;
    HardwareGemm gemms[HARDWARE_GEMMS_MAX];
    int gemm_count;
    HardwareAttention attentions[HARDWARE_ATTENTIONS_MAX];
    int attention_count;
    bool measured; // by `hearth bench` on this machine,
    bool outdated; // in a way that hearth has given up since
} HardwareGpu;

typedef struct HardwareNode {
    char name[HARDWARE_NAME_MAX], title[HARDWARE_TITLE_MAX], gpu[HARDWARE_NAME_MAX];
    double gpus;
    double link_bandwidth, link_latency, nic_bandwidth, nic_latency; // 0: as the GPU says
    double usd_per_hour;                                             // of one GPU; 0 likewise
} HardwareNode;

typedef struct HardwareCluster {
    char name[HARDWARE_NAME_MAX], title[HARDWARE_TITLE_MAX], node[HARDWARE_NAME_MAX];
    double nodes;
} HardwareCluster;

// The training program: what it adds to the roofline of the hardware, and how much memory it takes where that is not
// hearth's own layout.
typedef struct HardwareSoftware {
    char name[HARDWARE_NAME_MAX], title[HARDWARE_TITLE_MAX];
    bool fused; // residuals join inside products, SwiGLU and rotary go into their neighbours: hearth's own step
    double compute_factor; // on the time of products and attention
    double gemm_factor;    // on that of products alone: below 1 where they run in fp8
    double memory_factor;  // on the time of memory-bound ops (more than 1: less fused)
    double context_factor; // on that of attention to other ranks' keys: less fused blocks, and waits beyond the bytes
    double eager_factor;   // on products, attention and memory-bound ops when compilation is off
    double exchange_sync;  // seconds that an MoE exchange waits for the host or a straggler, per rank beside itself
    double exchange_efficiency; // of the link, for an all-to-all
    double imbalance;           // busiest rank's expert load over the mean: 1 + imbalance * log2(ep)
    double pressure; // step time grows by pressure * (used - PLAN_MEMORY_FULL)^2 beyond that: allocation retries
    // A memory model fitted to logs, in place of the layout when state_bytes > 0: state_bytes per parameter over all
    // ranks + fixed + bytes per (token of the rank * layer * hidden), of which tp_replicated is not cut by tensor
    // parallelism.
    double state_bytes, fixed_bytes, fixed_tensor_bytes; // the last only with tensor parallelism
    double activation_none, activation_selective, activation_full, tp_replicated;
} HardwareSoftware;

typedef struct HardwareDefaults { // what a plan assumes unless it is told
    double usd_per_kwh, pue;
    double gpu_mtbf;             // seconds one GPU runs between failures that stop the job
    double checkpoint_bandwidth; // bytes/s of storage, per node
    double storage_bandwidth;    // and of all nodes together
    double recovery;             // seconds from a crash to the first new step
    double usd_per_gb_month;     // of storage
    double fp8_speedup;          // tokens/s in fp8 over bf16, of a model that is known by its size only
    char usd_per_gb_month_source[HARDWARE_SOURCE_MAX], fp8_speedup_source[HARDWARE_SOURCE_MAX];
} HardwareDefaults;

// What runs of a class reach, as others have published or measured it: 6 x active parameters x tokens/s over the dense
// peak, attention not counted, so that it fits a model of which only the size is known.
typedef struct HardwareTypical {
    char name[HARDWARE_NAME_MAX], title[HARDWARE_TITLE_MAX], source[HARDWARE_SOURCE_MAX];
    char model[8]; // dense or moe; "": both
    char link[8];  // nvlink, pcie or cpu; "": any
    double gpus_min, gpus_max;
    double low, high;
} HardwareTypical;

typedef struct Hardware {
    HardwareGpu *gpus;
    HardwareNode *nodes;
    HardwareCluster *clusters;
    HardwareSoftware *software;
    HardwareTypical *typical;
    int gpu_count, node_count, cluster_count, software_count, typical_count;
    HardwareEfficiency efficiency; // of GPUs that say nothing else
    HardwareDefaults defaults;
} Hardware;

void hardware_init(Hardware *hardware);
void hardware_free(Hardware *hardware);
// Merges a document: new names are added, given keys replace. Unknown keys, wrong types, values out of range and
// references to nothing are errors at file:line:column.
Status hardware_merge(Hardware *hardware, const TomlValue *root, const char *file);

// Unknown names are usage errors that list what there is.
Status hardware_find_gpu(const Hardware *hardware, const char *name, const HardwareGpu **gpu);
// The entry of a CPU as it names itself; "cpu" in catalogues without it.
Status hardware_find_cpu(const Hardware *hardware, const char *device, const HardwareGpu **gpu);
bool hardware_names_cpu(const char *device); // a GPU is called something else by its driver
Status hardware_find_node(const Hardware *hardware, const char *name, const HardwareNode **node);
Status hardware_find_cluster(const Hardware *hardware, const char *name, const HardwareCluster **cluster);
Status hardware_find_software(const Hardware *hardware, const char *name, const HardwareSoftware **software);
// A CPU's rates and memory become those of a rank that has so many of its cores.
void hardware_share_cpu(HardwareGpu *cpu, double cores_of_rank, double cores_of_all);
// The entry for a device as its driver names it ("NVIDIA H200"), NULL when there is none.
const HardwareGpu *hardware_match_device(const Hardware *hardware, const char *device);

// What a GPU is linked with: "nvlink", "pcie", "cpu".
const char *hardware_link_class(const HardwareGpu *gpu);
// The class that so many of these devices belong to; high is 0 when the catalogue has none.
HardwareTypical hardware_typical(const Hardware *hardware, const HardwareGpu *gpu, int gpus, bool moe);

// FLOP/s that a product of [m,k] by [k,n] reaches (groups > 0: one of so many of an MoE layer), and attention in its
// forward or backward pass (causal FLOPs): the default curve, corrected by the measured points nearby.
double hardware_gemm_rate(const HardwareGpu *gpu, HardwareDtype dtype, double groups, double m, double n, double k);
double hardware_attention_rate(const HardwareGpu *gpu, HardwareDtype dtype, double head_dim, double seq, bool backward);
