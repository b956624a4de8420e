// Attention with grouped queries, in blocks with matrix products inside; the scores never exist as a whole.
// The query heads that share a KV head are stacked into one block of rows: row = head in group * block queries + query,
// so that even short blocks give matrix products of a good size.
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

#include <assert.h>
#include <math.h>

enum { KEY_BLOCK = 128, STACK_ROWS = 128, QUERY_BLOCK_MOST = 64, QUERY_BLOCK_LEAST = 8 };

static int query_block(int group) {
    int block = STACK_ROWS / group / 8 * 8;
    return block > QUERY_BLOCK_MOST ? QUERY_BLOCK_MOST : block < QUERY_BLOCK_LEAST ? QUERY_BLOCK_LEAST : block;
}

typedef struct AttentionWork {
    AttentionShape shape;
    DType dtype;
    int group, block_queries; // query heads per KV head; queries of a block
    int first;                // position of query 0 (0 but for cached attention)
    const void *q, *k, *v;
    void *out;
    float *lse; // NULL for cached attention
    const float *lse_in;
    const void *dout, *out_in;
    void *dq, *dk, *dv;
    int64_t dqkv_stride;
    CpuScratch scratch;
} AttentionWork;

// The scratch of one worker.
typedef struct Buffers {
    float *gemm;
    void *q, *dout; // [rows, head_dim] in the storage type
    float *out;     // [rows, head_dim] output, or gradient of the queries
    float *p, *dp;  // [rows, KEY_BLOCK] scores and their gradient; then, in the storage type, what is multiplied next
    float *high, *sum; // [rows] running maximum and sum; backward: log-sum-exp and dout . out
    float *dk, *dv;    // [seq, head_dim]
} Buffers;

static size_t buffers_cut(Buffers *buffers, char *memory, int seq, int group, int head_dim) {
    size_t used = 0, rows = (size_t)group * (size_t)query_block(group);
    size_t matrix = rows * (size_t)head_dim, scores = rows * KEY_BLOCK, sequence = (size_t)seq * (size_t)head_dim;
    const size_t floats[] = {
        GEMM_SCRATCH_FLOATS, matrix, matrix, matrix, scores, scores, rows, rows, sequence, sequence};
    enum { PARTS = sizeof floats / sizeof *floats };
    float *part[PARTS];
    for (int i = 0; i < PARTS; i++) {
        part[i] = memory ? (float *)(memory + used) : NULL;
        used += cpu_align(floats[i] * sizeof(float));
    }
    *buffers = (Buffers){part[0], part[1], part[2], part[3], part[4], part[5], part[6], part[7], part[8], part[9]};
    return used;
}

size_t cpu_attention_scratch_bytes(int seq, int heads, int kv_heads, int head_dim) {
    Buffers buffers;
    return buffers_cut(&buffers, NULL, seq, heads / kv_heads, head_dim);
}

// The block of queries [query, query + queries) of one KV head, as the stacked rows all its functions work on.
typedef struct Block {
    int batch, kv_head;
    int query, queries;
    int64_t rows;
    int key_begin, key_end; // keys that any of the queries sees
} Block;

static int64_t block_row(const AttentionWork *attention, const Block *block, int64_t row, int64_t *head) {
    *head = (int64_t)block->kv_head * attention->group + row / block->queries;
    return (int64_t)block->batch * attention->shape.seq + block->query + row % block->queries;
}

static int first_key(const AttentionWork *attention, int batch, int query) {
    const int32_t *start = attention->shape.doc_start;
    int first = start ? start[(int64_t)batch * attention->shape.seq + query] - attention->shape.first_key : 0;
    return first > 0 ? first : 0;
}

// Behind the last key that a query sees.
static int end_key(const AttentionWork *attention, int query) {
    return attention->shape.full ? attention->shape.seq : attention->first + query + 1;
}

static Block block_make(const AttentionWork *attention, int batch, int kv_head, int query) {
    Block block = {batch, kv_head, query, attention->block_queries, 0, 0, 0};
    if (block.queries > attention->shape.seq - query) block.queries = attention->shape.seq - query;
    block.rows = (int64_t)attention->group * block.queries;
    block.key_end = end_key(attention, query + block.queries - 1);
    block.key_begin = first_key(attention, batch, query);
    for (int i = 1; i < block.queries; i++) {
        int first = first_key(attention, batch, query + i);
        if (first < block.key_begin) block.key_begin = first;
    }
    return block;
}

