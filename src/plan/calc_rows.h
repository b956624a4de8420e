// What the registry files share: inputs that many quantities take, and the subjects' tables.
#pragma once

#include "plan/calc.h"

#define IN(name, unit, kind, meaning) \
    { name, unit, CALC_##kind, meaning }
#define IN_OR(name, unit, kind, meaning, fallback) \
    { name, unit, CALC_##kind, meaning, fallback }
#define IN_MAX(name, unit, kind, meaning, max) \
    { name, unit, CALC_##kind, meaning, NULL, NULL, max }
#define IN_MIN(name, unit, kind, meaning, min) \
    { name, unit, CALC_##kind, meaning, NULL, NULL, 0, min }
#define IN_CHOICE(name, meaning, fallback, choices) \
    { name, "", CALC_CHOICE, meaning, fallback, choices }

#define IN_PARAMS    IN("params", "params", POSITIVE, "parameters")
#define IN_PARAMS_B  IN("params_B", "billion params", POSITIVE, "parameters")
#define IN_TOKENS    IN("tokens", "tokens", POSITIVE, "tokens")
#define IN_FPT       IN("flops_per_token", "FLOP/token", POSITIVE, "training FLOPs per token")
#define IN_TOK_S     IN("tok_s", "tok/s", POSITIVE, "tokens per second of all GPUs together")
#define IN_TOK_S_GPU IN("tok_s_per_gpu", "tok/s", POSITIVE, "tokens per second and GPU")
#define IN_PEAK      IN("peak_tflops", "TFLOP/s", POSITIVE, "dense peak of one GPU in the dtype that is used")
#define IN_GPUS      IN("n_gpus", "", COUNT, "GPUs")
#define IN_MFU       IN("mfu", "", FRACTION, "model FLOPs utilisation")
#define IN_RANKS     IN("N", "", COUNT, "ranks")
#define IN_M_GB      IN("M_GB", "GB", NUMBER, "payload")
#define IN_BW        IN("bw_GBps", "GB/s", POSITIVE, "usable bandwidth in one direction")
#define IN_BYTES_PER IN("bytes_per", "", POSITIVE, "bytes per element")
#define IN_MICRO     IN("micro_batch", "", COUNT, "sequences per micro-batch and rank")
#define IN_SEQ       IN("seq_len", "", COUNT, "tokens per sequence")
#define IN_TP        IN("tp", "", COUNT, "tensor-parallel ranks")
#define IN_HOURS     IN("hours", "h", POSITIVE, "hours")
#define IN_DAYS      IN("days", "d", POSITIVE, "days")

// The shape of a model.
#define IN_V   IN("V", "", COUNT, "vocabulary")
#define IN_D   IN("d", "", COUNT, "hidden size")
#define IN_L   IN("L", "", COUNT, "layers")
#define IN_H   IN("H", "", COUNT, "attention heads")
#define IN_KV  IN("KV", "", COUNT, "KV heads")
#define IN_HD  IN("hd", "", COUNT, "head dimension")
#define IN_E   IN("E", "", COUNT, "experts")
#define IN_K   IN("k", "", COUNT, "experts per token")
#define IN_FFN IN("f", "", COUNT, "intermediate size of one MLP or expert")
#define IN_S   IN("S", "", COUNT, "sequence length")

#define SUBJECT_TABLE(table) table, (int)(sizeof(table) / sizeof((table)[0]))

// What a claimed MFU says about itself; NULL when it is believable.
const char *calc_remark_mfu_result(const CalcArgs *args, double value_pct);
const char *calc_remark_mfu_assumed(const CalcArgs *args, double value);

extern const CalcSubject calc_subject_flops, calc_subject_params, calc_subject_throughput, calc_subject_batch,
    calc_subject_schedule, calc_subject_collectives, calc_subject_memory, calc_subject_pipeline,
    calc_subject_tensor_parallel, calc_subject_checkpointing, calc_subject_cost, calc_subject_precision,
    calc_subject_data;
