// What an op costs at least: FLOPs of its products, and every byte that it must read or write, once.
#include "ops/record.h"

static double size_of(Tensor t) {
    return (double)dtype_size(t.dtype);
}

static double bytes_of(Tensor t) {
    return tensor_present(t) ? (double)tensor_count(t) * size_of(t) : 0;
}

// out [rows, n] = in [rows, k] . weight [n, k]
static OpCost product_cost(double rows, double k, double n, double weights, double width) {
    return (OpCost){.flops = 2 * rows * k * n, .bytes = (rows * (k + n) + weights * k * n) * width};
}

// dweight [n, k] from dout [rows, n] and in [rows, k]
static OpCost weight_gradient_cost(const OpRecord *r, double rows, double added) {
    const Tensor *t = r->tensor;
    double n = (double)t[1].cols, k = (double)t[2].cols, read = r->flag ? 1 : added;
    return (OpCost){.flops = 2 * rows * n * k, .bytes = rows * (n + k) * size_of(t[1]) + bytes_of(t[0]) * (1 + read)};
}

// Two products of the scores' lower triangle (or of all of them, which is twice as many) forward, five backward; keys
// and values are read once per query head group.
static OpCost attention_cost(const OpRecord *r, bool backward) {
    const Tensor *t = r->tensor;
    Tensor out = backward ? t[4] : t[0], k = backward ? t[7] : t[3];
    double triangle = (double)out.rows * (double)out.cols * r->attention.seq * (r->attention.full ? 2 : 1);
    double moved = ((double)out.cols + (double)out.cols + 2 * (double)k.cols) * (double)out.rows * size_of(out);
    return (OpCost){.flops = triangle * (backward ? 5 : 2), .bytes = moved * (backward ? 3 : 1)};
}

static OpCost adamw_cost(const AdamwArgs *a) {
    double state = bytes_of(a->m) + bytes_of(a->v) + bytes_of(a->weight) + bytes_of(a->master);
    double unread = a->master.dtype == DTYPE_F32 && tensor_present(a->master) ? bytes_of(a->weight) : 0;
    return (OpCost){.bytes = bytes_of(a->grad) + 2 * state - unread};
}

// Of the rows that are made of tokens, if any: a token is read once, and which one for every row.
static double tokens_saving(Tensor source, Tensor token_of_row, double rows) {
    if (!tensor_present(token_of_row)) return 0;
    return rows * ((double)source.cols * size_of(source) - size_of(token_of_row)) - bytes_of(source);
}

static OpCost grouped_cost(const OpRecord *r, double used, double added) {
    const Tensor *t = r->tensor;
    bool weight = r->op == OP_GROUPED_LINEAR_BACKWARD_WEIGHT;
    if (used < 0) used = (double)t[weight ? 1 : 0].rows;
    OpCost cost = weight
                      ? weight_gradient_cost(r, used, added)
                      : product_cost(used, (double)t[1].cols, (double)t[0].cols, (double)t[3].cols - 1, size_of(t[0]));
    cost.bytes -= tokens_saving(t[weight ? 2 : 1], t[4], used);
    return cost;
}

// The product, and what SwiGLU reads and writes beside its operands: hidden forward; gate, up and their gradients
// backward, where hidden counts as the product's result.
static OpCost grouped_swiglu_cost(const OpRecord *r, double used) {
    const Tensor *t = r->tensor;
    bool backward = r->op == OP_GROUPED_SWIGLU_BACKWARD;
    Tensor hidden = t[backward ? 1 : 0], in = t[backward ? 4 : 2], offsets = t[backward ? 6 : 4];
    double dim = (double)hidden.cols, width = size_of(hidden);
    if (used < 0) used = (double)hidden.rows;
    OpCost cost = product_cost(used, (double)in.cols, backward ? dim : 2 * dim, (double)offsets.cols - 1, width);
    cost.bytes += (backward ? 4 : 1) * used * dim * width - (backward ? 0 : tokens_saving(in, t[6], used));
    return cost;
}

// In FP8 with float results: of a weight gradient, whose operands have the rows as columns.
static OpCost grouped_fp8_cost(const OpRecord *r, double used, double added) {
    const Tensor *t = r->tensor;
    bool weight = t[0].dtype == DTYPE_F32;
    double all = (double)(weight ? t[1].cols : t[1].rows), share = used < 0 ? 1 : used / all;
    double out = weight ? bytes_of(t[0]) * (1 + (r->flag ? 1 : added)) : bytes_of(t[0]) * share;
    double experts = (double)t[5].cols - 1, products = (double)tensor_count(t[1]) * (double)t[2].rows;
    return (OpCost){.flops = 2 * share * products / (weight ? 1 : experts),
                    .bytes = out + bytes_of(t[1]) * share + bytes_of(t[2]) * (weight ? share : 1)};
}

