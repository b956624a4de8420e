// MoE routing of the CPU table against float64 and against its own definition.
#include "oracle.h"

typedef struct Routing {
    MoeRouting routing; // as the ops get it
    int64_t tokens, rows;
    int experts, top_k;
    int32_t *expert, *counts, *offsets, *row_of_slot, *token_of_row;
    Values logits, bias, probs, lse, weight, row_weight, prob_sum;
} Routing;

static int32_t *poison_ints(int64_t count) {
    int32_t *result = xmalloc((size_t)count * sizeof *result);
    memset(result, 0x7f, (size_t)count * sizeof *result);
    return result;
}

static Routing routing_make(int64_t tokens, int experts, int top_k, bool norm, bool biased, MoeForce force) {
    Routing x = {.tokens = tokens, .experts = experts, .top_k = top_k};
    x.rows = moe_rows_capacity(tokens, top_k, experts, 1) + 3;
    x.logits = values_normal(DTYPE_F32, tokens * experts, 2, 0);
    x.bias = values_normal(DTYPE_F32, experts, 0.1, 0);
    x.probs = values_poison(DTYPE_F32, tokens * experts);
    x.lse = values_poison(DTYPE_F32, tokens);
    x.weight = values_poison(DTYPE_F32, tokens * top_k);
    x.row_weight = values_poison(DTYPE_F32, x.rows);
    x.prob_sum = values_poison(DTYPE_F32, experts);
    x.expert = poison_ints(tokens * top_k);
    x.counts = poison_ints(experts);
    x.offsets = poison_ints(experts + 1);
    x.row_of_slot = poison_ints(tokens * top_k);
    x.token_of_row = poison_ints(x.rows);
    x.routing = (MoeRouting){.logits = view(&x.logits, tokens, experts),
                             .bias = biased ? view(&x.bias, 1, experts) : TENSOR_NONE,
                             .probs = view(&x.probs, tokens, experts),
                             .lse = view(&x.lse, tokens, 1),
                             .expert = view_ints(x.expert, tokens, top_k),
                             .weight = view(&x.weight, tokens, top_k),
                             .counts = view_ints(x.counts, 1, experts),
                             .offsets = view_ints(x.offsets, 1, experts + 1),
                             .row_of_slot = view_ints(x.row_of_slot, tokens, top_k),
                             .token_of_row = view_ints(x.token_of_row, x.rows, 1),
                             .row_weight = view(&x.row_weight, x.rows, 1),
                             .prob_sum = view(&x.prob_sum, 1, experts),
                             .norm_topk = norm,
                             .force = force};
    return x;
}

static void routing_free(Routing *x) {
    values_free(&x->logits, &x->bias, &x->probs, &x->lse, &x->weight, &x->row_weight, &x->prob_sum);
    free(x->expert), free(x->counts), free(x->offsets), free(x->row_of_slot), free(x->token_of_row);
}

static void oracle_probs(double *probs, double *lse, const double *logits, int experts) {
    double sum = 0;
    for (int e = 0; e < experts; e++)
        sum += exp(logits[e]);
    *lse = log(sum);
    for (int e = 0; e < experts; e++)
        probs[e] = exp(logits[e]) / sum;
}

static const struct {
    int tokens, experts, top_k;
} cases[] = {{1, 2, 1}, {65, 4, 2}, {129, 7, 7}, {300, 128, 8}, {70, 33, 3}};
enum { CASES = sizeof cases / sizeof *cases };

