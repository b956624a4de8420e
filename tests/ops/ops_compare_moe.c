// The cases of ops_compare for the MoE ops: random routing, empty experts, one expert that takes all, equal scores.
#include "ops_compare.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- MoE -----------------------------------------------------------------------------------------------------------

void sweep_moe_router_forward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 65, 129) EACH(dim, 8, 56, 257, 896) EACH(experts, 4, 8, 16, 60, 128, 256) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim, .moe = {.experts = experts}}};
        add_out(run, &c, DTYPE_F32, (int64_t)rows * experts, dim);
        add_in(run, &c, dtype, (int64_t)rows * dim);
        add_in(run, &c, dtype, (int64_t)experts * dim);
        check(run, &c, call_moe_router_forward, "%s rows %d dim %d experts %d", dtype_name(dtype), rows, dim, experts);
    }
}

void sweep_moe_router_backward(Compare *run) {
    EACH_DTYPE(dtype)
    EACH_SIZE(rows, 1, 700, 65)
    EACH(dim, 8, 56, 257, 896) EACH(experts, 4, 16, 30, 60, 128, 200, 256) EACH(accumulate, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim, .flag = accumulate, .moe = {.experts = experts}}};
        double split = dtype == DTYPE_BF16 ? 0x1p-14 : 0;
        add(run, &c, ROLE_INOUT, dtype, (int64_t)rows * dim, experts, split);
        add(run, &c, accumulate ? ROLE_INOUT : ROLE_OUT, DTYPE_F32, (int64_t)experts * dim, rows, split);
        add_in(run, &c, DTYPE_F32, (int64_t)rows * experts);
        add_in(run, &c, dtype, (int64_t)rows * dim);
        add_in(run, &c, dtype, (int64_t)experts * dim);
        check(run, &c, call_moe_router_backward, "%s rows %d dim %d experts %d add %d", dtype_name(dtype), rows, dim,
              experts, accumulate);
    }
}

typedef enum Scene { SCENE_RANDOM, SCENE_EMPTY, SCENE_ONE, SCENE_EQUAL, SCENE_COUNT } Scene;
static const char *const SCENE_NAMES[] = {"random", "empty experts", "one expert", "equal scores"};

static void scene_logits(float *logits, const MoeSizes *sizes, Scene scene) {
    for (int64_t t = 0; t < sizes->tokens; t++) {
        float *row = logits + t * sizes->experts;
        for (int e = 0; e < sizes->experts; e++) {
            if (scene == SCENE_EMPTY && e % 3) row[e] = -30.0f + row[e] * 0.1f;
            if (scene == SCENE_ONE) row[e] = row[e] * 0.1f + (e == sizes->experts / 2 ? 20.0f : 0.0f);
            if (scene == SCENE_EQUAL) row[e] = row[e] > 0 ? 1.0f : 0.0f;
        }
    }
}

static MoeSizes moe_sizes(const Compare *run, int64_t tokens, int experts, int top_k, bool norm, MoeForce force) {
    return (MoeSizes){tokens, experts, top_k, norm, moe_rows_capacity(tokens, top_k, experts, run->cuda->row_align),
                      force};
}

static void add_rows(Compare *run, Case *c, Role role) { // offsets, row_of_slot, token_of_row, row_weight
    const MoeSizes *m = &c->sizes.moe;
    add(run, c, role, DTYPE_I32, m->experts + 1, 0, 0);
    add(run, c, role, DTYPE_I32, m->tokens * m->top_k, 0, 0);
    add(run, c, role, DTYPE_I32, m->rows, 0, 0);
    add(run, c, role, DTYPE_F32, m->rows, m->experts, 0x1p-20);
}