// Stacks the block's rows of `in` (one row of head_dim per token and query head).
static void block_load(const AttentionWork *attention, const Block *block, void *out, const void *in, int64_t stride) {
    int head_dim = attention->shape.head_dim;
    DType dtype = attention->dtype;
    for (int64_t row = 0; row < block->rows; row++) {
        int64_t head, token = block_row(attention, block, row, &head);
        memcpy(cpu_at_mut(out, row * head_dim, dtype), cpu_at(in, token * stride + head * head_dim, dtype),
               (size_t)head_dim * dtype_size(dtype));
    }
}

static void block_store(const AttentionWork *attention, const Block *block, void *out, int64_t stride,
                        const float *in) {
    int head_dim = attention->shape.head_dim;
    for (int64_t row = 0; row < block->rows; row++, in += head_dim) {
        int64_t head, token = block_row(attention, block, row, &head);
        cpu_from_floats(cpu_at_mut(out, token * stride + head * head_dim, attention->dtype), attention->dtype, in,
                        head_dim);
    }
}

// Keys or values from `begin` on of a KV head, where they are.
static GemmOperand keys_of(const AttentionWork *attention, const void *in, int64_t stride, const Block *block,
                           int64_t begin, bool transposed) {
    int64_t at = ((int64_t)block->batch * attention->shape.seq + begin) * stride +
                 (int64_t)block->kv_head * attention->shape.head_dim;
    return (GemmOperand){cpu_at(in, at, attention->dtype), stride, transposed, attention->dtype, NULL};
}

static GemmOperand rows_of(const AttentionWork *attention, const void *rows) {
    return (GemmOperand){rows, attention->shape.head_dim, false, attention->dtype, NULL};
}

// Probabilities or their gradient, which stand where the scores have stood.
static GemmOperand scores_of(const AttentionWork *attention, const float *scores, bool transposed) {
    int64_t stride = (int64_t)KEY_BLOCK * 4 / cpu_width(attention->dtype);
    return (GemmOperand){scores, stride, transposed, attention->dtype, NULL};
}

static void product(float *c, int64_t c_stride, bool accumulate, GemmOperand a, GemmOperand b, int64_t m, int64_t n,
                    int64_t k, Buffers *buffers) {
    cpu_gemm_block(&(Gemm){m, n, k, a, b, c, c_stride, DTYPE_F32, accumulate, NULL}, buffers->gemm);
}

