// The cases of ops_compare for rotary embedding and attention.
#include "ops_compare.h"

#include <math.h>

// ---- rotary --------------------------------------------------------------------------------------------------------

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
        add(run, &c, ROLE_OUT, dtype, (int64_t)n * 9 * hd, first + n, rounding_inside(dtype));
        add_in(run, &c, dtype, (int64_t)n * 9 * hd);
        add_in(run, &c, dtype, (int64_t)(first + n) * 3 * hd);
        add_in(run, &c, dtype, (int64_t)(first + n) * 3 * hd);
        check(run, &c, call_attention_cached, "%s n %d first %d hd %d", dtype_name(dtype), n, first, hd);
    }
}
