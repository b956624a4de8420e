// The cases of ops_compare for all ops but those of MoE: shapes swept, odd ones included.
#include "base/text.h"
#include "ops_compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- elements ------------------------------------------------------------------------------------------------------

void sweep_zero(Compare *run) {
    EACH_DTYPE(dtype) EACH(rows, 1, 7) EACH(dim, 1, 4097) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim}};
        add_out(run, &c, dtype, (int64_t)rows * dim, 0);
        check(run, &c, call_zero, "rows %d dim %d", rows, dim);
    }
}

void sweep_add(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(n, 1, 257, 100003) {
        Case c = {.sizes = {.dtype = dtype, .count = n}};
        add_inout(run, &c, dtype, n, 1);
        add_in(run, &c, dtype, n);
        check(run, &c, call_add, "%s n %d", dtype_name(dtype), n);
    }
}

void sweep_convert(Compare *run) {
    EACH_DTYPE(dtype)
    EACH_DTYPE(second) EACH_SIZE(rows, 1, 13) EACH(dim, 5, 64, 4100) EACH(wider, 0, 3, 8) EACH(added, 0, 1) {
        Case c = {.sizes = {.dtype = dtype,
                            .second = second,
                            .rows = rows,
                            .dim = dim,
                            .out_dim = dim + 2 * wider,
                            .in_dim = dim + 3 * wider,
                            .first = wider,
                            .flag = added}};
        add_inout(run, &c, dtype, (int64_t)rows * c.sizes.out_dim, 1);
        add_in(run, &c, second, (int64_t)rows * c.sizes.in_dim);
        check(run, &c, call_convert, "%s from %s rows %d dim %d of %d added %d", dtype_name(dtype), dtype_name(second),
              rows, dim, c.sizes.out_dim, added);
    }
}

void sweep_sum_f32(Compare *run) {
    EACH(n, 1, 5, 4097, 1000003) EACH(accumulate, 0, 1) {
        Case c = {.sizes = {.count = n, .flag = accumulate}};
        add(run, &c, accumulate ? ROLE_INOUT : ROLE_OUT, DTYPE_F32, 1, n,
            1e-4); // a sum near 0: its terms set the scale
        float *in = add_in(run, &c, DTYPE_F32, n);
        for (int i = 0; i < n; i++)
            in[i] += 0.5f;
        check(run, &c, call_sum_f32, "n %d accumulate %d", n, accumulate);
    }
}

void sweep_norm_f32(Compare *run) {
    EACH(n, 1, 5, 4097, 1000003, 5000000) {
        Case c = {.sizes = {.count = n}};
        add_out(run, &c, DTYPE_F32, 1, 64);
        add_in(run, &c, DTYPE_F32, n);
        check(run, &c, call_norm_f32, "n %d", n);
    }
}

// ---- linear --------------------------------------------------------------------------------------------------------

// 1100 rows in bf16: kernels race, and each is checked against the library's product there.
static void sweep_linear(Compare *run, OpCall *call, bool accumulate) {
    EACH_DTYPE(dtype)
    EACH_SIZE(rows, 1, 1100, 65, 200) EACH_SIZE(in_dim, 8, 56, 96, 257) EACH_SIZE(out_dim, 16, 64, 136) {
        if (rows == 1100 && (dtype == DTYPE_F32 || in_dim == 8 || out_dim == 16)) continue;
        // 200 rows: the second of two matrices side by side, however it is aligned.
        int64_t stride = rows == 200 || (rows == 1100 && in_dim == 96) ? 2 * in_dim : in_dim;
        Case c = {.sizes = {.dtype = dtype,
                            .rows = rows,
                            .in_dim = in_dim,
                            .out_dim = out_dim,
                            .in_stride = stride,
                            .in_first = rows == 200 ? in_dim : 0,
                            .flag = accumulate}};
        int64_t in = (int64_t)rows * (call == call_linear_backward_input ? in_dim : stride),
                out = (int64_t)rows * out_dim, weight = (int64_t)in_dim * out_dim;
        if (call == call_linear_forward) {
            add_out(run, &c, dtype, out, in_dim);
            add_in(run, &c, dtype, in);
            add_in(run, &c, dtype, weight);
            if (rows == 65 || (rows == 1100 && out_dim == 64))
                add_in(run, &c, dtype, out);
            else
                add_null(run, &c);
        } else if (call == call_linear_backward_input) {
            add_out(run, &c, dtype, in, out_dim);
            add_in(run, &c, dtype, out);
            add_in(run, &c, dtype, weight);
        } else {
            add(run, &c, accumulate ? ROLE_INOUT : ROLE_OUT, DTYPE_F32, weight, rows, 0);
            add_in(run, &c, dtype, out);
            add_in(run, &c, dtype, in);
        }
        check(run, &c, call, "%s rows %d in %d out %d add %d", dtype_name(dtype), rows, in_dim, out_dim, accumulate);
    }
}
void sweep_linear_forward(Compare *run) {
    sweep_linear(run, call_linear_forward, false);
}
void sweep_linear_backward_input(Compare *run) {
    sweep_linear(run, call_linear_backward_input, false);
}
void sweep_linear_backward_weight(Compare *run) {
    sweep_linear(run, call_linear_backward_weight, false);
    sweep_linear(run, call_linear_backward_weight, true);
}