static void route_forward_matches_float64_and_permutes_stably(void **state) {
    (void)state;
    for (int i = 0; i < 4 * CASES; i++) {
        int64_t tokens = cases[i / 4].tokens;
        int experts = cases[i / 4].experts, top_k = cases[i / 4].top_k;
        bool norm = i % 2, biased = i / 2 % 2;
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, experts);
        Routing x = routing_make(tokens, experts, top_k, norm, biased, MOE_NATURAL);
        ops->moe_route_forward(ops, &x.routing);
        double *probs = doubles(tokens * experts), *lse = doubles(tokens), *sums = doubles(experts);
        double *weight = doubles(tokens * top_k);
        int32_t *counts = xcalloc((size_t)experts, sizeof *counts);
        for (int64_t t = 0; t < tokens; t++) {
            double *p = probs + t * experts, sum = 0;
            oracle_probs(p, &lse[t], x.logits.value + t * experts, experts);
            for (int j = 0; j < top_k; j++) {
                int chosen = x.expert[t * top_k + j], better = 0;
                double own = p[chosen] + (biased ? x.bias.value[chosen] : 0);
                for (int e = 0; e < experts; e++) {
                    double score = p[e] + (biased ? x.bias.value[e] : 0);
                    better += score > own;
                }
                assert_int_equal(better, j); // distinct scores: exactly the better ones come before
                counts[chosen]++;
                sum += weight[t * top_k + j] = p[chosen];
            }
            for (int j = 0; norm && j < top_k; j++)
                weight[t * top_k + j] /= sum;
            for (int e = 0; e < experts; e++)
                sums[e] += p[e];
        }
        values_check("probs", &x.probs, probs, 0);
        values_check("lse", &x.lse, lse, 0);
        values_check("weight", &x.weight, weight, 0);
        values_check("prob_sum", &x.prob_sum, sums, 0);
        values_read(&x.row_weight);
        int32_t row = 0;
        for (int e = 0; e < experts; e++) {
            assert_int_equal(x.offsets[e], row);
            assert_int_equal(x.counts[e], counts[e]);
            for (int32_t slot = 0; slot < tokens * top_k; slot++) {
                if (x.expert[slot] != e) continue;
                assert_int_equal(x.row_of_slot[slot], row);
                assert_int_equal(x.token_of_row[row], slot / x.routing.expert.cols);
                assert_true(x.row_weight.value[row] == x.weight.value[slot]);
                row++;
            }
        }
        assert_int_equal(x.offsets[experts], row);
        for (; row < x.rows; row++) {
            assert_int_equal(x.token_of_row[row], -1);
            assert_true(x.row_weight.value[row] == 0);
        }
        routing_free(&x);
        free(probs), free(lse), free(sums), free(weight), free(counts);
        oracle_ops_free(ops);
    }
}

// A rank's share of the experts gets exactly the rows that it would have on one rank, and other slots none.
static void rows_of_a_share_are_those_of_all_experts_shifted(void **state) {
    (void)state;
    const struct {
        int tokens, experts, top_k, shares;
    } rows[] = {{1, 2, 1, 2}, {65, 4, 2, 2}, {129, 6, 6, 3}, {300, 128, 8, 8}, {70, 33, 3, 33}};
    for (int i = 0; i < 5; i++) {
        int64_t tokens = rows[i].tokens, slots = tokens * rows[i].top_k;
        int experts = rows[i].experts, here = experts / rows[i].shares;
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, experts);
        Routing all = routing_make(tokens, experts, rows[i].top_k, true, true, MOE_NATURAL);
        ops->moe_route_forward(ops, &all.routing);
        // The choice alone is the same choice.
        Routing choice = routing_make(tokens, experts, rows[i].top_k, true, true, MOE_NATURAL);
        memcpy(choice.logits.data, all.logits.data, (size_t)(tokens * experts) * sizeof(float));
        memcpy(choice.bias.data, all.bias.data, (size_t)experts * sizeof(float));
        choice.routing.offsets = choice.routing.row_of_slot = choice.routing.token_of_row = choice.routing.row_weight =
            TENSOR_NONE;
        ops->moe_route_forward(ops, &choice.routing);
        assert_memory_equal(choice.expert, all.expert, (size_t)slots * sizeof(int32_t));
        assert_memory_equal(choice.counts, all.counts, (size_t)experts * sizeof(int32_t));
        assert_memory_equal(choice.weight.data, all.weight.data, (size_t)slots * sizeof(float));
        values_read(&all.row_weight);
        int placed = 0;
        for (int share = 0; share < rows[i].shares; share++) {
            Routing part = routing_make(tokens, here, rows[i].top_k < here ? rows[i].top_k : here, true, false, 0);
            int32_t needed = 5, first = share * here, *row_of_slot = poison_ints(slots);
            MoeRouting *r = &part.routing;
            r->logits = r->probs = r->lse = r->prob_sum = TENSOR_NONE;
            r->expert = all.routing.expert, r->weight = all.routing.weight;
            r->row_of_slot = view_ints(row_of_slot, tokens, rows[i].top_k);
            r->first_expert = first;
            ops->moe_place_rows(ops, view_ints(&needed, 1, 1), r);
            assert_int_equal(needed, 5); // there was room
            values_read(&part.row_weight);
            for (int e = 0; e <= here; e++)
                assert_int_equal(part.offsets[e], all.offsets[first + e] - all.offsets[first]);
            assert_memory_equal(part.counts, all.counts + first, (size_t)here * sizeof(int32_t));
            for (int64_t slot = 0; slot < slots; slot++) {
                bool mine = all.expert[slot] >= first && all.expert[slot] < first + here;
                int32_t row = row_of_slot[slot];
                assert_int_equal(row, mine ? all.row_of_slot[slot] - all.offsets[first] : -1);
                if (!mine) continue;
                assert_int_equal(part.token_of_row[row], slot / part.routing.expert.cols);
                assert_true(part.row_weight.value[row] == all.row_weight.value[all.row_of_slot[slot]]);
                placed++;
            }
            for (int64_t row = part.offsets[here]; row < part.rows; row++)
                assert_true(part.token_of_row[row] == -1 && part.row_weight.value[row] == 0);
            free(row_of_slot);
            routing_free(&part);
        }
        assert_int_equal(placed, slots);
        routing_free(&all);
        routing_free(&choice);
        oracle_ops_free(ops);
    }
}

