// The CUDA op table: the device, memory, transfers, graphs and clocks. The mathematics is in the neighbouring files.
#include "ops/cuda/race.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>

// ---- failures, scopes, scratch ------------------------------------------------------------------------------------

void cuda_fail(CudaState *state, const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = text_vformat(format, args);
    va_end(args);
    if (!state->failure) state->failure = text_format("%s (%s:%d)", text, file, line);
    free(text);
}

static void profile_fold(CudaState *state) {
    if (state->profile.count == 0) return;
    CUDA_CHECK(state, cudaEventSynchronize(state->profile.end[state->profile.count - 1]));
    for (int i = 0; i < state->profile.count; i++) {
        float milliseconds = 0;
        CUDA_CHECK(state, cudaEventElapsedTime(&milliseconds, state->profile.begin[i], state->profile.end[i]));
        state->profile.milliseconds[state->profile.op[i]] += milliseconds;
    }
    state->profile.count = 0;
}

CudaState *cuda_scope_begin(Ops *ops, OpId op) {
    CudaState *state = cuda_state(ops);
    if (state->profile.on && !state->capturing && state->profile.depth++ == 0) {
        if (state->profile.count == CUDA_PROFILE_EVENTS) profile_fold(state);
        state->profile.op[state->profile.count] = (uint8_t)op;
        CUDA_CHECK(state, cudaEventRecord(state->profile.begin[state->profile.count], state->stream));
    }
    return state;
}

void cuda_scope_end(CudaState *state) {
    if (state->profile.on && !state->capturing && --state->profile.depth == 0)
        CUDA_CHECK(state, cudaEventRecord(state->profile.end[state->profile.count++], state->stream));
}

void *cuda_scratch(CudaState *state, size_t bytes) {
    if (bytes <= state->workspace_bytes) return state->workspace;
    cuda_fail(state, __FILE__, __LINE__, "an operation needs %zu bytes of workspace, but %zu are bound", bytes,
              state->workspace_bytes);
    return NULL;
}

// ---- memory and order -----------------------------------------------------------------------------------------------

static Status cuda_alloc(Ops *ops, void **memory, size_t bytes, const char *what) {
    CudaState *state = cuda_state(ops);
    *memory = NULL;
    cudaError_t error = cudaMalloc(memory, bytes ? bytes : 1);
    if (error == cudaSuccess) {
        state->allocated += (int64_t)bytes;
        return NULL;
    }
    cudaGetLastError(); // an allocation that does not fit leaves the device usable
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    char wanted[32], there[32];
    return status_hint(status_runtime("no device memory for %s: %s wanted, %s free on %s (%s)", what,
                                      text_gib(wanted, (double)bytes), text_gib(there, (double)available),
                                      state->gpu_name, cudaGetErrorString(error)),
                       "lower the micro-batch or recompute more (recompute full); `hearth plan` shows what fits");
}

static void cuda_free(Ops *ops, void *memory, size_t bytes) {
    if (!memory) return;
    CUDA_CHECK(cuda_state(ops), cudaFree(memory));
    cuda_state(ops)->allocated -= (int64_t)bytes;
}

static int64_t cuda_memory_total(Ops *ops) {
    size_t available = 0, total = 0;
    CUDA_CHECK(cuda_state(ops), cudaMemGetInfo(&available, &total));
    return (int64_t)total;
}

static int64_t cuda_memory_free(Ops *ops) {
    size_t available = 0, total = 0;
    CUDA_CHECK(cuda_state(ops), cudaMemGetInfo(&available, &total));
    return (int64_t)available;
}

static int64_t cuda_memory_own(Ops *ops) {
    return cuda_state(ops)->allocated;
}

static void cuda_bind_workspace(Ops *ops, void *memory, size_t bytes) {
    CudaState *state = cuda_state(ops);
    state->workspace = memory;
    state->workspace_bytes = bytes;
}

