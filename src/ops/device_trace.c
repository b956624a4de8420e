// CUPTI's activity records, buffered by its callbacks and read when the trace stops.
#include "ops/device_trace.h"

#include "base/clock.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#ifndef HEARTH_HAVE_CUPTI

Status device_trace_open(DeviceTrace **trace, const char *library) {
    (void)library;
    *trace = NULL;
    return status_runtime("this hearth was built without CUPTI (cupti.h of the CUDA toolkit)");
}
void device_trace_close(DeviceTrace *trace) {
    (void)trace;
}
void device_trace_enter(DeviceTrace *trace, uint64_t call) {
    (void)trace, (void)call;
}
void device_trace_leave(DeviceTrace *trace) {
    (void)trace;
}
Status device_trace_start(DeviceTrace *trace) {
    (void)trace;
    return NULL;
}
Status device_trace_stop(DeviceTrace *trace, DeviceActivity **activities, int64_t *count, int64_t *lost) {
    (void)trace;
    *activities = NULL;
    *count = *lost = 0;
    return NULL;
}

#else

#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

// The records as this header's library writes them; a later one of the same major version only adds to them.
#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 KernelRecord;
typedef CUpti_ActivityMemcpy6 CopyRecord;
#else
typedef CUpti_ActivityKernel9 KernelRecord;
typedef CUpti_ActivityMemcpy5 CopyRecord;
#endif
typedef CUpti_ActivityMemset4 ClearRecord;

enum { BUFFER_BYTES = 8 << 20, BUFFERS_MOST = 128, RECORD_ALIGN = 8 };

// ---- a map from number to number; 0 is no key -----------------------------------------------------------------------

typedef struct NumberMap {
    uint64_t *keys, *values;
    size_t room, count; // room: a power of two
} NumberMap;

