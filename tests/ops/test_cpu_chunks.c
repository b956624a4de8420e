// Attention in chunks: what queries find in each chunk of keys, merged, and the parts of the gradients, added up, are
// those of the whole sequence in float64. Odd lengths, documents that begin anywhere, both storage types.
#include "oracle.h"

typedef struct Case {
    int batch, chunk, chunks, heads, kv_heads, head_dim;
    int documents; // 0: none, else documents of about this length
} Case;
static const Case cases[] = {{1, 1, 2, 1, 1, 8, 0},   {2, 65, 2, 4, 2, 56, 0},   {1, 129, 4, 3, 3, 8, 0},
                             {2, 33, 4, 9, 1, 16, 9}, {1, 130, 3, 2, 1, 64, 70}, {2, 70, 4, 2, 2, 24, 200}};
enum { CASES = sizeof cases / sizeof *cases };

static int64_t tokens_of(const Case *c) {
    return (int64_t)c->batch * c->chunk * c->chunks;
}

// Row of a token where the first chunk of all sequences stands before the second of all.
static int64_t chunked_row(const Case *c, int64_t token) {
    int64_t seq = (int64_t)c->chunk * c->chunks, sequence = token / seq, at = token % seq;
    return (at / c->chunk * c->batch + sequence) * c->chunk + at % c->chunk;
}

static double *chunked(const Case *c, const double *in, int64_t columns) {
    double *out = doubles(tokens_of(c) * columns);
    for (int64_t i = 0; i < tokens_of(c); i++)
        memcpy(out + chunked_row(c, i) * columns, in + i * columns, (size_t)columns * sizeof *out);
    return out;
}

// [batch * heads, seq] as [chunks * batch * heads, chunk]
static double *chunked_lines(const Case *c, const double *in) {
    double *out = doubles(tokens_of(c) * c->heads);
    for (int64_t line = 0; line < c->batch * c->heads; line++)
        for (int64_t at = 0; at < c->chunks * c->chunk; at++)
            out[(at / c->chunk * c->batch * c->heads + line) * c->chunk + at % c->chunk] =
                in[line * c->chunks * c->chunk + at];
    return out;
}

typedef struct Setup {
    AttentionShape shape; // of the whole
    int64_t width, q_width, kv_width;
    Values qkv;         // in chunks
    double *whole;      // the same as the oracle reads it
    double *out, *lse;  // of the whole, in chunks
    int32_t *doc_start; // of the whole, and in chunks
    int32_t *chunked_start;
    Ops *ops;
} Setup;

static Setup setup_make(const Case *c, DType dtype) {
    Setup s = {.q_width = (int64_t)c->heads * c->head_dim, .kv_width = (int64_t)c->kv_heads * c->head_dim};
    s.width = s.q_width + 2 * s.kv_width;
    int64_t tokens = tokens_of(c), seq = (int64_t)c->chunk * c->chunks;
    s.shape = (AttentionShape){.batch = c->batch,
                               .seq = (int)seq,
                               .heads = c->heads,
                               .kv_heads = c->kv_heads,
                               .head_dim = c->head_dim,
                               .q_stride = s.width,
                               .k_stride = s.width,
                               .v_stride = s.width,
                               .o_stride = s.q_width,
                               .scale = (float)(1 / sqrt((double)c->head_dim))};
    Values whole = values_normal(dtype, tokens * s.width, 1.5, 0);
    s.whole = doubles(whole.count);
    memcpy(s.whole, whole.value, (size_t)whole.count * sizeof *s.whole);
    double *cut = chunked(c, s.whole, s.width);
    s.qkv = values_of(dtype, whole.count, cut);
    values_free(&whole);
    free(cut);
    if (c->documents) {
        int32_t *length = ids(tokens, 2 * c->documents);
        s.doc_start = xmalloc((size_t)tokens * sizeof(int32_t));
        s.chunked_start = xmalloc((size_t)tokens * sizeof(int32_t));
        for (int64_t i = 0, start = 0; i < tokens; i++) {
            if (i % seq == 0 || i % seq - start > length[start]) start = i % seq;
            s.doc_start[i] = s.chunked_start[chunked_row(c, i)] = (int32_t)start;
        }
        s.shape.doc_start = s.doc_start;
        free(length);
    }
    double *out = doubles(tokens * s.q_width), *lse = doubles(tokens * c->heads);
    oracle_attention(out, lse, s.whole, s.whole + s.q_width, s.whole + s.q_width + s.kv_width, &s.shape, 0);
    s.out = chunked(c, out, s.q_width), s.lse = chunked_lines(c, lse);
    free(out), free(lse);
    s.ops = oracle_ops(c->chunk, 8, c->heads, c->kv_heads, c->head_dim, 0);
    return s;
}