// The buffers of MoeRouting, as outputs; with `routed`, as inputs filled by the CPU; without rows where m->rows is 0.
static void add_routing(Compare *run, Case *c, Scene scene, bool bias, bool routed) {
    const MoeSizes *m = &c->sizes.moe;
    Role out = routed ? ROLE_IN : ROLE_OUT;
    int first = c->count;
    scene_logits(add_in(run, c, DTYPE_F32, m->tokens * m->experts), m, scene);
    if (bias)
        random_fill(add_in(run, c, DTYPE_F32, m->experts), DTYPE_F32, m->experts, 0.1f, run->seed++);
    else
        add_null(run, c);
    add(run, c, out, DTYPE_F32, m->tokens * m->experts, m->experts, 0x1p-20);
    add(run, c, out, DTYPE_F32, m->tokens, m->experts, 0x1p-20);
    add(run, c, out, DTYPE_I32, m->tokens * m->top_k, 0, 0);
    add(run, c, out, DTYPE_F32, m->tokens * m->top_k, m->experts, 0x1p-20);
    add(run, c, out, DTYPE_I32, m->experts, 0, 0);
    if (m->rows) add_rows(run, c, out);
    for (int i = 0; i < (m->rows ? 0 : 4); i++)
        add_null(run, c);
    add(run, c, out, DTYPE_F32, m->experts, (double)m->tokens, 0x1p-20);
    if (!routed) return;
    void *p[ROUTING_BUFFERS];
    for (int i = 0; i < ROUTING_BUFFERS; i++)
        p[i] = c->buffers[first + i].start;
    call_moe_route_forward(run->cpu, p, &c->sizes);
}

// Where a rank's experts are among all: one rank's, the first, a middle and the last share of several.
typedef struct Share {
    int all, first, here;
} Share;
static const Share SHARES[] = {{8, 0, 8}, {8, 0, 4}, {16, 6, 2}, {128, 112, 16}, {256, 0, 1}};

// The routing of moe_place_rows, which has no choice of its own; with `placed`, rows are inputs filled by the CPU.
// tight: there is room for the slots that fall on the share when all experts are equally busy, instead of for all.
static void add_placed(Compare *run, Case *c, const Share *share, int64_t tokens, int top_k, Scene scene, bool tight,
                       bool placed) {
    MoeSizes *m = &c->sizes.moe;
    int64_t align = run->cuda->row_align, slots = tokens * top_k, mean = slots * share->here / share->all;
    *m = (MoeSizes){.tokens = tokens,
                    .experts = share->here,
                    .top_k = top_k,
                    .rows = tight ? (mean + align) / align * align
                                  : moe_rows_capacity(tokens, top_k, share->here, (int)align),
                    .first_expert = share->first};
    int first = c->count;
    for (int i = 0; i < 4; i++) // logits, bias, probs, lse
        add_null(run, c);
    int32_t *expert = add_in(run, c, DTYPE_I32, slots);
    for (int64_t i = 0; i < slots; i++) {
        int any = (int)rng_below(run->seed, RNG_STREAM_TEST, (uint64_t)i, (uint64_t)share->all);
        expert[i] = scene == SCENE_ONE ? share->first : scene == SCENE_EMPTY ? any / 2 * 2 : any;
    }
    run->seed++;
    positive(add_in(run, c, DTYPE_F32, slots), slots);
    add(run, c, placed ? ROLE_IN : ROLE_OUT, DTYPE_I32, m->experts, 0, 0);
    add_rows(run, c, placed ? ROLE_IN : ROLE_OUT);
    add_null(run, c); // prob_sum
    if (!placed) return;
    int32_t needed = 0;
    void *p[ROUTING_BUFFERS + 1];
    for (int i = 0; i < ROUTING_BUFFERS; i++)
        p[i] = c->buffers[first + i].start;
    p[ROUTING_BUFFERS] = &needed;
    call_moe_place_rows(run->cpu, p, &c->sizes);
}

void sweep_moe_place_rows(Compare *run) {
    EACH_SIZE(tokens, 1, 700, 65)
    EACH(share, 0, 1, 2, 3, 4)
    EACH(top_k, 1, 2, 8)
    EACH_SIZE(scene, SCENE_RANDOM, SCENE_EMPTY, SCENE_ONE) EACH(tight, 0, 1) EACH(before, 0, 1000000) {
        Case c = {0};
        add_placed(run, &c, &SHARES[share], tokens, top_k, (Scene)scene, tight, false);
        *(int32_t *)add(run, &c, ROLE_INOUT, DTYPE_I32, 1, 0, 0) = before;
        check(run, &c, call_moe_place_rows, "tokens %d experts %d of %d top %d %s tight %d needed %d", tokens,
              SHARES[share].here, SHARES[share].all, top_k, SCENE_NAMES[scene], tight, before);
    }
}

void sweep_moe_slot_gradient(Compare *run) {
    EACH_SIZE(tokens, 1, 700, 65) EACH(share, 0, 1, 2, 3, 4) EACH(top_k, 1, 8) EACH(tight, 0, 1) {
        Case c = {0};
        add_placed(run, &c, &SHARES[share], tokens, top_k, SCENE_RANDOM, tight, true);
        add_out(run, &c, DTYPE_F32, (int64_t)tokens * top_k, 0);
        add_in(run, &c, DTYPE_F32, c.sizes.moe.rows);
        check(run, &c, call_moe_slot_gradient, "tokens %d experts %d of %d top %d tight %d", tokens, SHARES[share].here,
              SHARES[share].all, top_k, tight);
    }
}