static size_t map_place(const NumberMap *map, uint64_t key) {
    size_t at = (size_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (map->room - 1);
    while (map->keys[at] && map->keys[at] != key)
        at = (at + 1) & (map->room - 1);
    return at;
}

static void map_free(NumberMap *map) {
    free(map->keys);
    free(map->values);
    *map = (NumberMap){0};
}

static void map_set(NumberMap *map, uint64_t key, uint64_t value) {
    if (!key) return;
    if (2 * map->count >= map->room) {
        size_t room = map->room ? 2 * map->room : 1024;
        NumberMap grown = {xcalloc(room, sizeof *grown.keys), xcalloc(room, sizeof *grown.values), room, 0};
        for (size_t i = 0; i < map->room; i++)
            if (map->keys[i]) map_set(&grown, map->keys[i], map->values[i]);
        map_free(map);
        *map = grown;
    }
    size_t at = map_place(map, key);
    map->count += !map->keys[at];
    map->keys[at] = key;
    map->values[at] = value;
}

static uint64_t map_get(const NumberMap *map, uint64_t key) { // 0: not there
    return map->room && key ? map->values[map_place(map, key)] : 0;
}

// ---- the library ----------------------------------------------------------------------------------------------------

#define CUPTI_FUNCTIONS(X)                    \
    X(cuptiGetVersion)                        \
    X(cuptiGetResultString)                   \
    X(cuptiGetTimestamp)                      \
    X(cuptiSubscribe)                         \
    X(cuptiUnsubscribe)                       \
    X(cuptiEnableCallback)                    \
    X(cuptiGetCallbackName)                   \
    X(cuptiGetGraphNodeId)                    \
    X(cuptiActivityRegisterCallbacks)         \
    X(cuptiActivityEnable)                    \
    X(cuptiActivityDisable)                   \
    X(cuptiActivityFlushAll)                  \
    X(cuptiActivityGetNextRecord)             \
    X(cuptiActivityGetNumDroppedRecords)      \
    X(cuptiActivityPushExternalCorrelationId) \
    X(cuptiActivityPopExternalCorrelationId)

typedef struct Cupti {
    void *library;
#define CUPTI_FIELD(name) __typeof__(&(name)) name;
    CUPTI_FUNCTIONS(CUPTI_FIELD)
#undef CUPTI_FIELD
} Cupti;

typedef struct Buffer {
    uint8_t *bytes;
    size_t used;
} Buffer;

struct DeviceTrace {
    Cupti cupti;
    CUpti_SubscriberHandle subscriber;
    uint64_t call; // under way on the thread that calls ops; 0: none
    bool pushed, started;
    uint64_t start;       // of the library's clock: nanoseconds since 1970, too many for a double
    double start_seconds; // clock_seconds() of the same moment

    pthread_mutex_t lock; // of what its threads touch
    NumberMap nodes;      // of graphs: to the call they were recorded in
    Buffer buffers[BUFFERS_MOST];
    int buffer_count;
    int64_t lost;

    NumberMap correlations; // of functions of the driver: to the call they were called in
    DeviceActivity *activities;
    int64_t count, room;
    char **names;
    int name_count;
};

static struct {
    pthread_mutex_t lock;
    DeviceTrace *trace; // whom the library's callbacks mean; NULL: none any more
    Cupti cupti;        // of the last one: it stays loaded, so that callbacks need no lock to call it
} device_trace_now = {.lock = PTHREAD_MUTEX_INITIALIZER};

static Status cupti_status(const Cupti *cupti, CUptiResult result, const char *what) {
    const char *text = NULL;
    if (result == CUPTI_SUCCESS) return NULL;
    if (cupti->cuptiGetResultString(result, &text) != CUPTI_SUCCESS || !text) text = "unknown";
    return status_runtime("CUPTI: %.*s: %s", (int)strcspn(what, "("), what, text);
}

#define CUPTI_TRY(cupti, call) TRY(cupti_status(cupti, (cupti)->call, #call))

static Status cupti_load(Cupti *cupti, const char *path) {
    char versioned[32];
    snprintf(versioned, sizeof versioned, "libcupti.so.%d", CUDA_VERSION / 1000);
    const char *const places[] = {path, path ? NULL : versioned, path ? NULL : HEARTH_CUPTI_PATH};
    *cupti = (Cupti){0};
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !cupti->library; i++)
        if (places[i] && places[i][0]) cupti->library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (!cupti->library)
        return status_hint(status_runtime("%s was not found", path ? path : versioned),
                           "it comes with the CUDA toolkit; name its folder in LD_LIBRARY_PATH");
    const char *missing = NULL;
#define CUPTI_LOAD(name)                                                 \
    cupti->name = (__typeof__(cupti->name))dlsym(cupti->library, #name); \
    if (!cupti->name) missing = #name;
    CUPTI_FUNCTIONS(CUPTI_LOAD)
#undef CUPTI_LOAD
    uint32_t version = 0;
    Status status = missing ? status_runtime("libcupti has no %s", missing)
                            : cupti_status(cupti, cupti->cuptiGetVersion(&version), "cuptiGetVersion");
    if (!status && version < CUPTI_API_VERSION)
        status = status_runtime("libcupti is of version %u, and this hearth was built for %u", version,
                                (unsigned)CUPTI_API_VERSION);
    if (status) {
        dlclose(cupti->library);
        cupti->library = NULL;
    }
    return status;
}

// ---- callbacks, on any thread ---------------------------------------------------------------------------------------

// The library may hold locks of its own while it calls back: nothing here calls it with one of these held.
static DeviceTrace *trace_lock(void) { // NULL: there is none, and nothing is locked
    pthread_mutex_lock(&device_trace_now.lock);
    DeviceTrace *trace = device_trace_now.trace;
    if (trace) pthread_mutex_lock(&trace->lock);
    pthread_mutex_unlock(&device_trace_now.lock);
    return trace;
}

static void CUPTIAPI buffer_wanted(uint8_t **buffer, size_t *size, size_t *records_most) {
    *buffer = aligned_alloc(RECORD_ALIGN, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0; // the library counts what it drops then
    *records_most = 0;
}

static void CUPTIAPI buffer_filled(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t used) {
    (void)size;
    size_t dropped = 0;
    if (device_trace_now.cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped) != CUPTI_SUCCESS)
        dropped = 0;
    DeviceTrace *trace = trace_lock();
    if (!trace) {
        free(buffer);
        return;
    }
    trace->lost += (int64_t)dropped;
    if (buffer && used && trace->buffer_count < BUFFERS_MOST) {
        trace->buffers[trace->buffer_count++] = (Buffer){buffer, used};
    } else {
        trace->lost += used > 0; // at least
        free(buffer);
    }
    pthread_mutex_unlock(&trace->lock);
}

// A graph that is launched has other nodes than the one that was recorded: copies of them.
static void CUPTIAPI resource_callback(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                       const void *data) {
    (void)context;
    bool created = id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, cloned = id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED;
    if (domain != CUPTI_CB_DOMAIN_RESOURCE || !data || !(created || cloned)) return;
    const CUpti_GraphData *graph = ((const CUpti_ResourceData *)data)->resourceDescriptor;
    const Cupti *cupti = &device_trace_now.cupti;
    uint64_t node = 0, original = 0;
    if (!graph || cupti->cuptiGetGraphNodeId(graph->node, &node) != CUPTI_SUCCESS) return;
    if (cloned && cupti->cuptiGetGraphNodeId(graph->originalNode, &original) != CUPTI_SUCCESS) return;
    DeviceTrace *trace = trace_lock();
    if (!trace) return;
    uint64_t call = created ? trace->call : map_get(&trace->nodes, original);
    if (call) map_set(&trace->nodes, node, call);
    pthread_mutex_unlock(&trace->lock);
}

// ---- records --------------------------------------------------------------------------------------------------------

// The library's names may be gone when it is: few are different, and those are kept.
static const char *name_keep(DeviceTrace *trace, const char *name) {
    if (!name) name = "?";
    for (int i = trace->name_count - 1; i >= 0; i--)
        if (strcmp(trace->names[i], name) == 0) return trace->names[i];
    trace->names = xrealloc(trace->names, (size_t)(trace->name_count + 1) * sizeof *trace->names);
    return trace->names[trace->name_count++] = text_copy(name);
}

// "cudaMemcpyAsync_v3020" is what its caller calls cudaMemcpyAsync.
static const char *api_name_keep(DeviceTrace *trace, const char *name) {
    char text[128];
    snprintf(text, sizeof text, "%s", name);
    char *version = strrchr(text, '_');
    if (version && version[1] == 'v' && version[2] && !version[2 + strspn(version + 2, "0123456789")]) *version = '\0';
    return name_keep(trace, text);
}

static double host_time(const DeviceTrace *trace, uint64_t time) {
    return trace->start_seconds + 1e-9 * (double)(int64_t)(time - trace->start);
}

static void activity_add(DeviceTrace *trace, DeviceActivity activity, uint64_t begin, uint64_t end, uint64_t node) {
    if (!begin || end < begin) return; // it has no times
    if (trace->count == trace->room) {
        trace->room = trace->room ? 2 * trace->room : 4096;
        trace->activities = xrealloc(trace->activities, (size_t)trace->room * sizeof *trace->activities);
    }
    activity.begin = host_time(trace, begin);
    activity.end = host_time(trace, end);
    activity.call = map_get(&trace->nodes, node); // of what no graph has: when all correlations are known
    trace->activities[trace->count++] = activity;
}

static const char *copy_name(uint8_t kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "copy from the host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "copy to the host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "copy on the device";
    default: return "copy";
    }
}

