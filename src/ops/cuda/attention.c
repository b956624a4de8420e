// Which engine computes attention. cuDNN and hearth's own kernels are candidates; where several can do a shape they are
// timed at its first use outside a graph (into the outputs, which the call overwrites anyway), and the
// choice is kept in the tuning cache. Documents and fp32 are the own kernels' alone.
#include "ops/cuda/attention_sm90.h"
#include "ops/cuda/cuda.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum {
    ENGINE_HOPPER = FLASH_VARIANTS,                // engines below it are variants of the portable kernels
    ENGINE_SM90 = ENGINE_HOPPER + HOPPER_VARIANTS, // backward in one pass, with scratch for dQ
    ENGINE_CUDNN,
    ENGINE_COUNT,
};

typedef struct AttentionCase {
    AttentionShape shape; // its doc_start says only whether there are documents
    DType dtype;
    bool backward, rope; // rope: the gradients also go back through a rotation
    int64_t dqkv_stride;
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
    const QkRopeShape *rope;
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
    else if (engine == ENGINE_SM90) {
        rotated = a->rope && attention_sm90_rotates(a->shape, a->rope);
        if (!attention_sm90_backward(state, a->dq, a->dk, a->dv, item->dqkv_stride, a->dout, a->out, a->lse, a->q, a->k,
                                     a->v, a->shape, rotated ? a->rope : NULL))
            cuda_fail(state, __FILE__, __LINE__, "the copy engine refused a tensor of attention");
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
        cuda_qk_rope_backward(a->ops, a->dq, item->dqkv_stride, NULL, 0, NULL, NULL, NULL, a->rope, item->dtype);
}

static float case_time(CudaState *state, const AttentionCase *item, int engine, const AttentionArgs *a) {
    enum { REPEATS = 4 };
    float milliseconds = 0;
    cudaEvent_t begin, end;
    CUDA_CHECK(state, cudaEventCreate(&begin));
    CUDA_CHECK(state, cudaEventCreate(&end));
    case_run(state, item, engine, a);
    CUDA_CHECK(state, cudaEventRecord(begin, state->stream));
    for (int i = 0; i < REPEATS; i++)
        case_run(state, item, engine, a);
    CUDA_CHECK(state, cudaEventRecord(end, state->stream));
    CUDA_CHECK(state, cudaEventSynchronize(end));
    CUDA_CHECK(state, cudaEventElapsedTime(&milliseconds, begin, end));
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return milliseconds / REPEATS;
}

static char *case_key(const CudaState *state, const AttentionCase *item) {
    const AttentionShape *s = &item->shape;
    return text_format("attention 5 cudnn %d workspace %zu %s%s %s batch %d seq %d heads %d kv %d dim %d",
                       cudnn_version(state->attention->library), state->workspace_bytes,
                       item->backward ? "backward" : "forward", item->rope ? " rope" : "",
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
// Engines are raced on the run's own data, so they can be checked on it too: a few rows of every result must agree with
// those of the portable kernels. bf16 results of right kernels differ by about 3e-3 of their norm.

enum { SAMPLE_ROWS = 64, SAMPLE_PARTS = 3 };
static const double SAMPLE_BOUND = 0.03;

typedef struct Sample {
    bf16 *part[SAMPLE_PARTS]; // dq, dk, dv; or out alone
    size_t count[SAMPLE_PARTS];
} Sample;

static void sample_free(Sample *sample) {
    for (int i = 0; i < SAMPLE_PARTS; i++)
        free(sample->part[i]);
}

// SAMPLE_ROWS rows (or all) of a result, evenly spread.
static void sample_part(CudaState *state, Sample *sample, int part, const void *from, int64_t stride, int64_t columns,
                        int64_t rows) {
    // An odd step, so that the rows fall on all places of sequences and tiles: a multiple of the sequence length would
    // see only first tokens, whose dQ is zero.
    int64_t step = rows > SAMPLE_ROWS ? (rows / SAMPLE_ROWS - 1) | 1 : 1,
            taken = rows > SAMPLE_ROWS ? SAMPLE_ROWS : rows;
    size_t width = (size_t)columns * sizeof(bf16), pitch = (size_t)(stride * step) * sizeof(bf16);
    sample->count[part] = (size_t)(columns * taken);
    sample->part[part] = xmalloc(sample->count[part] * sizeof(bf16));
    CUDA_CHECK(state, cudaMemcpy2DAsync(sample->part[part], width, from, pitch, width, (size_t)taken,
                                        cudaMemcpyDeviceToHost, state->stream));
}

static Sample case_sample(CudaState *state, const AttentionCase *item, const AttentionArgs *a) {
    const AttentionShape *s = &item->shape;
    int64_t rows = (int64_t)s->batch * s->seq, q = (int64_t)s->heads * s->head_dim,
            kv = (int64_t)s->kv_heads * s->head_dim;
    Sample sample = {0};
    if (item->backward) {
        sample_part(state, &sample, 0, a->dq, item->dqkv_stride, q, rows);
        sample_part(state, &sample, 1, a->dk, item->dqkv_stride, kv, rows);
        sample_part(state, &sample, 2, a->dv, item->dqkv_stride, kv, rows);
    } else {
        sample_part(state, &sample, 0, a->out, s->o_stride, q, rows);
    }
    CUDA_CHECK(state, cudaStreamSynchronize(state->stream));
    return sample;
}

// NaN into every result, so that what an engine leaves unwritten shows.
static void case_poison(CudaState *state, const AttentionCase *item, const AttentionArgs *a) {
    const AttentionShape *s = &item->shape;
    size_t rows = (size_t)s->batch * (size_t)s->seq, size = sizeof(bf16);
    size_t q = (size_t)(s->heads * s->head_dim) * size, kv = (size_t)(s->kv_heads * s->head_dim) * size;
    if (!item->backward) {
        CUDA_CHECK(state, cudaMemset2DAsync(a->out, (size_t)s->o_stride * size, 0xff, q, rows, state->stream));
        return;
    }
    size_t pitch = (size_t)item->dqkv_stride * size;
    CUDA_CHECK(state, cudaMemset2DAsync(a->dq, pitch, 0xff, q, rows, state->stream));
    CUDA_CHECK(state, cudaMemset2DAsync(a->dk, pitch, 0xff, kv, rows, state->stream));
    CUDA_CHECK(state, cudaMemset2DAsync(a->dv, pitch, 0xff, kv, rows, state->stream));
}

// The largest relative difference of a part, by norm; NaN when a result is.
static double sample_difference(const Sample *got, const Sample *wanted) {
    double worst = 0;
    for (int part = 0; part < SAMPLE_PARTS; part++) {
        double difference = 0, size = 0;
        for (size_t i = 0; i < wanted->count[part]; i++) {
            double x = bf16_to_f32(got->part[part][i]), y = bf16_to_f32(wanted->part[part][i]);
            difference += (x - y) * (x - y);
            size += y * y;
        }
        double relative = difference == 0 ? 0 : sqrt(difference / size);
        if (isnan(relative)) return relative;
        if (relative > worst) worst = relative;
    }
    return worst;
}

// Whether the engine that just ran agrees with the portable kernels; *reference is taken from the first one asked.
static bool case_agrees(CudaState *state, const AttentionCase *item, int engine, const AttentionArgs *a,
                        Sample *reference) {
    Sample sample = case_sample(state, item, a);
    if (!reference->part[0]) {
        *reference = sample;
        return true;
    }
    double difference = sample_difference(&sample, reference);
    sample_free(&sample);
    if (difference <= SAMPLE_BOUND) return true;
    log_warn("attention %s engine %d differs by %.2g from the portable kernels and is not used; please report this",
             item->backward ? "backward" : "forward", engine, difference);
    return false;
}

static bool case_can(CudaState *state, const AttentionCase *item, int engine) {
    if (engine == ENGINE_CUDNN) return item->plan != NULL;
    if (engine == ENGINE_SM90) {
        const AttentionShape *s = &item->shape;
        return item->backward && attention_sm90_supported(state, item->dqkv_stride, s) &&
               attention_sm90_backward_workspace(s->batch, s->seq, s->heads, s->kv_heads, s->head_dim) <=
                   state->workspace_bytes;
    }
    if (engine >= ENGINE_HOPPER && engine < ENGINE_SM90) return item->backward && hopper_available(state);
    return engine >= 0 && engine < FLASH_VARIANTS;
}

static void case_choose(CudaState *state, AttentionCase *item, const AttentionArgs *a) {
    if (item->dtype != DTYPE_BF16) return; // the float kernels have one variant
    case_plan(state, item);
    char *key = case_key(state, item);
    const char *known = tune_get(state->tune, key);
    int64_t cached = -1;
    int engine = known && text_to_int64(known, &cached) && cached < ENGINE_COUNT ? (int)cached : -1;
    if (case_can(state, item, engine)) {
        item->engine = engine;
    } else if (!state->capturing) {
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
        bool sound = !state->failure && !isnan(sample_difference(&reference, &reference));
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
           x->dtype == y->dtype && x->backward == y->backward && x->rope == y->rope && x->dqkv_stride == y->dqkv_stride;
}

static void attention(Ops *ops, const AttentionCase *wanted, const AttentionArgs *args) {
    CudaState *state = cuda_scope_begin(ops, OP_ATTENTION);
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

void cuda_attention_forward(Ops *ops, void *out, float *lse, const void *q, const void *k, const void *v,
                            const AttentionShape *shape, DType dtype) {
    AttentionCase wanted = {.shape = *shape, .dtype = dtype};
    AttentionArgs args = {.out = out, .lse = lse, .q = q, .k = k, .v = v, .shape = shape};
    attention(ops, &wanted, &args);
}

void cuda_attention_backward(Ops *ops, void *dq, void *dk, void *dv, int64_t dqkv_stride, const void *dout,
                             const void *out, const float *lse, const void *q, const void *k, const void *v,
                             const AttentionShape *shape, const QkRopeShape *rope, DType dtype) {
    assert(!rope || (!rope->q_weight && !rope->k_weight &&
                     (char *)dk == (char *)dq + (size_t)(shape->heads * shape->head_dim) * dtype_size(dtype)));
    AttentionCase wanted = {
        .shape = *shape, .dtype = dtype, .backward = true, .rope = rope != NULL, .dqkv_stride = dqkv_stride};
    AttentionArgs args = {dq, dk, dv, dout, (void *)out, (float *)lse, q, k, v, shape, rope, ops};
    attention(ops, &wanted, &args);
}