// The copy engine moves a slot while the compute stream is busy; the compute stream then only pays a device copy. A
// slot is used again when its bytes have arrived (host side) and were consumed (staging side).
static void cuda_upload(Ops *ops, void *out, const void *host, size_t bytes) {
    CudaState *state = cuda_scope_begin(ops, OP_UPLOAD);
    assert(!state->capturing);
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < CUDA_UPLOAD_BYTES ? bytes - done : CUDA_UPLOAD_BYTES;
        int slot = state->upload.next;
        state->upload.next = (slot + 1) % CUDA_UPLOAD_SLOTS;
        uint8_t *pinned = state->upload.host + (size_t)slot * CUDA_UPLOAD_BYTES;
        uint8_t *staging = state->upload.staging + (size_t)slot * CUDA_UPLOAD_BYTES;
        CUDA_CHECK(state, cudaEventSynchronize(state->upload.arrived[slot]));
        memcpy(pinned, (const uint8_t *)host + done, part);
        CUDA_CHECK(state, cudaStreamWaitEvent(state->copy_stream, state->upload.consumed[slot], 0));
        CUDA_CHECK(state, cudaMemcpyAsync(staging, pinned, part, cudaMemcpyHostToDevice, state->copy_stream));
        CUDA_CHECK(state, cudaEventRecord(state->upload.arrived[slot], state->copy_stream));
        CUDA_CHECK(state, cudaStreamWaitEvent(state->stream, state->upload.arrived[slot], 0));
        CUDA_CHECK(state,
                   cudaMemcpyAsync((uint8_t *)out + done, staging, part, cudaMemcpyDeviceToDevice, state->stream));
        CUDA_CHECK(state, cudaEventRecord(state->upload.consumed[slot], state->stream));
        done += part;
    }
    cuda_scope_end(state);
}

static void cuda_download(Ops *ops, void *host, const void *in, size_t bytes) {
    CudaState *state = cuda_scope_begin(ops, OP_COPY);
    CUDA_CHECK(state, cudaMemcpyAsync(host, in, bytes, cudaMemcpyDeviceToHost, state->stream));
    CUDA_CHECK(state, cudaStreamSynchronize(state->stream));
    cuda_scope_end(state);
}

static void cuda_fetch_start(Ops *ops, int slot, const void *in, size_t bytes) {
    assert(slot >= 0 && slot < CUDA_FETCH_SLOTS && bytes <= CUDA_FETCH_BYTES);
    CudaState *state = cuda_state(ops);
    uint8_t *pinned = state->fetch.host + (size_t)slot * CUDA_FETCH_BYTES;
    CUDA_CHECK(state, cudaMemcpyAsync(pinned, in, bytes, cudaMemcpyDeviceToHost, state->stream));
    CUDA_CHECK(state, cudaEventRecord(state->fetch.done[slot], state->stream));
}

static void cuda_fetch_wait(Ops *ops, int slot, void *host, size_t bytes) {
    assert(slot >= 0 && slot < CUDA_FETCH_SLOTS && bytes <= CUDA_FETCH_BYTES);
    CudaState *state = cuda_state(ops);
    CUDA_CHECK(state, cudaEventSynchronize(state->fetch.done[slot]));
    memcpy(host, state->fetch.host + (size_t)slot * CUDA_FETCH_BYTES, bytes);
}

static void cuda_copy(Ops *ops, void *out, const void *in, size_t bytes) {
    CudaState *state = cuda_scope_begin(ops, OP_COPY);
    CUDA_CHECK(state, cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, state->stream));
    cuda_scope_end(state);
}

static void cuda_zero(Ops *ops, Tensor out) {
    CudaState *state = cuda_scope_begin(ops, OP_ZERO);
    size_t bytes = (size_t)tensor_count(out) * dtype_size(out.dtype);
    CUDA_CHECK(state, cudaMemsetAsync(out.data, 0, bytes, state->stream));
    cuda_scope_end(state);
}

static Status failure_take(CudaState *state) {
    if (!state->failure) return NULL;
    Status status = status_runtime("the GPU failed: %s", state->failure);
    free(state->failure);
    state->failure = NULL;
    return status;
}

static Status cuda_sync(Ops *ops) {
    CudaState *state = cuda_state(ops);
    CUDA_CHECK(state, cudaStreamSynchronize(state->copy_stream));
    CUDA_CHECK(state, cudaStreamSynchronize(state->stream));
    return failure_take(state);
}

// ---- graphs ---------------------------------------------------------------------------------------------------------

static void cuda_graph_begin(Ops *ops) {
    CudaState *state = cuda_state(ops);
    assert(!state->capturing);
    CUDA_CHECK(state, cudaStreamBeginCapture(state->stream, cudaStreamCaptureModeThreadLocal));
    state->capturing = true;
}

static Status cuda_graph_end(Ops *ops, void **graph) {
    CudaState *state = cuda_state(ops);
    assert(state->capturing);
    *graph = NULL;
    state->capturing = false;
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t exec = NULL;
    CUDA_CHECK(state, cudaStreamEndCapture(state->stream, &recorded));
    if (recorded) {
        CUDA_CHECK(state, cudaGraphInstantiate(&exec, recorded, 0));
        CUDA_CHECK(state, cudaGraphDestroy(recorded));
    }
    if (exec) CUDA_CHECK(state, cudaGraphUpload(exec, state->stream));
    *graph = exec;
    // The failure stays for sync() to report: a recording that broke must not pass unseen.
    return state->failure ? status_runtime("the GPU failed: %s", state->failure) : NULL;
}

