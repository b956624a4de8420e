// Timing the kernels of an op against each other; see race.h.
#include "ops/cuda/race.h"

#include <stdlib.h>

typedef struct RaceCase {
    const char *what;
    int64_t sizes[RACE_SIZES];
    int choice;
} RaceCase;

struct RaceCache {
    RaceCase *items;
    int count, capacity;
};

RaceCache *race_cache_create(void) {
    return xcalloc(1, sizeof(RaceCache));
}

void race_cache_free(RaceCache *cache) {
    if (!cache) return;
    free(cache->items);
    free(cache);
}

static char *race_key(const Race *race) {
    TextBuffer key = {0};
    text_buffer_format(&key, "%s", race->what);
    for (int i = 0; i < RACE_SIZES; i++)
        text_buffer_format(&key, " %lld", (long long)race->sizes[i]);
    return key.data;
}

static void case_add(CudaState *state, const Race *race, int choice) {
    RaceCache *cache = state->races;
    if (cache->count == cache->capacity) {
        cache->capacity = cache->capacity ? 2 * cache->capacity : 16;
        cache->items = xrealloc(cache->items, (size_t)cache->capacity * sizeof *cache->items);
    }
    RaceCase *item = &cache->items[cache->count++];
    *item = (RaceCase){.what = race->what, .choice = choice};
    memcpy(item->sizes, race->sizes, sizeof item->sizes);
}

bool race_known(CudaState *state, const Race *race, int *choice) {
    for (int i = 0; i < state->races->count; i++) {
        const RaceCase *item = &state->races->items[i];
        if (item->what != race->what || memcmp(item->sizes, race->sizes, sizeof item->sizes) != 0) continue;
        *choice = item->choice;
        return true;
    }
    *choice = RACE_PLAIN;
    if (race->rows < RACE_ROWS) return true;
    char *key = race_key(race);
    const char *known = tune_get(state->tune, key);
    int64_t value;
    bool usable = known && text_to_int64(known, &value) && value >= RACE_PLAIN && value < race->variants;
    free(key);
    if (usable) *choice = (int)value;
    if (usable || state->capturing) case_add(state, race, *choice);
    return usable || state->capturing || tune_held(state->tune);
}

void race_give_up(CudaState *state, const Race *race) {
    case_add(state, race, RACE_PLAIN);
}

void *race_borrow(CudaState *state, const Race *race, size_t bytes) {
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
    cudaGetLastError();
    log_warn("no memory to race kernels of %s (%zu bytes): the plain way is used", race->what, bytes);
    race_give_up(state, race);
    return NULL;
}

// Milliseconds of one run after the clock has settled under load; negative when this choice is not for the shape.
static float run_time(Ops *ops, const Race *race, int choice) {
    enum { HEAT_MS = 30, RACE_MS = 30 };
    CudaState *state = cuda_state(ops);
    if (!race->run(ops, race->call, choice)) return -1;
    cudaEvent_t marks[2];
    float milliseconds = 0;
    CUDA_CHECK(state, cudaEventCreate(&marks[0]));
    CUDA_CHECK(state, cudaEventCreate(&marks[1]));
    int repeats = 2;
    // How long it takes, then the heat, then the race. One that takes long (under a tool that watches it) says enough.
    for (int round = 0; round < 3 && milliseconds < HEAT_MS; round++) {
        CUDA_CHECK(state, cudaEventRecord(marks[0], state->stream));
        for (int i = 0; i < repeats; i++)
            race->run(ops, race->call, choice);
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

static DType result_dtype(const Race *race, int part) {
    return race->results[part].fp8 ? DTYPE_E4M3 : DTYPE_BF16;
}

static Sample results_sample(CudaState *state, const Race *race) {
    Sample sample = {0};
    for (int i = 0; i < SAMPLE_PARTS; i++) {
        int64_t stride = race->results[i].stride, columns = race->results[i].columns;
        if (columns)
            sample_take(state, &sample, i, race->results[i].memory, result_dtype(race, i), stride, columns, race->rows);
    }
    CUDA_CHECK(state, cudaStreamSynchronize(state->stream));
    return sample;
}

// Milliseconds, or negative for a choice that cannot do the shape or disagrees with the plain way's results.
static float trial(Ops *ops, const Race *race, int choice, const Sample *reference, const char *key) {
    CudaState *state = cuda_state(ops);
    for (int i = 0; i < SAMPLE_PARTS; i++) {
        int64_t stride = race->results[i].stride, columns = race->results[i].columns;
        if (columns) sample_poison(state, race->results[i].memory, result_dtype(race, i), stride, columns, race->rows);
    }
    float time = run_time(ops, race, choice);
    if (time < 0) return time;
    Sample sample = results_sample(state, race);
    bool agrees = sample_agrees(state, &sample, reference, key, choice);
    sample_free(&sample);
    return agrees ? time : -1;
}

int race_run(Ops *ops, const Race *race) {
    CudaState *state = cuda_state(ops);
    char *key = race_key(race);
    int winner = RACE_PLAIN;
    run_time(ops, race, RACE_PLAIN); // the first of all still has a cool chip
    float best = run_time(ops, race, RACE_PLAIN);
    Sample reference = results_sample(state, race);
    for (int choice = 0; choice < race->variants; choice++) {
        float time = trial(ops, race, choice, &reference, key);
        log_debug("%s: variant %d %.3f ms, best so far %.3f", key, choice, time, best);
        if (time < 0 || time >= best) continue;
        best = time;
        winner = choice;
    }
    bool sound = !state->failure && sample_sound(&reference); // else not worth keeping
    sample_free(&reference);
    char value[16];
    snprintf(value, sizeof value, "%d", winner);
    if (sound) tune_put(state->tune, key, value);
    free(key);
    case_add(state, race, winner);
    return winner;
}

void race_perform(Ops *ops, const Race *race) {
    int choice;
    if (!race_known(cuda_state(ops), race, &choice)) choice = race_run(ops, race);
    if (!race->run(ops, race->call, choice)) race->run(ops, race->call, RACE_PLAIN);
}
