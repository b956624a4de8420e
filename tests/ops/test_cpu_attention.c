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
    Values qkv, k_alone, v_alone;
    Attention how;
    Tensor q, k, v;
    const double *qv, *kv, *vv;
} Setup;

// Queries, keys and values side by side, as the model has them.
typedef struct Heads {
    Tensor q, k, v;
} Heads;

static Heads heads_of(const Values *qkv, const Case *c) {
    int64_t q_width = (int64_t)c->heads * c->head_dim, kv_width = (int64_t)c->kv_heads * c->head_dim;
    Tensor all = view(qkv, (int64_t)c->batch * c->seq, q_width + 2 * kv_width);
    return (Heads){tensor_cols(all, 0, q_width), tensor_cols(all, q_width, kv_width),
                   tensor_cols(all, q_width + kv_width, kv_width)};
}

static Tensor lse_of(const Values *lse, const Case *c) {
    return view(lse, (int64_t)c->batch * c->heads, c->seq);
}

static Setup setup_make(const Case *c, DType dtype) {
    int64_t q_width = (int64_t)c->heads * c->head_dim, kv_width = (int64_t)c->kv_heads * c->head_dim;
    Setup s = {.shape = {c->batch, c->seq, c->heads, c->kv_heads, c->head_dim, 0, 0, 0, q_width, 0, NULL}};
    s.shape.scale = (float)(1 / sqrt((double)c->head_dim));
    int64_t tokens = (int64_t)c->batch * c->seq;
    s.width = q_width + 2 * kv_width;
    s.qkv = values_normal(dtype, tokens * s.width, 1.5, 0);
    s.k_alone = values_normal(dtype, tokens * (kv_width + 3), 1.5, 0);
    s.v_alone = values_normal(dtype, tokens * (kv_width + 5), 1.5, 0);
    s.shape.q_stride = s.shape.k_stride = s.shape.v_stride = s.width;
    Heads heads = heads_of(&s.qkv, c);
    s.q = heads.q, s.qv = s.qkv.value;
    s.k = heads.k, s.kv = s.qkv.value + q_width;
    s.v = heads.v, s.vv = s.qkv.value + q_width + kv_width;
    if (c->apart) {
        s.k = tensor_cols(view(&s.k_alone, tokens, kv_width + 3), 0, kv_width);
        s.v = tensor_cols(view(&s.v_alone, tokens, kv_width + 5), 0, kv_width);
        s.kv = s.k_alone.value, s.shape.k_stride = kv_width + 3;
        s.vv = s.v_alone.value, s.shape.v_stride = kv_width + 5;
    }
    s.how = (Attention){.seq = c->seq, .head_dim = c->head_dim, .scale = s.shape.scale};
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
        s.how.doc_start = view_ints(s.doc_start, tokens, 1);
    }
    return s;
}

static void setup_free(Setup *s) {
    values_free(&s->qkv, &s->k_alone, &s->v_alone);
    free(s->doc_start);
}

static void attention_forward_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 3 * CASES; i++) {
        DType dtype = storage_types[i % 3];
        const Case *c = &cases[i / 3];
        Setup s = setup_make(c, dtype);
        Ops *ops = oracle_ops(c->seq, 8, c->heads, c->kv_heads, c->head_dim, 0);
        int64_t tokens = (int64_t)c->batch * c->seq;
        Values out = values_poison(dtype, tokens * c->heads * c->head_dim);
        Values lse = values_poison(DTYPE_F32, tokens * c->heads);
        double *want = doubles(out.count), *lse_want = doubles(lse.count);
        oracle_attention(want, lse_want, s.qv, s.kv, s.vv, &s.shape, 0);
        ops->attention_forward(ops, view(&out, tokens, (int64_t)c->heads * c->head_dim), lse_of(&lse, c), s.q, s.k, s.v,
                               &s.how);
        // Probabilities are rounded to the storage type before they meet the values.
        int64_t values_count =
            (c->apart ? s.v_alone.count : s.qkv.count) - (s.vv - (c->apart ? s.v_alone : s.qkv).value);
        double *v_magnitude = magnitudes(s.vv, values_count), *magnitude = doubles(out.count);
        oracle_attention(magnitude, lse_want, s.qv, s.kv, v_magnitude, &s.shape, 0);
        values_check_rounded("attention out", &out, want, magnitude, c->seq + c->head_dim);
        values_check("attention lse", &lse, lse_want, c->seq + c->head_dim);
        values_free(&out, &lse);
        free(want), free(lse_want), free(v_magnitude), free(magnitude);
        setup_free(&s);
        oracle_ops_free(ops);
    }
}