void sweep_moe_route_forward(Compare *run) {
    EACH_SIZE(tokens, 1, 700, 65)
    EACH(experts, 4, 16, 60, 128, 256) EACH(top_k, 1, 2, 4) EACH_SIZE(scene, 0, 1, 2, 3) EACH(bias, 0, 1) {
        Case c = {.sizes.moe = moe_sizes(run, tokens, experts, top_k, bias, MOE_NATURAL)};
        add_routing(run, &c, (Scene)scene, bias, false);
        check(run, &c, call_moe_route_forward, "tokens %d experts %d top %d %s bias %d", tokens, experts, top_k,
              SCENE_NAMES[scene], bias);
    }
    EACH(experts, 16, 128) EACH(top_k, 2, 8) EACH(force, MOE_NATURAL, MOE_BALANCED, MOE_WORST) {
        Case c = {.sizes.moe = moe_sizes(run, 333, experts, top_k, true, (MoeForce)force)};
        add_routing(run, &c, SCENE_RANDOM, false, false);
        check(run, &c, call_moe_route_forward, "tokens 333 experts %d top %d force %d", experts, top_k, force);
    }
    EACH_SIZE(tokens, 1, 700, 65) EACH(experts, 4, 60, 256) EACH(top_k, 1, 4) { // the choice alone
        Case c = {.sizes.moe = {.tokens = tokens, .experts = experts, .top_k = top_k, .norm_topk = true}};
        add_routing(run, &c, SCENE_RANDOM, true, false);
        check(run, &c, call_moe_route_forward, "tokens %d experts %d top %d without rows", tokens, experts, top_k);
    }
}

void sweep_moe_route_backward(Compare *run) {
    EACH_SIZE(tokens, 1, 300, 65)
    EACH(experts, 4, 16, 60, 128, 256) EACH(top_k, 1, 2, 4) EACH(norm, 0, 1) EACH(extra, 0, 1, 2) { // 2: without rows
        Case c = {.sizes.moe = moe_sizes(run, tokens, experts, top_k, norm, MOE_NATURAL)};
        if (extra == 2) c.sizes.moe.rows = 0;
        add_routing(run, &c, SCENE_RANDOM, false, true);
        add(run, &c, ROLE_OUT, DTYPE_F32, (int64_t)tokens * experts, experts, 0x1p-18);
        add_in(run, &c, DTYPE_F32, extra == 2 ? (int64_t)tokens * top_k : c.sizes.moe.rows);
        if (extra) {
            add_in(run, &c, DTYPE_F32, experts);
            *(float *)add_in(run, &c, DTYPE_F32, 1) = 0.01f;
        } else {
            add_null(run, &c);
            add_null(run, &c);
        }
        check(run, &c, call_moe_route_backward, "tokens %d experts %d top %d norm %d extra %d", tokens, experts, top_k,
              norm, extra);
    }
}

void sweep_moe_balance(Compare *run) {
    EACH(layers, 1, 12) EACH(experts, 4, 60, 256) EACH(by_layer, 0, 1) {
        Case c = {.sizes = {.layers = layers, .flag = by_layer, .moe = {.tokens = 1000, .experts = experts}}};
        add_inout(run, &c, DTYPE_F32, 1, experts);
        add_out(run, &c, DTYPE_F32, (int64_t)layers * experts, layers);
        *(float *)add_in(run, &c, DTYPE_F32, 1) = 0.02f;
        int32_t *counts = add_in(run, &c, DTYPE_I32, (int64_t)layers * experts);
        for (int i = 0; i < layers * experts; i++)
            counts[i] = i * 37 % 501;
        positive(add_in(run, &c, DTYPE_F32, (int64_t)layers * experts), (int64_t)layers * experts);
        check(run, &c, call_moe_balance, "layers %d experts %d by layer %d", layers, experts, by_layer);
    }
}

// Layer 0 has no tokens, layer 1 one busy expert, the others uneven counts.
static void fill_counts(int32_t *counts, int layers, int experts) {
    for (int i = 0; i < layers * experts; i++)
        counts[i] = i < experts ? 0 : i < 2 * experts ? (i == experts) * 4000 : i * 37 % 501;
}

