// The cases of ops_compare for the MoE ops: random routing, empty experts, one expert that takes all, equal scores.
#include "ops_compare.h"

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

// The buffers of MoeRouting, as outputs; with `routed`, as inputs filled by the CPU.
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
    add(run, c, out, DTYPE_I32, m->experts + 1, 0, 0);
    add(run, c, out, DTYPE_I32, m->tokens * m->top_k, 0, 0);
    add(run, c, out, DTYPE_I32, m->rows, 0, 0);
    add(run, c, out, DTYPE_F32, m->rows, m->experts, 0x1p-20);
    add(run, c, out, DTYPE_F32, m->experts, (double)m->tokens, 0x1p-20);
    if (!routed) return;
    void *p[ROUTING_BUFFERS];
    for (int i = 0; i < ROUTING_BUFFERS; i++)
        p[i] = c->buffers[first + i].start;
    call_moe_route_forward(run->cpu, p, &c->sizes);
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
}

void sweep_moe_route_backward(Compare *run) {
    EACH_SIZE(tokens, 1, 300, 65)
    EACH(experts, 4, 16, 60, 128, 256) EACH(top_k, 1, 2, 4) EACH(norm, 0, 1) EACH(extra, 0, 1) {
        Case c = {.sizes.moe = moe_sizes(run, tokens, experts, top_k, norm, MOE_NATURAL)};
        add_routing(run, &c, SCENE_RANDOM, false, true);
        add(run, &c, ROLE_OUT, DTYPE_F32, (int64_t)tokens * experts, experts, 0x1p-18);
        add_in(run, &c, DTYPE_F32, c.sizes.moe.rows);
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
}
void sweep_moe_gather(Compare *run) {
    sweep_moe_rows(run, false);
}
void sweep_moe_sum(Compare *run) {
    sweep_moe_rows(run, true);
}

static void sweep_grouped(Compare *run, OpCall *call, bool accumulate) {
    EACH_DTYPE(dtype) EACH(in_dim, 8, 96, 200) EACH(out_dim, 64, 136) EACH(experts, 4, 16) EACH_SIZE(scene, 0, 1, 2) {
        Case c = {.sizes = {.dtype = dtype,
                            .in_dim = in_dim,
                            .out_dim = out_dim,
                            .flag = accumulate,
                            .moe = moe_sizes(run, 300, experts, 2, true, MOE_NATURAL)}};
        add_routing(run, &c, (Scene)scene, false, true);
        int64_t rows = c.sizes.moe.rows, weight = (int64_t)experts * in_dim * out_dim;
        const int32_t *slot_of_row = c.buffers[9].start;
        bool weights = call == call_grouped_linear_backward_weight, forward = call == call_grouped_linear_forward;
        int64_t out_count = rows * (forward ? out_dim : in_dim), in_count = rows * (forward ? in_dim : out_dim);
        if (weights)
            add(run, &c, accumulate ? ROLE_INOUT : ROLE_OUT, DTYPE_F32, weight, 300, 0);
        else
            add_out(run, &c, dtype, out_count, forward ? in_dim : out_dim);
        // Rows of padding are zero, as moe_gather leaves them.
        for (int i = 0; i < (weights ? 2 : 1); i++) {
            int64_t count = i ? rows * in_dim : in_count, width = count / rows;
            char *in = add_in(run, &c, dtype, count);
            size_t bytes = (size_t)width * dtype_size(dtype);
            for (int64_t row = 0; row < rows; row++)
                if (slot_of_row[row] < 0) memset(in + (size_t)row * bytes, 0, bytes);
        }
        if (!weights) add_in(run, &c, dtype, weight);
        check(run, &c, call, "%s in %d out %d experts %d %s add %d", dtype_name(dtype), in_dim, out_dim, experts,
              SCENE_NAMES[scene], accumulate);
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