static void cuda_graph_launch(Ops *ops, void *graph) {
    CudaState *state = cuda_state(ops);
    CUDA_CHECK(state, cudaGraphLaunch((cudaGraphExec_t)graph, state->stream));
}

static void cuda_graph_free(Ops *ops, void *graph) {
    if (graph) CUDA_CHECK(cuda_state(ops), cudaGraphExecDestroy((cudaGraphExec_t)graph));
}

// ---- time -----------------------------------------------------------------------------------------------------------

static void cuda_mark(Ops *ops, int slot) {
    assert(slot >= 0 && slot < CUDA_MARKS);
    CudaState *state = cuda_state(ops);
    CUDA_CHECK(state, cudaEventRecord(state->marks[slot], state->stream));
}

static double cuda_mark_elapsed(Ops *ops, int from, int to) {
    CudaState *state = cuda_state(ops);
    float milliseconds = 0;
    CUDA_CHECK(state, cudaEventSynchronize(state->marks[to]));
    CUDA_CHECK(state, cudaEventElapsedTime(&milliseconds, state->marks[from], state->marks[to]));
    return milliseconds;
}

static void cuda_profile_start(Ops *ops) {
    CudaState *state = cuda_state(ops);
    if (!state->profile.begin[0]) {
        for (int i = 0; i < CUDA_PROFILE_EVENTS; i++) {
            CUDA_CHECK(state, cudaEventCreate(&state->profile.begin[i]));
            CUDA_CHECK(state, cudaEventCreate(&state->profile.end[i]));
        }
    }
    memset(state->profile.milliseconds, 0, sizeof state->profile.milliseconds);
    state->profile.count = 0;
    state->profile.depth = 0;
    state->profile.on = true;
}

static bool cuda_choice_recall(Ops *ops, const char *key, int *value) {
    const char *known = tune_get(cuda_state(ops)->tune, key);
    int64_t number;
    if (!known || !text_to_int64(known, &number) || number < INT32_MIN || number > INT32_MAX) return false;
    *value = (int)number;
    return true;
}

static void cuda_choice_keep(Ops *ops, const char *key, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    tune_put(cuda_state(ops)->tune, key, text);
}

static void cuda_profile_stop(Ops *ops, double milliseconds[OP_COUNT]) {
    CudaState *state = cuda_state(ops);
    profile_fold(state);
    state->profile.on = false;
    memcpy(milliseconds, state->profile.milliseconds, sizeof state->profile.milliseconds);
}

// ---- the table ------------------------------------------------------------------------------------------------------

static void cuda_forget_choices(Ops *ops) {
    CudaState *state = cuda_state(ops);
    CUDA_CHECK(state, cudaStreamSynchronize(state->stream));
    attention_cache_free(state->attention);
    race_cache_free(state->races);
    gemm_cache_free(state->gemms);
    state->attention = attention_cache_create();
    state->races = race_cache_create();
    state->gemms = gemm_cache_create();
}

static const Ops cuda_table = {.kind = DEVICE_CUDA,
                               .row_align = CUDA_ROW_ALIGN,
                               .alloc = cuda_alloc,
                               .free = cuda_free,
                               .memory_total = cuda_memory_total,
                               .memory_free = cuda_memory_free,
                               .memory_own = cuda_memory_own,
                               .bind_workspace = cuda_bind_workspace,
                               .upload = cuda_upload,
                               .download = cuda_download,
                               .fetch_start = cuda_fetch_start,
                               .fetch_wait = cuda_fetch_wait,
                               .copy = cuda_copy,
                               .sync = cuda_sync,
                               .graph_begin = cuda_graph_begin,
                               .graph_end = cuda_graph_end,
                               .graph_launch = cuda_graph_launch,
                               .graph_free = cuda_graph_free,
                               .forget_choices = cuda_forget_choices,
                               .mark = cuda_mark,
                               .mark_elapsed = cuda_mark_elapsed,
                               .profile_start = cuda_profile_start,
                               .profile_stop = cuda_profile_stop,
                               .choice_recall = cuda_choice_recall,
                               .choice_keep = cuda_choice_keep,
#define OPS_LIST_FIELD(id, function, category) .function = cuda_##function,
                               OPS_TENSOR_LIST(OPS_LIST_FIELD)
#undef OPS_LIST_FIELD
};

int ops_cuda_count(void) {
    int count = 0;
    bool there = cudaGetDeviceCount(&count) == cudaSuccess;
    cudaGetLastError();
    return there ? count : 0;
}

bool ops_cuda_available(void) {
    return ops_cuda_count() > 0;
}