void sweep_moe_add_counts(Compare *run) {
    EACH(layers, 1, 2, 12) EACH(experts, 1, 4, 60, 256, 300) EACH(accumulate, 0, 1) {
        Case c = {.sizes = {.layers = layers, .flag = accumulate, .moe = {.experts = experts}}};
        int32_t *total = add(run, &c, accumulate ? ROLE_INOUT : ROLE_OUT, DTYPE_I32, (int64_t)layers * experts, 0, 0);
        for (int i = 0; accumulate && i < layers * experts; i++)
            total[i] = i * 101 % 70001;
        fill_counts(add_in(run, &c, DTYPE_I32, (int64_t)layers * experts), layers, experts);
        check(run, &c, call_moe_add_counts, "layers %d experts %d add %d", layers, experts, accumulate);
    }
}

void sweep_moe_load_stats(Compare *run) {
    EACH(layers, 1, 2, 12) EACH(experts, 1, 4, 60, 256, 300) {
        Case c = {.sizes = {.layers = layers, .moe = {.experts = experts}}};
        add_out(run, &c, DTYPE_F32, (int64_t)layers * MOE_LOAD_STATS, 4);
        fill_counts(add_in(run, &c, DTYPE_I32, (int64_t)layers * experts), layers, experts);
        check(run, &c, call_moe_load_stats, "layers %d experts %d", layers, experts);
    }
}

void sweep_moe_bias_update(Compare *run) {
    EACH(layers, 1, 2, 12) EACH(experts, 1, 4, 60, 256, 300) EACH(skip, 0, 1) {
        Case c = {.sizes = {.layers = layers, .value = 1e-3f, .moe = {.experts = experts}}};
        add_inout(run, &c, DTYPE_F32, (int64_t)layers * experts, 0);
        fill_counts(add_in(run, &c, DTYPE_I32, (int64_t)layers * experts), layers, experts);
        *(int32_t *)add_in(run, &c, DTYPE_I32, 1) = skip;
        check(run, &c, call_moe_bias_update, "layers %d experts %d skip %d", layers, experts, skip);
    }
}

static void sweep_moe_rows(Compare *run, bool sum) {
    EACH_DTYPE(dtype) EACH(dim, 8, 57, 96, 896) EACH(experts, 4, 16) EACH(top_k, 1, 2, 4) EACH_SIZE(scene, 0, 1, 2) {
        Case c = {.sizes = {.dtype = dtype, .dim = dim, .moe = moe_sizes(run, 129, experts, top_k, true, MOE_NATURAL)}};
        add_routing(run, &c, (Scene)scene, false, true);
        int64_t rows = c.sizes.moe.rows * dim;
        if (sum) {
            add_out(run, &c, dtype, 129 * dim, top_k);
            add_in(run, &c, dtype, rows);
            if (scene == 1)
                add_in(run, &c, dtype, 129 * dim);
            else
                add_null(run, &c);
        } else {
            add_out(run, &c, dtype, rows, 0);
            add_in(run, &c, dtype, 129 * dim);
        }
        check(run, &c, sum ? call_moe_sum : call_moe_gather, "%s dim %d experts %d top %d %s", dtype_name(dtype), dim,
              experts, top_k, SCENE_NAMES[scene]);
    }
    // A rank's share of the experts: slots without a row, also because there was no room.
    EACH_DTYPE(dtype) EACH(dim, 57, 96) EACH(share, 1, 2, 3) EACH(top_k, 1, 6) EACH(tight, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .dim = dim}};
        add_placed(run, &c, &SHARES[share], 129, top_k, SCENE_RANDOM, tight, true);
        int64_t rows = c.sizes.moe.rows * dim, tokens = 129 * dim;
        add_out(run, &c, dtype, sum ? tokens : rows, sum ? top_k : 0);
        add_in(run, &c, dtype, sum ? rows : tokens);
        if (sum) add_null(run, &c);
        check(run, &c, sum ? call_moe_sum : call_moe_gather, "%s dim %d experts %d of %d top %d tight %d",
              dtype_name(dtype), dim, SHARES[share].here, SHARES[share].all, top_k, tight);
    }
}
void sweep_moe_gather(Compare *run) {
    sweep_moe_rows(run, false);
}
void sweep_moe_sum(Compare *run) {
    sweep_moe_rows(run, true);
}

