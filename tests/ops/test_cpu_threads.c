// Every op gives the same bits on any number of threads.
#include "oracle.h"

#include "base/threads.h"

enum {
    BATCH = 2,
    SEQ = 131,
    TOKENS = BATCH * SEQ,
    HIDDEN = 200,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 24,
    FFN = 300,
    VOCAB = 1003,
    EXPERTS = 9,
    TOP_K = 3,
    Q = HEADS * HEAD_DIM,
    KV = KV_HEADS * HEAD_DIM,
    ROTATED = Q + KV,
    QKV = Q + 2 * KV
};

static uint64_t hash; // FNV-1a over every output

static void mix(Values *tensor) {
    const unsigned char *bytes = tensor->data;
    for (size_t i = 0; i < (size_t)tensor->count * dtype_size(tensor->dtype); i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    values_free(tensor);
}

static void run_dense(Ops *ops, DType dtype) {
    Values in = values_normal(dtype, TOKENS * HIDDEN, 1, 0), branch = values_normal(dtype, in.count, 1, 0);
    Values norm = values_normal(dtype, HIDDEN, 1, 1), dnorm = values_zero(DTYPE_F32, HIDDEN),
           rstd = values_zero(DTYPE_F32, TOKENS);
    Values sum = values_zero(dtype, in.count), normed = values_zero(dtype, in.count),
           dsum = values_zero(dtype, in.count);
    Tensor x = view(&in, TOKENS, HIDDEN), b = view(&branch, TOKENS, HIDDEN), y = view(&normed, TOKENS, HIDDEN);
    Tensor r = view(&rstd, TOKENS, 1);
    ops->add_rmsnorm_forward(ops, y, view(&sum, TOKENS, HIDDEN), r, x, b, view(&norm, 1, HIDDEN), 1e-5f);
    ops->add_rmsnorm_backward(ops, view(&dsum, TOKENS, HIDDEN), view(&dnorm, 1, HIDDEN), b, y, r,
                              view(&norm, 1, HIDDEN), true);
    Values weight = values_normal(dtype, VOCAB * HIDDEN, 0.1, 0), logits = values_zero(dtype, TOKENS * VOCAB);
    Values dweight = values_zero(DTYPE_F32, weight.count), din = values_zero(dtype, in.count),
           losses = values_zero(DTYPE_F32, TOKENS);
    int32_t *targets = ids(TOKENS, VOCAB);
    float scale = 0.01f;
    Tensor w = view(&weight, VOCAB, HIDDEN), dw = view(&dweight, VOCAB, HIDDEN), dx = view(&din, TOKENS, HIDDEN);
    Tensor scores = view(&logits, TOKENS, VOCAB), t = view_ints(targets, TOKENS, 1);
    ops->linear_forward(ops, scores, y, w, TENSOR_NONE);
    ops->cross_entropy(ops, view(&losses, TOKENS, 1), scores, t, view_floats(&scale, 1, 1));
    Values share = values_normal(dtype, TOKENS * VOCAB, 2, 0), stats = values_zero(DTYPE_F32, TOKENS * SPLIT_STATS);
    Tensor s = view(&stats, TOKENS, SPLIT_STATS), part = view(&share, TOKENS, VOCAB);
    ops->cross_entropy_stats(ops, s, part, t, 200, VOCAB);
    ops->cross_entropy_apply(ops, view(&losses, TOKENS, 1), part, t, s, view_floats(&scale, 1, 1), 200, VOCAB);
    ops->linear_backward_input(ops, dx, scores, w);
    ops->linear_backward_weight(ops, dw, scores, y, true);
    ops->embedding_backward(ops, dw, dx, t, 0);
    ops->embedding_forward(ops, x, t, w, 0);
    Values gate_up = values_normal(dtype, TOKENS * 2 * FFN, 1, 0), dout = values_normal(dtype, TOKENS * FFN, 1, 0);
    Values out = values_zero(dtype, TOKENS * FFN), drow = values_zero(DTYPE_F32, TOKENS);
    Tensor packed = view(&gate_up, TOKENS, 2 * FFN), d = view(&dout, TOKENS, FFN);
    ops->swiglu_forward(ops, view(&out, TOKENS, FFN), packed, r, TENSOR_NONE);
    ops->swiglu_backward(ops, packed, d, view(&drow, TOKENS, 1), packed, d, r, TENSOR_NONE);
    ops->swiglu_packed_forward(ops, packed);
    ops->swiglu_packed_backward(ops, packed, packed, d);
    Values total = values_zero(DTYPE_F32, 2);
    Tensor gradient_norm = tensor_cols(view(&total, 1, 2), 1, 1);
    ops->sum_f32(ops, tensor_cols(view(&total, 1, 2), 0, 1), view(&losses, 1, TOKENS), false);
    ops->norm_f32(ops, gradient_norm, view(&dweight, 1, dweight.count));
    Values m = values_zero(DTYPE_F32, weight.count), v = values_zero(DTYPE_F32, weight.count);
    int32_t skip = 0;
    AdamwArgs adamw = {.weight = view(&weight, 1, weight.count),
                       .m = view(&m, 1, weight.count),
                       .v = view(&v, 1, weight.count),
                       .grad = view(&dweight, 1, weight.count),
                       .lr = 1e-3f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .eps = 1e-8f,
                       .bias1 = 0.1f,
                       .bias2 = 0.05f,
                       .max_norm = 1,
                       .norm = gradient_norm,
                       .skip = view_ints(&skip, 1, 1),
                       .seed = 3};
    ops->adamw(ops, &adamw);
    mix(&in), mix(&branch), mix(&norm), mix(&dnorm), mix(&rstd), mix(&sum), mix(&normed), mix(&dsum), mix(&weight);
    mix(&logits), mix(&dweight), mix(&din), mix(&losses), mix(&gate_up), mix(&dout), mix(&out), mix(&drow), mix(&total);
    mix(&m), mix(&v), mix(&share), mix(&stats);
    free(targets);
}

static void run_attention(Ops *ops, DType dtype) {
    Values qkv = values_normal(dtype, TOKENS * QKV, 1, 0), raw = values_copy(&qkv);
    Values q_norm = values_normal(dtype, HEAD_DIM, 1, 1), tables = values_normal(DTYPE_F32, SEQ * HEAD_DIM, 1, 0);
    Values rstd = values_zero(DTYPE_F32, TOKENS * (HEADS + KV_HEADS)), dnorm = values_zero(DTYPE_F32, 2 * HEAD_DIM);
    Tensor angles = view(&tables, 2 * SEQ, HEAD_DIM / 2), norm = view(&q_norm, 1, HEAD_DIM);
    Rope rope = {.seq = SEQ,
                 .heads = HEADS,
                 .kv_heads = KV_HEADS,
                 .head_dim = HEAD_DIM,
                 .cos = tensor_rows(angles, 0, SEQ),
                 .sin = tensor_rows(angles, SEQ, SEQ),
                 .q_weight = norm,
                 .k_weight = norm,
                 .eps = 1e-6f};
    Tensor all = view(&qkv, TOKENS, QKV), before = tensor_cols(view(&raw, TOKENS, QKV), 0, ROTATED);
    Tensor r = view(&rstd, TOKENS, HEADS + KV_HEADS);
    ops->qk_rope_forward(ops, tensor_cols(all, 0, ROTATED), r, before, &rope);
    Attention how = {.seq = SEQ, .head_dim = HEAD_DIM, .scale = 0.2f};
    Values out = values_zero(dtype, TOKENS * HEADS * HEAD_DIM), lse = values_zero(DTYPE_F32, TOKENS * HEADS);
    Values dout = values_normal(dtype, out.count, 1, 0), grad = values_zero(dtype, qkv.count);
    Tensor o = view(&out, TOKENS, Q), l = view(&lse, BATCH * HEADS, SEQ), d = view(&grad, TOKENS, QKV);
    Tensor q = tensor_cols(all, 0, Q), k = tensor_cols(all, Q, KV), v = tensor_cols(all, Q + KV, KV);
    ops->attention_forward(ops, o, l, q, k, v, &how);
    ops->attention_backward(ops, tensor_cols(d, 0, Q), tensor_cols(d, Q, KV), tensor_cols(d, Q + KV, KV),
                            view(&dout, TOKENS, Q), o, l, q, k, v, &how, NULL);
    Tensor dnorms = view(&dnorm, 2, HEAD_DIM);
    ops->qk_rope_backward(ops, tensor_cols(d, 0, ROTATED), tensor_rows(dnorms, 0, 1), tensor_rows(dnorms, 1, 1), before,
                          r, &rope);
    mix(&qkv), mix(&raw), mix(&q_norm), mix(&tables), mix(&rstd), mix(&dnorm), mix(&out), mix(&lse), mix(&dout),
        mix(&grad);
}

static void run_moe(Ops *ops, DType dtype) {
    enum { ROWS = TOKENS * TOP_K };
    Values in = values_normal(dtype, TOKENS * HIDDEN, 1, 0), router = values_normal(dtype, EXPERTS * HIDDEN, 0.1, 0);
    Values f[8];
    const int64_t sizes[8] = {TOKENS * EXPERTS, TOKENS * EXPERTS, TOKENS,          ROWS, ROWS,
                              EXPERTS,          TOKENS * EXPERTS, EXPERTS * HIDDEN};
    for (int i = 0; i < 8; i++)
        f[i] = values_zero(DTYPE_F32, sizes[i]);
    int32_t *n = xcalloc(3 * ROWS + 2 * EXPERTS + 1, sizeof *n);
    MoeRouting r = {.logits = view(&f[0], TOKENS, EXPERTS),
                    .probs = view(&f[1], TOKENS, EXPERTS),
                    .lse = view(&f[2], TOKENS, 1),
                    .expert = view_ints(n, TOKENS, TOP_K),
                    .weight = view(&f[3], TOKENS, TOP_K),
                    .counts = view_ints(n + 3 * ROWS, 1, EXPERTS),
                    .offsets = view_ints(n + 3 * ROWS + EXPERTS, 1, EXPERTS + 1),
                    .row_of_slot = view_ints(n + ROWS, TOKENS, TOP_K),
                    .token_of_row = view_ints(n + 2 * ROWS, ROWS, 1),
                    .row_weight = view(&f[4], ROWS, 1),
                    .prob_sum = view(&f[5], 1, EXPERTS),
                    .norm_topk = true};
    Tensor x = view(&in, TOKENS, HIDDEN), router_weight = view(&router, EXPERTS, HIDDEN);
    ops->moe_router_forward(ops, r.logits, x, router_weight);
    ops->moe_route_forward(ops, &r);
    Values rows = values_zero(dtype, ROWS * HIDDEN), out = values_zero(dtype, ROWS * FFN),
           weight = values_normal(dtype, EXPERTS * HIDDEN * FFN, 0.1, 0);
    Values drows = values_zero(dtype, ROWS * HIDDEN), dweight = values_zero(DTYPE_F32, weight.count),
           drow = values_normal(DTYPE_F32, ROWS, 1, 0);
    Tensor gathered = view(&rows, ROWS, HIDDEN), o = view(&out, ROWS, FFN), w = view(&weight, EXPERTS * FFN, HIDDEN);
    ops->moe_gather(ops, gathered, x, &r);
    ops->grouped_linear_forward(ops, o, gathered, w, r.offsets, TENSOR_NONE, TENSOR_NONE);
    ops->grouped_linear_backward_input(ops, view(&drows, ROWS, HIDDEN), o, w, r.offsets);
    ops->grouped_linear_backward_weight(ops, view(&dweight, EXPERTS * FFN, HIDDEN), o, gathered, r.offsets, TENSOR_NONE,
                                        TENSOR_NONE, true);
    ops->moe_sum(ops, x, view(&drows, ROWS, HIDDEN), x, &r);
    Tensor dlogits = view(&f[6], TOKENS, EXPERTS);
    ops->moe_route_backward(ops, dlogits, view(&drow, ROWS, 1), r.prob_sum, TENSOR_NONE, &r);
    ops->moe_router_backward(ops, x, view(&f[7], EXPERTS, HIDDEN), dlogits, tensor_rows(gathered, 0, TOKENS),
                             router_weight, true);
    for (int i = 0; i < 8; i++)
        mix(&f[i]);
    mix(&in), mix(&router), mix(&rows), mix(&out), mix(&weight), mix(&drows), mix(&dweight), mix(&drow);
    free(n);
}

static uint64_t hash_with(int threads, void (*run)(Ops *ops, DType dtype), DType dtype) {
    threads_set(threads);
    assert_int_equal(threads_count(), threads);
    Ops *ops = oracle_ops(SEQ, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, EXPERTS);
    values_restart();
    hash = 0xcbf29ce484222325u;
    run(ops, dtype);
    oracle_ops_free(ops);
    return hash;
}

static void same_bits(void (*run)(Ops *ops, DType dtype)) {
    for (int i = 0; i < 2; i++) {
        DType dtype = i ? DTYPE_BF16 : DTYPE_F32;
        uint64_t one = hash_with(1, run, dtype);
        for (int threads = 2; threads <= 5; threads++)
            assert_true(hash_with(threads, run, dtype) == one);
    }
}

static void dense_ops_do_not_depend_on_the_threads(void **state) {
    (void)state;
    same_bits(run_dense);
}

static void attention_does_not_depend_on_the_threads(void **state) {
    (void)state;
    same_bits(run_attention);
}

static void moe_ops_do_not_depend_on_the_threads(void **state) {
    (void)state;
    same_bits(run_moe);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_ops_do_not_depend_on_the_threads),
        cmocka_unit_test(attention_does_not_depend_on_the_threads),
        cmocka_unit_test(moe_ops_do_not_depend_on_the_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