// Scores outside the row's keys become minus infinity, up to the end of the last vector.
static void row_mask(const AttentionWork *attention, const Block *block, float *scores, int64_t row, int64_t key,
                     int64_t keys) {
    const float masked = -INFINITY;
    int query = block->query + (int)(row % block->queries);
    int64_t low = first_key(attention, block->batch, query) - key, high = end_key(attention, query) - key;
    int64_t padded = (keys + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    for (int64_t i = 0; i < low && i < keys; i++)
        scores[i] = masked;
    for (int64_t i = high < 0 ? 0 : high < keys ? high : keys; i < padded; i++)
        scores[i] = masked;
}

// ---- forward -------------------------------------------------------------------------------------------------------

// One row of scores becomes e^(score - maximum so far); what was summed under an older maximum is scaled down. The
// exponentials are stored over the scores: never in front of what is still to be read.
VEC_INLINE void row_softmax_of(float *scores, int64_t keys, float scale, float *high, float *sum, float *out,
                               int head_dim, DType dtype) {
    Vec most = vec_all(*high);
    for (int64_t i = 0; i < keys; i += VEC_LANES)
        most = vec_max(most, *(const VecLoose *)(scores + i) * scale);
    float highest = vec_highest(most);
    // A row that has seen no key yet (its document starts in a later block) stays empty.
    float shift = highest == -INFINITY ? 0.0f : highest;
    Vec total = {0};
    for (int64_t i = 0; i < keys; i += VEC_LANES) {
        Vec e = vec_exp(*(const VecLoose *)(scores + i) * scale - shift);
        vec_put(scores, i, VEC_LANES, dtype, e);
        total += e;
    }
    float older = *high == highest ? 1.0f : expf(*high - shift);
    *sum = *sum * older + (float)vec_sum(total);
    *high = highest;
    if (older != 1.0f)
        for (int i = 0; i < head_dim; i++)
            out[i] *= older;
}

static void row_softmax(const AttentionWork *attention, float *scores, int64_t keys, float *high, float *sum,
                        float *out) {
    float scale = attention->shape.scale;
    VEC_BY_STORAGE(attention->dtype, row_softmax_of, scores, keys, scale, high, sum, out, attention->shape.head_dim);
}

static void forward_block(const AttentionWork *attention, const Block *block, Buffers *buffers) {
    const AttentionShape *shape = &attention->shape;
    int head_dim = shape->head_dim;
    block_load(attention, block, buffers->q, attention->q, shape->q_stride);
    memset(buffers->out, 0, (size_t)(block->rows * head_dim) * sizeof(float));
    for (int64_t row = 0; row < block->rows; row++) {
        buffers->high[row] = -INFINITY;
        buffers->sum[row] = 0;
    }
    for (int64_t key = block->key_begin / KEY_BLOCK * KEY_BLOCK; key < block->key_end; key += KEY_BLOCK) {
        int64_t keys = block->key_end - key < KEY_BLOCK ? block->key_end - key : KEY_BLOCK;
        product(buffers->p, KEY_BLOCK, false, rows_of(attention, buffers->q),
                keys_of(attention, attention->k, shape->k_stride, block, key, true), block->rows, keys, head_dim,
                buffers);
        for (int64_t row = 0; row < block->rows; row++) {
            float *scores = buffers->p + row * KEY_BLOCK;
            row_mask(attention, block, scores, row, key, keys);
            row_softmax(attention, scores, keys, &buffers->high[row], &buffers->sum[row],
                        buffers->out + row * head_dim);
        }
        product(buffers->out, head_dim, true, scores_of(attention, buffers->p, false),
                keys_of(attention, attention->v, shape->v_stride, block, key, false), block->rows, head_dim, keys,
                buffers);
    }
    for (int64_t row = 0; row < block->rows; row++) {
        float factor = buffers->sum[row] > 0 ? 1.0f / buffers->sum[row] : 0; // of a row without keys, only if full
        for (int i = 0; i < head_dim; i++)
            buffers->out[row * head_dim + i] *= factor;
        if (!attention->lse) continue;
        int64_t head, token = block_row(attention, block, row, &head), seq = shape->seq;
        attention->lse[((int64_t)block->batch * shape->heads + head) * seq + token % seq] =
            buffers->high[row] + logf(buffers->sum[row]);
    }
    block_store(attention, block, attention->out, shape->o_stride, buffers->out);
}

static void forward_task(void *context, int64_t begin, int64_t end, int worker) {
    const AttentionWork *attention = context;
    const AttentionShape *shape = &attention->shape;
    int64_t blocks = (shape->seq + attention->block_queries - 1) / attention->block_queries;
    Buffers buffers;
    buffers_cut(&buffers, cpu_scratch_of(&attention->scratch, worker), 1, attention->group, shape->head_dim);
    for (int64_t i = begin; i < end; i++) {
        // The last blocks are the longest: they go first, so that the threads finish together.
        int64_t query = (blocks - 1 - i % blocks) * attention->block_queries, head = i / blocks;
        Block block = block_make(attention, (int)(head / shape->kv_heads), (int)(head % shape->kv_heads), (int)query);
        forward_block(attention, &block, &buffers);
    }
}

static void forward_run(Ops *ops, AttentionWork *attention) {
    const AttentionShape *shape = &attention->shape;
    attention->group = shape->heads / shape->kv_heads;
    attention->block_queries = query_block(attention->group);
    attention->scratch =
        cpu_scratch(cpu_of(ops), 0, cpu_attention_scratch_bytes(1, shape->heads, shape->kv_heads, shape->head_dim));
    int64_t blocks = (shape->seq + attention->block_queries - 1) / attention->block_queries;
    threads_for((int64_t)shape->batch * shape->kv_heads * blocks, 1, forward_task, attention);
}

static void cpu_attention_forward(Ops *ops, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v,
                                  const Attention *how) {
    CPU_TIMED(ops, OP_ATTENTION_FORWARD);
    AttentionWork attention = {
        .shape = attention_shape(out, q, k, v, how),
        .dtype = q.dtype,
        .q = q.data,
        .k = k.data,
        .v = v.data,
        .out = out.data,
        .lse = lse.data,
    };
    forward_run(ops, &attention);
}

typedef struct MergeWork {
    MergeShape shape;
    DType dtype;
    float *out, *lse;
    const void *part;
    const float *part_lse;
} MergeWork;

static void merge_tokens(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const MergeWork *merge = context;
    const MergeShape *shape = &merge->shape;
    int64_t head_dim = shape->head_dim;
    for (int64_t i = begin * shape->heads; i < end * shape->heads; i++) {
        int64_t token = i / shape->heads, head = i % shape->heads;
        int64_t line = (token / shape->seq * shape->heads + head) * shape->seq + token % shape->seq;
        float lse = merge->lse[line], part = merge->part_lse[line], high = lse > part ? lse : part;
        if (part == -INFINITY) continue;
        float own = expf(lse - high), other = expf(part - high), sum = own + other;
        float *out = merge->out + i * head_dim;
        const void *in = cpu_at(merge->part, i * head_dim, merge->dtype);
        VEC_FOR(k, n, head_dim)
        vec_put(out, k, n, DTYPE_F32,
                vec_get(out, k, n, DTYPE_F32) * (own / sum) + vec_get(in, k, n, merge->dtype) * (other / sum));
        merge->lse[line] = high + logf(sum);
    }
}

static void cpu_attention_merge(Ops *ops, Tensor out, Tensor lse, Tensor part, Tensor part_lse) {
    CPU_TIMED(ops, OP_ATTENTION_MERGE);
    MergeWork merge = {merge_shape(out, lse), part.dtype, out.data, lse.data, part.data, part_lse.data};
    threads_for(out.rows, cpu_row_chunk(out.cols), merge_tokens, &merge);
}

static void cpu_attention_cached(Ops *ops, Tensor out, Tensor q, Tensor k_cache, Tensor v_cache, int first,
                                 int head_dim, float scale) {
    CPU_TIMED(ops, OP_ATTENTION_CACHED);
    Attention how = {.seq = (int)q.rows, .head_dim = head_dim, .scale = scale};
    AttentionWork attention = {
        .shape = attention_shape(out, q, k_cache, v_cache, &how),
        .dtype = q.dtype,
        .first = first,
        .q = q.data,
        .k = k_cache.data,
        .v = v_cache.data,
        .out = out.data,
    };
    forward_run(ops, &attention);
}

// ---- backward: with probabilities p = e^(score - lse): dv += p^T do, ds = p (do v^T - do . o), dq += ds k, dk += ds^T
// q --

// p: scores become probabilities; dp: do v^T becomes the gradient of the scores before their scale. Both are stored
// over what they were. Lanes beyond the last key hold whatever they hold: no product reads them.
VEC_INLINE void row_gradient_of(float *p, float *dp, int64_t keys, float scale, float lse, float dot, DType dtype) {
    for (int64_t i = 0; i < keys; i += VEC_LANES) {
        Vec e = vec_exp(*(const VecLoose *)(p + i) * scale - lse);
        Vec gradient = e * ((*(const VecLoose *)(dp + i) - dot) * scale);
        vec_put(p, i, VEC_LANES, dtype, e);
        vec_put(dp, i, VEC_LANES, dtype, gradient);
    }
}

static void row_gradient(const AttentionWork *attention, float *p, float *dp, int64_t keys, float lse, float dot) {
    VEC_BY_STORAGE(attention->dtype, row_gradient_of, p, dp, keys, attention->shape.scale, lse, dot);
}

static float row_dot(const void *a, const void *b, int64_t count, DType dtype) {
    VecSum dot = {0};
    VEC_FOR(i, n, count) vec_sum_add(&dot, vec_get(a, i, n, dtype) * vec_get(b, i, n, dtype));
    return (float)vec_sum_total(&dot);
}

static void backward_start(const AttentionWork *attention, const Block *block, Buffers *buffers) {
    const AttentionShape *shape = &attention->shape;
    int head_dim = shape->head_dim;
    block_load(attention, block, buffers->q, attention->q, shape->q_stride);
    block_load(attention, block, buffers->dout, attention->dout, shape->o_stride);
    for (int64_t row = 0; row < block->rows; row++) {
        int64_t head, token = block_row(attention, block, row, &head);
        buffers->sum[row] =
            row_dot(cpu_at(buffers->dout, row * head_dim, attention->dtype),
                    cpu_at(attention->out_in, token * shape->o_stride + head * head_dim, attention->dtype), head_dim,
                    attention->dtype);
        buffers->high[row] =
            attention->lse_in[((int64_t)block->batch * shape->heads + head) * shape->seq + token % shape->seq];
    }
    memset(buffers->out, 0, (size_t)(block->rows * head_dim) * sizeof(float));
}

static void backward_block(const AttentionWork *attention, const Block *block, Buffers *buffers) {
    const AttentionShape *shape = &attention->shape;
    int head_dim = shape->head_dim;
    int64_t rows = block->rows;
    GemmOperand q = rows_of(attention, buffers->q), dout = rows_of(attention, buffers->dout);
    backward_start(attention, block, buffers);
    for (int64_t key = block->key_begin / KEY_BLOCK * KEY_BLOCK; key < block->key_end; key += KEY_BLOCK) {
        int64_t keys = block->key_end - key < KEY_BLOCK ? block->key_end - key : KEY_BLOCK;
        GemmOperand k = keys_of(attention, attention->k, shape->k_stride, block, key, true);
        GemmOperand v = keys_of(attention, attention->v, shape->v_stride, block, key, true);
        product(buffers->p, KEY_BLOCK, false, q, k, rows, keys, head_dim, buffers);
        product(buffers->dp, KEY_BLOCK, false, dout, v, rows, keys, head_dim, buffers);
        for (int64_t row = 0; row < rows; row++) {
            row_mask(attention, block, buffers->p + row * KEY_BLOCK, row, key, keys);
            row_gradient(attention, buffers->p + row * KEY_BLOCK, buffers->dp + row * KEY_BLOCK, keys,
                         buffers->high[row], buffers->sum[row]);
        }
        product(buffers->dv + key * head_dim, head_dim, true, scores_of(attention, buffers->p, true), dout, keys,
                head_dim, rows, buffers);
        product(buffers->dk + key * head_dim, head_dim, true, scores_of(attention, buffers->dp, true), q, keys,
                head_dim, rows, buffers);
        k.transposed = false;
        product(buffers->out, head_dim, true, scores_of(attention, buffers->dp, false), k, rows, head_dim, keys,
                buffers);
    }
    block_store(attention, block, attention->dq, attention->dqkv_stride, buffers->out);
}

// One KV head of one sequence: its key and value gradients are summed here over all its queries, in order.
static void backward_task(void *context, int64_t begin, int64_t end, int worker) {
    const AttentionWork *attention = context;
    const AttentionShape *shape = &attention->shape;
    int head_dim = shape->head_dim;
    size_t sequence = (size_t)shape->seq * (size_t)head_dim;
    Buffers buffers;
    buffers_cut(&buffers, cpu_scratch_of(&attention->scratch, worker), shape->seq, attention->group, head_dim);
    for (int64_t i = begin; i < end; i++) {
        int batch = (int)(i / shape->kv_heads), kv_head = (int)(i % shape->kv_heads);
        memset(buffers.dk, 0, sequence * sizeof(float));
        memset(buffers.dv, 0, sequence * sizeof(float));
        for (int query = 0; query < shape->seq; query += attention->block_queries) {
            Block block = block_make(attention, batch, kv_head, query);
            backward_block(attention, &block, &buffers);
        }
        for (int64_t t = 0; t < shape->seq; t++) {
            int64_t at = ((int64_t)batch * shape->seq + t) * attention->dqkv_stride + (int64_t)kv_head * head_dim;
            cpu_from_floats(cpu_at_mut(attention->dk, at, attention->dtype), attention->dtype,
                            buffers.dk + t * head_dim, head_dim);
            cpu_from_floats(cpu_at_mut(attention->dv, at, attention->dtype), attention->dtype,
                            buffers.dv + t * head_dim, head_dim);
        }
    }
}

static void backward_run(Ops *ops, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                         Tensor k, Tensor v, const Attention *how) {
    CPU_TIMED(ops, OP_ATTENTION_BACKWARD);
    AttentionWork attention = {
        .shape = attention_shape(out, q, k, v, how),
        .dtype = q.dtype,
        .q = q.data,
        .k = k.data,
        .v = v.data,
        .lse_in = lse.data,
        .dout = dout.data,
        .out_in = out.data,
        .dq = dq.data,
        .dk = dk.data,
        .dv = dv.data,
        .dqkv_stride = dq.stride,
    };
    const AttentionShape *shape = &attention.shape;
    attention.group = shape->heads / shape->kv_heads;
    attention.block_queries = query_block(attention.group);
    attention.scratch = cpu_scratch(
        cpu_of(ops), 0, cpu_attention_scratch_bytes(shape->seq, shape->heads, shape->kv_heads, shape->head_dim));
    threads_for((int64_t)shape->batch * shape->kv_heads, 1, backward_task, &attention);
}

static void cpu_attention_backward(Ops *ops, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                                   Tensor q, Tensor k, Tensor v, const Attention *how, const Rope *rope) {
    assert(!rope || (!tensor_present(rope->q_weight) && !tensor_present(rope->k_weight) &&
                     dk.data == tensor_at(dq, 0, dq.cols)));
    backward_run(ops, dq, dk, dv, dout, out, lse, q, k, v, how);
    if (!rope) return;
    Tensor rotated = dq; // with dk behind it
    rotated.cols += dk.cols;
    ops->qk_rope_backward(ops, rotated, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, rope);
}

void cpu_install_attention(Ops *ops) {
    ops->attention_forward = cpu_attention_forward;
    ops->attention_backward = cpu_attention_backward;
    ops->attention_merge = cpu_attention_merge;
    ops->attention_cached = cpu_attention_cached;
}
