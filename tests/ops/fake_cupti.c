// A library with the names of CUPTI. What is called between a push and a pop of a correlation launches one kernel that
// takes as long as the call; more activities come by hand. Its clock is CLOCK_MONOTONIC and FAKE_CUPTI_AHEAD.
#define _GNU_SOURCE // pthread_timedjoin_np
#include "fake_cupti.h"

#include <cupti.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 KernelRecord;
typedef CUpti_ActivityMemcpy6 CopyRecord;
#else
typedef CUpti_ActivityKernel9 KernelRecord;
typedef CUpti_ActivityMemcpy5 CopyRecord;
#endif

static struct {
    FakeCuptiPlan plan;
    CUpti_CallbackFunc callback;
    CUpti_BuffersCallbackRequestFunc wanted;
    CUpti_BuffersCallbackCompleteFunc filled;
    uint8_t *buffer;
    size_t used, size;
    bool enabled[256];
    uint64_t external, pushed_at;
    uint32_t correlation;
} fake;

static bool fails(const char *function) {
    return fake.plan.fails && strcmp(fake.plan.fails, function) == 0;
}
static bool stuck(const char *function);
#define CHECK(name) \
    if (fails(name) || stuck(name)) return CUPTI_ERROR_NOT_INITIALIZED

static uint64_t clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + FAKE_CUPTI_AHEAD;
}

static size_t record_size(const CUpti_Activity *record) {
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(KernelRecord);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CopyRecord);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    default: return sizeof(CUpti_ActivityAPI);
    }
}

static void give_buffer(void) {
    uint8_t *buffer = fake.buffer;
    fake.buffer = NULL;
    if (buffer) fake.filled(NULL, 0, buffer, fake.size, fake.used);
}

static void put(const void *record) {
    size_t size = record_size(record);
    if (!fake.enabled[((const CUpti_Activity *)record)->kind]) return;
    if (fake.buffer && fake.used + size > FAKE_CUPTI_BUFFER) give_buffer(); // several small ones
    if (!fake.buffer) {
        size_t most;
        fake.used = 0;
        fake.wanted(&fake.buffer, &fake.size, &most);
    }
    memcpy(fake.buffer + fake.used, record, size);
    fake.used += size;
}

static void *deliver(void *context) {
    (void)context;
    uint64_t now = clock_now();
    fake_cupti_kernel("delivered", 0, 0, 1, now, now + 1000);
    give_buffer();
    return NULL;
}

static bool stuck(const char *function) {
    enum { MOST_SECONDS = 10 };
    if (!fake.plan.delivers || strcmp(fake.plan.delivers, function) != 0) return false;
    fake.plan.delivers = NULL;
    pthread_t thread;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += MOST_SECONDS;
    return pthread_create(&thread, NULL, deliver, NULL) != 0 || pthread_timedjoin_np(thread, NULL, &end) != 0;
}

void fake_cupti_plan(FakeCuptiPlan plan) {
    fake.plan = plan;
}

void fake_cupti_node(bool created, uint64_t node, uint64_t original) {
    CUpti_GraphData graph = {.node = (CUgraphNode)(uintptr_t)node, .originalNode = (CUgraphNode)(uintptr_t)original};
    CUpti_ResourceData data = {.resourceDescriptor = &graph};
    fake.callback(NULL, CUPTI_CB_DOMAIN_RESOURCE,
                  created ? CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED : CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, &data);
}

void fake_cupti_kernel(const char *name, uint64_t node, uint32_t graph, uint32_t launch, uint64_t begin, uint64_t end) {
    KernelRecord r = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                      .name = name,
                      .graphNodeId = node,
                      .graphId = graph,
                      .correlationId = launch,
                      .streamId = 7,
                      .start = begin,
                      .end = end};
    put(&r);
}

void fake_cupti_copy(uint64_t bytes, uint64_t begin, uint64_t end) {
    CopyRecord r = {.kind = CUPTI_ACTIVITY_KIND_MEMCPY,
                    .copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD,
                    .bytes = bytes,
                    .streamId = 8,
                    .start = begin,
                    .end = end};
    CUpti_ActivityMemset4 clear = {
        .kind = CUPTI_ACTIVITY_KIND_MEMSET, .bytes = bytes, .streamId = 8, .start = end, .end = end + 1000};
    put(&r);
    put(&clear);
}

// ---- as CUPTI declares them -----------------------------------------------------------------------------------------

CUptiResult cuptiGetVersion(uint32_t *version) {
    *version = fake.plan.version ? fake.plan.version : CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
    *text = result == CUPTI_SUCCESS ? "success" : "made to fail";
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetTimestamp(uint64_t *timestamp) {
    CHECK("cuptiGetTimestamp");
    *timestamp = clock_now();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *context) {
    CHECK("cuptiSubscribe");
    (void)context;
    fake.callback = callback;
    *subscriber = (CUpti_SubscriberHandle)&fake;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
    (void)subscriber;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain,
                                CUpti_CallbackId id) {
    (void)enable, (void)subscriber, (void)domain, (void)id;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char **name) {
    (void)domain, (void)id;
    *name = "cudaLaunchKernel_v7000";
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetGraphNodeId(CUgraphNode node, uint64_t *id) {
    CHECK("cuptiGetGraphNodeId");
    *id = (uint64_t)(uintptr_t)node;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc wanted,
                                           CUpti_BuffersCallbackCompleteFunc filled) {
    fake.wanted = wanted;
    fake.filled = filled;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    CHECK("cuptiActivityEnable");
    fake.enabled[kind] = true;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
    fake.enabled[kind] = false;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    CHECK("cuptiActivityFlushAll");
    give_buffer();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t size, CUpti_Activity **record) {
    CHECK("cuptiActivityGetNextRecord");
    uint8_t *next = *record ? (uint8_t *)*record + record_size(*record) : buffer;
    if (next >= buffer + size) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped) {
    CHECK("cuptiActivityGetNumDroppedRecords");
    (void)context, (void)stream;
    *dropped = fake.plan.dropped;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
    (void)kind;
    fake.external = id;
    fake.pushed_at = clock_now();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *last) {
    uint64_t now = clock_now();
    uint32_t launch = ++fake.correlation;
    CUpti_ActivityExternalCorrelation external = {.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                                  .externalKind = kind,
                                                  .externalId = fake.external,
                                                  .correlationId = launch};
    CUpti_ActivityAPI call = {.kind = CUPTI_ACTIVITY_KIND_RUNTIME,
                              .start = fake.pushed_at,
                              .end = now,
                              .threadId = 5,
                              .correlationId = launch};
    put(&external);
    put(&call);
    fake_cupti_kernel("_Z6kernelv", 0, 0, launch, fake.pushed_at, now);
    *last = fake.external;
    return CUPTI_SUCCESS;
}
