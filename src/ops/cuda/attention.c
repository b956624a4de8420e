// Which engine computes attention. cuDNN and hearth's own kernels are candidates; where several can do a shape they are
// timed at its first use outside a graph (into the outputs, which the call overwrites anyway), and the
// choice is kept in the tuning cache. Documents, fp32 and f16 are the own kernels' alone, the last two the portable
// ones'; the fastest of these leave queries that see all keys (Attention.full) to the portable ones where there are
// documents or a length of no whole tiles.
#include "ops/cuda/attention_sm90.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/sample.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum {
    ENGINE_HOPPER = FLASH_VARIANTS,                // engines below it are variants of the portable kernels
    ENGINE_SM90 = ENGINE_HOPPER + HOPPER_VARIANTS, // forward; backward in one pass, with scratch for dQ
    ENGINE_CUDNN,
    ENGINE_COUNT,
};

typedef struct AttentionCase {
    AttentionShape shape; // its doc_start says only whether there are documents
    DType dtype;
    bool backward, rope; // rope: the gradients also go back through a rotation
    int64_t dqkv_stride;
    size_t workspace; // that the engine was chosen with: some need much
    int engine;
    CudnnPlan *plan;
} AttentionCase;

struct AttentionCache {
    AttentionCase *items;
    int count, capacity;
    bool opened;
    CudnnLibrary *library;
};

typedef struct AttentionArgs { // of either pass
    void *dq, *dk, *dv;
    const void *dout;
    void *out;
    float *lse;
    const void *q, *k, *v;
    const AttentionShape *shape;
    const QkRopeShape *rotation; // that dq and dk also go back through, or NULL
    const Rope *rope;            // the same for the op of the table, with dq and dk as one tensor
    Tensor dqk;
    Ops *ops;
} AttentionArgs;

AttentionCache *attention_cache_create(void) {
    return xcalloc(1, sizeof(AttentionCache));
}

void attention_cache_free(AttentionCache *cache) {
    if (!cache) return;
    for (int i = 0; i < cache->count; i++)
        cudnn_plan_free(cache->items[i].plan);
    cudnn_close(cache->library);
    free(cache->items);
    free(cache);
}

// Attention alone; whether dq and dk have gone back through the rotation as well.
static bool engine_run(CudaState *state, const AttentionCase *item, int engine, const AttentionArgs *a) {
    bool rotated = false;
    if (engine == ENGINE_CUDNN && item->backward)
        cudnn_run_backward(state, item->plan, a->dq, a->dk, a->dv, item->dqkv_stride, a->dout, a->out, a->lse, a->q,
                           a->k, a->v, a->shape);
    else if (engine == ENGINE_CUDNN)
        cudnn_run_forward(state, item->plan, a->out, a->lse, a->q, a->k, a->v, a->shape);
    else if (engine == ENGINE_SM90 && !item->backward) {
        if (!attention_sm90_forward(state, a->out, a->lse, a->q, a->k, a->v, a->shape))
            cuda_fail(state, __FILE__, __LINE__, "this kernel of attention cannot do the shape");
    } else if (engine == ENGINE_SM90) {
        rotated = a->rotation && attention_sm90_rotates(a->shape, a->rotation);
        if (!attention_sm90_backward(state, a->dq, a->dk, a->dv, item->dqkv_stride, a->dout, a->out, a->lse, a->q, a->k,
                                     a->v, a->shape, rotated ? a->rotation : NULL))
            cuda_fail(state, __FILE__, __LINE__, "this kernel of attention cannot do the shape");
    } else if (engine >= ENGINE_HOPPER)
        hopper_backward(state, a->dq, a->dk, a->dv, item->dqkv_stride, a->dout, a->out, a->lse, a->q, a->k, a->v,
                        a->shape, engine - ENGINE_HOPPER);
    else if (item->backward)
        flash_backward(state, a->dq, a->dk, a->dv, item->dqkv_stride, a->dout, a->out, a->lse, a->q, a->k, a->v,
                       a->shape, item->dtype, engine);
    else
        flash_forward(state, a->out, a->lse, a->q, a->k, a->v, a->shape, item->dtype, engine);
    return rotated;
}

static void case_run(CudaState *state, const AttentionCase *item, int engine, const AttentionArgs *a) {
    if (!engine_run(state, item, engine, a) && a->rope)
        cuda_qk_rope_backward(a->ops, a->dqk, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, a->rope);
}