// Slots beyond the room get no row; nothing is written there, and the rows that were needed are told.
static void rows_without_room_are_counted_and_left_out(void **state) {
    (void)state;
    enum { TOKENS = 40, ROOM = 16, EXPERTS = 3 };
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, EXPERTS);
    ops->row_align = 4;
    int32_t expert[TOKENS], counts[EXPERTS], offsets[EXPERTS + 1], row_of_slot[TOKENS], token_of_row[ROOM + 4];
    float weight[TOKENS], row_weight[ROOM + 4];
    for (int i = 0; i < TOKENS; i++) // experts 2 .. 5, of which 3, 4 and 5 are here: 10 slots each
        expert[i] = 2 + i % 4, weight[i] = (float)i;
    memset(token_of_row, 0x7f, sizeof token_of_row);
    MoeRouting r = {.expert = view_ints(expert, TOKENS, 1),
                    .weight = view_floats(weight, TOKENS, 1),
                    .counts = view_ints(counts, 1, EXPERTS),
                    .offsets = view_ints(offsets, 1, EXPERTS + 1),
                    .row_of_slot = view_ints(row_of_slot, TOKENS, 1),
                    .token_of_row = view_ints(token_of_row, ROOM, 1),
                    .row_weight = view_floats(row_weight, ROOM, 1),
                    .first_expert = 3};
    int32_t needed = 0;
    ops->moe_place_rows(ops, view_ints(&needed, 1, 1), &r);
    assert_int_equal(needed, 36); // 12 each, with padding
    const int32_t ends[] = {0, 12, 16, 16}, cut[] = {10, 4, 0};
    assert_memory_equal(offsets, ends, sizeof ends);
    assert_memory_equal(counts, cut, sizeof cut);
    for (int i = 0, seen[6] = {0}; i < TOKENS; i++) {
        int of = seen[expert[i]]++, row = expert[i] == 3 ? of : expert[i] == 4 && of < 4 ? 12 + of : -1;
        assert_int_equal(row_of_slot[i], row);
        if (row >= 0) assert_true(token_of_row[row] == i && row_weight[row] == weight[i]);
    }
    assert_int_equal(token_of_row[ROOM], 0x7f7f7f7f);
    needed = 50; // of another layer, which needed more
    ops->moe_place_rows(ops, view_ints(&needed, 1, 1), &r);
    assert_int_equal(needed, 50);
    // A slot's gradient is that of its row, if it has one; sums pass over those without.
    float drow[ROOM], dweight[TOKENS], in[ROOM], out[TOKENS];
    for (int i = 0; i < ROOM; i++)
        drow[i] = in[i] = (float)(100 + i);
    ops->moe_slot_gradient(ops, view_floats(dweight, TOKENS, 1), view_floats(drow, ROOM, 1), &r);
    ops->moe_sum(ops, view_floats(out, TOKENS, 1), view_floats(in, ROOM, 1), TENSOR_NONE, &r);
    for (int i = 0; i < TOKENS; i++) {
        assert_true(dweight[i] == (row_of_slot[i] < 0 ? 0 : (float)(100 + row_of_slot[i])));
        assert_true(out[i] == dweight[i]);
    }
    oracle_ops_free(ops);
}

