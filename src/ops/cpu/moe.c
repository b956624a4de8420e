// Mixture of experts around its matrix products: routing, its gradient, the balancing loss, and moving rows between
// token order and expert order.
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

#include <assert.h>
#include <math.h>

typedef struct Route {
    MoePointers p;
    double *partial; // [parts, experts] sums of probabilities
    int64_t part_rows;
    float *dlogits; // backward
    const float *drow_weight, *dprob, *z_coef;
} Route;

// ---- routing -------------------------------------------------------------------------------------------------------

static void token_softmax(float *probs, float *lse, const float *logits, int experts) {
    float highest = logits[0];
    for (int e = 1; e < experts; e++)
        if (logits[e] > highest) highest = logits[e];
    double sum = 0;
    VEC_FOR(i, n, experts) {
        Vec x = vec_exp(vec_get(logits, i, n, DTYPE_F32) - highest);
        vec_put(probs, i, n, DTYPE_F32, x);
        for (int64_t lane = 0; lane < n; lane++)
            sum += (double)x[lane];
    }
    *lse = (float)((double)highest + log(sum));
    float factor = (float)(1.0 / sum);
    for (int e = 0; e < experts; e++)
        probs[e] *= factor;
}

static bool chosen_before(const int32_t *chosen, int count, int expert) {
    for (int j = 0; j < count; j++)
        if (chosen[j] == expert) return true;
    return false;
}

// The top_k experts, best first; the lower one first among equals. Also valid indices when scores are NaN.
static void token_choose(int32_t *chosen, const float *probs, const MoePointers *p, int64_t token) {
    for (int j = 0; j < p->top_k; j++) {
        if (p->force == MOE_BALANCED) {
            chosen[j] = (int32_t)((token * p->top_k + j) % p->experts);
            continue;
        }
        if (p->force == MOE_WORST) {
            chosen[j] = j;
            continue;
        }
        int best = -1;
        float best_score = 0;
        for (int e = 0; e < p->experts; e++) {
            float score = probs[e] + (p->bias ? p->bias[e] : 0.0f);
            if (best >= 0 && !(score > best_score)) continue;
            if (chosen_before(chosen, j, e)) continue;
            best = e;
            best_score = score;
        }
        chosen[j] = best;
    }
}

static void route_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Route *route = context;
    const MoePointers *r = &route->p;
    int experts = r->experts, top_k = r->top_k;
    double *partial = route->partial + begin / route->part_rows * experts;
    memset(partial, 0, (size_t)experts * sizeof(double));
    for (int64_t t = begin; t < end; t++) {
        float *probs = r->probs + t * experts, *weight = r->weight + t * top_k;
        int32_t *chosen = r->expert + t * top_k;
        token_softmax(probs, &r->lse[t], r->logits + t * experts, experts);
        token_choose(chosen, probs, r, t);
        float sum = 0;
        for (int j = 0; j < top_k; j++)
            sum += weight[j] = probs[chosen[j]];
        if (r->norm_topk)
            for (int j = 0; j < top_k; j++)
                weight[j] /= sum;
        for (int e = 0; e < experts; e++)
            partial[e] += (double)probs[e];
    }
}

static int expert_here(const MoePointers *r, int64_t slot) { // -1: not one of those that are counted
    int expert = r->expert[slot] - r->first_expert;
    return expert >= 0 && expert < r->experts ? expert : -1;
}

static void count_slots(const MoePointers *r) {
    memset(r->counts, 0, (size_t)r->experts * sizeof *r->counts);
    for (int64_t slot = 0; slot < r->tokens * r->top_k; slot++) {
        int expert = expert_here(r, slot);
        if (expert >= 0) r->counts[expert]++;
    }
}

// Slots of an expert stand together in slot order: one counting pass and one placing pass over the slots. Experts that
// end beyond the last row are cut there. Returns the rows that all of them need.
static int64_t place_rows(const MoePointers *r, int row_align) {
    int64_t needed = 0;
    count_slots(r);
    r->offsets[0] = 0;
    for (int e = 0; e < r->experts; e++) {
        needed += (r->counts[e] + row_align - 1) / row_align * row_align;
        r->offsets[e + 1] = (int32_t)(needed < r->rows ? needed : r->rows);
    }
    for (int64_t row = 0; row < r->rows; row++) {
        r->token_of_row[row] = -1;
        r->row_weight[row] = 0;
    }
    memset(r->counts, 0, (size_t)r->experts * sizeof *r->counts);
    for (int64_t slot = 0; slot < r->tokens * r->top_k; slot++) {
        int expert = expert_here(r, slot);
        r->row_of_slot[slot] = -1;
        if (expert < 0 || r->offsets[expert] + r->counts[expert] >= r->offsets[expert + 1]) continue;
        int32_t row = r->offsets[expert] + r->counts[expert]++;
        r->row_of_slot[slot] = row;
        r->token_of_row[row] = (int32_t)(slot / r->top_k);
        r->row_weight[row] = r->weight[slot];
    }
    return needed;
}