// ---- embedding -----------------------------------------------------------------------------------------------------

// Half of the ids are one frequent id (all of them when `same`), the rest random: below first + vocab + first, so that
// where a part of the vocabulary begins at first, as many lie on either side of it. The frequent id is within it.
static void fill_ids(Compare *run, int32_t *ids, int count, int first, int vocab, bool same) {
    uint64_t state = run->seed++, bound = (uint64_t)vocab + 2 * (uint64_t)first;
    for (int i = 0; i < count; i++) {
        uint64_t bits = random_next(&state);
        ids[i] = same || bits % 2 ? first + vocab / 3 : (int32_t)((bits >> 8) % bound);
    }
    if (first && count > 1) ids[count - 1] = -1;
}

void sweep_embedding_forward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 65, 300) EACH(dim, 8, 57, 96, 1024) EACH(first, 0, 350) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim, .vocab = 700, .first = first}};
        add_out(run, &c, dtype, (int64_t)rows * dim, 0);
        fill_ids(run, add_in(run, &c, DTYPE_I32, rows), rows, first, 700, false);
        add_in(run, &c, dtype, (int64_t)700 * dim);
        check(run, &c, call_embedding_forward, "%s rows %d dim %d first %d", dtype_name(dtype), rows, dim, first);
    }
}

void sweep_embedding_backward(Compare *run) {
    EACH_DTYPE(dtype)
    EACH_SIZE(rows, 1, 3000, 65, 129)
    EACH(dim, 8, 57, 96) EACH_SIZE(vocab, 3, 700, 512, 70000) EACH(same, 0, 1) EACH(part, 0, 1) {
        int first = part ? vocab / 2 + 1 : 0;
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim, .vocab = vocab, .first = first}};
        // The frequent id's row sums up to `rows` terms and is sqrt(rows) larger than the rms of the output: hence
        // squared.
        add_inout(run, &c, DTYPE_F32, (int64_t)vocab * dim, (double)rows * rows);
        add_in(run, &c, dtype, (int64_t)rows * dim);
        fill_ids(run, add_in(run, &c, DTYPE_I32, rows), rows, first, vocab, same);
        check(run, &c, call_embedding_backward, "%s rows %d dim %d vocab %d first %d same %d", dtype_name(dtype), rows,
              dim, vocab, first, same);
    }
}

// ---- norms and rotary ----------------------------------------------------------------------------------------------

void sweep_add_rmsnorm_forward(Compare *run) {
    EACH_DTYPE(dtype)
    EACH_SIZE(rows, 1, 65, 129) EACH(dim, 8, 56, 64, 96, 257, 896, 960, 2048, 4096, 8192) EACH(branch, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim}};
        int64_t n = (int64_t)rows * dim;
        add_out(run, &c, dtype, n, dim);
        if (branch)
            add_out(run, &c, dtype, n, 1);
        else
            add_null(run, &c);
        add_out(run, &c, DTYPE_F32, rows, dim);
        add_in(run, &c, dtype, n);
        if (branch)
            add_in(run, &c, dtype, n);
        else
            add_null(run, &c);
        add_in(run, &c, dtype, dim);
        check(run, &c, call_add_rmsnorm_forward, "%s rows %d dim %d branch %d", dtype_name(dtype), rows, dim, branch);
    }
}

// Makes normed rows the result of the weights that it chooses: around 1, as they are trained, and one that is zero.
static void through_norm(void *normed, void *weights, DType dtype, int64_t rows, int dim) {
    for (int64_t i = 0; i < rows * dim; i++) {
        int column = (int)(i % dim);
        float weight = column == 5 ? 0 : 0.5f + (float)(column * 7 % 16) / 16, factor = weight ? weight : OPS_NONZERO;
        value_set(weights, dtype, column, weight);
        value_set(normed, dtype, i, value_at(normed, dtype, i) * factor);
    }
}

