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
    float *q, *o;      // [rows, head_dim] queries times scale; output, or its gradient
    float *dq;         // [rows, head_dim]
    float *p, *dp;     // [rows, KEY_BLOCK] scores then probabilities; their gradient
    float *high, *sum; // [rows] running maximum and sum; backward: log-sum-exp and dout . out
    float *k, *v;      // [KEY_BLOCK or seq, head_dim] where the storage is bf16
    float *dk, *dv;    // [seq, head_dim]
} Buffers;

static size_t buffers_cut(Buffers *buffers, char *memory, int seq, int group, int head_dim) {
    size_t used = 0, rows = (size_t)group * (size_t)query_block(group), keys = (size_t)seq;
    if (keys < KEY_BLOCK) keys = KEY_BLOCK;
    size_t matrix = rows * (size_t)head_dim, scores = rows * KEY_BLOCK, sequence = keys * (size_t)head_dim;
    struct {
        float **field;
        size_t floats;
    } parts[] = {
        {&buffers->gemm, GEMM_SCRATCH_FLOATS},
        {&buffers->q, matrix},
        {&buffers->o, matrix},
        {&buffers->dq, matrix},
        {&buffers->p, scores},
        {&buffers->dp, scores},
        {&buffers->high, rows},
        {&buffers->sum, rows},
        {&buffers->k, sequence},
        {&buffers->v, sequence},
        {&buffers->dk, sequence},
        {&buffers->dv, sequence},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].field = memory ? (float *)(memory + used) : NULL;
        used += cpu_align(parts[i].floats * sizeof(float));
    }
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