static void cpu_moe_route_forward(Ops *ops, const MoeRouting *routing) {
    CPU_TIMED(ops, OP_MOE_ROUTE_FORWARD);
    MoePointers p = moe_pointers(routing);
    assert(p.top_k <= p.experts);
    CpuScratch scratch = cpu_scratch(cpu_of(ops), (size_t)CPU_PARTS * (size_t)p.experts * sizeof(double), 0);
    Route route = {
        .p = p,
        .partial = (double *)scratch.shared,
        .part_rows = cpu_part_rows(p.tokens),
    };
    threads_for(p.tokens, route.part_rows, route_task, &route);
    memset(p.prob_sum, 0, (size_t)p.experts * sizeof(float));
    cpu_add_parts(p.prob_sum, route.partial, cpu_part_count(p.tokens), p.experts, p.experts);
    if (!p.offsets) {
        count_slots(&p);
        return;
    }
    int64_t needed = place_rows(&p, ops->row_align);
    assert(needed <= p.rows);
    (void)needed;
}

static void cpu_moe_place_rows(Ops *ops, Tensor needed_out, const MoeRouting *routing) {
    CPU_TIMED(ops, OP_MOE_PLACE_ROWS);
    MoePointers p = moe_pointers(routing);
    int32_t *needed = needed_out.data;
    int64_t rows = place_rows(&p, ops->row_align);
    if (rows > p.rows && rows > *needed) *needed = (int32_t)rows;
}

// ---- its gradient: combine weight -> (rescaling) -> probability -> softmax; plus both auxiliary losses -------------

// Of a slot's combine weight: that of its row, or where there are no rows it is given by slots.
static double slot_gradient(const Route *route, int64_t slot) {
    return (double)route->drow_weight[route->p.row_of_slot ? route->p.row_of_slot[slot] : slot];
}

static void route_backward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Route *route = context;
    const MoePointers *r = &route->p;
    int experts = r->experts, top_k = r->top_k;
    for (int64_t t = begin; t < end; t++) {
        const float *probs = r->probs + t * experts, *weight = r->weight + t * top_k;
        const int32_t *chosen = r->expert + t * top_k;
        float *dlogits = route->dlogits + t * experts;
        for (int e = 0; e < experts; e++)
            dlogits[e] = route->dprob ? route->dprob[e] : 0.0f;
        double mean = 0, sum = 1;
        if (r->norm_topk) { // weight = p / sum: d p = (d weight - mean of d weight under weight) / sum
            sum = 0;
            for (int j = 0; j < top_k; j++) {
                sum += (double)probs[chosen[j]];
                mean += slot_gradient(route, t * top_k + j) * (double)weight[j];
            }
        }
        for (int j = 0; j < top_k; j++)
            dlogits[chosen[j]] += (float)((slot_gradient(route, t * top_k + j) - mean) / sum);
        double dot = 0;
        for (int e = 0; e < experts; e++)
            dot += (double)dlogits[e] * (double)probs[e];
        double z = route->z_coef ? 2.0 * (double)route->z_coef[0] * (double)r->lse[t] : 0.0;
        for (int e = 0; e < experts; e++)
            dlogits[e] = (float)((double)probs[e] * ((double)dlogits[e] - dot + z));
    }
}

static void cpu_moe_route_backward(Ops *ops, Tensor dlogits, Tensor drow_weight, Tensor dprob, Tensor z_coef,
                                   const MoeRouting *routing) {
    CPU_TIMED(ops, OP_MOE_ROUTE_BACKWARD);
    Route route = {
        .p = moe_pointers(routing),
        .dlogits = dlogits.data,
        .drow_weight = drow_weight.data,
        .dprob = dprob.data,
        .z_coef = z_coef.data,
    };
    threads_for(route.p.tokens, cpu_row_chunk(4 * route.p.experts), route_backward_task, &route);
}

static void cpu_moe_slot_gradient(Ops *ops, Tensor dweight_out, Tensor drow_weight, const MoeRouting *routing) {
    CPU_TIMED(ops, OP_MOE_SLOT_GRADIENT);
    MoePointers p = moe_pointers(routing);
    float *dweight = dweight_out.data;
    const float *of_row = drow_weight.data;
    for (int64_t slot = 0; slot < p.tokens * p.top_k; slot++)
        dweight[slot] = p.row_of_slot[slot] >= 0 ? of_row[p.row_of_slot[slot]] : 0;
}