void sweep_add_rmsnorm_backward(Compare *run) {
    // The last widths, each with so many rows that a group of threads meets at least three of them.
    EACH_DTYPE(dtype)
    EACH_SIZE(rows, 1, 65, 900, 4300, 2200, 1100, 300)
    EACH(dim, 8, 56, 96, 257, 960, 2048, 4096, 8192, 1032, 2056, 4104) EACH(first, 0, 1) {
        int many = dim == 56 ? 4300 : dim == 1032 ? 2200 : dim == 2056 ? 1100 : dim == 4104 ? 300 : 900;
        if (rows > 65 && rows != many) continue;
        if (rows == 900 && dim > 2048) continue; // the CPU side would take most of the time
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim, .flag = first}};
        int64_t n = (int64_t)rows * dim;
        if (first)
            add_out(run, &c, dtype, n, dim);
        else
            add_inout(run, &c, dtype, n, dim);
        add_inout(run, &c, DTYPE_F32, dim, rows);
        add_in(run, &c, dtype, n);
        void *out = add_in(run, &c, dtype, n);
        positive(add_in(run, &c, DTYPE_F32, rows), rows);
        through_norm(out, add_in(run, &c, dtype, dim), dtype, rows, dim);
        check(run, &c, call_add_rmsnorm_backward, "%s rows %d dim %d first %d", dtype_name(dtype), rows, dim, first);
    }
}

