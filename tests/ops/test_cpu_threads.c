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
    QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
};

static uint64_t hash; // FNV-1a over every output

static void mix(Tensor *tensor) {
    const unsigned char *bytes = tensor->data;
    for (size_t i = 0; i < (size_t)tensor->count * dtype_size(tensor->dtype); i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    tensor_free(tensor);
}

static void run_dense(Ops *ops, DType dtype) {
    Tensor in = tensor_normal(dtype, TOKENS * HIDDEN, 1, 0), branch = tensor_normal(dtype, in.count, 1, 0);
    Tensor norm = tensor_normal(dtype, HIDDEN, 1, 1), dnorm = tensor_zero(DTYPE_F32, HIDDEN),
           rstd = tensor_zero(DTYPE_F32, TOKENS);
    Tensor sum = tensor_zero(dtype, in.count), normed = tensor_zero(dtype, in.count),
           dsum = tensor_zero(dtype, in.count);
    ops->add_rmsnorm_forward(ops, normed.data, sum.data, rstd.data, in.data, branch.data, norm.data, TOKENS, HIDDEN,
                             1e-5f, dtype);
    ops->add_rmsnorm_backward(ops, dsum.data, dnorm.data, branch.data, normed.data, rstd.data, norm.data, TOKENS,
                              HIDDEN, true, dtype);
    Tensor weight = tensor_normal(dtype, VOCAB * HIDDEN, 0.1, 0), logits = tensor_zero(dtype, TOKENS * VOCAB);
    Tensor dweight = tensor_zero(DTYPE_F32, weight.count), din = tensor_zero(dtype, in.count),
           losses = tensor_zero(DTYPE_F32, TOKENS);
    int32_t *targets = ids(TOKENS, VOCAB);
    float scale = 0.01f;
    ops->linear_forward(ops, logits.data, normed.data, HIDDEN, weight.data, NULL, TOKENS, HIDDEN, VOCAB, dtype);
    ops->cross_entropy(ops, losses.data, logits.data, targets, &scale, TOKENS, VOCAB, dtype);
    ops->linear_backward_input(ops, din.data, logits.data, weight.data, TOKENS, HIDDEN, VOCAB, dtype);
    ops->linear_backward_weight(ops, dweight.data, logits.data, normed.data, HIDDEN, TOKENS, HIDDEN, VOCAB, true,
                                dtype);
    ops->embedding_backward(ops, dweight.data, din.data, targets, TOKENS, HIDDEN, VOCAB, dtype);
    ops->embedding_forward(ops, in.data, targets, weight.data, TOKENS, HIDDEN, dtype);
    Tensor gate_up = tensor_normal(dtype, TOKENS * 2 * FFN, 1, 0), dout = tensor_normal(dtype, TOKENS * FFN, 1, 0);
    Tensor out = tensor_zero(dtype, TOKENS * FFN), drow = tensor_zero(DTYPE_F32, TOKENS);
    ops->swiglu_forward(ops, out.data, gate_up.data, rstd.data, NULL, TOKENS, FFN, dtype);
    ops->swiglu_backward(ops, gate_up.data, dout.data, drow.data, gate_up.data, dout.data, rstd.data, NULL, TOKENS, FFN,
                         dtype);
    ops->swiglu_packed_forward(ops, gate_up.data, TOKENS, FFN, dtype);
    ops->swiglu_packed_backward(ops, gate_up.data, gate_up.data, dout.data, TOKENS, FFN, dtype);
    Tensor total = tensor_zero(DTYPE_F32, 2);
    ops->sum_f32(ops, total.data, losses.data, TOKENS, false);
    ops->norm_f32(ops, (float *)total.data + 1, dweight.data, dweight.count);
    Tensor m = tensor_zero(DTYPE_F32, weight.count), v = tensor_zero(DTYPE_F32, weight.count);
    AdamwArgs adamw = {.count = weight.count,
                       .weight = weight.data,
                       .m = m.data,
                       .v = v.data,
                       .grad = dweight.data,
                       .dtype = dtype,
                       .lr = 1e-3f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .eps = 1e-8f,
                       .bias1 = 0.1f,
                       .bias2 = 0.05f,
                       .max_norm = 1,
                       .norm = (float *)total.data + 1,
                       .seed = 3};
    ops->adamw(ops, &adamw);
    mix(&in), mix(&branch), mix(&norm), mix(&dnorm), mix(&rstd), mix(&sum), mix(&normed), mix(&dsum), mix(&weight);
    mix(&logits), mix(&dweight), mix(&din), mix(&losses), mix(&gate_up), mix(&dout), mix(&out), mix(&drow), mix(&total);
    mix(&m), mix(&v);
    free(targets);
}

static void run_attention(Ops *ops, DType dtype) {
    Tensor qkv = tensor_normal(dtype, TOKENS * QKV, 1, 0), raw = tensor_copy(&qkv);
    Tensor q_norm = tensor_normal(dtype, HEAD_DIM, 1, 1), tables = tensor_normal(DTYPE_F32, SEQ * HEAD_DIM, 1, 0);
    Tensor rstd = tensor_zero(DTYPE_F32, TOKENS * (HEADS + KV_HEADS)), dnorm = tensor_zero(DTYPE_F32, 2 * HEAD_DIM);
    QkRopeShape rope = {TOKENS,      SEQ,         0,           HEADS,
                        KV_HEADS,    HEAD_DIM,    tables.data, (float *)tables.data + SEQ * HEAD_DIM / 2,
                        q_norm.data, q_norm.data, 1e-6f};
    ops->qk_rope_forward(ops, qkv.data, QKV, raw.data, QKV, rstd.data, &rope, dtype);
    AttentionShape shape = {BATCH, SEQ, HEADS, KV_HEADS, HEAD_DIM, QKV, QKV, QKV, HEADS * HEAD_DIM, 0.2f, NULL};
    size_t size = dtype_size(dtype), k = HEADS * HEAD_DIM * size, v = k + KV_HEADS * HEAD_DIM * size;
    Tensor out = tensor_zero(dtype, TOKENS * HEADS * HEAD_DIM), lse = tensor_zero(DTYPE_F32, TOKENS * HEADS);
    Tensor dout = tensor_normal(dtype, out.count, 1, 0), grad = tensor_zero(dtype, qkv.count);
    char *x = qkv.data, *g = grad.data;
    ops->attention_forward(ops, out.data, lse.data, x, x + k, x + v, &shape, dtype);
    ops->attention_backward(ops, g, g + k, g + v, QKV, dout.data, out.data, lse.data, x, x + k, x + v, &shape, NULL,
                            dtype);
    ops->qk_rope_backward(ops, grad.data, QKV, raw.data, QKV, rstd.data, dnorm.data, (float *)dnorm.data + HEAD_DIM,
                          &rope, dtype);
    mix(&qkv), mix(&raw), mix(&q_norm), mix(&tables), mix(&rstd), mix(&dnorm), mix(&out), mix(&lse), mix(&dout),
        mix(&grad);
}

static void run_moe(Ops *ops, DType dtype) {
    enum { ROWS = TOKENS * TOP_K };
    Tensor in = tensor_normal(dtype, TOKENS * HIDDEN, 1, 0), router = tensor_normal(dtype, EXPERTS * HIDDEN, 0.1, 0);
    Tensor f[8];
    const int64_t sizes[8] = {TOKENS * EXPERTS, TOKENS * EXPERTS, TOKENS,          ROWS, ROWS,
                              EXPERTS,          TOKENS * EXPERTS, EXPERTS * HIDDEN};
    for (int i = 0; i < 8; i++)
        f[i] = tensor_zero(DTYPE_F32, sizes[i]);
    int32_t *n = xcalloc(3 * ROWS + 2 * EXPERTS + 1, sizeof *n);
    MoeShape shape = {TOKENS, EXPERTS, TOP_K, true, ROWS, MOE_NATURAL};
    MoeRouting r = {f[0].data, NULL,         f[1].data, f[2].data, n, f[3].data, n + 3 * ROWS, n + 3 * ROWS + EXPERTS,
                    n + ROWS,  n + 2 * ROWS, f[4].data, f[5].data};
    ops->moe_router_forward(ops, r.logits, in.data, router.data, TOKENS, HIDDEN, EXPERTS, dtype);
    ops->moe_route_forward(ops, &r, &shape);
    Tensor rows = tensor_zero(dtype, ROWS * HIDDEN), out = tensor_zero(dtype, ROWS * FFN),
           weight = tensor_normal(dtype, EXPERTS * HIDDEN * FFN, 0.1, 0);
    Tensor drows = tensor_zero(dtype, ROWS * HIDDEN), dweight = tensor_zero(DTYPE_F32, weight.count),
           drow = tensor_normal(DTYPE_F32, ROWS, 1, 0);
    ops->moe_gather(ops, rows.data, in.data, &r, &shape, HIDDEN, dtype);
    ops->grouped_linear_forward(ops, out.data, rows.data, weight.data, r.offsets, EXPERTS, ROWS, HIDDEN, FFN, dtype);
    ops->grouped_linear_backward_input(ops, drows.data, out.data, weight.data, r.offsets, EXPERTS, ROWS, HIDDEN, FFN,
                                       dtype);
    ops->grouped_linear_backward_weight(ops, dweight.data, out.data, rows.data, r.offsets, EXPERTS, ROWS, HIDDEN, FFN,
                                        true, dtype);
    ops->moe_sum(ops, in.data, drows.data, in.data, &r, &shape, HIDDEN, dtype);
    ops->moe_route_backward(ops, f[6].data, drow.data, r.prob_sum, NULL, &r, &shape);
    ops->moe_router_backward(ops, in.data, f[7].data, f[6].data, rows.data, router.data, TOKENS, HIDDEN, EXPERTS, true,
                             dtype);
    for (int i = 0; i < 8; i++)
        mix(&f[i]);
    mix(&in), mix(&router), mix(&rows), mix(&out), mix(&weight), mix(&drows), mix(&dweight), mix(&drow);
    free(n);
}

static uint64_t hash_with(int threads, void (*run)(Ops *ops, DType dtype), DType dtype) {
    threads_set(threads);
    assert_int_equal(threads_count(), threads);
    Ops *ops = oracle_ops(SEQ, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, EXPERTS);
    tensor_restart();
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
