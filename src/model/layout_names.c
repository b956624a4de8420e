// The words for what a layout is asked for and made of.
#include "model/layout.h"

#include <string.h>

static const char *const kind_names[LAYOUT_KIND_COUNT] = {
    "weights",     "master weights", "gradients", "moments",   "FP8 weights",     "activations",
    "temporaries", "gathered",       "constants", "workspace", "outer optimizer",
};
static const char *const precision_names[] = {"fp32", "bf16", "bf16-pure", "fp8", "fp16"};
static const char *const recompute_names[] = {"none", "selective", "full"};

const char *layout_kind_name(LayoutKind kind) {
    return kind_names[kind];
}

const char *precision_name(Precision precision) {
    return precision_names[precision];
}

const char *recompute_name(Recompute recompute) {
    return recompute_names[recompute];
}

Status precision_parse(Precision *precision, const char *name) {
    for (int i = 0; i < PRECISION_COUNT; i++) {
        if (strcmp(name, precision_names[i]) == 0) {
            *precision = (Precision)i;
            return NULL;
        }
    }
    return status_usage("precision must be fp32, bf16, bf16-pure, fp8 or fp16, not \"%s\"", name);
}

Status recompute_parse(Recompute *recompute, const char *name) {
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, recompute_names[i]) == 0) {
            *recompute = (Recompute)i;
            return NULL;
        }
    }
    return status_usage("recompute must be none, selective or full, not \"%s\"", name);
}

const char *layout_param_name(ParamId id) {
    static const char *const names[PARAM_ID_COUNT] = {
        [PARAM_EMBEDDING] = "embedding",
        [PARAM_HEAD] = "LM head",
        [PARAM_QKV] = "qkv",
        [PARAM_O] = "o",
        [PARAM_GATE_UP] = "gate_up",
        [PARAM_DOWN] = "down",
        [PARAM_ROUTER] = "router",
        [PARAM_EXPERT_GATE_UP] = "experts gate_up",
        [PARAM_EXPERT_DOWN] = "experts down",
        [PARAM_FINAL_NORM] = "final norm",
        [PARAM_ATTN_NORM] = "attention norm",
        [PARAM_MLP_NORM] = "MLP norm",
        [PARAM_Q_NORM] = "q norm",
        [PARAM_K_NORM] = "k norm",
    };
    return names[id];
}