static void add_rope_tables(Compare *run, Case *c) {
    const CallSizes *s = &c->sizes;
    int half = s->head_dim / 2, positions = s->first + s->seq;
    float *cosine = add_in(run, c, DTYPE_F32, (int64_t)positions * half);
    float *sine = add_in(run, c, DTYPE_F32, (int64_t)positions * half);
    for (int i = 0; i < positions * half; i++) {
        double angle = (double)(i / half) * pow(10000.0, -(double)(i % half) / half);
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
}

static void add_rope_shape(Compare *run, Case *c, bool norm) {
    const CallSizes *s = &c->sizes;
    add_rope_tables(run, c);
    for (int i = 0; i < 2; i++) {
        if (norm)
            add_in(run, c, s->dtype, s->head_dim);
        else
            add_null(run, c);
    }
}

// The reciprocal deviations that the forward pass leaves of its input. Others would not do: the backward pass subtracts
// the input's direction from the gradient, and with a wrong deviation the difference can be any number of times larger
// than the gradient, its error with it.
static void head_deviations_fill(float *rstd, const void *in, const CallSizes *s) {
    int64_t turned = s->heads + s->kv_heads, stride = (turned + s->kv_heads) * s->head_dim;
    for (int64_t i = 0; i < s->rows * turned; i++) {
        double squares = 0;
        for (int64_t at = i / turned * stride + i % turned * s->head_dim, end = at + s->head_dim; at < end; at++)
            squares += pow((double)value_at(in, s->dtype, at), 2);
        rstd[i] = (float)(1 / sqrt(squares / s->head_dim + (double)CALL_ROPE_EPS));
    }
}

static void sweep_qk_rope(Compare *run, bool backward) {
    EACH_DTYPE(dtype)
    EACH(hd, 8, 16, 56, 64, 80, 96, 128) EACH(heads, 1, 9) EACH(norm, 0, 1) EACH_SIZE(rows, 1, 65, 390) {
        Case c = {.sizes = {.dtype = dtype,
                            .rows = rows,
                            .seq = rows < 130 ? rows : 130,
                            .first = rows == 65 ? 7 : 0,
                            .heads = heads,
                            .kv_heads = heads == 9 ? 3 : 1,
                            .head_dim = hd}};
        int all = heads + c.sizes.kv_heads;
        int64_t n = (int64_t)rows * (all + c.sizes.kv_heads) * hd;
        if (backward) {
            add_inout(run, &c, dtype, n, hd);
            for (int i = 0; i < 2; i++) {
                if (norm)
                    add_inout(run, &c, DTYPE_F32, hd, (double)rows * heads);
                else
                    add_null(run, &c);
            }
            void *in = add_in(run, &c, dtype, n);
            if (norm)
                head_deviations_fill(add_in(run, &c, DTYPE_F32, (int64_t)rows * all), in, &c.sizes);
            else
                add_null(run, &c);
        } else {
            add_out(run, &c, dtype, n, hd);
            if (norm)
                add_out(run, &c, DTYPE_F32, (int64_t)rows * all, hd);
            else
                add_null(run, &c);
            add_in(run, &c, dtype, n);
        }
        add_rope_shape(run, &c, norm);
        check(run, &c, backward ? call_qk_rope_backward : call_qk_rope_forward, "%s rows %d heads %d+%d hd %d norm %d",
              dtype_name(dtype), rows, heads, c.sizes.kv_heads, hd, norm);
    }
}
void sweep_qk_rope_forward(Compare *run) {
    sweep_qk_rope(run, false);
}
void sweep_qk_rope_backward(Compare *run) {
    sweep_qk_rope(run, true);
}

// 1100 rows in bf16 with aligned dims and heads of 64 or 128: the kernels for one op race, and each is checked against
// the two separate ones there. The CPU rounds the product (2^-9 of it) before it rotates, one kernel does not; of the
// two values that make a result each is at most some four times the rms: 2 * 4 * 2^-9.
void sweep_linear_rope_forward(Compare *run) {
    EACH_DTYPE(dtype)
    EACH(hd, 16, 64, 128) EACH_SIZE(rows, 1, 1100, 65) EACH(in_dim, 8, 57, 136) EACH(heads, 1, 6) {
        Case c = {.sizes = {.dtype = dtype,
                            .rows = rows,
                            .in_dim = in_dim,
                            .seq = rows < 130 ? rows : 130,
                            .first = rows == 65 ? 7 : 0,
                            .heads = heads,
                            .kv_heads = heads == 6 ? 3 : 1,
                            .head_dim = hd}};
        int64_t width = (int64_t)(heads + 2 * c.sizes.kv_heads) * hd;
        add(run, &c, ROLE_OUT, dtype, rows * width, in_dim, rounding_inside(dtype));
        add_in(run, &c, dtype, (int64_t)rows * in_dim);
        add_in(run, &c, dtype, width * in_dim);
        add_rope_tables(run, &c);
        check(run, &c, call_linear_rope_forward, "%s rows %d in %d heads %d+%d hd %d", dtype_name(dtype), rows, in_dim,
              heads, c.sizes.kv_heads, hd);
    }
}

// ---- attention -----------------------------------------------------------------------------------------------------

enum { CHUNK_BEFORE = 11 };

static void add_documents(Compare *run, Case *c, bool packed) {
    const CallSizes *s = &c->sizes;
    if (!packed) {
        add_null(run, c);
        return;
    }
    int32_t *start = add_in(run, c, DTYPE_I32, (int64_t)s->batch * s->seq);
    uint64_t state = run->seed++;
    for (int b = 0; b < s->batch; b++)
        for (int i = 0, first = -CHUNK_BEFORE; i < s->seq; i++) {
            if (random_next(&state) % 23 == 0) first = i;
            // Chunks: documents begin before the keys too, and where queries come after them all, also behind them.
            int at = s->full ? 3 * first : first;
            start[b * s->seq + i] = s->first_key ? s->first_key + at : first < 0 ? 0 : first;
        }
}

// Parts of a longer sequence: lse and out of the backward pass are those of all parts. Here another one has as much.
static void other_part(float *lse, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        lse[i] = lse[i] == -INFINITY ? 0 : lse[i] + logf(2);
}

static void sweep_chunks(Compare *run, bool backward) {
    EACH_DTYPE(dtype)
    EACH(hd, 8, 56, 64, 128) EACH(seq, 1, 65, 129, 256) EACH_SIZE(heads, 2, 9) EACH(packed, 0, 1) EACH(full, 0, 1) {
        if (!full && !packed) continue; // nothing says that it is a chunk
        if (seq == 256 && (dtype == DTYPE_F32 || hd < 56)) continue;
        Case c = {.sizes = {.dtype = dtype,
                            .batch = 2,
                            .seq = seq,
                            .heads = heads,
                            .kv_heads = heads == 9 ? 1 : 2,
                            .head_dim = hd,
                            .full = full,
                            .first_key = 2 * CHUNK_BEFORE * 3}};
        int64_t tokens = 2 * seq, n = tokens * heads * hd, all = tokens * (heads + 2 * c.sizes.kv_heads) * hd;
        double rounding = rounding_inside(dtype);
        int queries = heads / c.sizes.kv_heads;
        if (backward) {
            double early = sqrt(seq > 32 ? seq / 32.0 : 1);
            add(run, &c, ROLE_OUT, dtype, all, seq * queries, 2 * rounding * sqrt(queries) * early);
            add_in(run, &c, dtype, n);
            void *out = add_in(run, &c, dtype, n), *lse = add_in(run, &c, DTYPE_F32, tokens * heads);
            void *qkv = add_in(run, &c, dtype, all);
            add_documents(run, &c, packed);
            add_null(run, &c);
            add_null(run, &c);
            call_attention_forward(run->cpu, (void *[]){out, lse, qkv, c.buffers[5].start}, &c.sizes);
            other_part(lse, tokens * heads);
        } else {
            double rare = full && packed ? sqrt(3) : 1; // a third of the queries see keys: the rms is of all
            add(run, &c, ROLE_OUT, dtype, n, seq, rounding * rare);
            add(run, &c, ROLE_OUT, DTYPE_F32, tokens * heads, hd, 0x1p-18);
            add_in(run, &c, dtype, all);
            add_documents(run, &c, packed);
        }
        check(run, &c, backward ? call_attention_backward : call_attention_forward,
              "%s seq %d heads %d+%d hd %d packed %d chunk, full %d", dtype_name(dtype), seq, heads, c.sizes.kv_heads,
              hd, packed, full);
    }
}

void sweep_attention_merge(Compare *run) {
    EACH_DTYPE(dtype) EACH(hd, 8, 56, 64, 128) EACH_SIZE(seq, 1, 65) EACH_SIZE(heads, 2, 9) {
        Case c = {.sizes = {.dtype = dtype, .batch = 2, .seq = seq, .heads = heads, .kv_heads = 1, .head_dim = hd}};
        int64_t lines = (int64_t)2 * seq * heads;
        add_inout(run, &c, DTYPE_F32, lines * hd, 8);
        float *lse = add_inout(run, &c, DTYPE_F32, lines, 8);
        add_in(run, &c, dtype, lines * hd);
        float *part = add_in(run, &c, DTYPE_F32, lines);
        for (int64_t i = 0; i < lines; i++) { // some have found nothing yet, some find nothing here
            lse[i] = i % 7 == 3 ? -INFINITY : 20 * lse[i];
            part[i] = i % 5 == 2 ? -INFINITY : 20 * part[i];
        }
        check(run, &c, call_attention_merge, "%s seq %d heads %d hd %d", dtype_name(dtype), seq, heads, hd);
    }
}

static void sweep_attention(Compare *run, bool backward) {
    EACH_DTYPE(dtype)
    EACH(hd, 8, 16, 56, 64, 80, 96, 128)
    EACH_SIZE(seq, 1, 129, 65, 385) EACH_SIZE(heads, 2, 9) EACH(packed, 0, 1) EACH(rope, 0, 1) {
        if ((packed && seq == 1) || (rope && !backward) || (seq == 385 && (hd < 56 || dtype == DTYPE_F32))) continue;
        Case c = {.sizes = {.dtype = dtype,
                            .batch = 2,
                            .seq = seq,
                            .first = 3,
                            .heads = heads,
                            .kv_heads = heads == 9 ? 1 : 2,
                            .head_dim = hd}};
        int64_t tokens = 2 * seq, n = tokens * heads * hd, all = tokens * (heads + 2 * c.sizes.kv_heads) * hd;
        double rounding = rounding_inside(dtype); // of probabilities and their gradients
        int queries = heads / c.sizes.kv_heads;   // that add up in one key's gradient
        if (backward) {
            // The first queries have few keys: their gradients stay as large while the rms falls with the length.
            double early = sqrt(seq > 32 ? seq / 32.0 : 1);
            add(run, &c, ROLE_OUT, dtype, all, seq * queries, 2 * rounding * sqrt(queries) * early);
            add_in(run, &c, dtype, n);
            void *out = add_in(run, &c, dtype, n), *lse = add_in(run, &c, DTYPE_F32, tokens * heads);
            void *qkv = add_in(run, &c, dtype, all);
            add_documents(run, &c, packed);
            if (rope) {
                add_rope_tables(run, &c);
            } else {
                add_null(run, &c);
                add_null(run, &c);
            }
            call_attention_forward(run->cpu, (void *[]){out, lse, qkv, c.buffers[5].start}, &c.sizes);
        } else {
            add(run, &c, ROLE_OUT, dtype, n, seq, rounding);
            add(run, &c, ROLE_OUT, DTYPE_F32, tokens * heads, hd, 0x1p-18);
            add_in(run, &c, dtype, all);
            add_documents(run, &c, packed);
        }
        check(run, &c, backward ? call_attention_backward : call_attention_forward,
              "%s seq %d heads %d+%d hd %d packed %d rope %d", dtype_name(dtype), seq, heads, c.sizes.kv_heads, hd,
              packed, rope);
    }
}
void sweep_attention_forward(Compare *run) {
    sweep_attention(run, false);
    sweep_chunks(run, false);
}
void sweep_attention_backward(Compare *run) {
    sweep_attention(run, true);
    sweep_chunks(run, true);
}

void sweep_attention_cached(Compare *run) {
    EACH_DTYPE(dtype) EACH(hd, 8, 56, 64, 96, 128) EACH(n, 1, 7) EACH_SIZE(first, 0, 200, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = n, .first = first, .heads = 9, .kv_heads = 3, .head_dim = hd}};
        add(run, &c, ROLE_OUT, dtype, (int64_t)n * 9 * hd, first + n, 0x1p-18);
        add_in(run, &c, dtype, (int64_t)n * 9 * hd);
        add_in(run, &c, dtype, (int64_t)(first + n) * 3 * hd);
        add_in(run, &c, dtype, (int64_t)(first + n) * 3 * hd);
        check(run, &c, call_attention_cached, "%s n %d first %d hd %d", dtype_name(dtype), n, first, hd);
    }
}