static void setup_free(Setup *s) {
    values_free(&s->qkv);
    free(s->whole), free(s->out), free(s->lse), free(s->doc_start), free(s->chunked_start);
    oracle_ops_free(s->ops);
}

static Attention pair_of(const Case *c, const Setup *s, int query, int key) {
    int64_t rows = (int64_t)c->batch * c->chunk;
    Attention how = {.seq = c->chunk,
                     .head_dim = c->head_dim,
                     .scale = s->shape.scale,
                     .full = key < query,
                     .first_key = key * c->chunk};
    if (s->chunked_start) how.doc_start = view_ints(s->chunked_start + query * rows, rows, 1);
    return how;
}

static Tensor part(const Case *c, Tensor tensor, int chunk) {
    return tensor_rows(tensor, chunk * (tensor.rows / c->chunks), tensor.rows / c->chunks);
}

// Results that were bf16 before they were added up: each of them is off by half a step of itself, and none is larger
// than `most`.
static void check_rounded(const char *what, Values *values, const double *want, double most) {
    values_read(values);
    for (int64_t i = 0; i < values->count; i++) {
        double error = fabs(values->value[i] - want[i]), bound = 0x1p-8 * fabs(want[i]) + 0x1p-8 * most;
        if (!(error <= bound))
            fail_msg("%s [%lld] is %g, expected %g within %g", what, (long long)i, values->value[i], want[i], bound);
    }
}

static double largest(const double *values, int64_t count) {
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs(values[i]));
    return most;
}

// The chunks of keys come in the order of a ring that starts anywhere.
static void merged_parts_are_attention_of_the_whole(void **state) {
    (void)state;
    for (int i = 0; i < 3 * CASES; i++) {
        DType dtype = storage_types[i % 3];
        const Case *c = &cases[i / 3];
        Setup s = setup_make(c, dtype);
        int64_t tokens = tokens_of(c), rows = tokens / c->chunks;
        Values sums = values_poison(DTYPE_F32, tokens * s.q_width), lses = values_poison(DTYPE_F32, tokens * c->heads);
        Tensor qkv = view(&s.qkv, tokens, s.width), sum = view(&sums, tokens, s.q_width);
        Tensor lse = view(&lses, (int64_t)c->chunks * c->batch * c->heads, c->chunk);
        for (int query = 0; query < c->chunks; query++)
            for (int k = 0; k <= query; k++) {
                int key = (query - k + (query + 1)) % (query + 1); // the own one first
                Attention how = pair_of(c, &s, query, key);
                Values out = values_poison(dtype, rows * s.q_width), found = values_poison(DTYPE_F32, rows * c->heads);
                Tensor here = view(&out, rows, s.q_width);
                Tensor here_lse = view(&found, (int64_t)c->batch * c->heads, c->chunk), keys = part(c, qkv, key);
                s.ops->attention_forward(s.ops, here, k ? here_lse : part(c, lse, query),
                                         tensor_cols(part(c, qkv, query), 0, s.q_width),
                                         tensor_cols(keys, s.q_width, s.kv_width),
                                         tensor_cols(keys, s.q_width + s.kv_width, s.kv_width), &how);
                if (k)
                    s.ops->attention_merge(s.ops, part(c, sum, query), part(c, lse, query), here, here_lse);
                else
                    s.ops->convert(s.ops, part(c, sum, query), here, false);
                values_free(&out, &found);
            }
        int64_t length = (int64_t)c->chunks * c->chunk + c->head_dim;
        values_check("merged lse", &lses, s.lse, length);
        if (dtype == DTYPE_F32)
            values_check("merged out", &sums, s.out, length);
        else
            check_rounded("merged out", &sums, s.out, largest(s.whole, tokens * s.width));
        values_free(&sums, &lses);
        setup_free(&s);
    }
}