static void equal_scores_choose_the_lower_expert_first(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 8);
    Routing x = routing_make(2, 8, 3, true, false, MOE_NATURAL);
    const float equal[8] = {0, 1, 0, 1, 1, 1, 0, 0}, nan[8] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    memcpy(x.logits.data, equal, sizeof equal);
    memcpy((float *)x.logits.data + 8, nan, sizeof nan); // a run gone wrong must still give places inside the buffers
    ops->moe_route_forward(ops, &x.routing);
    const int32_t want[6] = {1, 3, 4, 0, 1, 2};
    assert_memory_equal(x.expert, want, sizeof want);
    routing_free(&x);
    oracle_ops_free(ops);
}

static void forced_routing_is_even_or_worst(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 6);
    Routing even = routing_make(30, 6, 2, true, false, MOE_BALANCED);
    Routing worst = routing_make(30, 6, 2, true, false, MOE_WORST);
    ops->moe_route_forward(ops, &even.routing);
    ops->moe_route_forward(ops, &worst.routing);
    for (int e = 0; e < 6; e++) {
        assert_int_equal(even.counts[e], 10);
        assert_int_equal(worst.counts[e], e < 2 ? 30 : 0);
    }
    routing_free(&even), routing_free(&worst);
    oracle_ops_free(ops);
}

// The value that route_backward differentiates, in float64, with the choice of experts held fixed.
static double routed_loss(const Routing *x, const double *logits, int64_t t, const double *drow, const double *dprob,
                          double z) {
    int experts = x->experts, top_k = x->top_k;
    double *p = doubles(experts), lse, sum = 0, loss;
    oracle_probs(p, &lse, logits, experts);
    loss = z * lse * lse;
    for (int j = 0; j < top_k; j++)
        sum += p[x->expert[t * top_k + j]];
    for (int j = 0; j < top_k; j++)
        loss += drow[x->row_of_slot[t * top_k + j]] * p[x->expert[t * top_k + j]] / (x->routing.norm_topk ? sum : 1);
    for (int e = 0; dprob && e < experts; e++)
        loss += dprob[e] * p[e];
    free(p);
    return loss;
}

static void route_backward_is_the_derivative_in_float64(void **state) {
    (void)state;
    for (int i = 0; i < 4 * CASES; i++) {
        int64_t tokens = cases[i / 4].tokens < 70 ? cases[i / 4].tokens : 70;
        int experts = cases[i / 4].experts, top_k = cases[i / 4].top_k;
        bool norm = i % 2, auxiliary = i / 2 % 2;
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, experts);
        Routing x = routing_make(tokens, experts, top_k, norm, false, MOE_NATURAL);
        ops->moe_route_forward(ops, &x.routing);
        Values drow = values_normal(DTYPE_F32, x.rows, 1, 0), dprob = values_normal(DTYPE_F32, experts, 1, 0);
        Values dlogits = values_poison(DTYPE_F32, tokens * experts);
        float z = 0.25f;
        double *want = doubles(dlogits.count), *logits = doubles(experts);
        for (int64_t t = 0; t < tokens; t++)
            for (int e = 0; e < experts; e++) {
                const double step = 1e-4; // central differences: error ~ step^2 * third derivative + 1e-16 / step
                double side[2];
                for (int s = 0; s < 2; s++) {
                    memcpy(logits, x.logits.value + t * experts, (size_t)experts * sizeof(double));
                    logits[e] += s ? step : -step;
                    side[s] =
                        routed_loss(&x, logits, t, drow.value, auxiliary ? dprob.value : NULL, auxiliary ? 0.25 : 0);
                }
                want[t * experts + e] = (side[1] - side[0]) / (2 * step);
            }
        ops->moe_route_backward(ops, view(&dlogits, tokens, experts), view(&drow, x.rows, 1),
                                auxiliary ? view(&dprob, 1, experts) : TENSOR_NONE,
                                auxiliary ? view_floats(&z, 1, 1) : TENSOR_NONE, &x.routing);
        values_read(&dlogits);
        for (int64_t j = 0; j < dlogits.count; j++) {
            double bound = 1e-6 + 1e-5 * fabs(want[j]); // of the differences; the float part is below 1e-6 here
            if (!(fabs(dlogits.value[j] - want[j]) <= bound))
                fail_msg("dlogits[%lld] is %.9g, expected %.9g", (long long)j, dlogits.value[j], want[j]);
        }
        values_free(&drow, &dprob, &dlogits);
        free(want), free(logits);
        routing_free(&x);
        oracle_ops_free(ops);
    }
}