static void cpu_moe_balance(Ops *ops, Tensor loss_out, Tensor dprob_out, Tensor scale_in, Tensor counts_in,
                            Tensor prob_sum_in, MoeBalance balance, int64_t tokens) {
    CPU_TIMED(ops, OP_MOE_BALANCE);
    float *loss = loss_out.data, *dprob = dprob_out.data;
    const float *scale = scale_in.data, *prob_sum = prob_sum_in.data;
    const int32_t *counts = counts_in.data;
    int layers = (int)counts_in.rows, experts = (int)counts_in.cols;
    int parts = balance == BALANCE_LAYERS ? layers : 1, each = layers / parts; // layers that count together
    double rows = (double)each * (double)tokens, sum = 0;
    for (int part = 0; part < parts; part++)
        for (int e = 0; e < experts; e++) {
            double count = 0, prob = 0;
            for (int layer = part * each; layer < (part + 1) * each; layer++) {
                count += (double)counts[layer * experts + e];
                prob += (double)prob_sum[layer * experts + e];
            }
            sum += count / rows * (prob / rows);
            for (int layer = part * each; layer < (part + 1) * each; layer++)
                dprob[layer * experts + e] = (float)((double)scale[0] * experts * (count / rows) / rows);
        }
    *loss = (float)((double)*loss + experts * sum / parts);
}

// ---- load ----------------------------------------------------------------------------------------------------------

static void load_of(float stats[MOE_LOAD_STATS], const int32_t *counts, int experts) {
    double total = 0, most = 0, entropy = 0;
    int dead = 0;
    for (int e = 0; e < experts; e++) {
        total += counts[e];
        most = fmax(most, counts[e]);
        dead += counts[e] == 0;
    }
    for (int e = 0; e < experts; e++)
        if (counts[e] > 0) entropy -= counts[e] / total * log(counts[e] / total);
    entropy = experts > 1 ? fmin(fmax(entropy / log(experts), 0), 1) : total > 0; // rounding may step over either end
    stats[MOE_LOAD_MAX] = total > 0 ? (float)(most * experts / total) : 0;
    stats[MOE_LOAD_ENTROPY] = (float)entropy;
    stats[MOE_LOAD_DEAD] = (float)dead;
}

static void cpu_moe_add_counts(Ops *ops, Tensor total, Tensor counts, bool accumulate) {
    CPU_TIMED(ops, OP_MOE_ADD_COUNTS);
    int32_t *sums = total.data;
    const int32_t *terms = counts.data;
    for (int64_t i = 0; i < tensor_count(counts); i++)
        sums[i] = accumulate ? sums[i] + terms[i] : terms[i];
}

static void cpu_moe_load_stats(Ops *ops, Tensor stats, Tensor counts) {
    CPU_TIMED(ops, OP_MOE_LOAD_STATS);
    int experts = (int)counts.cols;
    for (int64_t layer = 0; layer < counts.rows; layer++)
        load_of((float *)stats.data + layer * MOE_LOAD_STATS, (const int32_t *)counts.data + layer * experts, experts);
}

static void cpu_moe_bias_update(Ops *ops, Tensor bias_out, Tensor counts_in, Tensor skip, float rate) {
    CPU_TIMED(ops, OP_MOE_BIAS_UPDATE);
    float *bias = bias_out.data;
    const int32_t *counts = counts_in.data;
    int layers = (int)counts_in.rows, experts = (int)counts_in.cols;
    if (*(const int32_t *)skip.data) return;
    for (int layer = 0; layer < layers; layer++, bias += experts, counts += experts) {
        int64_t total = 0;
        for (int e = 0; e < experts; e++)
            total += counts[e];
        for (int e = 0; e < experts; e++) {
            int64_t load = (int64_t)counts[e] * experts; // against the total: the mean may be a fraction
            bias[e] += load < total ? rate : load > total ? -rate : 0;
        }
    }
}

// ---- rows ----------------------------------------------------------------------------------------------------------

typedef struct Rows {
    void *out;
    const void *in;
    const void *add;
    MoePointers p;
    int top_k, dim;
    DType dtype;
} Rows;

typedef struct Gather {
    void *out;
    const void *in;
    const int32_t *token_of_row;
    size_t bytes; // of a row
} Gather;

static void gather_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Gather *g = context;
    for (int64_t row = begin; row < end; row++) {
        int32_t token = g->token_of_row[row];
        char *out = (char *)g->out + (size_t)row * g->bytes;
        if (token < 0)
            memset(out, 0, g->bytes);
        else
            memcpy(out, (const char *)g->in + (size_t)token * g->bytes, g->bytes);
    }
}