// Stacks the block's rows of `in` (one row of head_dim per token and query head) as floats times factor.
static void block_load(const AttentionWork *attention, const Block *block, float *out, const void *in, int64_t stride,
                       float factor) {
    int head_dim = attention->shape.head_dim;
    for (int64_t row = 0; row < block->rows; row++, out += head_dim) {
        int64_t head, token = block_row(attention, block, row, &head);
        cpu_to_floats(out, cpu_at(in, token * stride + head * head_dim, attention->dtype), attention->dtype, head_dim);
        if (factor != 1.0f)
            for (int i = 0; i < head_dim; i++)
                out[i] *= factor;
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

// Keys or values [begin, begin + count) of a KV head as floats: where they are, or in the buffer.
static const float *keys_load(const AttentionWork *attention, const void *in, int64_t in_stride, int batch, int kv_head,
                              int64_t begin, int64_t count, float *buffer, int64_t *stride) {
    int head_dim = attention->shape.head_dim;
    const void *first =
        cpu_at(in, ((int64_t)batch * attention->shape.seq + begin) * in_stride + (int64_t)kv_head * head_dim,
               attention->dtype);
    if (attention->dtype == DTYPE_F32) {
        *stride = in_stride;
        return first;
    }
    for (int64_t i = 0; i < count; i++)
        cpu_to_floats(buffer + i * head_dim, cpu_at(first, i * in_stride, attention->dtype), attention->dtype,
                      head_dim);
    *stride = head_dim;
    return buffer;
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

// One row of scores becomes e^(score - maximum so far); what was summed under an older maximum is scaled down.
static void row_softmax(float *scores, int64_t keys, float *high, float *sum, float *out, int head_dim) {
    Vec most = vec_all(*high);
    for (int64_t i = 0; i < keys; i += VEC_LANES)
        most = vec_max(most, *(const VecLoose *)(scores + i));
    float highest = vec_highest(most);
    // A row that has seen no key yet (its document starts in a later block) stays empty.
    float shift = highest == -INFINITY ? 0.0f : highest;
    Vec total = {0};
    for (int64_t i = 0; i < keys; i += VEC_LANES) {
        Vec e = vec_exp(*(const VecLoose *)(scores + i) - shift);
        *(VecLoose *)(scores + i) = e;
        total += e;
    }
    float older = *high == highest ? 1.0f : expf(*high - shift);
    *sum = *sum * older + (float)vec_sum(total);
    *high = highest;
    if (older != 1.0f)
        for (int i = 0; i < head_dim; i++)
            out[i] *= older;
}

static void forward_block(const AttentionWork *attention, const Block *block, Buffers *buffers) {
    int head_dim = attention->shape.head_dim;
    block_load(attention, block, buffers->q, attention->q, attention->shape.q_stride, attention->shape.scale);
    memset(buffers->o, 0, (size_t)(block->rows * head_dim) * sizeof(float));
    for (int64_t row = 0; row < block->rows; row++) {
        buffers->high[row] = -INFINITY;
        buffers->sum[row] = 0;
    }
    for (int64_t key = block->key_begin / KEY_BLOCK * KEY_BLOCK; key < block->key_end; key += KEY_BLOCK) {
        int64_t keys = block->key_end - key < KEY_BLOCK ? block->key_end - key : KEY_BLOCK, k_stride, v_stride;
        const float *k = keys_load(attention, attention->k, attention->shape.k_stride, block->batch, block->kv_head,
                                   key, keys, buffers->k, &k_stride);
        const float *v = keys_load(attention, attention->v, attention->shape.v_stride, block->batch, block->kv_head,
                                   key, keys, buffers->v, &v_stride);
        cpu_sgemm(buffers->p, KEY_BLOCK, false, buffers->q, head_dim, false, k, k_stride, true, block->rows, keys,
                  head_dim, buffers->gemm);
        for (int64_t row = 0; row < block->rows; row++) {
            float *scores = buffers->p + row * KEY_BLOCK;
            row_mask(attention, block, scores, row, key, keys);
            row_softmax(scores, keys, &buffers->high[row], &buffers->sum[row], buffers->o + row * head_dim, head_dim);
        }
        cpu_sgemm(buffers->o, head_dim, true, buffers->p, KEY_BLOCK, false, v, v_stride, false, block->rows, head_dim,
                  keys, buffers->gemm);
    }
    for (int64_t row = 0; row < block->rows; row++) {
        float factor = buffers->sum[row] > 0 ? 1.0f / buffers->sum[row] : 0; // of a row without keys, only if full
        for (int i = 0; i < head_dim; i++)
            buffers->o[row * head_dim + i] *= factor;
        if (!attention->lse) continue;
        int64_t head, token = block_row(attention, block, row, &head), seq = attention->shape.seq;
        attention->lse[((int64_t)block->batch * attention->shape.heads + head) * seq + token % seq] =
            buffers->high[row] + logf(buffers->sum[row]);
    }
    block_store(attention, block, attention->out, attention->shape.o_stride, buffers->o);
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

// p: scores become probabilities; dp: do v^T becomes the gradient of the scores. Lanes beyond the last key hold
// whatever they hold: no product reads them.
static void row_gradient(float *p, float *dp, int64_t keys, float lse, float dot) {
    for (int64_t i = 0; i < keys; i += VEC_LANES) {
        Vec e = vec_exp(*(const VecLoose *)(p + i) - lse);
        *(VecLoose *)(p + i) = e;
        *(VecLoose *)(dp + i) = e * (*(const VecLoose *)(dp + i) - dot);
    }
}

static void backward_start(const AttentionWork *attention, const Block *block, Buffers *buffers) {
    const AttentionShape *shape = &attention->shape;
    int head_dim = shape->head_dim;
    block_load(attention, block, buffers->q, attention->q, shape->q_stride, shape->scale);
    block_load(attention, block, buffers->dq, attention->out_in, shape->o_stride, 1.0f);
    block_load(attention, block, buffers->o, attention->dout, shape->o_stride, 1.0f);
    for (int64_t row = 0; row < block->rows; row++) {
        VecSum dot = {0};
        VEC_FOR(i, n, head_dim)
        vec_sum_add(&dot, vec_get(buffers->o + row * head_dim, i, n, DTYPE_F32) *
                              vec_get(buffers->dq + row * head_dim, i, n, DTYPE_F32));
        buffers->sum[row] = (float)vec_sum_total(&dot);
        int64_t head, token = block_row(attention, block, row, &head);
        buffers->high[row] =
            attention->lse_in[((int64_t)block->batch * shape->heads + head) * shape->seq + token % shape->seq];
    }
    memset(buffers->dq, 0, (size_t)(block->rows * head_dim) * sizeof(float));
}

static void backward_block(const AttentionWork *attention, const Block *block, Buffers *buffers, const float *k,
                           int64_t k_stride, const float *v, int64_t v_stride) {
    int head_dim = attention->shape.head_dim;
    backward_start(attention, block, buffers);
    for (int64_t key = block->key_begin / KEY_BLOCK * KEY_BLOCK; key < block->key_end; key += KEY_BLOCK) {
        int64_t keys = block->key_end - key < KEY_BLOCK ? block->key_end - key : KEY_BLOCK;
        cpu_sgemm(buffers->p, KEY_BLOCK, false, buffers->q, head_dim, false, k + key * k_stride, k_stride, true,
                  block->rows, keys, head_dim, buffers->gemm);
        cpu_sgemm(buffers->dp, KEY_BLOCK, false, buffers->o, head_dim, false, v + key * v_stride, v_stride, true,
                  block->rows, keys, head_dim, buffers->gemm);
        for (int64_t row = 0; row < block->rows; row++) {
            row_mask(attention, block, buffers->p + row * KEY_BLOCK, row, key, keys);
            row_gradient(buffers->p + row * KEY_BLOCK, buffers->dp + row * KEY_BLOCK, keys, buffers->high[row],
                         buffers->sum[row]);
        }
        cpu_sgemm(buffers->dv + key * head_dim, head_dim, true, buffers->p, KEY_BLOCK, true, buffers->o, head_dim,
                  false, keys, head_dim, block->rows, buffers->gemm);
        cpu_sgemm(buffers->dk + key * head_dim, head_dim, true, buffers->dp, KEY_BLOCK, true, buffers->q, head_dim,
                  false, keys, head_dim, block->rows, buffers->gemm);
        cpu_sgemm(buffers->dq, head_dim, true, buffers->dp, KEY_BLOCK, false, k + key * k_stride, k_stride, false,
                  block->rows, head_dim, keys, buffers->gemm);
    }
    for (int64_t i = 0; i < block->rows * head_dim; i++)
        buffers->dq[i] *= attention->shape.scale;
    block_store(attention, block, attention->dq, attention->dqkv_stride, buffers->dq);
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
        int64_t k_stride, v_stride;
        const float *k =
            keys_load(attention, attention->k, shape->k_stride, batch, kv_head, 0, shape->seq, buffers.k, &k_stride);
        const float *v =
            keys_load(attention, attention->v, shape->v_stride, batch, kv_head, 0, shape->seq, buffers.v, &v_stride);
        memset(buffers.dk, 0, sequence * sizeof(float));
        memset(buffers.dv, 0, sequence * sizeof(float));
        for (int query = 0; query < shape->seq; query += attention->block_queries) {
            Block block = block_make(attention, batch, kv_head, query);
            backward_block(attention, &block, &buffers, k, k_stride, v, v_stride);
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