static void balance_loss_counts_all_layers_or_each(void **state) {
    (void)state;
    enum { LAYERS = 3, EXPERTS = 5, TOKENS = 40, N = LAYERS * EXPERTS };
    for (int by_layer = 0; by_layer < 2; by_layer++) {
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, 5);
        int32_t *counts = ids(N, 60);
        Values prob_sum = values_normal(DTYPE_F32, N, 1, 8), dprob = values_poison(DTYPE_F32, N);
        Values loss = values_normal(DTYPE_F32, 1, 1, 0);
        double want = loss.value[0], dwant[N];
        float scale = 0.001f;
        for (int i = 0; i < N; i++) {
            double share = 0, mean = 0, rows = by_layer ? TOKENS : LAYERS * TOKENS;
            for (int l = 0; l < LAYERS; l++) {
                if (by_layer && l != i / EXPERTS) continue;
                share += counts[l * EXPERTS + i % EXPERTS] / rows;
                mean += prob_sum.value[l * EXPERTS + i % EXPERTS] / rows;
            }
            want += EXPERTS * share * mean / LAYERS; // together, every layer says the same
            dwant[i] = (double)scale * EXPERTS * share / rows;
        }
        ops->moe_balance(ops, view(&loss, 1, 1), view(&dprob, LAYERS, EXPERTS), view_floats(&scale, 1, 1),
                         view_ints(counts, LAYERS, EXPERTS), view(&prob_sum, LAYERS, EXPERTS),
                         by_layer ? BALANCE_LAYERS : BALANCE_TOGETHER, TOKENS);
        values_check("balance loss", &loss, &want, 0);
        values_check("balance dprob", &dprob, dwant, 0);
        values_free(&prob_sum, &dprob, &loss);
        free(counts);
        oracle_ops_free(ops);
    }
}

static void counts_are_added_or_taken_over(void **state) {
    (void)state;
    enum { LAYERS = 3, EXPERTS = 5, N = LAYERS * EXPERTS };
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, EXPERTS);
    int32_t *counts = ids(N, 1 << 20), *more = ids(N, 1 << 20), *total = poison_ints(N + 1);
    Tensor sums = view_ints(total, LAYERS, EXPERTS);
    ops->moe_add_counts(ops, sums, view_ints(counts, LAYERS, EXPERTS), false);
    assert_memory_equal(total, counts, N * sizeof *total);
    ops->moe_add_counts(ops, sums, view_ints(more, LAYERS, EXPERTS), true);
    for (int i = 0; i < N; i++)
        assert_int_equal(total[i], counts[i] + more[i]);
    assert_int_equal(total[N], 0x7f7f7f7f); // not touched
    free(counts), free(more), free(total);
    oracle_ops_free(ops);
}

static void load_is(const int32_t *counts, int experts, double most, double entropy, int dead) {
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, experts);
    float stats[2][MOE_LOAD_STATS] = {{NAN, NAN, NAN}, {NAN, NAN, NAN}};
    int32_t layers[2][5]; // the same twice
    memcpy(layers, counts, (size_t)experts * sizeof *counts);
    memcpy((int32_t *)layers + experts, counts, (size_t)experts * sizeof *counts);
    ops->moe_load_stats(ops, view_floats(stats[0], 2, MOE_LOAD_STATS), view_ints(layers[0], 2, experts));
    for (int layer = 0; layer < 2; layer++) {
        assert_true((double)stats[layer][MOE_LOAD_MAX] == most);
        assert_true(fabs((double)stats[layer][MOE_LOAD_ENTROPY] - entropy) <= 0x1p-24);
        assert_true(stats[layer][MOE_LOAD_DEAD] == (float)dead);
    }
    oracle_ops_free(ops);
}

static void load_of_equal_counts_is_balanced(void **state) {
    (void)state;
    load_is((int32_t[]){7, 7, 7, 7, 7}, 5, 1, 1, 0);
    load_is((int32_t[]){INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX}, 4, 1, 1, 0); // more than 32 bits in all
}

static void load_of_uneven_counts_has_the_entropy_of_their_shares(void **state) {
    (void)state;
    load_is((int32_t[]){2, 1, 1, 0}, 4, 2, 0.75, 1); // shares 1/2 1/4 1/4: 1.5 bits of 2
    load_is((int32_t[]){0, 12, 0, 0}, 4, 4, 0, 3);
}