// Of the experts' rows, where an op says how many there are.
static double rows_share(Tensor row_count, double rows, double expert_rows) {
    return tensor_present(row_count) && expert_rows >= 0 ? expert_rows / rows : 1;
}

OpCost op_cost(const OpRecord *r, double expert_rows, double added) {
    const Tensor *t = r->tensor;
    double width = size_of(t[0]), rows = (double)t[0].rows;
    double used = expert_rows >= 0 ? expert_rows : (double)t[1].rows; // of the experts' rows, in their ops
    switch (r->op) {
    case OP_LINEAR_FORWARD: {
        OpCost cost = product_cost(rows, (double)t[1].cols, (double)t[0].cols, 1, width);
        cost.bytes += bytes_of(t[3]);
        return cost;
    }
    case OP_LINEAR_ROPE_FORWARD:
    case OP_LINEAR_SWIGLU_FORWARD: return product_cost(rows, (double)t[1].cols, (double)t[0].cols, 1, width);
    case OP_LINEAR_BACKWARD_INPUT: return product_cost(rows, (double)t[1].cols, (double)t[0].cols, 1, width);
    case OP_LINEAR_SWIGLU_BACKWARD: {
        OpCost cost = product_cost(rows, (double)t[3].cols, (double)t[1].cols, 1, width);
        cost.bytes += (2 * bytes_of(t[2]) - bytes_of(t[1])); // gate and hidden in, their gradients out, dhidden nowhere
        return cost;
    }
    case OP_LINEAR_BACKWARD_WEIGHT: return weight_gradient_cost(r, (double)t[1].rows, added);
    case OP_GROUPED_LINEAR_FORWARD:
    case OP_GROUPED_LINEAR_BACKWARD_INPUT:
    case OP_GROUPED_LINEAR_BACKWARD_WEIGHT: return grouped_cost(r, expert_rows, added);
    case OP_GROUPED_SWIGLU_FORWARD:
    case OP_GROUPED_SWIGLU_BACKWARD: return grouped_swiglu_cost(r, expert_rows);
    case OP_GROUPED_LINEAR_FP8: return grouped_fp8_cost(r, expert_rows, added);
    case OP_ATTENTION_FORWARD: return attention_cost(r, false);
    case OP_ATTENTION_BACKWARD: return attention_cost(r, true);
    case OP_ATTENTION_MERGE: return (OpCost){.bytes = 2 * bytes_of(t[0]) + bytes_of(t[2]) + 3 * bytes_of(t[1])};
    case OP_ATTENTION_CACHED: return (OpCost){.bytes = bytes_of(t[2]) + bytes_of(t[3])};
    // Of a part of the vocabulary too: the record does not say how many of the ids are in it.
    case OP_EMBEDDING_FORWARD: return (OpCost){.bytes = 2 * bytes_of(t[0])};
    case OP_EMBEDDING_BACKWARD: return (OpCost){.bytes = bytes_of(t[1]) + 8 * (double)tensor_count(t[1])};
    case OP_ADD_RMSNORM_FORWARD: return (OpCost){.bytes = (tensor_present(t[4]) ? 4 : 2) * bytes_of(t[0])};
    case OP_ADD_RMSNORM_BACKWARD: return (OpCost){.bytes = (r->flag ? 3 : 4) * bytes_of(t[0])};
    case OP_QK_ROPE_FORWARD: return (OpCost){.bytes = 2 * bytes_of(t[0])};
    case OP_QK_ROPE_BACKWARD: return (OpCost){.bytes = (tensor_present(r->rope.q_weight) ? 3 : 2) * bytes_of(t[0])};
    case OP_SWIGLU_FORWARD: return (OpCost){.bytes = 3 * used * (double)t[0].cols * width};
    case OP_SWIGLU_BACKWARD: return (OpCost){.bytes = 6 * used * (double)t[1].cols * width};
    case OP_SWIGLU_PACKED_FORWARD: return (OpCost){.bytes = 1.5 * bytes_of(t[0])};
    case OP_SWIGLU_PACKED_BACKWARD: return (OpCost){.bytes = 5 * bytes_of(t[2])};
    case OP_QUANTIZE: return (OpCost){.bytes = bytes_of(t[0]) + bytes_of(t[1]) + bytes_of(t[3])};
    case OP_LINEAR_FP8: {
        double read = t[0].dtype == DTYPE_F32 ? (r->flag ? 1 : added) : 0; // of a weight gradient
        return (OpCost){.flops = 2 * rows * (double)t[0].cols * (double)t[1].cols,
                        .bytes = bytes_of(t[0]) * (1 + read) + bytes_of(t[1]) + bytes_of(t[2]) + bytes_of(t[5])};
    }
    case OP_RMSNORM_FP8_FORWARD: return (OpCost){.bytes = 2 * bytes_of(t[0]) + bytes_of(t[1])};
    case OP_SWIGLU_FP8_FORWARD:
        return (OpCost){.bytes =
                            (bytes_of(t[0]) + bytes_of(t[2]) + bytes_of(t[4])) * rows_share(t[8], rows, expert_rows)};
    case OP_SWIGLU_FP8_BACKWARD:
        return (OpCost){.bytes = (bytes_of(t[0]) + bytes_of(t[1]) + bytes_of(t[3]) + bytes_of(t[5]) + bytes_of(t[6])) *
                                 rows_share(t[11], rows, expert_rows)};
    case OP_LINEAR_SWIGLU_FP8_FORWARD:
    case OP_GROUPED_SWIGLU_FP8_FORWARD: { // the scratch is not of the least
        double share = rows_share(t[12], rows, expert_rows);
        return (OpCost){.flops = 2 * share * rows * (double)t[2].cols * (double)t[5].cols,
                        .bytes = (bytes_of(t[0]) + bytes_of(t[2]) + bytes_of(t[5])) * share + bytes_of(t[6])};
    }
    case OP_CROSS_ENTROPY: return (OpCost){.bytes = (tensor_present(t[3]) ? 2 : 1) * bytes_of(t[1])};
    case OP_CROSS_ENTROPY_FP8: return (OpCost){.bytes = bytes_of(t[1]) + bytes_of(t[2])};
    case OP_CROSS_ENTROPY_STATS: return (OpCost){.bytes = bytes_of(t[1]) + bytes_of(t[0])};
    case OP_CROSS_ENTROPY_APPLY:
        return (OpCost){.bytes = (tensor_present(t[4]) ? 2 * bytes_of(t[1]) : 0) + bytes_of(t[3]) + bytes_of(t[0])};
    case OP_MOE_ROUTER_FORWARD: return (OpCost){.bytes = bytes_of(t[1]) + bytes_of(t[0])};
    case OP_MOE_ROUTER_BACKWARD: return (OpCost){.bytes = 4 * bytes_of(t[0]) + 3 * bytes_of(t[2])};
    case OP_MOE_ROUTE_FORWARD: return (OpCost){.bytes = 4 * bytes_of(r->routing.probs)};
    case OP_MOE_PLACE_ROWS: // expert and weight of every slot in, its row out, and what a row is of
        return (OpCost){.bytes = 3 * bytes_of(r->routing.row_of_slot) + 2 * bytes_of(r->routing.token_of_row)};
    case OP_MOE_SLOT_GRADIENT: return (OpCost){.bytes = 2 * bytes_of(t[0]) + used * size_of(t[1])};
    case OP_MOE_ROUTE_BACKWARD: return (OpCost){.bytes = 3 * bytes_of(t[0])};
    case OP_MOE_GATHER:
        used = expert_rows >= 0 ? expert_rows : (double)t[0].rows;
        return (OpCost){.bytes = bytes_of(t[1]) + used * (double)t[0].cols * width}; // a token's row is read once
    case OP_MOE_GATHER_FP8: {
        double all = (double)(tensor_present(t[0]) ? t[0].rows : t[1].cols), copies = bytes_of(t[0]) + bytes_of(t[1]);
        return (OpCost){.bytes = bytes_of(t[2]) + copies * (expert_rows >= 0 ? expert_rows / all : 1)};
    }
    case OP_MOE_SUM: return (OpCost){.bytes = used * (double)t[0].cols * width + bytes_of(t[0]) + bytes_of(t[2])};
    case OP_CONVERT: return (OpCost){.bytes = (r->flag ? 2 : 1) * bytes_of(t[0]) + bytes_of(t[1])};
    case OP_ADD: return (OpCost){.bytes = 3 * bytes_of(t[0])};
    case OP_SUM_F32:
    case OP_NORM_F32: return (OpCost){.bytes = bytes_of(t[1])};
    case OP_ZERO: return (OpCost){.bytes = bytes_of(t[0])};
    case OP_ADAMW: return adamw_cost(&r->adamw);
    case OP_MOE_BALANCE:
    case OP_MOE_ADD_COUNTS:
    case OP_MOE_LOAD_STATS:
    case OP_MOE_BIAS_UPDATE: return (OpCost){.bytes = bytes_of(t[0]) + bytes_of(t[1])};
    case OP_QUANTIZE_SCALES:
    case OP_GUARD:
    case OP_UPLOAD:
    case OP_COPY:
    case OP_COUNT: break;
    }
    return (OpCost){0};
}