static float case_time(CudaState *state, const AttentionCase *item, int engine, const AttentionArgs *a) {
    enum { REPEATS = 4, LONG_MS = 50 }; // a long run (under a tool that watches it) says enough at once
    float milliseconds = 0;
    cudaEvent_t begin, end;
    CUDA_CHECK(state, cudaEventCreate(&begin));
    CUDA_CHECK(state, cudaEventCreate(&end));
    case_run(state, item, engine, a); // loads the kernel
    for (int repeats = 1; repeats <= REPEATS && milliseconds < LONG_MS; repeats += REPEATS - 1) {
        CUDA_CHECK(state, cudaEventRecord(begin, state->stream));
        for (int i = 0; i < repeats; i++)
            case_run(state, item, engine, a);
        CUDA_CHECK(state, cudaEventRecord(end, state->stream));
        CUDA_CHECK(state, cudaEventSynchronize(end));
        CUDA_CHECK(state, cudaEventElapsedTime(&milliseconds, begin, end));
        milliseconds /= (float)repeats;
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return milliseconds;
}

static char *case_key(const CudaState *state, const AttentionCase *item) {
    const AttentionShape *s = &item->shape;
    return text_format("attention 7 cudnn %d workspace %zu %s%s %s%s batch %d seq %d heads %d kv %d dim %d",
                       cudnn_version(state->attention->library), state->workspace_bytes,
                       item->backward ? "backward" : "forward", item->rope ? " rope" : "", s->full ? "full " : "",
                       s->doc_start ? "documents" : "plain", s->batch, s->seq, s->heads, s->kv_heads, s->head_dim);
}

static void case_plan(CudaState *state, AttentionCase *item) {
    AttentionCache *cache = state->attention;
    if (item->dtype != DTYPE_BF16 || item->shape.doc_start || state->capturing) return;
    if (!cache->opened) {
        cache->library = cudnn_open(state);
        cache->opened = true;
    }
    if (!cache->library) return;
    char *why = NULL;
    item->plan = item->backward ? cudnn_plan_backward(cache->library, &item->shape, item->dqkv_stride,
                                                      state->workspace_bytes, &why)
                                : cudnn_plan_forward(cache->library, &item->shape, &why);
    if (item->plan && cudnn_plan_scratch(item->plan) > state->workspace_bytes) {
        cudnn_plan_free(item->plan);
        item->plan = NULL;
        why = text_copy("the workspace is too small");
    }
    if (why) log_debug("cuDNN attention %s is not used: %s", item->backward ? "backward" : "forward", why);
    free(why);
}

// ---- a second opinion -----------------------------------------------------------------------------------------------

static Sample case_sample(CudaState *state, const AttentionCase *item, const AttentionArgs *a) {
    const AttentionShape *s = &item->shape;
    int64_t rows = (int64_t)s->batch * s->seq, q = (int64_t)s->heads * s->head_dim,
            kv = (int64_t)s->kv_heads * s->head_dim;
    Sample sample = {0};
    if (item->backward) {
        sample_take(state, &sample, 0, a->dq, DTYPE_BF16, item->dqkv_stride, q, rows);
        sample_take(state, &sample, 1, a->dk, DTYPE_BF16, item->dqkv_stride, kv, rows);
        sample_take(state, &sample, 2, a->dv, DTYPE_BF16, item->dqkv_stride, kv, rows);
    } else {
        sample_take(state, &sample, 0, a->out, DTYPE_BF16, s->o_stride, q, rows);
        if (!s->full || !s->doc_start) // of queries that see no key it is infinite
            sample_take(state, &sample, 1, (const bf16 *)a->lse + 1, DTYPE_BF16, 2, 1,
                        rows * s->heads); // a float's upper half is a bf16
    }
    CUDA_CHECK(state, cudaStreamSynchronize(state->stream));
    return sample;
}

static void case_poison(CudaState *state, const AttentionCase *item, const AttentionArgs *a) {
    const AttentionShape *s = &item->shape;
    int64_t rows = (int64_t)s->batch * s->seq, q = (int64_t)s->heads * s->head_dim,
            kv = (int64_t)s->kv_heads * s->head_dim;
    if (item->backward) {
        sample_poison(state, a->dq, DTYPE_BF16, item->dqkv_stride, q, rows);
        sample_poison(state, a->dk, DTYPE_BF16, item->dqkv_stride, kv, rows);
        sample_poison(state, a->dv, DTYPE_BF16, item->dqkv_stride, kv, rows);
    } else {
        sample_poison(state, a->out, DTYPE_BF16, s->o_stride, q, rows);
        sample_poison(state, a->lse, DTYPE_BF16, 2, 2, rows * s->heads);
    }
}

// Whether the engine that just ran agrees with the portable kernels; *reference is taken from the first one asked.
static bool case_agrees(CudaState *state, const AttentionCase *item, int engine, const AttentionArgs *a,
                        Sample *reference) {
    Sample sample = case_sample(state, item, a);
    if (!reference->part[0]) {
        *reference = sample;
        return true;
    }
    bool agrees =
        sample_agrees(state, &sample, reference, item->backward ? "attention backward" : "attention forward", engine);
    sample_free(&sample);
    return agrees;
}

static bool case_can(CudaState *state, const AttentionCase *item, int engine) {
    if (engine == ENGINE_CUDNN) return item->plan != NULL;
    if (engine == ENGINE_SM90) {
        const AttentionShape *s = &item->shape;
        if (!item->backward) return attention_sm90_forward_supported(state, s);
        return attention_sm90_backward_supported(state, item->dqkv_stride, s) &&
               attention_sm90_backward_workspace(s->batch, s->seq, s->heads, s->head_dim) <= state->workspace_bytes;
    }
    if (engine >= ENGINE_HOPPER && engine < ENGINE_SM90) return item->backward && hopper_available(state);
    return engine >= 0 && engine < FLASH_VARIANTS;
}

static void case_choose(CudaState *state, AttentionCase *item, const AttentionArgs *a) {
    if (item->dtype != DTYPE_BF16) return; // the kernels for float and f16 have one variant
    case_plan(state, item);
    char *key = case_key(state, item);
    const char *known = tune_get(state->tune, key);
    int64_t cached = -1;
    int engine = known && text_to_int64(known, &cached) && cached < ENGINE_COUNT ? (int)cached : -1;
    if (case_can(state, item, engine)) {
        item->engine = engine;
    } else if (!state->capturing && !tune_held(state->tune)) {
        float best = 0;
        Sample reference = {0}; // of engine 0, which can do every shape
        item->engine = -1;
        for (engine = 0; engine < ENGINE_COUNT; engine++) {
            if (!case_can(state, item, engine)) continue;
            case_poison(state, item, a);
            float time = case_time(state, item, engine, a);
            log_debug("%s: engine %d %.3f ms", key, engine, time);
            if (!case_agrees(state, item, engine, a, &reference)) continue;
            if (item->engine < 0 || time < best) item->engine = engine, best = time;
        }
        // A choice made on broken numbers or after a failure is not worth keeping.
        bool sound = !state->failure && sample_sound(&reference);
        sample_free(&reference);
        char value[16];
        snprintf(value, sizeof value, "%d", item->engine);
        if (sound) tune_put(state->tune, key, value);
    }
    free(key);
}

static bool case_same(const AttentionCase *x, const AttentionCase *y) {
    const AttentionShape *a = &x->shape, *b = &y->shape;
    return a->batch == b->batch && a->seq == b->seq && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->q_stride == b->q_stride && a->k_stride == b->k_stride &&
           a->v_stride == b->v_stride && a->o_stride == b->o_stride && !a->doc_start == !b->doc_start &&
           a->full == b->full && x->dtype == y->dtype && x->backward == y->backward && x->rope == y->rope &&
           x->dqkv_stride == y->dqkv_stride && x->workspace == y->workspace;
}

static void attention(Ops *ops, const AttentionCase *wanted, const AttentionArgs *args) {
    CudaState *state = cuda_scope_begin(ops, wanted->backward ? OP_ATTENTION_BACKWARD : OP_ATTENTION_FORWARD);
    AttentionCache *cache = state->attention;
    int found = 0;
    while (found < cache->count && !case_same(&cache->items[found], wanted))
        found++;
    if (found == cache->count) {
        if (cache->count == cache->capacity) {
            cache->capacity = cache->capacity ? 2 * cache->capacity : 8;
            cache->items = xrealloc(cache->items, (size_t)cache->capacity * sizeof *cache->items);
        }
        cache->items[cache->count++] = *wanted;
        case_choose(state, &cache->items[found], args);
    }
    case_run(state, &cache->items[found], cache->items[found].engine, args);
    cuda_scope_end(state);
}

void cuda_attention_forward(Ops *ops, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, const Attention *how) {
    AttentionShape shape = attention_shape(out, q, k, v, how);
    AttentionCase wanted = {.shape = shape, .dtype = q.dtype, .workspace = cuda_state(ops)->workspace_bytes};
    AttentionArgs args = {
        .out = out.data, .lse = lse.data, .q = q.data, .k = k.data, .v = v.data, .shape = &shape, .ops = ops};
    attention(ops, &wanted, &args);
}

void cuda_attention_backward(Ops *ops, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                             Tensor k, Tensor v, const Attention *how, const Rope *rope) {
    assert(dq.stride == dk.stride && dq.stride == dv.stride);
    assert(!rope || (!tensor_present(rope->q_weight) && !tensor_present(rope->k_weight) &&
                     dk.data == tensor_at(dq, 0, dq.cols)));
    AttentionShape shape = attention_shape(out, q, k, v, how);
    AttentionCase wanted = {.shape = shape,
                            .dtype = q.dtype,
                            .backward = true,
                            .rope = rope != NULL,
                            .dqkv_stride = dq.stride,
                            .workspace = cuda_state(ops)->workspace_bytes};
    AttentionArgs args = {.dq = dq.data,
                          .dk = dk.data,
                          .dv = dv.data,
                          .dout = dout.data,
                          .out = out.data,
                          .lse = lse.data,
                          .q = q.data,
                          .k = k.data,
                          .v = v.data,
                          .shape = &shape,
                          .ops = ops};
    QkRopeShape rotation;
    if (rope) {
        rotation = qk_rope_shape(rope, dq.rows);
        args.rotation = &rotation;
        args.rope = rope;
        args.dqk = dq;
        args.dqk.cols = dq.cols + dk.cols;
    }
    attention(ops, &wanted, &args);
}