static void parts_of_gradients_add_up_to_those_of_the_whole(void **state) {
    (void)state;
    for (int i = 0; i < 3 * CASES; i++) {
        DType dtype = storage_types[i % 3];
        const Case *c = &cases[i / 3];
        Setup s = setup_make(c, dtype);
        int64_t tokens = tokens_of(c), rows = tokens / c->chunks;
        Values out = values_of(dtype, tokens * s.q_width, s.out), lse = values_of(DTYPE_F32, tokens * c->heads, s.lse);
        Values dout = values_normal(dtype, tokens * s.q_width, 1, 0), sums = values_zero(DTYPE_F32, tokens * s.width);
        // The oracle takes the tokens in their order.
        double *dout_whole = doubles(dout.count), *out_whole = doubles(out.count), *want = doubles(sums.count);
        for (int64_t t = 0; t < tokens; t++) {
            size_t bytes = (size_t)s.q_width * sizeof(double);
            memcpy(dout_whole + t * s.q_width, dout.value + chunked_row(c, t) * s.q_width, bytes);
            memcpy(out_whole + t * s.q_width, out.value + chunked_row(c, t) * s.q_width, bytes);
        }
        oracle_attention_backward(want, want + s.q_width, want + s.q_width + s.kv_width, s.width, dout_whole, out_whole,
                                  s.whole, s.whole + s.q_width, s.whole + s.q_width + s.kv_width, &s.shape, false);
        double *want_chunked = chunked(c, want, s.width);
        Tensor qkv = view(&s.qkv, tokens, s.width), sum = view(&sums, tokens, s.width);
        Tensor lines = view(&lse, (int64_t)c->chunks * c->batch * c->heads, c->chunk);
        for (int query = 0; query < c->chunks; query++)
            for (int key = 0; key <= query; key++) {
                Attention how = pair_of(c, &s, query, key);
                Values grad = values_poison(dtype, rows * s.width);
                Tensor d = view(&grad, rows, s.width), dq = tensor_cols(d, 0, s.q_width);
                Tensor dkv = tensor_cols(d, s.q_width, 2 * s.kv_width), keys = part(c, qkv, key);
                s.ops->attention_backward(
                    s.ops, dq, tensor_cols(dkv, 0, s.kv_width), tensor_cols(dkv, s.kv_width, s.kv_width),
                    part(c, view(&dout, tokens, s.q_width), query), part(c, view(&out, tokens, s.q_width), query),
                    part(c, lines, query), tensor_cols(part(c, qkv, query), 0, s.q_width),
                    tensor_cols(keys, s.q_width, s.kv_width), tensor_cols(keys, s.q_width + s.kv_width, s.kv_width),
                    &how, NULL);
                s.ops->convert(s.ops, tensor_cols(part(c, sum, query), 0, s.q_width), dq, true);
                s.ops->convert(s.ops, tensor_cols(part(c, sum, key), s.q_width, 2 * s.kv_width), dkv, true);
                values_free(&grad);
            }
        if (dtype == DTYPE_F32)
            values_check("dqkv", &sums, want_chunked, 4 * ((int64_t)c->chunks * c->chunk + c->head_dim));
        else
            check_rounded("dqkv", &sums, want_chunked, c->chunks * largest(want, tokens * s.width));
        values_free(&out, &lse, &dout, &sums);
        free(dout_whole), free(out_whole), free(want), free(want_chunked);
        setup_free(&s);
    }
}