// Rows of padding are zero, as moe_gather leaves them.
static void padding_clear(const Case *c, void *rows, int64_t width) {
    const int32_t *token_of_row = c->buffers[9].start;
    size_t bytes = (size_t)width * dtype_size(c->sizes.dtype);
    for (int64_t row = 0; row < c->sizes.moe.rows; row++)
        if (token_of_row[row] < 0) memset((char *)rows + (size_t)row * bytes, 0, bytes);
}

// An operand of a grouped product.
static void add_operand(Compare *run, Case *c, int64_t width, bool tokens) {
    const MoeSizes *m = &c->sizes.moe;
    void *in = add_in(run, c, c->sizes.dtype, (tokens ? m->tokens : m->rows) * width);
    if (!tokens) padding_clear(c, in, width);
}

static void add_row_scratch(Compare *run, Case *c, int64_t width, bool tokens) {
    if (tokens)
        add(run, c, ROLE_SCRATCH, c->sizes.dtype, c->sizes.moe.rows * width, 0, 0);
    else
        add_null(run, c);
}

static void grouped_case(Compare *run, OpCall *call, const CallSizes *sizes, bool tokens, Scene scene) {
    Case c = {.sizes = *sizes};
    const MoeSizes *m = &c.sizes.moe;
    bool forward = call == call_grouped_linear_forward;
    int in_dim = sizes->in_dim, out_dim = sizes->out_dim, reduced = forward ? in_dim : out_dim;
    int64_t weight = (int64_t)m->experts * in_dim * out_dim;
    add_routing(run, &c, scene, false, true);
    if (call == call_grouped_linear_backward_weight) {
        add(run, &c, sizes->flag ? ROLE_INOUT : ROLE_OUT, DTYPE_F32, weight, (double)m->tokens, 0);
        add_operand(run, &c, out_dim, false);
        add_operand(run, &c, in_dim, tokens);
    } else {
        add_out(run, &c, sizes->dtype, m->rows * (forward ? out_dim : in_dim), reduced);
        add_operand(run, &c, reduced, tokens);
        add_in(run, &c, sizes->dtype, weight);
    }
    if (call != call_grouped_linear_backward_input) add_row_scratch(run, &c, in_dim, tokens);
    check(run, &c, call, "%s in %d out %d experts %d %s tokens %d from %s add %d", dtype_name(sizes->dtype), in_dim,
          out_dim, m->experts, SCENE_NAMES[scene], (int)m->tokens, tokens ? "tokens" : "rows", sizes->flag);
}

static void sweep_grouped(Compare *run, OpCall *call, bool accumulate) {
    for (int tokens = 0; tokens < (call == call_grouped_linear_backward_input ? 1 : 2); tokens++) {
        EACH_DTYPE(dtype)
        EACH(in_dim, 8, 96, 200) EACH(out_dim, 64, 136) EACH(experts, 4, 16) EACH_SIZE(scene, 0, 1, 2) {
            CallSizes sizes = {.dtype = dtype, .in_dim = in_dim, .out_dim = out_dim, .flag = accumulate};
            sizes.moe = moe_sizes(run, 300, experts, 2, true, MOE_NATURAL);
            grouped_case(run, call, &sizes, tokens, (Scene)scene);
        }
        // So many rows that a GPU races the ways to read tokens; the last slice of the reduction is not whole.
        EACH_DTYPE(dtype) EACH(width, 57, 136) EACH_SIZE(scene, 0, 1, 2) {
            CallSizes sizes = {.dtype = dtype, .in_dim = width, .out_dim = 72, .flag = accumulate};
            sizes.moe = moe_sizes(run, 1500, 5, 2, true, MOE_NATURAL);
            if (tokens) grouped_case(run, call, &sizes, tokens, (Scene)scene);
        }
    }
}
void sweep_grouped_linear_forward(Compare *run) {
    sweep_grouped(run, call_grouped_linear_forward, false);
}
void sweep_grouped_linear_backward_input(Compare *run) {
    sweep_grouped(run, call_grouped_linear_backward_input, false);
}
void sweep_grouped_linear_backward_weight(Compare *run) {
    sweep_grouped(run, call_grouped_linear_backward_weight, false);
    sweep_grouped(run, call_grouped_linear_backward_weight, true);
}

