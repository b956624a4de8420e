// Quantities: FLOPs per token, peaks and MFU; and parameter counts, from which the FLOPs follow.
#include "plan/calc_rows.h"
#include "plan/flops.h"
#include "plan/params.h"

#define CONVENTION_6ND "6ND: N parameters as given (active ones for a MoE), attention left out, dense peak"

static PlanShape dense_shape(const CalcArgs *args) {
    return (PlanShape){
        .vocab = calc_arg(args, "V"),
        .hidden = calc_arg(args, "d"),
        .layers = calc_arg(args, "L"),
        .heads = calc_arg(args, "H"),
        .kv_heads = calc_arg(args, "KV"),
        .head_dim = calc_arg(args, "hd"),
        .ffn = calc_arg(args, "f"),
        .experts = 1,
        .top_k = 1,
    };
}

static PlanShape moe_shape(const CalcArgs *args) {
    PlanShape shape = dense_shape(args);
    shape.experts = calc_arg(args, "E");
    shape.top_k = calc_arg(args, "k");
    shape.router = shape.qk_norm = true;
    return shape;
}

static double dense_params(const CalcArgs *args) {
    PlanShape shape = dense_shape(args);
    shape.tied = calc_arg(args, "tied") != 0;
    return plan_params_total(&shape);
}

static double moe_params_total(const CalcArgs *args) {
    PlanShape shape = moe_shape(args);
    shape.tied = calc_arg(args, "tied") != 0;
    return plan_params_total(&shape);
}

static double moe_params_active(const CalcArgs *args) {
    PlanShape shape = moe_shape(args);
    shape.tied = calc_arg(args, "tied") != 0;
    return plan_params_active(&shape);
}

static double moe_params_matmul(const CalcArgs *args) {
    PlanShape shape = moe_shape(args);
    return plan_params_matmul(&shape);
}

static double shape_flops(const PlanShape *shape, const CalcArgs *args) {
    return plan_flops_per_token(plan_params_matmul(shape), shape->layers, shape->heads, shape->head_dim,
                                calc_arg(args, "S"), calc_arg(args, "attn"));
}

static double dense_flops(const CalcArgs *args) {
    PlanShape shape = dense_shape(args);
    return shape_flops(&shape, args);
}

static double moe_flops(const CalcArgs *args) {
    PlanShape shape = moe_shape(args);
    return shape_flops(&shape, args);
}

const char *calc_remark_mfu_result(const CalcArgs *args, double value_pct) {
    (void)args;
    if (value_pct > 100)
        return "over 100 % of the dense peak is impossible: check world size, peak, dtype and token count (padding?)";
    if (value_pct > 75) return "over 75 % is not credible for training: check the timing, the peak and the token count";
    return NULL;
}

const char *calc_remark_mfu_assumed(const CalcArgs *args, double value) {
    (void)value;
    return calc_arg(args, "mfu") > 0.75 ? "an MFU over 75 % is not credible for training; 35-50 % is usual" : NULL;
}

static const CalcChoice attention_choices[] = {
    {"full", PLAN_ATTENTION_FULL, "12*{L}*{H}*{hd}*{S}"},
    {"causal", PLAN_ATTENTION_CAUSAL, "6*{L}*{H}*{hd}*{S}"},
    {"none", PLAN_ATTENTION_NONE, "0"},
    {NULL},
};
static const CalcChoice causal_choices[] = {
    {"false", PLAN_ATTENTION_FULL, "12"},
    {"true", PLAN_ATTENTION_CAUSAL, "6"},
    {NULL},
};
static const CalcChoice tied_choices[] = {
    {"true", 1, "{V}*{d}"},
    {"false", 0, "2*{V}*{d}"},
    {NULL},
};
#define IN_ATTN IN_CHOICE("attn", "attention FLOPs that are counted", "full", attention_choices)
#define IN_TIED IN_CHOICE("tied", "the LM head is the input embedding", NULL, tied_choices)