// ---- SwiGLU and cross entropy --------------------------------------------------------------------------------------

void sweep_swiglu_forward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 65, 129) EACH(dim, 8, 57, 96, 704) EACH(weighted, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim}};
        add(run, &c, ROLE_OUT, dtype, (int64_t)rows * dim, 1, 0x1p-20);
        add_in(run, &c, dtype, (int64_t)rows * dim * 2);
        if (weighted) {
            add_in(run, &c, DTYPE_F32, rows);
            *(int32_t *)add_in(run, &c, DTYPE_I32, 1) = rows * 2 / 3;
        } else {
            add_null(run, &c);
            add_null(run, &c);
        }
        check(run, &c, call_swiglu_forward, "%s rows %d dim %d weighted %d", dtype_name(dtype), rows, dim, weighted);
    }
}

void sweep_swiglu_backward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 65, 129) EACH(dim, 8, 57, 96, 704) EACH(counted, 0, 1) EACH(in_place, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim, .flag = in_place}};
        int64_t n = (int64_t)rows * dim;
        Role role = in_place ? ROLE_INOUT : ROLE_OUT;
        add(run, &c, role, dtype, 2 * n, 1, 0x1p-20);
        add(run, &c, role, dtype, n, 1, 0x1p-20);
        add(run, &c, ROLE_OUT, DTYPE_F32, rows, dim, 0x1p-20);
        if (in_place) {
            add_null(run, &c);
            add_null(run, &c);
        } else {
            add_in(run, &c, dtype, 2 * n);
            add_in(run, &c, dtype, n);
        }
        add_in(run, &c, DTYPE_F32, rows);
        if (counted)
            *(int32_t *)add_in(run, &c, DTYPE_I32, 1) = rows * 2 / 3;
        else
            add_null(run, &c);
        check(run, &c, call_swiglu_backward, "%s rows %d dim %d counted %d in place %d", dtype_name(dtype), rows, dim,
              counted, in_place);
    }
}

