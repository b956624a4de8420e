// ops_compare: every op of the CUDA table against the CPU table on the same random inputs, float, bf16 and f16, at
// swept shapes (odd ones included). Outputs are poisoned with NaN bits first; each CUDA op runs twice and must give the
// same bits.
//
//   ops_compare [--small] [--portable] [--dtype f32|bf16|f16|fp8] [--every N] [[=]NAME]
//
// NAME: only the ops whose name contains it, =NAME: only the one of that name; --dtype: only the cases whose narrowest
// floats are of this kind; --every: only each N-th case; --small: every kernel once at a small odd size, for slow tools
// such as compute-sanitizer;
// --portable: the kernels that run on GPUs other than Hopper and with little shared memory, whatever is here.
//
// Tolerance of an element: u |ref| + (8 * 2^-24 * sqrt(n) + inner) * rms, where u is one step of the storage type (2^-7
// for bf16, 2^-10 and 2^-24 beside it for f16, 2^-21 for float), n the length of the reduction behind the element, rms
// that of the whole output, and inner what the op rounds on the way (bf16 probabilities in attention, split float
// gradients in the router).
#include "ops_compare.h"
#include "base/text.h"
#include "ops/cuda/cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- random values -------------------------------------------------------------------------------------------------

uint64_t random_next(uint64_t *state) { // splitmix64
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

float random_float(uint64_t *state) { // four uniform draws: near enough to normal, and cheap
    uint64_t bits = random_next(state);
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(bits >> (16 * i) & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.7320508f;
}

static bool is_fp8(DType dtype) {
    return dtype == DTYPE_E4M3 || dtype == DTYPE_E5M2;
}

static bool is_float(DType dtype) {
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16 || is_fp8(dtype);
}

float value_at(const void *data, DType dtype, int64_t i) {
    if (is_fp8(dtype)) return fp8_to_f32(((const uint8_t *)data)[i], dtype);
    return storage_get(data, i, dtype);
}

void value_set(void *data, DType dtype, int64_t i, float value) {
    if (is_fp8(dtype))
        ((uint8_t *)data)[i] = fp8_from_f32(value, dtype);
    else
        storage_put(data, i, dtype, value);
}

// Of an op's random values: its own, whatever stands before it in the list.
static uint64_t random_seed(const char *name) { // FNV-1a
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001B3u;
    return hash;
}

void random_fill(void *out, DType dtype, int64_t count, float scale, uint64_t seed) {
    uint64_t state = seed;
    for (int64_t i = 0; i < count; i++)
        value_set(out, dtype, i, random_float(&state) * scale);
}

// ---- buffers -------------------------------------------------------------------------------------------------------

void *add(Compare *run, Case *c, Role role, DType dtype, int64_t count, double reduction, double inner) {
    Buffer *buffer = &c->buffers[c->count++];
    *buffer = (Buffer){.role = role, .dtype = dtype, .count = count, .reduction = reduction, .inner = inner};
    if (role == ROLE_NULL) return NULL;
    size_t bytes = (size_t)count * dtype_size(dtype);
    buffer->start = xmalloc(bytes);
    if (role == ROLE_OUT)
        memset(buffer->start, 0xff, bytes);
    else if (is_float(dtype))
        random_fill(buffer->start, dtype, count, 1.0f, run->seed++);
    else
        memset(buffer->start, 0, bytes);
    return buffer->start;
}
void *add_in(Compare *run, Case *c, DType dtype, int64_t count) {
    return add(run, c, ROLE_IN, dtype, count, 0, 0);
}
void *add_out(Compare *run, Case *c, DType dtype, int64_t count, double reduction) {
    return add(run, c, ROLE_OUT, dtype, count, reduction, 0);
}
void *add_inout(Compare *run, Case *c, DType dtype, int64_t count, double reduction) {
    return add(run, c, ROLE_INOUT, dtype, count, reduction, 0);
}
void add_null(Compare *run, Case *c) {
    add(run, c, ROLE_NULL, DTYPE_F32, 0, 0, 0);
}

void halves(Case *c, int64_t half, double inner_second) {
    c->buffers[c->count - 1].half = half;
    c->buffers[c->count - 1].inner_second = inner_second;
}

static size_t buffer_bytes(const Buffer *buffer) {
    return (size_t)buffer->count * dtype_size(buffer->dtype);
}

static void must(Status status) {
    if (!status) return;
    status_print(status, stderr);
    exit(1);
}

// Runs the call on one table and returns the content of all buffers afterwards.
static void run_on(Ops *ops, const Case *c, OpCall *call, void *results[BUFFERS]) {
    void *p[BUFFERS] = {0};
    for (int i = 0; i < c->count; i++) {
        const Buffer *buffer = &c->buffers[i];
        if (buffer->role == ROLE_NULL) continue;
        must(ops->alloc(ops, &p[i], buffer_bytes(buffer), "a buffer of ops_compare"));
        ops->upload(ops, p[i], buffer->start, buffer_bytes(buffer));
    }
    call(ops, p, &c->sizes);
    must(ops->sync(ops));
    for (int i = 0; i < c->count; i++) {
        const Buffer *buffer = &c->buffers[i];
        if (buffer->role == ROLE_NULL) continue;
        results[i] = xmalloc(buffer_bytes(buffer));
        ops->download(ops, results[i], p[i], buffer_bytes(buffer));
        ops->free(ops, p[i], buffer_bytes(buffer));
    }
}

static float master_at(void *const results[2], int64_t i) {
    uint32_t bits =
        ((uint32_t)((const bf16 *)results[0])[i] << 16) + (uint32_t)(int32_t)((const int16_t *)results[1])[i];
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void miss(Compare *run, const char *label, int buffer, int64_t at, double got, double wanted, double tolerance) {
    run->failures++;
    if (run->failures > 4) return;
    printf("  MISS %s [%s] buffer %d element %lld: %.9g, CPU %.9g, tolerance %.3g\n", run->name, label, buffer,
           (long long)at, got, wanted, tolerance);
}

static int part_of(const Buffer *buffer, int64_t i) { // which of two matrices side by side
    return buffer->half ? (int)(i / buffer->half % 2) : 0;
}

static void compare_floats(Compare *run, const Case *c, const char *label, int b, void *const cpu[],
                           void *const cuda[]) {
    const Buffer *buffer = &c->buffers[b];
    bool master = c->master && b == 0;
    double squares[2] = {0}, floors[2], most = 0;
    for (int64_t i = 0; i < buffer->count; i++) {
        float wanted = master ? master_at(cpu, i) : value_at(cpu[b], buffer->dtype, i);
        if (isfinite(wanted)) squares[part_of(buffer, i)] += (double)wanted * (double)wanted;
    }
    double unit = buffer->dtype == DTYPE_F32 || master ? 0x1p-21 : 0x1p-7, least = 0;
    if (buffer->dtype == DTYPE_F16) unit = 0x1p-10, least = 0x1p-24; // of the subnormal ones
    if (buffer->dtype == DTYPE_E4M3) unit = 0x1p-3, least = 0x1p-9;  // of the subnormal ones
    if (buffer->dtype == DTYPE_E5M2) unit = 0x1p-2, least = 0x1p-16;
    for (int part = 0; part < 2; part++) {
        double count = (double)(buffer->half ? buffer->count / 2 : buffer->count);
        double rms = sqrt(squares[part] / (count > 0 ? count : 1)), inner = part ? buffer->inner_second : buffer->inner;
        floors[part] = (8 * 0x1p-24 * sqrt(buffer->reduction) + inner) * rms + least;
        if (rms > most) most = rms;
    }
    size_t size = dtype_size(buffer->dtype);
    for (int64_t i = 0; i < buffer->count; i++) {
        double floor = floors[part_of(buffer, i)];
        if (!master && memcmp((char *)cpu[b] + i * (int64_t)size, (char *)cuda[b] + i * (int64_t)size, size) == 0)
            continue;
        float wanted = master ? master_at(cpu, i) : value_at(cpu[b], buffer->dtype, i);
        float got = master ? master_at(cuda, i) : value_at(cuda[b], buffer->dtype, i);
        double error = fabs((double)got - (double)wanted), tolerance;
        tolerance =
            unit * (1 + (part_of(buffer, i) ? buffer->steps_second : buffer->steps)) * fabs((double)wanted) + floor;
        if (!(error <= tolerance) || !isfinite(got) || !isfinite(wanted)) {
            miss(run, label, b, i, (double)got, (double)wanted, tolerance);
            return;
        }
        if (tolerance > 0 && error / tolerance > run->worst) run->worst = error / tolerance;
        if (error > run->worst_error) run->worst_error = error;
        if (most > 0 && error / most > run->worst_rms) run->worst_rms = error / most;
    }
}

static int case_kind(const Case *c) { // of KINDS: each case is of one
    int kind = 0;
    for (int i = 0; i < c->count; i++) {
        DType dtype = c->buffers[i].dtype;
        int of_buffer = is_fp8(dtype) ? 3 : dtype == DTYPE_F16 ? 2 : dtype == DTYPE_BF16 ? 1 : 0;
        if (of_buffer > kind) kind = of_buffer;
    }
    return kind;
}

void check(Compare *run, Case *c, OpCall *call, const char *format, ...) {
    char label[160];
    va_list args;
    va_start(args, format);
    vsnprintf(label, sizeof label, format, args);
    va_end(args);
    void *cpu[BUFFERS] = {0}, *first[BUFFERS] = {0}, *second[BUFFERS] = {0};
    bool skip = (run->kind >= 0 && case_kind(c) != run->kind) || run->skipped++ % run->every != 0;
    if (!skip) {
        run_on(run->cpu, c, call, cpu);
        run_on(run->cuda, c, call, first);
        if (!run->small) run_on(run->cuda, c, call, second);
        run->cases++;
    }
    for (int i = 0; i < c->count; i++) {
        const Buffer *buffer = &c->buffers[i];
        if (skip || buffer->role == ROLE_NULL || buffer->role == ROLE_SCRATCH) continue;
        if (!run->small && memcmp(first[i], second[i], buffer_bytes(buffer)) != 0) {
            run->failures++;
            printf("  MISS %s [%s] buffer %d: two runs differ\n", run->name, label, i);
        }
        bool floats = is_float(buffer->dtype);
        if (buffer->role == ROLE_IN && memcmp(first[i], buffer->start, buffer_bytes(buffer)) != 0) {
            run->failures++;
            printf("  MISS %s [%s] buffer %d is an input and was changed\n", run->name, label, i);
        }
        if (buffer->role == ROLE_IN || (c->master && i == 1)) continue;
        if (floats)
            compare_floats(run, c, label, i, cpu, first);
        else if (memcmp(cpu[i], first[i], buffer_bytes(buffer)) != 0) {
            int64_t at = 0;
            while (buffer->dtype == DTYPE_I32 && ((int32_t *)cpu[i])[at] == ((int32_t *)first[i])[at])
                at++;
            miss(run, label, i, at, ((int32_t *)first[i])[at], ((int32_t *)cpu[i])[at], 0);
        }
    }
    for (int i = 0; i < c->count; i++) {
        free(cpu[i]);
        free(first[i]);
        free(second[i]);
        free(c->buffers[i].start);
    }
}

void positive(float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        values[i] = 0.5f + fabsf(values[i]);
}

// ---- the program ---------------------------------------------------------------------------------------------------

static const char *const KINDS[] = {"f32", "bf16", "f16", "fp8"};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };

static bool kind_parse(int *kind, const char *name) {
    for (*kind = 0; *kind < KIND_COUNT; ++*kind)
        if (strcmp(KINDS[*kind], name) == 0) return true;
    return false;
}

#define OPS_LIST_ROW(id, function, category) {#function, sweep_##function},
static const struct {
    const char *name;
    Sweep *sweep;
} OPS[] = {OPS_TENSOR_LIST(OPS_LIST_ROW)};
#undef OPS_LIST_ROW

static int compare_all(Ops *cuda, const char *only, int kind, int every, bool small) {
    Ops *cpu = NULL;
    must(ops_cpu_create(&cpu));
    cpu->row_align = cuda->row_align; // the same permutation on both sides
    size_t bytes = (size_t)256 << 20;
    void *workspace = NULL;
    must(cpu->alloc(cpu, &workspace, bytes, "the workspace"));
    cpu->bind_workspace(cpu, workspace, bytes);
    int missed = 0, ran = 0, cases = 0;
    printf("%-32s %6s %6s %10s %12s %12s\n", "op", "cases", "missed", "of bound", "max error", "error / rms");
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++) {
        if (only && (only[0] == '=' ? strcmp(OPS[i].name, only + 1) != 0 : !strstr(OPS[i].name, only))) continue;
        Compare run = {.cpu = cpu,
                       .cuda = cuda,
                       .name = OPS[i].name,
                       .kind = kind,
                       .every = every,
                       .small = small,
                       .seed = random_seed(OPS[i].name)};
        OPS[i].sweep(&run);
        printf("%-32s %6d %6d %9.1f%% %12.3g %12.3g\n", run.name, run.cases, run.failures, 100 * run.worst,
               run.worst_error, run.worst_rms);
        fflush(stdout);
        missed += run.failures;
        cases += run.cases;
        ran++;
    }
    cpu->free(cpu, workspace, bytes);
    ops_cpu_destroy(cpu);
    if (ran == 0)
        printf("no op is called like \"%s\"\n", only);
    else
        printf("%s: %d ops, %d cases, %d misses\n", missed ? "FAILED" : "passed", ran, cases, missed);
    return missed || cases == 0;
}

int main(int argc, char **argv) {
    const char *only = NULL;
    int every = 1, kind = -1;
    bool small = false, portable = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            small = true;
        else if (strcmp(argv[i], "--portable") == 0)
            portable = true;
        else if (strcmp(argv[i], "--every") == 0 && i + 1 < argc)
            every = atoi(argv[++i]);
        else if (strcmp(argv[i], "--dtype") == 0 && i + 1 < argc && kind_parse(&kind, argv[i + 1]))
            i++;
        else if (argv[i][0] == '-') {
            fprintf(stderr,
                    "usage: ops_compare [--small] [--portable] [--dtype f32|bf16|f16|fp8] [--every N] [[=]NAME]\n");
            return 2;
        } else
            only = argv[i];
    }
    if (every < 1) every = 1;
    if (!ops_cuda_available()) {
        printf("SKIPPED: no GPU here\n");
        return 0;
    }
    Ops *cuda = NULL;
    const char *cache = getenv("HEARTH_TUNE_CACHE"); // without one, every run races anew
    must(ops_cuda_create(&cuda, 0, cache && *cache && !portable ? cache : NULL));
    if (portable) cuda_state(cuda)->arch = 86, cuda_state(cuda)->shared_limit = 99 << 10;
    size_t bytes = (size_t)512 << 20;
    void *workspace = NULL;
    must(cuda->alloc(cuda, &workspace, bytes, "the workspace"));
    cuda->bind_workspace(cuda, workspace, bytes);
    int code = compare_all(cuda, only, kind, every, small);
    must(cuda->sync(cuda));
    int rejected = cuda_state(cuda)->disagreements; // the op was right all the same: by another kernel
    if (rejected) printf("FAILED: races have rejected the results of %d kernels\n", rejected);
    code |= rejected != 0;
    cuda->free(cuda, workspace, bytes);
    ops_cuda_destroy(cuda);
    return code;
}