#define ATTENTION_PARAMS  "2*{d}*{H}*{hd} + 2*{d}*{KV}*{hd}"
#define DENSE_LAYERS      "{L}*(" ATTENTION_PARAMS " + 3*{d}*{f} + 2*{d}) + {d}"
#define MOE_LAYERS(count) "{L}*(" ATTENTION_PARAMS " + 3*{d}*{f}*" count " + {d}*{E} + 2*{d} + 2*{hd}) + {d}"
#define MOE_CONVENTION                                                                                              \
    "HF Qwen3MoeForCausalLM: every layer sparse, SwiGLU experts (3 matrices), router, norms, norms on queries and " \
    "keys"

static const CalcQuantity flops_table[] = {
    {
        .name = "train_flops_6nd",
        .summary = "FLOPs of a whole training run",
        .unit = "FLOP",
        .inputs = {IN_PARAMS, IN_TOKENS},
        .function = CALC_CALL(plan_train_flops),
        .formula = "6*{params}*{tokens}",
        .convention = CONVENTION_6ND,
        .note = "a MoE entered with its total size overstates its FLOPs",
    },
    {
        .name = "petaflop_days",
        .summary = "FLOPs of a whole training run in petaFLOP/s-days",
        .unit = "PF-days",
        .inputs = {IN_PARAMS, IN_TOKENS},
        .function = CALC_CALL(plan_train_flops),
        .formula = "6*{params}*{tokens}/8.64e19",
        .convention = CONVENTION_6ND "; one PF-day = 1e15 * 86400 FLOP",
        .note = "the 100K PF-days often quoted for GPT-4 have no source",
    },
    {
        .name = "attn_flops_per_token",
        .summary = "attention FLOPs per token, forward and backward",
        .unit = "FLOP/token",
        .inputs = {IN_L, IN_H, IN_HD, IN_S,
                   IN_CHOICE("causal", "count only the half that a causal model needs", "false", causal_choices)},
        .function = CALC_CALL(plan_attention_flops_per_token),
        .formula = "{causal}*{L}*{H}*{hd}*{S}",
        .convention = "12 L H hd S for full attention (torchtitan), 6 L H hd S for causal; recomputation not counted",
        .note = "",
    },
    {
        .name = "flops_per_token_dense",
        .summary = "training FLOPs per token of a dense Llama",
        .unit = "FLOP/token",
        .inputs = {IN_V, IN_D, IN_L, IN_H, IN_KV, IN_HD, IN_FFN, IN_S, IN_ATTN},
        .rules = {{CALC_RULE_DIVIDES, "H", "KV"}},
        .function = CALC_CALL(dense_flops),
        .formula = "6*(" DENSE_LAYERS " + {V}*{d}) + {attn}",
        .convention = "6*(parameters with the LM head, without the input embedding) + attention; full = 12 L H hd S "
                      "(torchtitan), causal = 6 L H hd S, none = 6N; recomputation not counted",
        .note = "",
    },
    {
        .name = "flops_per_token_moe",
        .summary = "training FLOPs per token of a Qwen3 MoE",
        .unit = "FLOP/token",
        .inputs = {IN_V, IN_D, IN_L, IN_H, IN_KV, IN_HD, IN_E, IN_K, IN_FFN, IN_S, IN_ATTN},
        .rules = {{CALC_RULE_DIVIDES, "H", "KV"}, {CALC_RULE_AT_MOST, "k", "E"}},
        .function = CALC_CALL(moe_flops),
        .formula = "6*(" MOE_LAYERS("{k}") " + {V}*{d}) + {attn}",
        .convention = "6*(active parameters - input embedding; LM head, router and norms counted) + attention; full = "
                      "12 L H hd S (torchtitan), causal = 6 L H hd S, none = 6N; recomputation not counted",
        .note = "",
    },
    {
        .name = "peak_tensor_tflops",
        .summary = "dense tensor-core peak from SMs and clock",
        .unit = "TFLOP/s",
        .inputs = {IN("sm", "", COUNT, "streaming multiprocessors"),
                   IN("flop_per_clk_per_sm", "", POSITIVE,
                      "dense FLOPs per clock and SM (1024 for BF16 on GA102, AD102, GB202)"),
                   IN("boost_ghz", "GHz", POSITIVE, "boost clock")},
        .function = CALC_CALL(plan_peak_flops),
        .formula = "{sm}*{flop_per_clk_per_sm}*{boost_ghz}/1000",
        .convention = "dense, FP32 accumulation, boost clock; the sparse headline is twice this",
        .note = "",
    },
    {
        .name = "dense_from_sparse",
        .summary = "dense peak from the headline with 2:4 sparsity",
        .unit = "TFLOP/s",
        .inputs = {IN("sparse_tflops", "TFLOP/s", POSITIVE, "peak with sparsity")},
        .function = CALC_CALL(plan_peak_dense_from_sparse),
        .formula = "{sparse_tflops}/2",
        .convention = "2:4 sparsity doubles the headline; training is dense",
        .note = "rounded headlines give half a unit more than the data sheet (H100: 989.5 against 989.4, TF32 494.5 "
                "against 494.7)",
    },
    {
        .name = "effective_tflops",
        .summary = "FLOP/s that training gets out of the GPUs",
        .unit = "TFLOP/s",
        .inputs = {IN_PEAK, IN_GPUS, IN_MFU},
        .function = CALC_CALL(plan_effective_flops),
        .formula = "{peak_tflops}*{n_gpus}*{mfu}",
        .convention = "dense peak of the dtype that is used",
        .note = "an H100 entered as 1000 TFLOP/s instead of 989.4 makes times 1.1 % optimistic",
        .remark = calc_remark_mfu_assumed,
    },
    {
        .name = "mfu_pct",
        .summary = "model FLOPs utilisation from measured tokens per second",
        .unit = "%",
        .inputs = {IN_FPT, IN_TOK_S, IN_PEAK, IN_GPUS},
        .function = CALC_CALL(plan_mfu),
        .formula = "{flops_per_token}*{tok_s}/({peak_tflops}*1e12*{n_gpus})*100",
        .convention =
            "the convention of flops_per_token is the convention of the MFU; tok_s of all n_gpus together; dense "
            "peak; recomputation not counted",
        .note = "compare runs by tokens per second: MFU can rise while they fall (longer sequences)",
        .remark = calc_remark_mfu_result,
    },
    {
        .name = "mfu_pct_6n",
        .summary = "MFU when FLOPs per token are 6 N",
        .unit = "%",
        .inputs = {IN_PARAMS, IN_TOK_S, IN_PEAK, IN_GPUS},
        .function = CALC_CALL(plan_mfu_6n),
        .formula = "6*{params}*{tok_s}/({peak_tflops}*1e12*{n_gpus})*100",
        .convention = "6N with N as given, attention left out",
        .note = "counting the input embedding in N inflates it (SmolLM-360M: 409.0M untied against 361.8M in products)",
        .remark = calc_remark_mfu_result,
    },
    {
        .name = "implied_mfu_pct_from_days",
        .summary = "MFU implied by a run's length",
        .unit = "%",
        .inputs = {IN_PARAMS, IN_TOKENS, IN_PEAK, IN_GPUS, IN_DAYS},
        .function = CALC_CALL(plan_mfu_from_seconds),
        .formula = "6*{params}*{tokens}/({peak_tflops}*1e12*{n_gpus}*{days}*86400)*100",
        .convention = CONVENTION_6ND,
        .note = "405B, 15.6T tokens, 16,384 H100 in 54 days is 50.1 %, not 48 %; the paper reports 38-43 %",
        .remark = calc_remark_mfu_result,
    },
    {
        .name = "mfu_missing_world_size",
        .summary = "true MFU when the number of GPUs was forgotten",
        .unit = "%",
        .inputs = {IN("reported_pct", "%", POSITIVE, "MFU as reported"), IN("world_size", "", COUNT, "GPUs")},
        .function = CALC_CALL(plan_mfu_without_world_size),
        .formula = "{reported_pct}/{world_size}",
        .convention = "global tokens per second were divided by the peak of one GPU",
        .note = "an MFU over 100 % is always an error of measurement",
    },
    {
        .name = "mfu_with_exposed_comm_pct",
        .summary = "MFU left when communication is not hidden",
        .unit = "%",
        .inputs = {IN("mfu_pct", "%", POSITIVE, "MFU of the compute alone"),
                   IN("compute_ms", "ms", POSITIVE, "compute per step"),
                   IN("comm_ms", "ms", NUMBER, "exposed communication per step")},
        .function = CALC_CALL(plan_mfu_with_exposed_comm),
        .formula = "{mfu_pct}*{compute_ms}/({compute_ms} + {comm_ms})",
        .convention = "no overlap",
        .note = "",
    },
    {
        .name = "params_from_mfu",
        .summary = "the N behind a printed MFU",
        .unit = "params",
        .inputs = {IN("mfu_pct", "%", POSITIVE, "MFU as printed"), IN_TOK_S, IN_PEAK, IN_GPUS},
        .function = CALC_CALL(plan_params_from_mfu),
        .formula = "{mfu_pct}/100*{peak_tflops}*1e12*{n_gpus}/(6*{tok_s})",
        .convention = "inversion of 6N; tells whether embeddings or all experts were counted",
        .note = "",
    },
    {
        .name = "tflops_per_gpu",
        .summary = "achieved FLOP/s per GPU",
        .unit = "TFLOP/s/GPU",
        .inputs = {IN_FPT, IN_TOK_S_GPU},
        .function = CALC_CALL(plan_achieved_flops),
        .formula = "{flops_per_token}*{tok_s_per_gpu}/1e12",
        .convention = "tokens per second of one GPU (torchtitan's tps); the convention of flops_per_token",
        .note = "",
    },
    {
        .name = "flops_per_token_from_log",
        .summary = "FLOPs per token implied by a log line",
        .unit = "FLOP/token",
        .inputs = {IN("tflops_per_gpu", "TFLOP/s", POSITIVE, "logged FLOP/s per GPU"), IN_TOK_S_GPU},
        .function = CALC_CALL(plan_flops_per_token_from_log),
        .formula = "{tflops_per_gpu}*1e12/{tok_s_per_gpu}",
        .convention = "as accurate as the rounding of the log",
        .note = "",
    },
    {
        .name = "peak_from_log",
        .summary = "peak that a log's MFU was taken against",
        .unit = "TFLOP/s",
        .inputs = {IN("tflops_per_gpu", "TFLOP/s", POSITIVE, "logged FLOP/s per GPU"),
                   IN("mfu_pct", "%", POSITIVE, "logged MFU")},
        .function = CALC_CALL(plan_peak_from_log),
        .formula = "{tflops_per_gpu}/({mfu_pct}/100)",
        .convention = "as accurate as the rounding of the log",
        .note = "",
    },
};