// Gates at zero, near it and so far left that their sigmoid is zero too.
static void gates_plant(void *gate_up, int64_t rows, int dim, DType dtype) {
    static const float special[] = {0, -1e-25f, 1e-30f, -60, -100};
    for (int64_t i = 0; i < rows * dim; i += 7)
        value_set(gate_up, dtype, i / dim * 2 * dim + i % dim, special[i % 5]);
}

void sweep_swiglu_packed_forward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 65, 129) EACH(dim, 8, 57, 96, 704) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim}};
        gates_plant(add(run, &c, ROLE_INOUT, dtype, (int64_t)rows * dim * 2, 1, 0), rows, dim, dtype);
        halves(&c, dim, 0x1p-20);
        check(run, &c, call_swiglu_packed_forward, "%s rows %d dim %d", dtype_name(dtype), rows, dim);
    }
}

// Gate and hidden as a forward pass leaves them, on the host, where the CPU's table works too.
static void packed_make(Compare *run, void *gate_up, int64_t rows, int dim, DType dtype) {
    gates_plant(gate_up, rows, dim, dtype);
    CallSizes sizes = {.dtype = dtype, .rows = rows, .dim = dim};
    call_swiglu_packed_forward(run->cpu, &gate_up, &sizes);
}

void sweep_swiglu_packed_backward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 65, 129) EACH(dim, 8, 57, 96, 704) EACH(in_place, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim, .flag = in_place}};
        int64_t n = (int64_t)rows * dim;
        void *packed = add(run, &c, in_place ? ROLE_INOUT : ROLE_OUT, dtype, 2 * n, 1, 0x1p-20);
        halves(&c, dim, 0x1p-20);
        if (in_place)
            add_null(run, &c);
        else
            packed = add_in(run, &c, dtype, 2 * n);
        packed_make(run, packed, rows, dim, dtype);
        add_in(run, &c, dtype, n);
        check(run, &c, call_swiglu_packed_backward, "%s rows %d dim %d in place %d", dtype_name(dtype), rows, dim,
              in_place);
    }
}

// 1100 rows with aligned dims: the kernels for one op race, and each is checked against the two separate ones there. A
// bf16 gate may fall on the other side of a rounding (2^-8 of it) and up is rounded or not (2^-9), and |gate * up|
// reaches some twice its rms: 2 * 2 * 2^-8. Backward the CPU rounds the gradient of hidden (2^-9) before it is used,
// one kernel does not.
void sweep_linear_swiglu_forward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 1100, 65) EACH(in_dim, 8, 57, 136) EACH_SIZE(dim, 57, 224, 8, 96) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .in_dim = in_dim, .dim = dim}};
        int64_t n = (int64_t)rows * dim;
        add_out(run, &c, dtype, 2 * n, in_dim);
        halves(&c, dim, rounding_inside(dtype));
        // One rounds gate and up before it multiplies, half a step each, where the other may not.
        c.buffers[c.count - 1].steps_second = dtype != DTYPE_F32;
        add_in(run, &c, dtype, (int64_t)rows * in_dim);
        add_in(run, &c, dtype, (int64_t)2 * dim * in_dim);
        check(run, &c, call_linear_swiglu_forward, "%s rows %d in %d dim %d", dtype_name(dtype), rows, in_dim, dim);
    }
}