static void take_record(DeviceTrace *trace, const CUpti_Activity *record) {
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const KernelRecord *r = (const void *)record;
        activity_add(trace,
                     (DeviceActivity){.kind = DEVICE_KERNEL,
                                      .name = name_keep(trace, r->name),
                                      .stream = r->streamId,
                                      .graph = r->graphId,
                                      .launched = r->correlationId},
                     r->start, r->end, r->graphNodeId);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CopyRecord *r = (const void *)record;
        activity_add(trace,
                     (DeviceActivity){.kind = DEVICE_COPY,
                                      .name = copy_name(r->copyKind),
                                      .stream = r->streamId,
                                      .graph = r->graphId,
                                      .launched = r->correlationId,
                                      .bytes = (int64_t)r->bytes},
                     r->start, r->end, r->graphNodeId);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const ClearRecord *r = (const void *)record;
        activity_add(trace,
                     (DeviceActivity){.kind = DEVICE_CLEAR,
                                      .name = "clear",
                                      .stream = r->streamId,
                                      .graph = r->graphId,
                                      .launched = r->correlationId,
                                      .bytes = (int64_t)r->bytes},
                     r->start, r->end, r->graphNodeId);
        break;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME: {
        const CUpti_ActivityAPI *r = (const void *)record;
        const char *name = NULL;
        if (trace->cupti.cuptiGetCallbackName(CUPTI_CB_DOMAIN_RUNTIME_API, r->cbid, &name) != CUPTI_SUCCESS)
            name = "a function of CUDA";
        activity_add(trace,
                     (DeviceActivity){.kind = DEVICE_API,
                                      .name = api_name_keep(trace, name),
                                      .thread = r->threadId,
                                      .launched = r->correlationId},
                     r->start, r->end, 0);
        break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const CUpti_ActivityExternalCorrelation *r = (const void *)record;
        if (r->externalKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0)
            map_set(&trace->correlations, r->correlationId, r->externalId);
        break;
    }
    default: break;
    }
}

