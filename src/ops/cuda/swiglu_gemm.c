// SwiGLU and the product beside it: one kernel (swiglu_gemm_sm90.cu) or two. They are timed at a shape's first use
// outside a graph, under load, into memory that is overwritten anyway or borrowed, and checked against each other; the
// choice is kept in the tuning cache.
#include "ops/cuda/swiglu_gemm.h"
#include "ops/cuda/sample.h"

#include <stdlib.h>

enum { TWO_KERNELS = -1 };

typedef struct SwigluCase {
    bool backward;
    int64_t rows;
    int dim, inner;
    int choice; // variant of the one kernel, or TWO_KERNELS
} SwigluCase;

struct SwigluCache {
    SwigluCase *items;
    int count, capacity;
};

SwigluCache *swiglu_cache_create(void) {
    return xcalloc(1, sizeof(SwigluCache));
}

void swiglu_cache_free(SwigluCache *cache) {
    if (!cache) return;
    free(cache->items);
    free(cache);
}

static bool run(Ops *ops, const SwigluCase *item, int choice, const SwigluCall *c) {
    CudaState *state = cuda_state(ops);
    bool done = true;
    if (choice == TWO_KERNELS && item->backward) {
        ops_linear_then_swiglu_backward(ops, c->gate_up, c->hidden, c->before, c->in, c->weight, c->rows, c->dim,
                                        c->inner, DTYPE_BF16);
    } else if (choice == TWO_KERNELS) {
        ops_linear_then_swiglu_forward(ops, c->hidden, c->gate_up, c->in, c->weight, c->rows, c->inner, c->dim,
                                       DTYPE_BF16);
    } else {
        cuda_scope_begin(ops, OP_GEMM);
        done = swiglu_sm90(state, item->backward, c, choice);
        cuda_scope_end(state);
    }
    return done;
}

// Milliseconds of one run after the clock has settled under load; negative when this choice is not for the shape.
static float run_time(Ops *ops, const SwigluCase *item, int choice, const SwigluCall *call) {
    enum { HEAT_MS = 30, RACE_MS = 30 };
    CudaState *state = cuda_state(ops);
    if (!run(ops, item, choice, call)) return -1;
    cudaEvent_t marks[2];
    float milliseconds = 0;
    CUDA_CHECK(state, cudaEventCreate(&marks[0]));
    CUDA_CHECK(state, cudaEventCreate(&marks[1]));
    int repeats = 2;
    for (int round = 0; round < 3; round++) { // how long it takes, then the heat, then the race
        CUDA_CHECK(state, cudaEventRecord(marks[0], state->stream));
        for (int i = 0; i < repeats; i++)
            run(ops, item, choice, call);
        CUDA_CHECK(state, cudaEventRecord(marks[1], state->stream));
        CUDA_CHECK(state, cudaEventSynchronize(marks[1]));
        CUDA_CHECK(state, cudaEventElapsedTime(&milliseconds, marks[0], marks[1]));
        milliseconds /= (float)repeats;
        repeats = 1 + (int)((float)(round ? RACE_MS : HEAT_MS) / (milliseconds > 0.001f ? milliseconds : 0.001f));
    }
    cudaEventDestroy(marks[0]);
    cudaEventDestroy(marks[1]);
    return milliseconds;
}

static Sample results_sample(CudaState *state, const SwigluCall *call) {
    Sample sample = {0};
    sample_take(state, &sample, 0, call->gate_up, 2 * call->dim, 2 * call->dim, call->rows);
    sample_take(state, &sample, 1, call->hidden, call->dim, call->dim, call->rows);
    CUDA_CHECK(state, cudaStreamSynchronize(state->stream));
    return sample;
}

// Milliseconds, or negative for a choice that cannot do the shape or disagrees with the two kernels' results.
static float trial(Ops *ops, const SwigluCase *item, int choice, const SwigluCall *call, const Sample *reference,
                   const char *key) {
    CudaState *state = cuda_state(ops);
    sample_poison(state, call->gate_up, 2 * call->dim, 2 * call->dim, call->rows);
    sample_poison(state, call->hidden, call->dim, call->dim, call->rows);
    float time = run_time(ops, item, choice, call);
    if (time < 0) return time;
    Sample sample = results_sample(state, call);
    bool agrees = sample_agrees(&sample, reference, key, choice);
    sample_free(&sample);
    return agrees ? time : -1;
}

