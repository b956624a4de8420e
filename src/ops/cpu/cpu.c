// The CPU table: memory, order and time. Work is done when a call returns, so streams, fetches and graphs are trivial
// here.
#include "ops/cpu/cpu.h"

#include "base/clock.h"
#include "base/memory_info.h"
#include "base/text.h"
#include "ops/cpu/level.h"
#include "ops/record.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// ---- memory --------------------------------------------------------------------------------------------------------

static Status cpu_alloc(Ops *ops, void **memory, size_t bytes, const char *what) {
    enum { HUGE_PAGE = 2 << 20 };
    Cpu *cpu = cpu_of(ops);
    *memory = NULL;
    size_t rounded = cpu_align(bytes ? bytes : 1);
    bool huge = rounded >= 2 * HUGE_PAGE;
    void *result = NULL;
    if (rounded < bytes || posix_memalign(&result, huge ? HUGE_PAGE : 256, rounded)) {
        char size[32];
        return status_hint(status_runtime("cannot allocate %s for %s on the CPU", text_gib(size, (double)bytes), what),
                           "use a smaller micro-batch or model, or more recomputation");
    }
    // Large pages spare the matrix products most of their address translation; refusing them is not an error.
    if (huge) (void)madvise(result, rounded, MADV_HUGEPAGE);
    pthread_mutex_lock(&cpu->lock);
    cpu->allocated += (int64_t)bytes;
    if (cpu->allocated > cpu->peak) cpu->peak = cpu->allocated;
    pthread_mutex_unlock(&cpu->lock);
    *memory = result;
    return NULL;
}

static void cpu_free(Ops *ops, void *memory, size_t bytes) {
    if (!memory) return;
    Cpu *cpu = cpu_of(ops);
    free(memory);
    pthread_mutex_lock(&cpu->lock);
    cpu->allocated -= (int64_t)bytes;
    pthread_mutex_unlock(&cpu->lock);
}

void ops_cpu_allocated(Ops *ops, int64_t *current, int64_t *peak) {
    Cpu *cpu = cpu_of(ops);
    pthread_mutex_lock(&cpu->lock);
    *current = cpu->allocated;
    *peak = cpu->peak;
    pthread_mutex_unlock(&cpu->lock);
}

const char *ops_cpu_bf16(Ops *ops) {
    return cpu_bf16_title(cpu_of(ops)->bf16);
}

static int64_t cpu_memory_total(Ops *ops) {
    (void)ops;
    return memory_total_bytes();
}

static int64_t cpu_memory_own(Ops *ops) {
    int64_t current, peak;
    ops_cpu_allocated(ops, &current, &peak);
    return current;
}

static int64_t cpu_memory_free(Ops *ops) {
    (void)ops;
    return memory_available_bytes();
}

static void cpu_bind_workspace(Ops *ops, void *memory, size_t bytes) {
    cpu_of(ops)->workspace = memory;
    cpu_of(ops)->workspace_bytes = bytes;
}

CpuScratch cpu_scratch(Cpu *cpu, size_t shared_bytes, size_t worker_bytes) {
    shared_bytes = cpu_align(shared_bytes);
    worker_bytes = cpu_align(worker_bytes);
    assert(shared_bytes + worker_bytes * (size_t)threads_count() <= cpu->workspace_bytes &&
           "the bound workspace is smaller than ops_cpu_workspace() of these shapes and threads");
    return (CpuScratch){cpu->workspace, cpu->workspace + shared_bytes, worker_bytes};
}

size_t ops_cpu_workspace(const OpsWorkspaceRequest *request) {
    size_t worker = cpu_gemm_scratch_bytes();
    if (request->heads > 0) {
        size_t attention =
            cpu_attention_scratch_bytes(request->seq, request->heads, request->kv_heads, request->head_dim);
        if (attention > worker) worker = attention;
    }
    // Partial sums over rows: of norm weights, of both QK-norm weights, of the experts' probabilities.
    int64_t columns = request->hidden;
    if (2 * request->head_dim > columns) columns = 2 * request->head_dim;
    if (request->experts > columns) columns = request->experts;
    size_t shared = (size_t)CPU_PARTS * (size_t)columns * sizeof(double);
    if (shared < cpu_sum_scratch_bytes()) shared = cpu_sum_scratch_bytes();
    size_t threads = request->threads > 0 ? (size_t)request->threads : 1;
    return cpu_align(shared) + threads * cpu_align(worker);
}

// ---- moving bytes ---------------------------------------------------------------------------------------------------

static void cpu_upload(Ops *ops, void *out, const void *host, size_t bytes) {
    CPU_TIMED(ops, OP_UPLOAD);
    if (bytes) memcpy(out, host, bytes);
}

static void cpu_download(Ops *ops, void *host, const void *in, size_t bytes) {
    CPU_TIMED(ops, OP_UPLOAD);
    if (bytes) memcpy(host, in, bytes);
}

static void cpu_fetch_start(Ops *ops, int slot, const void *in, size_t bytes) {
    assert(slot >= 0 && slot < CPU_FETCH_SLOTS && bytes <= CPU_FETCH_BYTES);
    memcpy(cpu_of(ops)->fetched[slot], in, bytes);
}

static void cpu_fetch_wait(Ops *ops, int slot, void *host, size_t bytes) {
    assert(slot >= 0 && slot < CPU_FETCH_SLOTS && bytes <= CPU_FETCH_BYTES);
    memcpy(host, cpu_of(ops)->fetched[slot], bytes);
}

