// What the benches of CUDA kernels share: values on the device, memory that shows where it was written, a comparison by
// norm, a clock, and the options --check, --small and --race. What goes wrong beside a comparison ends the program.
#pragma once

#include "ops/ops.h"

extern Ops *ops;        // of the first GPU, from bench_begin to bench_end
extern bool check_only; // --check: every comparison, no times
extern bool small_only; // --small: likewise, and only products of up to SMALL_SIZE multiply-adds; for compute-sanitizer
enum { SMALL_SIZE = 1 << 28 };
extern bool race_only; // --race: likewise, and of grouped products one load; for racecheck, which is many times slower

// word: gets the argument beside the option, or "" when there is none; NULL where the program takes none.
void bench_begin(int argc, char **argv, size_t workspace_bytes, const char **word);
int bench_end(void); // says how the comparisons went; the exit code: 1 when one failed

void fail_if(Status status);
void *device_memory(size_t bytes);
void *values_make(int64_t count, uint64_t stream, float deviation); // bf16, normal
static inline Tensor bf16_tensor(void *data, int64_t rows, int64_t cols) {
    return tensor_make(data, DTYPE_BF16, rows, cols, "bench");
}
// Without norms, with tables of the angles of positions below first + seq, which rope_free frees.
Rope rope_make(int seq, int first, int heads, int kv_heads, int head_dim);
void rope_free(const Rope *rope);

// How the slots of tokens are spread over experts: evenly, as a router does, with every third expert idle, all to one.
typedef enum Load { LOAD_BALANCED, LOAD_NATURAL, LOAD_SPARSE, LOAD_ONE, LOAD_COUNT } Load;
extern const char *const load_names[LOAD_COUNT];
static inline bool load_wanted(Load load) {
    return !race_only || load == LOAD_NATURAL;
}
// Rows of each expert, and where its first one stands: [experts] and [experts + 1].
void slots_deal(int32_t *counts, int32_t *offsets, int experts, int64_t slots, Load load);

void memory_spoil(void *memory, size_t bytes); // every bf16 and every float in it is NaN
bool spoiled(const void *host, size_t bytes);  // and still is, bit for bit
void *fetch(const void *memory, size_t bytes); // after all work so far; malloc'd

double difference(const bf16 *got, const bf16 *wanted, int64_t count); // its norm over that of wanted
double difference_rows(const bf16 *got, const bf16 *wanted, int64_t rows, int64_t columns, int64_t stride);
bool verdict(bool right); // counts it

// Milliseconds of one run, hot: the clock settles under load first. NaN when run says that it cannot.
double timed(bool (*run)(const void *problem, int choice), const void *problem, int choice, int runs);