static const CalcQuantity params_table[] = {
    {
        .name = "params_dense_llama",
        .summary = "parameters of a dense Llama",
        .unit = "params",
        .inputs = {IN_V, IN_D, IN_L, IN_H, IN_KV, IN_HD, IN_FFN, IN_TIED},
        .rules = {{CALC_RULE_DIVIDES, "H", "KV"}},
        .function = CALC_CALL(dense_params),
        .formula = DENSE_LAYERS " + {tied}",
        .convention =
            "no biases, SwiGLU (3 matrices), two RMSNorms per layer and a final one; untied counts two embeddings",
        .note = "",
    },
    {
        .name = "params_moe_total",
        .summary = "parameters of a Qwen3 MoE, all experts",
        .unit = "params",
        .inputs = {IN_V, IN_D, IN_L, IN_H, IN_KV, IN_HD, IN_E, IN_K, IN_FFN, IN_TIED},
        .rules = {{CALC_RULE_DIVIDES, "H", "KV"}, {CALC_RULE_AT_MOST, "k", "E"}},
        .function = CALC_CALL(moe_params_total),
        .formula = MOE_LAYERS("{E}") " + {tied}",
        .convention = MOE_CONVENTION "; untied counts two embeddings",
        .note = "",
    },
    {
        .name = "params_moe_active",
        .summary = "parameters of a Qwen3 MoE that a token uses",
        .unit = "params",
        .inputs = {IN_V, IN_D, IN_L, IN_H, IN_KV, IN_HD, IN_E, IN_K, IN_FFN, IN_TIED},
        .rules = {{CALC_RULE_DIVIDES, "H", "KV"}, {CALC_RULE_AT_MOST, "k", "E"}},
        .function = CALC_CALL(moe_params_active),
        .formula = MOE_LAYERS("{k}") " + {tied}",
        .convention = MOE_CONVENTION "; k of E experts; untied counts two embeddings",
        .note = "",
    },
    {
        .name = "matmul_params_moe_active",
        .summary = "active parameters that take part in products: what 6N multiplies",
        .unit = "params",
        .inputs = {IN_V, IN_D, IN_L, IN_H, IN_KV, IN_HD, IN_E, IN_K, IN_FFN},
        .rules = {{CALC_RULE_DIVIDES, "H", "KV"}, {CALC_RULE_AT_MOST, "k", "E"}},
        .function = CALC_CALL(moe_params_matmul),
        .formula = MOE_LAYERS("{k}") " + {V}*{d}",
        .convention = "active minus input embedding; LM head, router and norms counted (torchtitan)",
        .note = "",
    },
    {
        .name = "layer_params_4d2",
        .summary = "parameters of a layer with as many KV heads as heads",
        .unit = "params",
        .inputs = {IN_D, IN("dff", "", COUNT, "intermediate size")},
        .function = CALC_CALL(plan_layer_params_mha),
        .formula = "4*{d}^2 + 3*{d}*{dff}",
        .convention = "attention 4 d^2 (no grouped KV heads), SwiGLU 3 d dff, norms left out",
        .note = "Llama-3.1-405B has 8 KV heads: with this layer it would come to 469B; use layer_params_gqa",
    },
    {
        .name = "layer_params_gqa",
        .summary = "parameters of a layer with grouped KV heads",
        .unit = "params",
        .inputs = {IN_D, IN("dff", "", COUNT, "intermediate size"), IN_H, IN_KV},
        .rules = {{CALC_RULE_DIVIDES, "H", "KV"}, {CALC_RULE_DIVIDES, "d", "H"}},
        .function = CALC_CALL(plan_layer_params_gqa),
        .formula = "2*{d}^2 + 2*{d}*{KV}*{d}/{H} + 3*{d}*{dff}",
        .convention = "head dimension d/H, SwiGLU 3 d dff, norms left out",
        .note = "",
    },
    {
        .name = "model_params_from_layers",
        .summary = "parameters of a model from those of a layer",
        .unit = "params",
        .inputs = {IN("per_layer", "params", POSITIVE, "parameters of a layer"), IN_L, IN_V, IN_D},
        .function = CALC_CALL(plan_params_from_layers),
        .formula = "{per_layer}*{L} + 2*{V}*{d}",
        .convention = "untied embeddings, norms left out",
        .note = "",
    },
};

const CalcSubject calc_subject_flops = {"FLOPs and MFU", SUBJECT_TABLE(flops_table)};
const CalcSubject calc_subject_params = {"Parameters", SUBJECT_TABLE(params_table)};