void cpu_gather_rows(void *out, const void *in, const int32_t *token_of_row, int64_t rows, int dim, DType dtype) {
    Gather gather = {out, in, token_of_row, (size_t)dim * dtype_size(dtype)};
    threads_for(rows, cpu_row_chunk(dim), gather_task, &gather);
}

static Rows rows_make(Tensor out, Tensor in, Tensor add, const MoeRouting *routing) {
    MoePointers p = moe_pointers(routing);
    return (Rows){out.data, in.data, add.data, p, p.top_k, (int)out.cols, out.dtype};
}

// A GPU clears what stands behind an expert's count of rows; so counts must still be those of this routing.
static bool counts_match_rows(const MoePointers *p) {
    for (int e = 0; e < p->experts; e++) {
        int32_t end = p->offsets[e] + p->counts[e], next = p->offsets[e + 1];
        if (end > next || (end < next && p->token_of_row[end] >= 0)) return false;
        if (p->counts[e] && p->token_of_row[end - 1] < 0) return false;
    }
    return true;
}

static void cpu_moe_gather(Ops *ops, Tensor out, Tensor in, const MoeRouting *routing) {
    CPU_TIMED(ops, OP_MOE_GATHER);
    MoePointers p = moe_pointers(routing);
    assert(counts_match_rows(&p));
    cpu_gather_rows(out.data, in.data, p.token_of_row, p.offsets[p.experts], (int)in.cols, in.dtype);
}

typedef struct GatherCols {
    Tensor cols, in;
    const int32_t *token_of_row;
    int64_t rows;
} GatherCols;

static void gather_cols_task(void *context, int64_t begin, int64_t end, int worker) { // rows of the transpose
    (void)worker;
    const GatherCols *g = context;
    for (int64_t i = begin; i < end; i++)
        for (int64_t row = 0; row < g->rows; row++) {
            int32_t token = g->token_of_row[row];
            *(uint8_t *)tensor_at(g->cols, i, row) = token < 0 ? 0 : *(const uint8_t *)tensor_at(g->in, token, i);
        }
}

static void cpu_moe_gather_fp8(Ops *ops, Tensor rows, Tensor cols, Tensor in, const MoeRouting *routing) {
    CPU_TIMED(ops, OP_MOE_GATHER_FP8);
    MoePointers p = moe_pointers(routing);
    assert(counts_match_rows(&p));
    int64_t used = p.offsets[p.experts];
    if (tensor_present(rows)) cpu_gather_rows(rows.data, in.data, p.token_of_row, used, (int)in.cols, in.dtype);
    if (tensor_present(cols))
        threads_for(cols.rows, cpu_row_chunk(used), gather_cols_task, &(GatherCols){cols, in, p.token_of_row, used});
}

VEC_INLINE void sum_tokens(const Rows *rows, int64_t begin, int64_t end, DType dtype) {
    int dim = rows->dim, top_k = rows->top_k;
    for (int64_t t = begin; t < end; t++) {
        void *out = cpu_at_mut(rows->out, t * dim, dtype);
        const int32_t *row = rows->p.row_of_slot + t * top_k;
        VEC_FOR(i, n, dim) {
            Vec sum = {0};
            for (int j = 0; j < top_k; j++)
                if (row[j] >= 0) sum += vec_get(cpu_at(rows->in, (int64_t)row[j] * dim, dtype), i, n, dtype);
            if (rows->add) sum += vec_get(cpu_at(rows->add, t * dim, dtype), i, n, dtype);
            vec_put(out, i, n, dtype, sum);
        }
    }
}

static void sum_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Rows *rows = context;
    VEC_BY_STORAGE(rows->dtype, sum_tokens, rows, begin, end);
}

static void cpu_moe_sum(Ops *ops, Tensor out, Tensor in, Tensor add, const MoeRouting *routing) {
    CPU_TIMED(ops, OP_MOE_SUM);
    Rows rows = rows_make(out, in, add, routing);
    threads_for(rows.p.tokens, cpu_row_chunk((int64_t)rows.dim * rows.top_k), sum_task, &rows);
}

void cpu_install_moe(Ops *ops) {
    ops->moe_route_forward = cpu_moe_route_forward;
    ops->moe_place_rows = cpu_moe_place_rows;
    ops->moe_slot_gradient = cpu_moe_slot_gradient;
    ops->moe_route_backward = cpu_moe_route_backward;
    ops->moe_balance = cpu_moe_balance;
    ops->moe_add_counts = cpu_moe_add_counts;
    ops->moe_load_stats = cpu_moe_load_stats;
    ops->moe_bias_update = cpu_moe_bias_update;
    ops->moe_gather = cpu_moe_gather;
    ops->moe_gather_fp8 = cpu_moe_gather_fp8;
    ops->moe_sum = cpu_moe_sum;
}