void sweep_linear_swiglu_backward(Compare *run) {
    EACH_DTYPE(dtype)
    EACH_SIZE(rows, 1, 1100, 65) EACH(next, 8, 57, 136) EACH_SIZE(dim, 57, 104, 8, 200) EACH(in_place, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .out_dim = next, .dim = dim, .flag = in_place}};
        int64_t n = (int64_t)rows * dim;
        double inner = rounding_inside(dtype);
        void *packed = add(run, &c, in_place ? ROLE_INOUT : ROLE_OUT, dtype, 2 * n, next, inner);
        halves(&c, dim, inner);
        add(run, &c, ROLE_SCRATCH, dtype, n, 0, 0);
        if (in_place)
            add_null(run, &c);
        else
            packed = add_in(run, &c, dtype, 2 * n);
        packed_make(run, packed, rows, dim, dtype);
        add_in(run, &c, dtype, (int64_t)rows * next);
        add_in(run, &c, dtype, (int64_t)next * dim);
        check(run, &c, call_linear_swiglu_backward, "%s rows %d next %d dim %d in place %d", dtype_name(dtype), rows,
              next, dim, in_place);
    }
}

void sweep_cross_entropy(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 9) EACH(vocab, 8, 257, 1000, 49152, 128256, 128264, 200064) EACH(train, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .vocab = vocab}};
        add(run, &c, ROLE_OUT, DTYPE_F32, rows, vocab, 0x1p-20);
        random_fill(add(run, &c, train ? ROLE_INOUT : ROLE_IN, dtype, (int64_t)rows * vocab, vocab, 0x1p-20), dtype,
                    (int64_t)rows * vocab, 3.0f, run->seed++);
        int32_t *targets = add_in(run, &c, DTYPE_I32, rows);
        for (int i = 0; i < rows; i++)
            targets[i] = i % 4 == 3 ? -1 : (int32_t)((int64_t)(i + 1) * 7919 % vocab);
        if (train)
            *(float *)add_in(run, &c, DTYPE_F32, 1) = 0.125f;
        else
            add_null(run, &c);
        check(run, &c, call_cross_entropy, "%s rows %d vocab %d train %d", dtype_name(dtype), rows, vocab, train);
    }
}

// The targets of a vocabulary, some ignored; every second one in the columns from `first` on, where there are any.
static void fill_targets(int32_t *targets, const CallSizes *s) {
    int real = s->vocab - s->first < s->dim ? s->vocab - s->first : s->dim;
    for (int i = 0; i < s->rows; i++) {
        int64_t draw = (int64_t)(i + 1) * 7919;
        targets[i] = i % 4 == 3 ? -1 : (int32_t)(i % 2 == 0 && real > 0 ? s->first + draw % real : draw % s->vocab);
    }
    if (real > 0) targets[0] = s->first + real - 1; // the last column before any padding
}

// The last of `ranks`, whose last columns are padding: none, some (not a whole vector), or all of them.
static CallSizes split_sizes(DType dtype, int rows, int cols, int ranks, int padding) {
    int missing = padding == 0 ? 0 : padding == 1 ? (cols > 13 ? 13 : 3) : cols;
    return (CallSizes){.dtype = dtype,
                       .rows = rows,
                       .dim = cols,
                       .ranks = ranks,
                       .first = (ranks - 1) * cols,
                       .vocab = ranks * cols - missing};
}

#define EACH_SPLIT    \
    EACH_DTYPE(dtype) \
    EACH_SIZE(rows, 1, 9) EACH(cols, 8, 257, 1000, 24576, 64136) EACH(ranks, 1, 3) EACH(padding, 0, 1, 2)

void sweep_cross_entropy_stats(Compare *run) {
    EACH_SPLIT {
        if (ranks == 1 && padding == 2) continue; // no vocabulary at all
        Case c = {.sizes = split_sizes(dtype, rows, cols, ranks, padding)};
        // Maximum and target are read (the former goes through base 2); sums add up e^x, which is good to some ulp.
        add_out(run, &c, DTYPE_F32, (int64_t)rows * SPLIT_STATS, 1);
        halves(&c, 1, 8 * 0x1p-24 * sqrt(cols));
        random_fill(add_in(run, &c, dtype, (int64_t)rows * cols), dtype, (int64_t)rows * cols, 3.0f, run->seed++);
        fill_targets(add_in(run, &c, DTYPE_I32, rows), &c.sizes);
        check(run, &c, call_cross_entropy_stats, "%s rows %d cols %d ranks %d padding %d", dtype_name(dtype), rows,
              cols, ranks, padding);
    }
}

