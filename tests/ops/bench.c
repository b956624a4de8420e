// What the benches of CUDA kernels share; see bench.h.
#include "bench.h"

#include "base/rng.h"
#include "base/text.h"
#include "ops/cuda/cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Ops *ops;
bool check_only, small_only, race_only;

static void *workspace;
static size_t workspace_size;
static int compared, failures;

void bench_begin(int argc, char **argv, size_t workspace_bytes, const char **word) {
    int at = 1;
    race_only = at < argc && !strcmp(argv[at], "--race");
    small_only = race_only || (at < argc && !strcmp(argv[at], "--small"));
    check_only = small_only || (at < argc && !strcmp(argv[at], "--check"));
    at += check_only;
    if (word) *word = at < argc ? argv[at++] : "";
    if (at < argc || (word && **word == '-')) {
        fprintf(stderr, "usage: %s [--check | --small | --race]%s\n", argv[0], word ? " [NAME]" : "");
        exit(2);
    }
    const char *cache = getenv("HEARTH_TUNE_CACHE");
    fail_if(ops_cuda_create(&ops, 0, cache && *cache ? cache : NULL));
    if (!workspace_bytes) return;
    workspace = device_memory(workspace_bytes);
    workspace_size = workspace_bytes;
    ops->bind_workspace(ops, workspace, workspace_bytes);
}

int bench_end(void) {
    fail_if(ops->sync(ops));
    if (workspace) ops->free(ops, workspace, workspace_size);
    ops_cuda_destroy(ops);
    if (failures)
        printf("%d of %d results FAILED\n", failures, compared);
    else if (compared)
        printf("%d results, all right\n", compared);
    else
        printf("nothing was compared: no kernel here is for this GPU\n");
    return failures != 0;
}

void fail_if(Status status) {
    if (!status) return;
    fflush(stdout);
    fprintf(stderr, "%s\n", status_message(status));
    exit(1);
}

// ---- memory -------------------------------------------------------------------------------------------------------

void *device_memory(size_t bytes) {
    void *memory = NULL;
    fail_if(ops->alloc(ops, &memory, bytes, "the bench"));
    return memory;
}

void *values_make(int64_t count, uint64_t stream, float deviation) {
    enum { BLOCK = 2097143 }; // repeated; a prime, so that no two rows or heads are the same
    int64_t block = count < BLOCK ? count : BLOCK;
    float *host = xmalloc((size_t)block * sizeof(float));
    bf16 *narrow = xmalloc((size_t)block * sizeof(bf16)), *memory = device_memory((size_t)count * sizeof(bf16));
    rng_fill_normal(host, block, 7, stream, 0, 0, deviation);
    for (int64_t i = 0; i < block; i++)
        narrow[i] = bf16_from_f32(host[i]);
    for (int64_t at = 0; at < count; at += block)
        ops->upload(ops, memory + at, narrow, (size_t)(count - at < block ? count - at : block) * sizeof(bf16));
    free(host);
    free(narrow);
    return memory;
}

static Tensor angles_make(int positions, int half, double (*function)(double)) {
    size_t bytes = (size_t)positions * (size_t)half * sizeof(float);
    float *host = xmalloc(bytes), *memory = device_memory(bytes);
    for (int i = 0; i < positions * half; i++)
        host[i] = (float)function((double)(i / half) * pow(10000.0, -(double)(i % half) / half));
    ops->upload(ops, memory, host, bytes);
    free(host);
    return tensor_make(memory, DTYPE_F32, positions, half, "angles");
}

Rope rope_make(int seq, int first, int heads, int kv_heads, int head_dim) {
    return (Rope){.seq = seq,
                  .first_position = first,
                  .heads = heads,
                  .kv_heads = kv_heads,
                  .head_dim = head_dim,
                  .cos = angles_make(first + seq, head_dim / 2, cos),
                  .sin = angles_make(first + seq, head_dim / 2, sin)};
}

void rope_free(const Rope *rope) {
    ops->free(ops, rope->cos.data, 0);
    ops->free(ops, rope->sin.data, 0);
}

void memory_spoil(void *memory, size_t bytes) {
    CUDA_CHECK(cuda_state(ops), cudaMemsetAsync(memory, 0xff, bytes, cuda_state(ops)->stream));
}

bool spoiled(const void *host, size_t bytes) {
    const uint8_t *at = host;
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != 0xff) return false;
    return true;
}

void *fetch(const void *memory, size_t bytes) {
    void *host = xmalloc(bytes);
    ops->download(ops, host, memory, bytes);
    fail_if(ops->sync(ops));
    return host;
}

// ---- comparing and timing -----------------------------------------------------------------------------------------

double difference_rows(const bf16 *got, const bf16 *wanted, int64_t rows, int64_t columns, int64_t stride) {
    double square = 0, size = 0;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = row * stride; i < row * stride + columns; i++) {
            double x = bf16_to_f32(got[i]), y = bf16_to_f32(wanted[i]);
            square += (x - y) * (x - y);
            size += y * y;
        }
    return sqrt(square / size);
}

double difference(const bf16 *got, const bf16 *wanted, int64_t count) {
    return difference_rows(got, wanted, 1, count, count);
}

bool verdict(bool right) {
    compared++;
    failures += !right;
    return right;
}

double timed(bool (*run)(const void *problem, int choice), const void *problem, int choice, int runs) {
    for (int i = 0; i < runs; i++)
        if (!run(problem, choice)) return NAN;
    ops->mark(ops, 0);
    for (int i = 0; i < runs; i++)
        run(problem, choice);
    ops->mark(ops, 1);
    return ops->mark_elapsed(ops, 0, 1) / runs;
}

// ---- experts --------------------------------------------------------------------------------------------------------

const char *const load_names[] = {"balanced", "natural", "sparse", "one"};

void slots_deal(int32_t *counts, int32_t *offsets, int experts, int64_t slots, Load load) {
    double *share = xcalloc((size_t)experts, sizeof *share), total = 0;
    for (int e = 0; e < experts; e++) {
        double spread = load == LOAD_NATURAL ? 0.3 : load == LOAD_SPARSE ? 1.5 : 0;
        share[e] = exp(spread * rng_normal(1, RNG_STREAM_TEST, (uint64_t)e));
        if (load == LOAD_SPARSE && e % 3 == 0 && experts > 1) share[e] = 0;
        if (load == LOAD_ONE) share[e] = e == experts / 2;
        total += share[e];
    }
    int64_t left = slots;
    offsets[0] = 0;
    for (int e = 0; e < experts; e++) {
        int64_t count = e == experts - 1 ? left : (int64_t)llround((double)slots * share[e] / total);
        counts[e] = (int32_t)(count < left ? count : left);
        left -= counts[e];
        offsets[e + 1] = offsets[e] + (counts[e] + CUDA_ROW_ALIGN - 1) / CUDA_ROW_ALIGN * CUDA_ROW_ALIGN;
    }
    free(share);
}