// Of 3000 rows with aligned dims the kernels race, and each is checked against the two separate ones there. What may
// differ: as in sweep_linear_swiglu_*.
static void swiglu_forward_case(Compare *run, const CallSizes *sizes, bool tokens, Scene scene) {
    Case c = {.sizes = *sizes};
    const MoeSizes *m = &c.sizes.moe;
    add_routing(run, &c, scene, false, true);
    add(run, &c, ROLE_OUT, sizes->dtype, m->rows * sizes->dim, sizes->in_dim, rounding_inside(sizes->dtype));
    c.buffers[c.count - 1].steps = sizes->dtype != DTYPE_F32; // gate and up are rounded before they are multiplied
    add_out(run, &c, sizes->dtype, m->rows * 2 * sizes->dim, sizes->in_dim);
    add_operand(run, &c, sizes->in_dim, tokens);
    add_in(run, &c, sizes->dtype, (int64_t)m->experts * 2 * sizes->dim * sizes->in_dim);
    add_row_scratch(run, &c, sizes->in_dim, tokens);
    check(run, &c, call_grouped_swiglu_forward, "%s in %d dim %d experts %d %s tokens %d from %s",
          dtype_name(sizes->dtype), sizes->in_dim, sizes->dim, m->experts, SCENE_NAMES[scene], (int)m->tokens,
          tokens ? "tokens" : "rows");
}

void sweep_grouped_swiglu_forward(Compare *run) {
    EACH(tokens, 0, 1) EACH_DTYPE(dtype) EACH(in_dim, 8, 57, 136) EACH(dim, 57, 96) EACH_SIZE(scene, 0, 1, 2) {
        CallSizes sizes = {.dtype = dtype, .in_dim = in_dim, .dim = dim};
        sizes.moe = moe_sizes(run, 300, 16, 2, true, MOE_NATURAL);
        swiglu_forward_case(run, &sizes, tokens, (Scene)scene);
    }
    EACH(tokens, 0, 1) EACH_DTYPE(dtype) EACH(in_dim, 57, 136) EACH(dim, 96, 224) EACH_SIZE(scene, 0, 1, 2) {
        CallSizes sizes = {.dtype = dtype, .in_dim = in_dim, .dim = dim};
        sizes.moe = moe_sizes(run, 1500, 5, 2, true, MOE_NATURAL);
        swiglu_forward_case(run, &sizes, tokens, (Scene)scene);
    }
}

static void swiglu_backward_case(Compare *run, const CallSizes *sizes, Scene scene) {
    Case c = {.sizes = *sizes};
    const MoeSizes *m = &c.sizes.moe;
    int64_t n = m->rows * sizes->dim;
    double inner = rounding_inside(sizes->dtype);
    add_routing(run, &c, scene, false, true);
    void *gate_up = add(run, &c, sizes->flag ? ROLE_INOUT : ROLE_OUT, sizes->dtype, 2 * n, sizes->out_dim, inner);
    halves(&c, sizes->dim, inner);
    // The gradient of hidden is rounded before it is used, or not.
    c.buffers[c.count - 1].steps = c.buffers[c.count - 1].steps_second = sizes->dtype != DTYPE_F32;
    add(run, &c, ROLE_OUT, sizes->dtype, n, 1, 0x1p-18);
    add(run, &c, ROLE_OUT, DTYPE_F32, m->rows, (double)sizes->out_dim * sizes->dim, inner);
    if (sizes->flag)
        add_null(run, &c);
    else
        gate_up = add_in(run, &c, sizes->dtype, 2 * n);
    padding_clear(&c, gate_up, 2 * (int64_t)sizes->dim);
    add_operand(run, &c, sizes->out_dim, false);
    add_in(run, &c, sizes->dtype, (int64_t)m->experts * sizes->out_dim * sizes->dim);
    check(run, &c, call_grouped_swiglu_backward, "%s next %d dim %d experts %d %s tokens %d in place %d",
          dtype_name(sizes->dtype), sizes->out_dim, sizes->dim, m->experts, SCENE_NAMES[scene], (int)m->tokens,
          sizes->flag);
}

void sweep_grouped_swiglu_backward(Compare *run) {
    EACH_DTYPE(dtype) EACH(next, 8, 57, 136) EACH(dim, 57, 104) EACH_SIZE(scene, 0, 1, 2) {
        CallSizes sizes = {.dtype = dtype, .out_dim = next, .dim = dim, .flag = next == 57};
        sizes.moe = moe_sizes(run, 300, 16, 2, true, MOE_NATURAL);
        swiglu_backward_case(run, &sizes, (Scene)scene);
    }
    EACH_DTYPE(dtype) EACH(next, 57, 136) EACH(dim, 104, 200) EACH(in_place, 0, 1) EACH_SIZE(scene, 0, 1, 2) {
        CallSizes sizes = {.dtype = dtype, .out_dim = next, .dim = dim, .flag = in_place};
        sizes.moe = moe_sizes(run, 1500, 5, 2, true, MOE_NATURAL);
        swiglu_backward_case(run, &sizes, (Scene)scene);
    }
}