static void attention_backward_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 3 * CASES; i++) {
        DType dtype = storage_types[i % 3];
        const Case *c = &cases[i / 3];
        Setup s = setup_make(c, dtype);
        Ops *ops = oracle_ops(c->seq, 8, c->heads, c->kv_heads, c->head_dim, 0);
        int64_t tokens = (int64_t)c->batch * c->seq, q_width = (int64_t)c->heads * c->head_dim;
        int64_t kv_width = (int64_t)c->kv_heads * c->head_dim, stride = q_width + 2 * kv_width;
        double *out_exact = doubles(tokens * q_width), *lse_exact = doubles(tokens * c->heads);
        oracle_attention(out_exact, lse_exact, s.qv, s.kv, s.vv, &s.shape, 0);
        Values out = values_of(dtype, tokens * q_width, out_exact),
               lse = values_of(DTYPE_F32, tokens * c->heads, lse_exact);
        Values dout = values_normal(dtype, tokens * q_width, 1, 0), dqkv = values_poison(dtype, tokens * stride);
        double *want = doubles(dqkv.count);
        oracle_attention_backward(want, want + q_width, want + q_width + kv_width, stride, dout.value, out.value, s.qv,
                                  s.kv, s.vv, &s.shape, false);
        double *magnitude = doubles(dqkv.count); // probabilities and their gradients are rounded before products
        oracle_attention_backward(magnitude, magnitude + q_width, magnitude + q_width + kv_width, stride, dout.value,
                                  out.value, s.qv, s.kv, s.vv, &s.shape, true);
        Heads d = heads_of(&dqkv, c);
        ops->attention_backward(ops, d.q, d.k, d.v, view(&dout, tokens, q_width), view(&out, tokens, q_width),
                                lse_of(&lse, c), s.q, s.k, s.v, &s.how, NULL);
        // The three products in a row are each as long as the sequence or a head.
        values_check_rounded("attention dqkv", &dqkv, want, magnitude, 4 * (c->seq + c->head_dim));
        values_free(&out, &lse, &dout, &dqkv);
        free(out_exact), free(lse_exact), free(want), free(magnitude);
        setup_free(&s);
        oracle_ops_free(ops);
    }
}

static void attention_backward_with_rope_equals_rope_afterwards(void **state) {
    (void)state;
    for (int i = 0; i < 3 * CASES; i++) {
        DType dtype = storage_types[i % 3];
        const Case *c = &cases[i / 3];
        Setup s = setup_make(c, dtype);
        Ops *ops = oracle_ops(c->seq, 8, c->heads, c->kv_heads, c->head_dim, 0);
        int64_t tokens = (int64_t)c->batch * c->seq, q_width = (int64_t)c->heads * c->head_dim;
        int64_t kv_width = (int64_t)c->kv_heads * c->head_dim, stride = q_width + 2 * kv_width;
        int64_t angles = (int64_t)(c->seq + 3) * c->head_dim / 2;
        Values out = values_poison(dtype, tokens * q_width), lse = values_poison(DTYPE_F32, tokens * c->heads);
        Values dout = values_normal(dtype, tokens * q_width, 1, 0), dqkv[2];
        Values cosines = values_normal(DTYPE_F32, angles, 1, 0), sines = values_normal(DTYPE_F32, angles, 1, 0);
        Rope rope = {.seq = c->seq,
                     .first_position = 3,
                     .heads = c->heads,
                     .kv_heads = c->kv_heads,
                     .head_dim = c->head_dim,
                     .cos = view(&cosines, c->seq + 3, c->head_dim / 2),
                     .sin = view(&sines, c->seq + 3, c->head_dim / 2)};
        Tensor o = view(&out, tokens, q_width), l = lse_of(&lse, c);
        ops->attention_forward(ops, o, l, s.q, s.k, s.v, &s.how);
        for (int j = 0; j < 2; j++) {
            dqkv[j] = values_poison(dtype, tokens * stride);
            Heads d = heads_of(&dqkv[j], c);
            ops->attention_backward(ops, d.q, d.k, d.v, view(&dout, tokens, q_width), o, l, s.q, s.k, s.v, &s.how,
                                    j ? &rope : NULL);
        }
        Tensor rotated = tensor_cols(view(&dqkv[0], tokens, stride), 0, q_width + kv_width);
        ops->qk_rope_backward(ops, rotated, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, &rope);
        assert_memory_equal(dqkv[0].data, dqkv[1].data, (size_t)(tokens * stride) * dtype_size(dtype));
        values_free(&out, &lse, &dout, &dqkv[0], &dqkv[1], &cosines, &sines);
        setup_free(&s);
        oracle_ops_free(ops);
    }
}

static void cached_attention_equals_the_whole_sequence(void **state) {
    (void)state;
    const struct {
        int n, first, heads, kv_heads, head_dim;
    } cached[] = {{1, 0, 2, 1, 8}, {1, 130, 4, 2, 64}, {3, 64, 9, 1, 16}, {70, 61, 2, 2, 56}};
    for (int i = 0; i < 12; i++) {
        DType dtype = storage_types[i % 3];
        int n = cached[i / 3].n, first = cached[i / 3].first, heads = cached[i / 3].heads;
        int kv_heads = cached[i / 3].kv_heads, head_dim = cached[i / 3].head_dim;
        int64_t width = (int64_t)heads * head_dim, kv_width = (int64_t)kv_heads * head_dim;
        AttentionShape shape = {1, n, heads, kv_heads, head_dim, width, kv_width, kv_width, width, 0.25f, NULL};
        Ops *ops = oracle_ops(1, 8, heads, kv_heads, head_dim, 0);
        Values q = values_normal(dtype, n * width, 1, 0), out = values_poison(dtype, n * width);
        Values k = values_normal(dtype, (first + n) * kv_width, 1, 0),
               v = values_normal(dtype, (first + n) * kv_width, 1, 0);
        double *want = doubles(out.count), *lse = doubles((int64_t)n * heads);
        oracle_attention(want, lse, q.value, k.value, v.value, &shape, first);
        ops->attention_cached(ops, view(&out, n, width), view(&q, n, width), view(&k, first + n, kv_width),
                              view(&v, first + n, kv_width), first, head_dim, 0.25f);
        double *v_magnitude = magnitudes(v.value, v.count), *magnitude = doubles(out.count);
        oracle_attention(magnitude, lse, q.value, k.value, v_magnitude, &shape, first);
        values_check_rounded("cached attention", &out, want, magnitude, first + n + head_dim);
        values_free(&q, &out, &k, &v);
        free(want), free(lse), free(v_magnitude), free(magnitude);
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