static void race(Ops *ops, SwigluCase *item, const SwigluCall *call, const char *key) {
    CudaState *state = cuda_state(ops);
    SwigluCall other = *call;
    void *borrowed = NULL;
    if (call->before == call->gate_up) { // in place: what is read must survive
        size_t bytes = (size_t)call->rows * 2 * (size_t)call->dim * sizeof(bf16);
        if (cudaMalloc(&borrowed, bytes) != cudaSuccess) {
            cudaGetLastError();
            log_warn("no memory to race kernels of SwiGLU (%zu bytes): two separate ones are used", bytes);
            return;
        }
        other.gate_up = borrowed;
    }
    float best = run_time(ops, item, TWO_KERNELS, &other);
    Sample reference = results_sample(state, &other);
    for (int choice = 0; choice < SWIGLU_SM90_VARIANTS; choice++) {
        float time = trial(ops, item, choice, &other, &reference, key);
        log_debug("%s: variant %d %.3f ms, best so far %.3f", key, choice, time, best);
        if (time < 0 || time >= best) continue;
        best = time;
        item->choice = choice;
    }
    sample_free(&reference);
    if (borrowed) CUDA_CHECK(state, cudaFree(borrowed));
    char value[16];
    snprintf(value, sizeof value, "%d", item->choice);
    if (!state->failure) tune_put(state->tune, key, value);
}

static void choose(Ops *ops, SwigluCase *item, const SwigluCall *call) {
    enum { RACE_ROWS = 1024 }; // fewer are a prompt's, of any length: not worth a race each
    CudaState *state = cuda_state(ops);
    item->choice = TWO_KERNELS;
    if (call->rows < RACE_ROWS) return;
    char *key = text_format("swiglu 2 %s rows %lld dim %d inner %d", item->backward ? "backward" : "forward",
                            (long long)item->rows, item->dim, item->inner);
    const char *known = tune_get(state->tune, key);
    int64_t choice;
    if (known && text_to_int64(known, &choice) && choice >= TWO_KERNELS && choice < SWIGLU_SM90_VARIANTS)
        item->choice = (int)choice;
    else if (!state->capturing)
        race(ops, item, call, key);
    free(key);
}

static void linear_swiglu(Ops *ops, bool backward, const SwigluCall *call) {
    SwigluCache *cache = cuda_state(ops)->swiglus;
    int found = 0;
    for (; found < cache->count; found++) {
        const SwigluCase *s = &cache->items[found];
        if (s->backward == backward && s->rows == call->rows && s->dim == call->dim && s->inner == call->inner) break;
    }
    if (found == cache->count) {
        if (cache->count == cache->capacity) {
            cache->capacity = cache->capacity ? 2 * cache->capacity : 8;
            cache->items = xrealloc(cache->items, (size_t)cache->capacity * sizeof *cache->items);
        }
        cache->items[cache->count++] = (SwigluCase){backward, call->rows, call->dim, call->inner, TWO_KERNELS};
        choose(ops, &cache->items[found], call);
    }
    const SwigluCase *item = &cache->items[found];
    if (!run(ops, item, item->choice, call)) run(ops, item, TWO_KERNELS, call);
}

void cuda_linear_swiglu_forward(Ops *ops, void *out, void *gate_up, const void *in, const void *weight, int64_t rows,
                                int in_dim, int dim, DType dtype) {
    SwigluCall call = {gate_up, out, NULL, in, weight, rows, dim, in_dim};
    if (dtype == DTYPE_BF16)
        linear_swiglu(ops, false, &call);
    else
        ops_linear_then_swiglu_forward(ops, out, gate_up, in, weight, rows, in_dim, dim, dtype);
}

void cuda_linear_swiglu_backward(Ops *ops, void *dgate_up, void *out, const void *gate_up, const void *dnext,
                                 const void *weight, int64_t rows, int dim, int next_dim, DType dtype) {
    SwigluCall call = {dgate_up, out, gate_up, dnext, weight, rows, dim, next_dim};
    if (dtype == DTYPE_BF16)
        linear_swiglu(ops, true, &call);
    else
        ops_linear_then_swiglu_backward(ops, dgate_up, out, gate_up, dnext, weight, rows, dim, next_dim, dtype);
}