// While nobody records a graph.
static Status take_buffers(DeviceTrace *trace, Buffer *buffers, int count) {
    Status status = NULL;
    for (int i = 0; i < count; i++) {
        CUpti_Activity *record = NULL;
        CUptiResult result = CUPTI_SUCCESS;
        while (!status && (result = trace->cupti.cuptiActivityGetNextRecord(buffers[i].bytes, buffers[i].used,
                                                                            &record)) == CUPTI_SUCCESS)
            take_record(trace, record);
        if (!status && result != CUPTI_ERROR_MAX_LIMIT_REACHED) // which is the end of a buffer
            status = cupti_status(&trace->cupti, result, "cuptiActivityGetNextRecord");
        free(buffers[i].bytes);
    }
    for (int64_t i = 0; i < trace->count; i++)
        if (!trace->activities[i].graph)
            trace->activities[i].call = map_get(&trace->correlations, trace->activities[i].launched);
    return status;
}

static int activity_order(const void *a, const void *b) {
    double x = ((const DeviceActivity *)a)->begin, y = ((const DeviceActivity *)b)->begin;
    return (x > y) - (x < y);
}

// ---- the trace ------------------------------------------------------------------------------------------------------

// Libraries launch through the driver as well: its calls are not kept, but only with them are these launches
// correlated.
static const CUpti_ActivityKind activity_kinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_RUNTIME,           CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};
enum { ACTIVITY_KINDS = sizeof activity_kinds / sizeof activity_kinds[0] };

static Status trace_subscribe(DeviceTrace *trace) {
    const Cupti *cupti = &trace->cupti;
    CUPTI_TRY(cupti, cuptiSubscribe(&trace->subscriber, (CUpti_CallbackFunc)resource_callback, NULL));
    CUPTI_TRY(cupti, cuptiEnableCallback(1, trace->subscriber, CUPTI_CB_DOMAIN_RESOURCE,
                                         CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED));
    CUPTI_TRY(cupti, cuptiEnableCallback(1, trace->subscriber, CUPTI_CB_DOMAIN_RESOURCE,
                                         CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED));
    CUPTI_TRY(cupti, cuptiActivityRegisterCallbacks(buffer_wanted, buffer_filled));
    return NULL;
}