static void load_of_no_tokens_and_of_one_expert_has_an_answer(void **state) {
    (void)state;
    load_is((int32_t[]){0, 0, 0}, 3, 0, 0, 3);
    load_is((int32_t[]){9}, 1, 1, 1, 0);
}

static void the_bias_moves_towards_idle_experts_unless_the_step_is_skipped(void **state) {
    (void)state;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 3);
    const int32_t counts[] = {5, 4, 2, 4, 4, 4}; // means 11/3 and 4
    float bias[] = {0.5f, 0, -0.25f, 1, 2, 3};
    const float before[] = {0.5f, 0, -0.25f, 1, 2, 3}, after[] = {0.375f, -0.125f, -0.125f, 1, 2, 3};
    int32_t skip = 1;
    Tensor b = view_floats(bias, 2, 3), c = view_ints(counts, 2, 3), s = view_ints(&skip, 1, 1);
    ops->moe_bias_update(ops, b, c, s, 0.125f);
    assert_memory_equal(bias, before, sizeof bias);
    skip = 0;
    ops->moe_bias_update(ops, b, c, s, 0.125f);
    assert_memory_equal(bias, after, sizeof bias);
    oracle_ops_free(ops);
}

static void gather_and_sum_move_rows_between_orders(void **state) {
    (void)state;
    for (int i = 0; i < 6 * CASES; i++) {
        DType dtype = storage_types[i % 3];
        bool accumulate = i / 3 % 2;
        int64_t tokens = cases[i / 6].tokens, dim = 8 + 13 * (i / 6), top_k = cases[i / 6].top_k;
        int experts = cases[i / 6].experts;
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, experts);
        Routing x = routing_make(tokens, experts, (int)top_k, true, false, MOE_NATURAL);
        ops->moe_route_forward(ops, &x.routing);
        Values in = values_normal(dtype, tokens * dim, 1, 0), rows = values_poison(dtype, x.rows * dim);
        Values out = accumulate ? values_normal(dtype, tokens * dim, 1, 0) : values_poison(dtype, tokens * dim);
        ops->moe_gather(ops, view(&rows, x.rows, dim), view(&in, tokens, dim), &x.routing);
        values_read(&rows);
        for (int64_t j = 0; j < rows.count; j++) {
            int32_t token = x.token_of_row[j / dim];
            if (token < 0)
                assert_true(isnan(rows.value[j])); // unused rows are left alone
            else
                assert_true(rows.value[j] == in.value[token * dim + j % dim]);
        }
        Values outputs = values_normal(dtype, rows.count, 1, 0);
        double *want = doubles(out.count);
        for (int64_t j = 0; j < out.count; j++) {
            want[j] = accumulate ? out.value[j] : 0;
            for (int64_t c = 0; c < top_k; c++)
                want[j] += outputs.value[x.row_of_slot[j / dim * top_k + c] * dim + j % dim];
        }
        Tensor o = view(&out, tokens, dim);
        ops->moe_sum(ops, o, view(&outputs, x.rows, dim), accumulate ? o : TENSOR_NONE, &x.routing);
        values_check("sum", &out, want, top_k);
        values_free(&in, &rows, &out, &outputs);
        free(want);
        routing_free(&x);
        oracle_ops_free(ops);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route_forward_matches_float64_and_permutes_stably),
        cmocka_unit_test(rows_of_a_share_are_those_of_all_experts_shifted),
        cmocka_unit_test(rows_without_room_are_counted_and_left_out),
        cmocka_unit_test(equal_scores_choose_the_lower_expert_first),
        cmocka_unit_test(forced_routing_is_even_or_worst),
        cmocka_unit_test(route_backward_is_the_derivative_in_float64),
        cmocka_unit_test(balance_loss_counts_all_layers_or_each),
        cmocka_unit_test(counts_are_added_or_taken_over),
        cmocka_unit_test(load_of_equal_counts_is_balanced),
        cmocka_unit_test(load_of_uneven_counts_has_the_entropy_of_their_shares),
        cmocka_unit_test(load_of_no_tokens_and_of_one_expert_has_an_answer),
        cmocka_unit_test(the_bias_moves_towards_idle_experts_unless_the_step_is_skipped),
        cmocka_unit_test(gather_and_sum_move_rows_between_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
