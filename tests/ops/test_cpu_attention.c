// Attention of the CPU table against float64: odd lengths, any grouping, packed documents, both storage types.
#include "oracle.h"

typedef struct Case {
    int batch, seq, heads, kv_heads, head_dim;
    int documents; // 0: none, else documents of about this length
    bool apart;    // q, k and v in one buffer (as the model has them), or each on its own
} Case;
static const Case cases[] = {{1, 1, 1, 1, 8, 0, true},      {2, 2, 2, 1, 16, 0, false},    {1, 65, 4, 2, 56, 0, false},
                             {2, 129, 3, 3, 8, 0, false},   {1, 129, 9, 1, 16, 0, true},   {1, 300, 4, 2, 64, 0, false},
                             {2, 257, 2, 1, 24, 50, false}, {1, 300, 6, 2, 32, 140, true}, {1, 150, 17, 1, 8, 7, false},
                             {1, 130, 2, 2, 128, 1, false}};
enum { CASES = sizeof cases / sizeof *cases };

typedef struct Setup {
    AttentionShape shape;
    int32_t *doc_start;
    int64_t width; // of the buffer that holds q, k and v
    Tensor qkv, k_alone, v_alone;
    const void *q, *k, *v;
    const double *qv, *kv, *vv;
} Setup;

static Setup setup_make(const Case *c, DType dtype) {
    int64_t q_width = (int64_t)c->heads * c->head_dim, kv_width = (int64_t)c->kv_heads * c->head_dim;
    Setup s = {.shape = {c->batch, c->seq, c->heads, c->kv_heads, c->head_dim, 0, 0, 0, q_width, 0, NULL}};
    s.shape.scale = (float)(1 / sqrt((double)c->head_dim));
    int64_t tokens = (int64_t)c->batch * c->seq;
    s.width = q_width + 2 * kv_width;
    s.qkv = tensor_normal(dtype, tokens * s.width, 1.5, 0);
    s.k_alone = tensor_normal(dtype, tokens * (kv_width + 3), 1.5, 0);
    s.v_alone = tensor_normal(dtype, tokens * (kv_width + 5), 1.5, 0);
    s.shape.q_stride = s.shape.k_stride = s.shape.v_stride = s.width;
    size_t size = dtype_size(dtype);
    s.q = s.qkv.data, s.qv = s.qkv.value;
    s.k = (char *)s.qkv.data + (size_t)q_width * size, s.kv = s.qkv.value + q_width;
    s.v = (char *)s.qkv.data + (size_t)(q_width + kv_width) * size, s.vv = s.qkv.value + q_width + kv_width;
    if (c->apart) {
        s.k = s.k_alone.data, s.kv = s.k_alone.value, s.shape.k_stride = kv_width + 3;
        s.v = s.v_alone.data, s.vv = s.v_alone.value, s.shape.v_stride = kv_width + 5;
    }
    if (c->documents) {
        s.doc_start = xmalloc((size_t)tokens * sizeof(int32_t));
        int32_t *length = ids(tokens, 2 * c->documents);
        for (int b = 0; b < c->batch; b++)
            for (int i = 0, start = 0; i < c->seq; i++) {
                if (i - start > length[b * c->seq + start]) start = i;
                s.doc_start[b * c->seq + i] = start;
            }
        free(length);
        s.shape.doc_start = s.doc_start;
    }
    return s;
}

static void setup_free(Setup *s) {
    tensors_free(&s->qkv, &s->k_alone, &s->v_alone);
    free(s->doc_start);
}

static void attention_forward_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 2 * CASES; i++) {
        DType dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        const Case *c = &cases[i / 2];
        Setup s = setup_make(c, dtype);
        Ops *ops = oracle_ops(c->seq, 8, c->heads, c->kv_heads, c->head_dim, 0);
        int64_t tokens = (int64_t)c->batch * c->seq;
        Tensor out = tensor_poison(dtype, tokens * c->heads * c->head_dim);
        Tensor lse = tensor_poison(DTYPE_F32, tokens * c->heads);
        double *want = doubles(out.count), *lse_want = doubles(lse.count);
        oracle_attention(want, lse_want, s.qv, s.kv, s.vv, &s.shape, 0);
        ops->attention_forward(ops, out.data, lse.data, s.q, s.k, s.v, &s.shape, dtype);
        tensor_check("attention out", &out, want, c->seq + c->head_dim);
        tensor_check("attention lse", &lse, lse_want, c->seq + c->head_dim);
        tensors_free(&out, &lse);
        free(want), free(lse_want);
        setup_free(&s);
        oracle_ops_free(ops);
    }
}