void sweep_cross_entropy_apply(Compare *run) {
    EACH_SPLIT EACH(train, 0, 1) {
        if (ranks == 1 && padding == 2) continue;
        Case c = {.sizes = split_sizes(dtype, rows, cols, ranks, padding)};
        int64_t count = (int64_t)rows * cols;
        add(run, &c, ROLE_OUT, DTYPE_F32, rows, 1, 0x1p-20);
        // A log-sum-exp of up to 32 (in base 2) rounds by 2^-20, and so do the probabilities, relatively; the largest
        // ones are sqrt(cols) times the rms at most.
        void *logits = add(run, &c, train ? ROLE_INOUT : ROLE_IN, dtype, count, cols, 0x1p-18);
        int32_t *targets = add_in(run, &c, DTYPE_I32, rows);
        fill_targets(targets, &c.sizes);
        float *stats = add_in(run, &c, DTYPE_F32, (int64_t)ranks * rows * SPLIT_STATS);
        void *of_rank = xmalloc((size_t)count * dtype_size(dtype));
        for (int rank = 0; rank < ranks; rank++) {
            CallSizes sizes = c.sizes;
            sizes.first = rank * cols;
            void *from = rank == ranks - 1 ? logits : of_rank;
            random_fill(from, dtype, count, 3.0f, run->seed++);
            void *p[] = {stats + (int64_t)rank * rows * SPLIT_STATS, from, targets};
            call_cross_entropy_stats(run->cpu, p, &sizes);
        }
        free(of_rank);
        if (train)
            *(float *)add_in(run, &c, DTYPE_F32, 1) = 0.125f;
        else
            add_null(run, &c);
        check(run, &c, call_cross_entropy_apply, "%s rows %d cols %d ranks %d padding %d train %d", dtype_name(dtype),
              rows, cols, ranks, padding, train);
    }
}

// ---- optimizer -----------------------------------------------------------------------------------------------------

void sweep_guard(Compare *run) {
    const float values[] = {1.0f, 5.0f, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++)
            EACH(refuse, -1, 0, 700) { // -1: absent
                Case c = {.sizes.value = 2.0f};
                add_out(run, &c, DTYPE_I32, 1, 0);
                *(float *)add_in(run, &c, DTYPE_F32, 1) = values[i];
                *(float *)add_in(run, &c, DTYPE_F32, 1) = values[j];
                if (refuse < 0)
                    add_null(run, &c);
                else
                    *(int32_t *)add_in(run, &c, DTYPE_I32, 1) = refuse;
                check(run, &c, call_guard, "loss %g norm %g refuse %d", (double)values[i], (double)values[j], refuse);
            }
}

void sweep_adamw(Compare *run) {
    EACH(kind, 0, 1, 2, 3) // float, bf16 + master, bf16 alone, f16 + master with a loss scale
    EACH(n, 1, 8, 1003, 40000) EACH_SIZE(skip, 1, 0) EACH(clip, 0, 1) {
        DType dtype = kind == 3 ? DTYPE_F16 : kind ? DTYPE_BF16 : DTYPE_F32;
        Case c = {.sizes = {.dtype = dtype, .count = n}, .master = kind == 1};
        c.sizes.adamw = (AdamwArgs){.lr = 1e-2f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .bias1 = 0.19f,
                                    .bias2 = 0.0975f,
                                    .max_norm = clip ? 1.0f : 0.0f,
                                    .unscale = kind == 3 ? 0x1p-2f : 0,
                                    .seed = 42,
                                    .first = 1000};
        void *weight = add(run, &c, ROLE_INOUT, dtype, n, 4, 0);
        if (kind == 1) {
            for (int i = 0; i < n; i++)
                if (((bf16 *)weight)[i] << 1 == 0) ((bf16 *)weight)[i] = 0x3c00; // a rest beside 0 would wrap around
            int16_t *low = add(run, &c, ROLE_INOUT, DTYPE_U16, n, 0, 0);
            uint64_t state = run->seed++;
            for (int i = 0; i < n; i++)
                low[i] = (int16_t)random_next(&state);
        } else if (kind == 3) {
            add(run, &c, ROLE_INOUT, DTYPE_F32, n, 4, 0);
        } else {
            add_null(run, &c);
        }
        add_inout(run, &c, DTYPE_F32, n, 4);
        positive(add_inout(run, &c, DTYPE_F32, n, 4), n);
        add_in(run, &c, DTYPE_F32, n);
        *(float *)add_in(run, &c, DTYPE_F32, 1) = 3.7f;
        *(int32_t *)add_in(run, &c, DTYPE_I32, 1) = skip;
        check(run, &c, call_adamw, "kind %d n %d skip %d clip %d", kind, n, skip, clip);
    }
}