static void a_query_without_keys_finds_nothing(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        DType dtype = i ? DTYPE_BF16 : DTYPE_F32;
        int32_t starts[] = {7, 9, 12, 13}; // positions of keys: 8 to 11
        Ops *ops = oracle_ops(4, 8, 1, 1, 8, 0);
        Values q = values_normal(dtype, 32, 1, 0), k = values_normal(dtype, 32, 1, 0),
               v = values_normal(dtype, 32, 1, 0);
        Values out = values_poison(dtype, 32), lse = values_poison(DTYPE_F32, 4);
        Attention how = {
            .seq = 4, .head_dim = 8, .scale = 1, .doc_start = view_ints(starts, 4, 1), .full = true, .first_key = 8};
        ops->attention_forward(ops, view(&out, 4, 8), view(&lse, 1, 4), view(&q, 4, 8), view(&k, 4, 8), view(&v, 4, 8),
                               &how);
        values_read(&out), values_read(&lse);
        for (int row = 0; row < 4; row++) {
            assert_true(row < 2 ? isfinite(lse.value[row]) : lse.value[row] == -INFINITY);
            for (int x = 0; x < 8; x++)
                assert_true(row < 2 ? out.value[row * 8 + x] != 0 : out.value[row * 8 + x] == 0);
        }
        // Merged into what there is, it changes nothing; merged with something, it becomes that.
        Values sum = values_normal(DTYPE_F32, 32, 1, 0), before = values_copy(&sum);
        float found[] = {-INFINITY, 0.5f, 0.25f, -INFINITY};
        memset(sum.data, 0, 8 * sizeof(float));
        ops->attention_merge(ops, view(&sum, 4, 8), view_floats(found, 1, 4), view(&out, 4, 8), view(&lse, 1, 4));
        values_read(&sum);
        for (int x = 0; x < 8; x++) {
            assert_true(sum.value[x] == out.value[x]);
            assert_true(sum.value[16 + x] == before.value[16 + x]);
        }
        assert_true((double)found[0] == lse.value[0] && found[2] == 0.25f && found[3] == -INFINITY);
        values_free(&q, &k, &v, &out, &lse, &sum, &before);
        oracle_ops_free(ops);
    }
}

static void conversion_rounds_once_and_keeps_to_its_columns(void **state) {
    (void)state;
    enum { ROWS = 37, OUT = 29, IN = 31, COLS = 23 };
    for (int i = 0; i < 8; i++) {
        DType to = i & 1 ? DTYPE_BF16 : DTYPE_F32, from = i & 2 ? DTYPE_BF16 : DTYPE_F32;
        bool accumulate = i & 4;
        Ops *ops = oracle_ops(1, 8, 1, 1, 8, 0);
        Values out = values_normal(to, ROWS * OUT, 1, 0), in = values_normal(from, ROWS * IN, 1, 0);
        double *want = doubles(out.count);
        for (int64_t k = 0; k < out.count; k++) {
            int64_t row = k / OUT, col = k % OUT - 2;
            bool inside = col >= 0 && col < COLS;
            want[k] = inside ? (accumulate ? out.value[k] : 0) + in.value[row * IN + 5 + col] : out.value[k];
        }
        Values rounded = values_of(to, out.count, want);
        ops->convert(ops, tensor_cols(view(&out, ROWS, OUT), 2, COLS), tensor_cols(view(&in, ROWS, IN), 5, COLS),
                     accumulate);
        assert_memory_equal(out.data, rounded.data, (size_t)out.count * dtype_size(to));
        values_free(&out, &in, &rounded);
        free(want);
        oracle_ops_free(ops);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merged_parts_are_attention_of_the_whole),
        cmocka_unit_test(parts_of_gradients_add_up_to_those_of_the_whole),
        cmocka_unit_test(a_query_without_keys_finds_nothing),
        cmocka_unit_test(conversion_rounds_once_and_keeps_to_its_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
