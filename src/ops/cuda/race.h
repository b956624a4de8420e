// Several kernels for one op: which is fastest depends on the shape, so they are timed at a shape's first use outside a
// graph, under load, and their results checked against those of the plain way (whose own parts may have been raced
// before). The choice is kept in memory and in the tuning cache.
#pragma once

#include "ops/cuda/sample.h"

enum {
    RACE_PLAIN = -1,
    RACE_SIZES = 5,
    RACE_ROWS = 1024, // fewer are a prompt's, of any length: not worth a race each
};

typedef struct Race {
    const char *what; // a constant text; with the sizes it tells a case from others, also in the tuning cache
    int64_t sizes[RACE_SIZES];
    int variants;                                        // choices are RACE_PLAIN and 0 .. variants - 1
    bool (*run)(Ops *ops, const void *call, int choice); // false: not for this shape, nothing was done
    const void *call;
    struct {
        void *memory; // bf16, or e4m3; must not be an input of the call
        int64_t stride, columns;
        bool fp8;
    } results[SAMPLE_PARTS];
    int64_t rows;
} Race;

RaceCache *race_cache_create(void);
void race_cache_free(RaceCache *cache);

// True when the case is decided, or cannot be now: *choice is what to run.
bool race_known(CudaState *state, const Race *race, int *choice);
// Decides it: overwrites the results many times.
int race_run(Ops *ops, const Race *race);
// Notes the plain way for a case that could not be raced.
void race_give_up(CudaState *state, const Race *race);
// Memory for results of a call that writes to what it reads, which must survive the race; to be freed with cudaFree.
// NULL where there is none: that is said, and the race given up.
void *race_borrow(CudaState *state, const Race *race, size_t bytes);
// Runs the call by the fastest choice, which is found out first where it is not known.
void race_perform(Ops *ops, const Race *race);