// ---- FP8 -----------------------------------------------------------------------------------------------------------

void sweep_moe_gather_fp8(Compare *run) {
    EACH(type, 0, 1)
    EACH(ways, 1, 2, 3) EACH(dim, 16, 41, 208) EACH(experts, 4, 16) EACH(top_k, 1, 4) EACH_SIZE(scene, 0, 1, 2) {
        Case c = {.sizes = {.dtype = type ? DTYPE_E5M2 : DTYPE_E4M3, .dim = dim}};
        c.sizes.moe = moe_sizes(run, 129, experts, top_k, true, MOE_NATURAL);
        add_routing(run, &c, (Scene)scene, false, true);
        for (int way = 0; way < 2; way++) {
            if (ways & 1 << way)
                add_out(run, &c, DTYPE_U8, c.sizes.moe.rows * dim, 0); // to the bit
            else
                add_null(run, &c);
        }
        add_in(run, &c, c.sizes.dtype, 129 * dim);
        check(run, &c, call_moe_gather_fp8, "%s ways %d dim %d experts %d top %d %s", dtype_name(c.sizes.dtype), ways,
              dim, experts, top_k, SCENE_NAMES[scene]);
    }
}

// Codes of expert rows, [rows, width] or transposed. Padding is zero, and rows that are not in use are NaN.
static void add_codes(Compare *run, Case *c, DType dtype, int64_t width, bool turned) {
    enum { FP8_NAN = 0x7f };
    const MoeSizes *m = &c->sizes.moe;
    const int32_t *offsets = c->buffers[7].start, *token_of_row = c->buffers[9].start;
    uint8_t *codes = add_in(run, c, dtype, m->rows * width);
    for (int64_t row = 0; row < m->rows; row++)
        for (int64_t i = 0; i < width && token_of_row[row] < 0; i++)
            codes[turned ? i * m->rows + row : row * width + i] = row < offsets[m->experts] ? 0 : FP8_NAN;
}

// Sums as in sweep_linear_fp8, in units of the rms of the results that there are: of rows in use, or of experts.
static void grouped_fp8_case(Compare *run, const CallSizes *sizes, Scene scene) {
    Case c = {.sizes = *sizes};
    const MoeSizes *m = &c.sizes.moe;
    int in_dim = sizes->in_dim, out_dim = sizes->out_dim, busy = 0;
    bool weight = sizes->first;
    add_routing(run, &c, scene, false, true);
    for (int e = 0; e < m->experts; e++)
        busy += ((const int32_t *)c.buffers[6].start)[e] > 0;
    double share = weight ? (double)busy / m->experts : (double)(m->tokens * m->top_k) / (double)m->rows;
    double inner = ((weight ? 4 : in_dim / 32.0) + 6) * 0x1p-11 / sqrt(share);
    int64_t weights = (int64_t)m->experts * in_dim * out_dim;
    if (weight) {
        add(run, &c, sizes->flag ? ROLE_INOUT : ROLE_OUT, DTYPE_F32, weights, (double)m->tokens, inner);
        add_codes(run, &c, sizes->dtype, out_dim, true);
        add_codes(run, &c, DTYPE_E4M3, in_dim, true);
    } else {
        add(run, &c, ROLE_OUT, DTYPE_BF16, m->rows * out_dim, in_dim, inner);
        add_codes(run, &c, sizes->dtype, in_dim, false);
        add_in(run, &c, DTYPE_E4M3, weights);
    }
    *(float *)add_in(run, &c, DTYPE_F32, 1) = 0x1p-3f;
    *(float *)add_in(run, &c, DTYPE_F32, 1) = 0x1p-2f;
    check(run, &c, call_grouped_linear_fp8, "%s weight %d in %d out %d experts %d %s tokens %d add %d",
          dtype_name(sizes->dtype), weight, in_dim, out_dim, m->experts, SCENE_NAMES[scene], (int)m->tokens,
          sizes->flag);
}