Status device_trace_open(DeviceTrace **out, const char *library) {
    *out = NULL;
    DeviceTrace *trace = xcalloc(1, sizeof *trace);
    Status status = cupti_load(&trace->cupti, library);
    if (status) {
        free(trace);
        return status;
    }
    pthread_mutex_init(&trace->lock, NULL);
    pthread_mutex_lock(&device_trace_now.lock);
    device_trace_now.trace = trace;
    device_trace_now.cupti = trace->cupti;
    pthread_mutex_unlock(&device_trace_now.lock);
    status = trace_subscribe(trace);
    if (status)
        device_trace_close(trace);
    else
        *out = trace;
    return status;
}

// The library stays loaded: its threads may still be on their way out of it.
void device_trace_close(DeviceTrace *trace) {
    if (!trace) return;
    for (int i = 0; trace->started && i < ACTIVITY_KINDS; i++)
        (void)trace->cupti.cuptiActivityDisable(activity_kinds[i]);
    if (trace->subscriber) (void)trace->cupti.cuptiUnsubscribe(trace->subscriber);
    pthread_mutex_lock(&device_trace_now.lock);
    pthread_mutex_lock(&trace->lock); // who was given the trace has left it
    device_trace_now.trace = NULL;
    pthread_mutex_unlock(&trace->lock);
    pthread_mutex_unlock(&device_trace_now.lock);
    for (int i = 0; i < trace->buffer_count; i++)
        free(trace->buffers[i].bytes);
    for (int i = 0; i < trace->name_count; i++)
        free(trace->names[i]);
    free(trace->names);
    free(trace->activities);
    map_free(&trace->nodes);
    map_free(&trace->correlations);
    pthread_mutex_destroy(&trace->lock);
    free(trace);
}

void device_trace_enter(DeviceTrace *trace, uint64_t call) {
    trace->call = call;
    trace->pushed = trace->cupti.cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                                        call) == CUPTI_SUCCESS;
}

void device_trace_leave(DeviceTrace *trace) {
    uint64_t last;
    trace->call = 0;
    if (trace->pushed)
        (void)trace->cupti.cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
    trace->pushed = false;
}

Status device_trace_start(DeviceTrace *trace) {
    const Cupti *cupti = &trace->cupti;
    trace->started = true;
    for (int i = 0; i < ACTIVITY_KINDS; i++)
        CUPTI_TRY(cupti, cuptiActivityEnable(activity_kinds[i]));
    double before = clock_seconds();
    CUPTI_TRY(cupti, cuptiGetTimestamp(&trace->start));
    trace->start_seconds = (before + clock_seconds()) / 2;
    return NULL;
}

Status device_trace_stop(DeviceTrace *trace, DeviceActivity **activities, int64_t *count, int64_t *lost) {
    const Cupti *cupti = &trace->cupti;
    *activities = NULL;
    *count = *lost = 0;
    Status status = cupti_status(cupti, cupti->cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flush");
    for (int i = 0; i < ACTIVITY_KINDS; i++)
        (void)cupti->cuptiActivityDisable(activity_kinds[i]);
    trace->started = false;
    Buffer buffers[BUFFERS_MOST];
    pthread_mutex_lock(&trace->lock);
    int buffer_count = status ? 0 : trace->buffer_count; // else device_trace_close frees them
    memcpy(buffers, trace->buffers, sizeof buffers);
    trace->buffer_count -= buffer_count;
    *lost = trace->lost;
    pthread_mutex_unlock(&trace->lock);
    if (!status) status = take_buffers(trace, buffers, buffer_count);
    if (status) return status;
    *activities = trace->activities;
    *count = trace->count;
    if (*count) qsort(*activities, (size_t)*count, sizeof **activities, activity_order);
    trace->activities = NULL;
    trace->count = trace->room = 0;
    return NULL;
}

#endif