typedef struct Bytes {
    char *out;
    const char *in; // NULL: zero
} Bytes;

static void bytes_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Bytes *bytes = context;
    if (bytes->in)
        memcpy(bytes->out + begin, bytes->in + begin, (size_t)(end - begin));
    else
        memset(bytes->out + begin, 0, (size_t)(end - begin));
}

static void cpu_copy(Ops *ops, void *out, const void *in, size_t bytes) {
    CPU_TIMED(ops, OP_COPY);
    threads_for((int64_t)bytes, 1 << 18, bytes_task, &(Bytes){out, in});
}

static void cpu_zero(Ops *ops, Tensor out) {
    CPU_TIMED(ops, OP_ZERO);
    assert(tensor_contiguous(out));
    int64_t bytes = tensor_count(out) * (int64_t)dtype_size(out.dtype);
    threads_for(bytes, 1 << 18, bytes_task, &(Bytes){out.data, NULL});
}

static Status cpu_sync(Ops *ops) {
    (void)ops;
    return NULL;
}

// ---- graphs: not recorded, the work was run -------------------------------------------------------------------------

static void cpu_graph_begin(Ops *ops) {
    (void)ops;
}

static Status cpu_graph_end(Ops *ops, void **graph) {
    (void)ops;
    *graph = NULL;
    return NULL;
}

static void cpu_graph_use(Ops *ops, void *graph) { // launch and free
    (void)ops;
    assert(!graph && "the CPU makes no graphs");
}

// ---- time -----------------------------------------------------------------------------------------------------------

static void cpu_mark(Ops *ops, int slot) {
    assert(slot >= 0 && slot < CPU_MARKS);
    cpu_of(ops)->mark[slot] = clock_seconds();
}

static double cpu_mark_elapsed(Ops *ops, int from, int to) {
    assert(from >= 0 && from < CPU_MARKS && to >= 0 && to < CPU_MARKS);
    return 1e3 * (cpu_of(ops)->mark[to] - cpu_of(ops)->mark[from]);
}

static void cpu_profile_start(Ops *ops) {
    Cpu *cpu = cpu_of(ops);
    memset(cpu->seconds, 0, sizeof cpu->seconds);
    cpu->profiling = true;
}

static void cpu_profile_stop(Ops *ops, double milliseconds[OP_COUNT]) {
    Cpu *cpu = cpu_of(ops);
    cpu->profiling = false;
    for (int i = 0; i < OP_COUNT; i++)
        milliseconds[i] = 1e3 * cpu->seconds[i];
}

CpuTimer cpu_timer_start(Ops *ops, OpId op) {
    Cpu *cpu = cpu_of(ops);
    if (!cpu->profiling) return (CpuTimer){0};
    return (CpuTimer){cpu, op, clock_seconds()};
}

void cpu_timer_stop(CpuTimer *timer) {
    if (timer->cpu) timer->cpu->seconds[timer->op] += clock_seconds() - timer->start;
}

// ---- choices: there are none here -----------------------------------------------------------------------------------

static bool cpu_choice_recall(Ops *ops, const char *key, int *value) {
    (void)ops, (void)key, (void)value;
    return false;
}

static void cpu_choice_keep(Ops *ops, const char *key, int value) {
    (void)ops, (void)key, (void)value;
}

// ---- the table -----------------------------------------------------------------------------------------------------

Status ops_cpu_create(Ops **ops) {
    const CpuLevel *level;
    *ops = NULL;
    TRY(cpu_level(&level));
    Cpu *cpu = xcalloc(1, sizeof *cpu);
    cpu->ops = (Ops){
        .kind = DEVICE_CPU,
        .device = "cpu",
        .gpu = -1,
        .fp8 = true,
        .state = cpu,
        .row_align = 1,
        .alloc = cpu_alloc,
        .free = cpu_free,
        .memory_total = cpu_memory_total,
        .memory_free = cpu_memory_free,
        .memory_own = cpu_memory_own,
        .bind_workspace = cpu_bind_workspace,
        .upload = cpu_upload,
        .download = cpu_download,
        .fetch_start = cpu_fetch_start,
        .fetch_wait = cpu_fetch_wait,
        .copy = cpu_copy,
        .zero = cpu_zero,
        .sync = cpu_sync,
        .graph_begin = cpu_graph_begin,
        .graph_end = cpu_graph_end,
        .graph_launch = cpu_graph_use,
        .graph_free = cpu_graph_use,
        .mark = cpu_mark,
        .mark_elapsed = cpu_mark_elapsed,
        .profile_start = cpu_profile_start,
        .profile_stop = cpu_profile_stop,
        .choice_recall = cpu_choice_recall,
        .choice_keep = cpu_choice_keep,
    };
    pthread_mutex_init(&cpu->lock, NULL);
    Status status = level->install(&cpu->ops);
    if (status) {
        ops_cpu_destroy(&cpu->ops);
        return status;
    }
    ops_check_calls(&cpu->ops);
    *ops = &cpu->ops;
    return NULL;
}

void ops_cpu_destroy(Ops *ops) {
    if (!ops) return;
    ops_stop_observing(ops);
    Cpu *cpu = cpu_of(ops);
    pthread_mutex_destroy(&cpu->lock);
    free(cpu);
}