static void attention_backward_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 2 * CASES; i++) {
        DType dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        const Case *c = &cases[i / 2];
        Setup s = setup_make(c, dtype);
        Ops *ops = oracle_ops(c->seq, 8, c->heads, c->kv_heads, c->head_dim, 0);
        int64_t tokens = (int64_t)c->batch * c->seq, q_width = (int64_t)c->heads * c->head_dim;
        int64_t kv_width = (int64_t)c->kv_heads * c->head_dim, stride = q_width + 2 * kv_width;
        double *out_exact = doubles(tokens * q_width), *lse_exact = doubles(tokens * c->heads);
        oracle_attention(out_exact, lse_exact, s.qv, s.kv, s.vv, &s.shape, 0);
        Tensor out = tensor_of(dtype, tokens * q_width, out_exact),
               lse = tensor_of(DTYPE_F32, tokens * c->heads, lse_exact);
        Tensor dout = tensor_normal(dtype, tokens * q_width, 1, 0), dqkv = tensor_poison(dtype, tokens * stride);
        double *want = doubles(dqkv.count);
        oracle_attention_backward(want, want + q_width, want + q_width + kv_width, stride, dout.value, out.value, s.qv,
                                  s.kv, s.vv, &s.shape);
        char *d = dqkv.data;
        ops->attention_backward(ops, d, d + (size_t)q_width * dtype_size(dtype),
                                d + (size_t)(q_width + kv_width) * dtype_size(dtype), stride, dout.data, out.data,
                                lse.data, s.q, s.k, s.v, &s.shape, NULL, dtype);
        // The three products in a row are each as long as the sequence or a head.
        tensor_check("attention dqkv", &dqkv, want, 4 * (c->seq + c->head_dim));
        tensors_free(&out, &lse, &dout, &dqkv);
        free(out_exact), free(lse_exact), free(want);
        setup_free(&s);
        oracle_ops_free(ops);
    }
}

static void attention_backward_with_rope_equals_rope_afterwards(void **state) {
    (void)state;
    for (int i = 0; i < 2 * CASES; i++) {
        DType dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        const Case *c = &cases[i / 2];
        Setup s = setup_make(c, dtype);
        Ops *ops = oracle_ops(c->seq, 8, c->heads, c->kv_heads, c->head_dim, 0);
        int64_t tokens = (int64_t)c->batch * c->seq, q_width = (int64_t)c->heads * c->head_dim;
        int64_t kv_width = (int64_t)c->kv_heads * c->head_dim, stride = q_width + 2 * kv_width;
        int64_t angles = (int64_t)(c->seq + 3) * c->head_dim / 2;
        size_t k = (size_t)q_width * dtype_size(dtype), v = k + (size_t)kv_width * dtype_size(dtype);
        Tensor out = tensor_poison(dtype, tokens * q_width), lse = tensor_poison(DTYPE_F32, tokens * c->heads);
        Tensor dout = tensor_normal(dtype, tokens * q_width, 1, 0), dqkv[2];
        Tensor cosines = tensor_normal(DTYPE_F32, angles, 1, 0), sines = tensor_normal(DTYPE_F32, angles, 1, 0);
        QkRopeShape rope = {tokens,     c->seq, 3,    c->heads, c->kv_heads, c->head_dim, cosines.data,
                            sines.data, NULL,   NULL, 0};
        ops->attention_forward(ops, out.data, lse.data, s.q, s.k, s.v, &s.shape, dtype);
        for (int j = 0; j < 2; j++) {
            dqkv[j] = tensor_poison(dtype, tokens * stride);
            char *d = dqkv[j].data;
            ops->attention_backward(ops, d, d + k, d + v, stride, dout.data, out.data, lse.data, s.q, s.k, s.v,
                                    &s.shape, j ? &rope : NULL, dtype);
        }
        ops->qk_rope_backward(ops, dqkv[0].data, stride, NULL, 0, NULL, NULL, NULL, &rope, dtype);
        assert_memory_equal(dqkv[0].data, dqkv[1].data, (size_t)(tokens * stride) * dtype_size(dtype));
        tensors_free(&out, &lse, &dout, &dqkv[0], &dqkv[1], &cosines, &sines);
        setup_free(&s);
        oracle_ops_free(ops);
    }
}

static void cached_attention_equals_the_whole_sequence(void **state) {
    (void)state;
    const struct {
        int n, first, heads, kv_heads, head_dim;
    } cached[] = {{1, 0, 2, 1, 8}, {1, 130, 4, 2, 64}, {3, 64, 9, 1, 16}, {70, 61, 2, 2, 56}};
    for (int i = 0; i < 8; i++) {
        DType dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        int n = cached[i / 2].n, first = cached[i / 2].first, heads = cached[i / 2].heads;
        int kv_heads = cached[i / 2].kv_heads, head_dim = cached[i / 2].head_dim;
        int64_t width = (int64_t)heads * head_dim, kv_width = (int64_t)kv_heads * head_dim;
        AttentionShape shape = {1, n, heads, kv_heads, head_dim, width, kv_width, kv_width, width, 0.25f, NULL};
        Ops *ops = oracle_ops(1, 8, heads, kv_heads, head_dim, 0);
        Tensor q = tensor_normal(dtype, n * width, 1, 0), out = tensor_poison(dtype, n * width);
        Tensor k = tensor_normal(dtype, (first + n) * kv_width, 1, 0),
               v = tensor_normal(dtype, (first + n) * kv_width, 1, 0);
        double *want = doubles(out.count), *lse = doubles((int64_t)n * heads);
        oracle_attention(want, lse, q.value, k.value, v.value, &shape, first);
        ops->attention_cached(ops, out.data, q.data, k.data, v.data, n, first, heads, kv_heads, head_dim, 0.25f, dtype);
        tensor_check("cached attention", &out, want, first + n + head_dim);
        tensors_free(&q, &out, &k, &v);
        free(want), free(lse);
        oracle_ops_free(ops);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_forward_matches_float64),
        cmocka_unit_test(attention_backward_matches_float64),
        cmocka_unit_test(attention_backward_with_rope_equals_rope_afterwards),
        cmocka_unit_test(cached_attention_equals_the_whole_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