void sweep_grouped_linear_fp8(Compare *run) {
    EACH(kind, 0, 1, 2, 3) // forward, input gradient, weight gradient, and one that is added to
    EACH(in_dim, 16, 96, 208) EACH(out_dim, 64, 144) EACH(experts, 4, 16) EACH_SIZE(scene, 0, 1, 2) {
        CallSizes sizes = {.dtype = kind ? DTYPE_E5M2 : DTYPE_E4M3,
                           .in_dim = in_dim,
                           .out_dim = out_dim,
                           .first = kind >= 2,
                           .flag = kind == 3};
        sizes.moe = moe_sizes(run, 300, experts, 2, true, MOE_NATURAL);
        grouped_fp8_case(run, &sizes, (Scene)scene);
    }
    // So many rows that a GPU races its kernels; the last slice of the reduction is not whole.
    EACH(kind, 0, 1, 2, 3) EACH(in_dim, 144, 400) EACH(out_dim, 272, 480) EACH_SIZE(scene, 0, 1, 2) {
        CallSizes sizes = {.dtype = kind ? DTYPE_E5M2 : DTYPE_E4M3,
                           .in_dim = in_dim,
                           .out_dim = out_dim,
                           .first = kind >= 2,
                           .flag = kind == 3};
        sizes.moe = moe_sizes(run, 1500, 5, 2, true, MOE_NATURAL);
        grouped_fp8_case(run, &sizes, (Scene)scene);
    }
}

// As sweep_linear_swiglu_fp8_forward, in units of the rms of results of which `share` are there. Two weights have the
// sum 1, so that those of hidden have an rms of at least 1/2.
static void swiglu_fp8_case(Compare *run, const CallSizes *sizes, Scene scene) {
    Case c = {.sizes = *sizes};
    const MoeSizes *m = &c.sizes.moe;
    const int64_t count = m->rows * sizes->dim;
    const bool noted = sizes->in_dim != 224;
    const double off = (sizes->in_dim / 32.0 + 6) * 0x1p-11;
    const double share = sqrt((double)(m->tokens * m->top_k) / (double)m->rows);
    const float scales[] = {0x1p-3f, 0x1p-2f, 0x1p-8f, 0x1p-9f}; // the largest are beyond the format
    add_routing(run, &c, scene, false, true);
    add(run, &c, ROLE_OUT, DTYPE_E4M3, count, 0, 2 * 20 * off / share);
    c.buffers[c.count - 1].steps = 1;
    float *hidden_amax = add(run, &c, noted ? ROLE_INOUT : ROLE_NULL, DTYPE_F32, 1, 1, 2 * off + 0x1p-5);
    add(run, &c, ROLE_OUT, DTYPE_E4M3, 2 * count, 0, (off + 0x1p-5) / share);
    float *gate_up_amax = add(run, &c, noted ? ROLE_INOUT : ROLE_NULL, DTYPE_F32, 1, 1, off + 0x1p-7);
    if (noted) *hidden_amax = *gate_up_amax = 0.125f;
    add(run, &c, ROLE_SCRATCH, DTYPE_BF16, 2 * count, 0, 0);
    add_codes(run, &c, DTYPE_E4M3, sizes->in_dim, false);
    add_in(run, &c, DTYPE_E4M3, (int64_t)m->experts * 2 * sizes->dim * sizes->in_dim);
    for (int i = 0; i < 4; i++)
        *(float *)add_in(run, &c, DTYPE_F32, 1) = scales[i];
    check(run, &c, call_grouped_swiglu_fp8_forward, "in %d dim %d experts %d %s tokens %d", sizes->in_dim, sizes->dim,
          m->experts, SCENE_NAMES[scene], (int)m->tokens);
}

void sweep_grouped_swiglu_fp8_forward(Compare *run) {
    EACH(in_dim, 16, 192, 272) EACH(dim, 48, 96) EACH_SIZE(scene, 0, 1, 2) {
        CallSizes sizes = {.in_dim = in_dim, .dim = dim};
        sizes.moe = moe_sizes(run, 300, 16, 2, true, MOE_NATURAL);
        swiglu_fp8_case(run, &sizes, (Scene)scene);
    }
    // So many rows that a GPU races its kernels, which want a dim that is a multiple of 32.
    EACH(in_dim, 192, 224, 272) EACH(dim, 48, 96, 224) EACH_SIZE(scene, 0, 1, 2) {
        CallSizes sizes = {.in_dim = in_dim, .dim = dim};
        sizes.moe = moe_sizes(run, 1500, 5, 2, true, MOE_NATURAL);
        swiglu_fp8_case(run, &sizes, (Scene)scene);
    }
}
