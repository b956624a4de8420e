// What the parts of ops_compare share: random values, and cases that run on both tables.
#pragma once

#include "calls.h"

uint64_t random_next(uint64_t *state);
float random_float(uint64_t *state); // mean 0, deviation 1
void random_fill(void *out, DType dtype, int64_t count, float scale, uint64_t seed);
float value_at(const void *data, DType dtype, int64_t i);
void value_set(void *data, DType dtype, int64_t i, float value);

// ---- a case: one call with its buffers, run on both tables ----

enum { BUFFERS = 24 };

typedef enum Role { ROLE_IN, ROLE_OUT, ROLE_INOUT, ROLE_SCRATCH, ROLE_NULL } Role; // scratch: any content

typedef struct Buffer {
    Role role;
    DType dtype;
    int64_t count;
    double reduction, inner;
    int64_t half;               // elements of a half row when the buffer holds two matrices side by side; 0: it is one
    double inner_second;        // as inner, for the second of the two
    double steps, steps_second; // how many steps of the storage type beyond one the results may differ by, and those
                                // of the second of the two
    void *start;                // on the host: the content before the call
} Buffer;

typedef struct Case {
    CallSizes sizes;
    Buffer buffers[BUFFERS];
    int count;
    bool master; // buffers 0 and 1 are the two halves of a float weight
} Case;

typedef struct Compare { // of one op
    Ops *cpu, *cuda;
    const char *name;
    int cases, failures;
    int kind;                             // the cases that run: 0 f32, 1 bf16, 2 f16, 3 fp8, -1 all
    int every, skipped;                   // run each every-th case
    bool small;                           // only the second value of sizes that choose no kernel, and CUDA once
    double worst, worst_error, worst_rms; // error as a share of the tolerance, and in units of the output's rms
    uint64_t seed;
} Compare;

void *add(Compare *run, Case *c, Role role, DType dtype, int64_t count, double reduction, double inner);
void *add_in(Compare *run, Case *c, DType dtype, int64_t count);
void *add_out(Compare *run, Case *c, DType dtype, int64_t count, double reduction);
void *add_inout(Compare *run, Case *c, DType dtype, int64_t count, double reduction);
void add_null(Compare *run, Case *c);
void halves(Case *c, int64_t half, double inner_second); // of the buffer that was added last
void positive(float *values, int64_t count);             // makes them so

// Runs the case on both tables (twice on CUDA, once if small), compares, and frees it.
void check(Compare *run, Case *c, OpCall *call, const char *format, ...) __attribute__((format(printf, 4, 5)));

#define EACH(variable, ...)                                                                                     \
    for (size_t variable##_at = 0; variable##_at < sizeof((int[]){__VA_ARGS__}) / sizeof(int); variable##_at++) \
        for (int variable = ((int[]){__VA_ARGS__})[variable##_at], variable##_once = 1; variable##_once;        \
             variable##_once = 0)

// A size that decides about the amount of work, not about the kernel that does it: its second value is an odd small
// one.
#define EACH_SIZE(variable, ...) EACH(variable, __VA_ARGS__) if (!run->small || variable##_at == 1)

#define EACH_DTYPE(dtype)                                                                                     \
    for (int dtype##_at = 0; dtype##_at < 3; dtype##_at++)                                                    \
        for (DType dtype = ((DType[]){DTYPE_F32, DTYPE_BF16, DTYPE_F16})[dtype##_at], *dtype##_once = &dtype; \
             dtype##_once; dtype##_once = NULL)

// What a value that is stored on the way may be off by, with some room: two steps of the storage type, of a float more
// for what fast exponentials and quotients lose.
static inline double rounding_inside(DType dtype) {
    return dtype == DTYPE_BF16 ? 0x1p-6 : dtype == DTYPE_F16 ? 0x1p-9 : 0x1p-18;
}

typedef void Sweep(Compare *run);
#define OPS_LIST_SWEEP(id, function, category) Sweep sweep_##function;
OPS_TENSOR_LIST(OPS_LIST_SWEEP)
#undef OPS_LIST_SWEEP