static void state_create_device(CudaState *state, int device) {
    struct cudaDeviceProp properties;
    state->device = device;
    CUDA_CHECK(state, cudaSetDevice(device));
    CUDA_CHECK(state, cudaGetDeviceProperties(&properties, device));
    if (state->failure) return;
    state->arch = properties.major * 10 + properties.minor;
    state->sm_count = properties.multiProcessorCount;
    state->shared_limit = (int)properties.sharedMemPerBlockOptin;
    state->l2_bytes = (size_t)properties.l2CacheSize;
    snprintf(state->gpu_name, sizeof state->gpu_name, "%s", properties.name);
    CUDA_CHECK(state, cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking));
    CUDA_CHECK(state, cudaStreamCreateWithFlags(&state->copy_stream, cudaStreamNonBlocking));
    CUDA_CHECK(state, cudaHostAlloc((void **)&state->upload.host, (size_t)CUDA_UPLOAD_SLOTS * CUDA_UPLOAD_BYTES, 0));
    CUDA_CHECK(state, cudaMalloc((void **)&state->upload.staging, (size_t)CUDA_UPLOAD_SLOTS * CUDA_UPLOAD_BYTES));
    CUDA_CHECK(state, cudaHostAlloc((void **)&state->fetch.host, (size_t)CUDA_FETCH_SLOTS * CUDA_FETCH_BYTES, 0));
    for (int i = 0; i < CUDA_UPLOAD_SLOTS; i++) {
        CUDA_CHECK(state, cudaEventCreateWithFlags(&state->upload.arrived[i], cudaEventDisableTiming));
        CUDA_CHECK(state, cudaEventCreateWithFlags(&state->upload.consumed[i], cudaEventDisableTiming));
    }
    for (int i = 0; i < CUDA_FETCH_SLOTS; i++)
        CUDA_CHECK(state, cudaEventCreateWithFlags(&state->fetch.done[i], cudaEventDisableTiming));
    for (int i = 0; i < CUDA_MARKS; i++)
        CUDA_CHECK(state, cudaEventCreate(&state->marks[i]));
    if (cublasLtCreate(&state->cublas) != CUBLAS_STATUS_SUCCESS)
        cuda_fail(state, __FILE__, __LINE__, "cuBLASLt cannot be opened");
}

Status ops_cuda_create(Ops **out, int device, const char *tune_cache) {
    *out = NULL;
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return status_hint(status_runtime("no CUDA device can be used: %s", cudaGetErrorString(error)),
                           "check `nvidia-smi`, or use the CPU: --device cpu, for training --set train.device=cpu");
    if (device < 0 || device >= count)
        return status_usage("there is no device cuda:%d; this machine has %d", device, count);
    Ops *ops = xmalloc(sizeof *ops);
    *ops = cuda_table;
    CudaState *state = xcalloc(1, sizeof *state);
    ops->state = state;
    state_create_device(state, device);
    ops->device = state->gpu_name;
    ops->gpu = device;
    ops->fp8 = state->arch >= 89; // Ada and Hopper were the first
    ops->tune = state->tune = tune_open(tune_cache, state->gpu_name);
    state->gemms = gemm_cache_create();
    state->attention = attention_cache_create();
    state->races = race_cache_create();
    Status status = failure_take(state);
    if (status) {
        ops_cuda_destroy(ops);
        return status;
    }
    *out = ops;
    return NULL;
}

void ops_cuda_destroy(Ops *ops) {
    if (!ops) return;
    CudaState *state = cuda_state(ops);
    if (state->stream) cudaStreamSynchronize(state->stream);
    attention_cache_free(state->attention);
    race_cache_free(state->races);
    gemm_cache_free(state->gemms);
    tune_close(state->tune);
    if (state->cublas) cublasLtDestroy(state->cublas);
    for (int i = 0; i < CUDA_MARKS; i++)
        if (state->marks[i]) cudaEventDestroy(state->marks[i]);
    for (int i = 0; i < CUDA_FETCH_SLOTS; i++)
        if (state->fetch.done[i]) cudaEventDestroy(state->fetch.done[i]);
    for (int i = 0; i < CUDA_UPLOAD_SLOTS; i++) {
        if (state->upload.arrived[i]) cudaEventDestroy(state->upload.arrived[i]);
        if (state->upload.consumed[i]) cudaEventDestroy(state->upload.consumed[i]);
    }
    for (int i = 0; i < CUDA_PROFILE_EVENTS && state->profile.begin[i]; i++) {
        cudaEventDestroy(state->profile.begin[i]);
        cudaEventDestroy(state->profile.end[i]);
    }
    cudaFreeHost(state->fetch.host);
    cudaFreeHost(state->upload.host);
    cudaFree(state->upload.staging);
    if (state->copy_stream) cudaStreamDestroy(state->copy_stream);
    if (state->stream) cudaStreamDestroy(state->stream);
    free(state->failure);
    free(state);
    free(ops);
}
