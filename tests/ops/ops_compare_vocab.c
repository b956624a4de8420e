// The cases of ops_compare for the ops over a vocabulary: embedding and cross entropy.
#include "base/text.h"
#include "ops_compare.h"

#include <math.h>
#include <stdlib.h>

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

// ---- cross entropy -------------------------------------------------------------------------------------------------

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