const char *layout_act_name(ActId id) {
    static const char *const names[ACT_ID_COUNT] = {
        [ACT_RESIDUAL_IN] = "residual in",
        [ACT_ATTN_NORMED] = "attention normed",
        [ACT_ATTN_RSTD] = "attention rstd",
        [ACT_QKV] = "qkv",
        [ACT_QK] = "qk",
        [ACT_QK_RSTD] = "qk rstd",
        [ACT_ATTN_OUT] = "attention out",
        [ACT_LSE] = "log-sum-exp",
        [ACT_MLP_NORMED] = "MLP normed",
        [ACT_MLP_RSTD] = "MLP rstd",
        [ACT_GATE_UP] = "gate_up",
        [ACT_PROBS] = "router probabilities",
        [ACT_ROUTER_LSE] = "router log-sum-exp",
        [ACT_EXPERT] = "chosen experts",
        [ACT_EXPERT_WEIGHT] = "combine weights",
        [ACT_OFFSETS] = "expert offsets",
        [ACT_ROW_COUNTS] = "slots of experts",
        [ACT_ROW_OF_SLOT] = "row of slot",
        [ACT_TOKEN_OF_ROW] = "token of row",
        [ACT_ROW_WEIGHT] = "row weights",
        [ACT_GATHERED] = "gathered rows",
        [ACT_FINAL_RSTD] = "final rstd",
        [ACT_LOSSES] = "losses",
        [ACT_COUNTS] = "expert counts",
        [ACT_ALL_COUNTS] = "expert counts of all tokens",
        [ACT_PROB_SUM] = "probability sums",
        [ACT_DPROB] = "probability gradients",
        [ACT_STAGE_OUT] = "output of a stage",
        [ACT_STAGE_COUNTS] = "expert counts of all layers",
        [ACT_STAGE_PROBS] = "probability sums of all layers",
        [ACT_STAGE_DPROB] = "probability gradients of all layers",
        [ACT_RESIDUAL_MID] = "residual mid",
        [ACT_RESIDUAL_FINAL] = "residual final",
        [ACT_FINAL_NORMED] = "final normed",
        [ACT_HIDDEN] = "hidden",
        [ACT_ROUTER_LOGITS] = "router logits",
        [ACT_EXPERT_OUT] = "expert out",
        [ACT_LOGITS] = "logits",
        [ACT_DRESIDUAL] = "residual gradient",
        [ACT_DNORMED] = "normed gradient",
        [ACT_DATTN] = "attention gradient",
        [ACT_DQKV] = "qkv gradient",
        [ACT_DHIDDEN] = "hidden gradient",
        [ACT_DROWS] = "row gradients",
        [ACT_DROW_WEIGHT] = "row weight gradients",
        [ACT_DLOGITS] = "router logit gradients",
        [ACT_DISPATCHED] = "tokens of all experts",
        [ACT_ALL_EXPERT] = "chosen experts of all",
        [ACT_ALL_WEIGHT] = "combine weights of all",
        [ACT_DWEIGHT] = "combine weight gradients",
        [ACT_WIDE] = "all tokens",
        [ACT_DWIDE] = "gradient of all tokens",
        [ACT_RING_KV] = "keys and values on their way",
        [ACT_RING_SUM] = "attention so far",
        [ACT_RING_LSE] = "lse of a part",
        [ACT_RING_DKV] = "key and value gradients on their way",
        [ACT_SPLIT_STATS] = "statistics of a split vocabulary",
        [ACT_GATE_UP8] = "gate_up in FP8",
        [ACT_FP8_IN] = "FP8 input",
        [ACT_FP8_DOUT] = "FP8 residual gradient",
        [ACT_FP8_DOUT_COLS] = "FP8 residual gradient, transposed",
        [ACT_FP8_DGATE_UP] = "FP8 gate_up gradient",
        [ACT_FP8_DGATE_UP_COLS] = "FP8 gate_up gradient, transposed",
        [ACT_FP8_MLP_COLS] = "FP8 MLP input, transposed",
        [ACT_FP8_DQKV] = "FP8 qkv gradient",
        [ACT_FP8_DQKV_COLS] = "FP8 qkv gradient, transposed",
        [ACT_FP8_ATTN_COLS] = "FP8 attention result, transposed",
        [ACT_FP8_QKV_COLS] = "FP8 qkv input, transposed",
        [ACT_FP8_GATE_UP] = "gate_up",
        [ACT_FP8_HIDDEN] = "FP8 hidden",
        [ACT_FP8_HEAD_IN] = "FP8 head input",
        [ACT_FP8_HEAD_COLS] = "FP8 head input, transposed",
        [ACT_FP8_DLOGITS] = "logits gradient",
        [ACT_EXPERT_GATE_UP8] = "expert gate_up in FP8",
        [ACT_FP8_TOKENS] = "FP8 tokens",
        [ACT_FP8_EXPERT_GATE_UP] = "gate_up",
        [ACT_FP8_EXPERT_DGATE_UP] = "FP8 expert gate_up gradient",
        [ACT_FP8_EXPERT_DGATE_UP_COLS] = "FP8 expert gate_up gradient, transposed",
        [ACT_FP8_HIDDEN_COLS] = "FP8 expert hidden, transposed",
        [ACT_SCRATCH] = "scratch",
    };
    return names[id];
}

const char *layout_const_name(ConstId id) {
    static const char *const names[CONST_ID_COUNT] = {
        [CONST_IDS] = "ids",
        [CONST_TARGETS] = "targets",
        [CONST_DOC_START] = "document starts",
        [CONST_COS] = "cos",
        [CONST_SIN] = "sin",
        [CONST_SCALARS] = "scalars",
        [CONST_ROUTER_BIAS] = "router bias",
        [CONST_EXPERT_TOTAL] = "expert counts of the step",
        [CONST_FP8_SCALE] = "FP8 scales",
        [CONST_FP8_AMAX] = "FP8 maxima",
        [CONST_FP8_BEFORE] = "FP8 scales before",
        [CONST_EXPERT_LOAD] = "expert load",
        [CONST_RANK_NORMS] = "norms of ranks",
        [CONST_NORMS] = "norms of parts",
    };
    return names[id];
}
