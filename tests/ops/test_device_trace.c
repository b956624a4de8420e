// Activities of a GPU, from a library that makes them up: each belongs to the call that launched it or that recorded
// its node, and a library that fails is an error and no crash.
#include "testing.h"

#include "base/clock.h"
#include "fake_cupti.h"
#include "ops/device_trace.h"

#include <dlfcn.h>

static const char *library;
static __typeof__(&fake_cupti_plan) plan;
static __typeof__(&fake_cupti_node) node;
static __typeof__(&fake_cupti_kernel) kernel;
static __typeof__(&fake_cupti_copy) copy;

static int load_library(void **state) {
    (void)state;
    void *handle = dlopen(library, RTLD_NOW);
    if (!handle) fail_msg("%s", dlerror());
    plan = (__typeof__(plan))dlsym(handle, "fake_cupti_plan");
    node = (__typeof__(node))dlsym(handle, "fake_cupti_node");
    kernel = (__typeof__(kernel))dlsym(handle, "fake_cupti_kernel");
    copy = (__typeof__(copy))dlsym(handle, "fake_cupti_copy");
    return !(plan && node && kernel && copy);
}

static DeviceTrace *opened(void) {
    DeviceTrace *trace;
    plan((FakeCuptiPlan){0});
    assert_ok(device_trace_open(&trace, library));
    return trace;
}

static uint64_t fake_time(double seconds) {
    return (uint64_t)(1e9 * seconds) + FAKE_CUPTI_AHEAD;
}

static void kernels_are_of_the_call_that_launched_them(void **state) {
    (void)state;
    DeviceActivity *activities;
    int64_t count, lost;
    DeviceTrace *trace = opened();
    device_trace_enter(trace, 99); // nobody collects yet
    device_trace_leave(trace);
    assert_ok(device_trace_start(trace));
    double begin = clock_seconds();
    for (uint64_t call = 1; call <= 40; call++) { // more than a buffer of the fake holds
        device_trace_enter(trace, call);
        device_trace_leave(trace);
    }
    double end = clock_seconds();
    copy(1234, fake_time(end + 1), fake_time(end + 2));
    kernel("between", 0, 0, 70000, fake_time(end + 3), fake_time(end + 4));
    kernel("without times", 0, 0, 70001, 0, 0);
    assert_ok(device_trace_stop(trace, &activities, &count, &lost));
    assert_int_equal(count, 2 * 40 + 3);
    uint64_t calls = 0, kernels = 0;
    for (int64_t i = 0; i < 80; i++) {
        assert_true(i == 0 || activities[i].begin >= activities[i - 1].begin);
        // The clocks are compared once, between two readings of the host's.
        assert_true(activities[i].begin > begin - 1e-3 && activities[i].end < end + 1e-3);
        calls += activities[i].kind == DEVICE_API;
        if (activities[i].kind == DEVICE_API) {
            assert_string_equal(activities[i].name, "cudaLaunchKernel");
            assert_int_equal(activities[i].thread, 5);
        } else {
            assert_string_equal(activities[i].name, "_Z6kernelv");
            assert_true(activities[i].call == ++kernels && !activities[i].graph && activities[i].stream == 7);
        }
    }
    assert_true(calls == 40 && kernels == 40);
    assert_true(activities[80].kind == DEVICE_COPY && activities[80].bytes == 1234 && activities[80].call == 0);
    assert_true(activities[81].kind == DEVICE_CLEAR && activities[81].bytes == 1234);
    assert_true(activities[82].kind == DEVICE_KERNEL && activities[82].call == 0);
    assert_int_equal(lost, 0);
    free(activities);
    device_trace_close(trace);
}

static void kernels_of_a_graph_are_of_the_call_that_recorded_their_node(void **state) {
    (void)state;
    DeviceActivity *activities;
    int64_t count, lost;
    DeviceTrace *trace = opened();
    for (uint64_t call = 1; call <= 3000; call++) { // recorded before the trace starts
        device_trace_enter(trace, call);
        node(true, 10000 + call, 0);
        device_trace_leave(trace);
    }
    node(true, 99999, 0); // of no call: an exchange
    for (uint64_t call = 1; call <= 3000; call++) {
        node(true, 50000 + call, 0); // as the executable graph is made, then said to be a copy
        node(false, 50000 + call, 10000 + call);
    }
    node(false, 88888, 99999);
    assert_ok(device_trace_start(trace));
    for (int launch = 1; launch <= 2; launch++) {
        double at = clock_seconds() + launch;
        kernel("of a call", 50000 + 2999, 3, (uint32_t)launch, fake_time(at), fake_time(at + 0.1));
        kernel("ncclDevKernel", 88888, 3, (uint32_t)launch, fake_time(at + 0.2), fake_time(at + 0.3));
    }
    assert_ok(device_trace_stop(trace, &activities, &count, &lost));
    assert_int_equal(count, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(activities[i].call, i % 2 ? 0 : 2999);
        assert_true(activities[i].graph == 3 && activities[i].launched == 1u + (uint32_t)i / 2);
        assert_string_equal(activities[i].name, i % 2 ? "ncclDevKernel" : "of a call");
    }
    free(activities);
    device_trace_close(trace);
}

static void times_are_kept_to_the_nanosecond(void **state) {
    (void)state;
    DeviceActivity *activities;
    int64_t count, lost;
    DeviceTrace *trace = opened();
    assert_ok(device_trace_start(trace));
    uint64_t first = fake_time(clock_seconds() + 1);
    for (uint64_t i = 0; i < 40; i++)
        kernel("short", 0, 0, 1, first + 100 * i, first + 100 * i + 30);
    assert_ok(device_trace_stop(trace, &activities, &count, &lost));
    assert_int_equal(count, 40);
    // Begin and end are each rounded to clock_seconds(), which is below 2^25 (a year): to half of 2^-28 of a second.
    double rounding = 0x1p-28;
    for (int i = 0; i < 40; i++) {
        assert_true(fabs(activities[i].end - activities[i].begin - 30e-9) <= rounding);
        assert_true(fabs(activities[i].begin - activities[0].begin - 100e-9 * i) <= rounding);
    }
    free(activities);
    device_trace_close(trace);
}

static void what_the_library_dropped_is_told(void **state) {
    (void)state;
    DeviceActivity *activities;
    int64_t count, lost;
    DeviceTrace *trace = opened();
    plan((FakeCuptiPlan){.dropped = 3});
    assert_ok(device_trace_start(trace));
    device_trace_enter(trace, 1);
    device_trace_leave(trace);
    assert_ok(device_trace_stop(trace, &activities, &count, &lost));
    assert_int_equal(lost, 3);
    free(activities);
    device_trace_close(trace);
}

// It may hold locks of its own: who asks it with a lock held that a callback needs would stand still.
static void a_buffer_comes_while_the_library_is_asked(void **state) {
    (void)state;
    static const char *const asked[] = {"cuptiGetGraphNodeId", "cuptiActivityGetNumDroppedRecords",
                                        "cuptiActivityGetNextRecord"};
    for (int i = 0; i < 3; i++) {
        DeviceActivity *activities;
        int64_t count, lost;
        DeviceTrace *trace = opened();
        assert_ok(device_trace_start(trace));
        uint64_t now = fake_time(clock_seconds());
        kernel("first", 20000, 3, 1, now, now + 1000);
        plan((FakeCuptiPlan){.delivers = asked[i]});
        device_trace_enter(trace, 7);
        node(true, 20000, 0);
        assert_ok(device_trace_stop(trace, &activities, &count, &lost));
        int64_t of_call = 0, delivered = 0;
        for (int64_t k = 0; k < count; k++) {
            of_call += strcmp(activities[k].name, "first") == 0 && activities[k].call == 7;
            delivered += strcmp(activities[k].name, "delivered") == 0;
        }
        assert_true(of_call == 1);
        assert_true(delivered == (i < 2)); // else it came too late
        free(activities);
        device_trace_leave(trace);
        device_trace_close(trace);
    }
}

static void a_library_that_fails_is_an_error(void **state) {
    (void)state;
    DeviceTrace *trace;
    DeviceActivity *activities;
    int64_t count, lost;
    assert_error(device_trace_open(&trace, "/nowhere/libcupti.so"), "was not found");
    assert_null(trace);
    plan((FakeCuptiPlan){.version = 1});
    assert_error(device_trace_open(&trace, library), "libcupti is of version 1");
    plan((FakeCuptiPlan){.fails = "cuptiSubscribe"});
    assert_error(device_trace_open(&trace, library), "made to fail");
    trace = opened();
    plan((FakeCuptiPlan){.fails = "cuptiActivityEnable"});
    assert_error(device_trace_start(trace), "made to fail");
    device_trace_close(trace);
    static const char *const at_the_end[] = {"cuptiActivityFlushAll", "cuptiActivityGetNextRecord"};
    for (int i = 0; i < 2; i++) {
        trace = opened();
        assert_ok(device_trace_start(trace));
        device_trace_enter(trace, 1);
        device_trace_leave(trace);
        plan((FakeCuptiPlan){.fails = at_the_end[i]});
        assert_error(device_trace_stop(trace, &activities, &count, &lost), "made to fail");
        assert_true(!activities && !count);
        plan((FakeCuptiPlan){0});
        device_trace_close(trace);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_are_of_the_call_that_launched_them),
        cmocka_unit_test(kernels_of_a_graph_are_of_the_call_that_recorded_their_node),
        cmocka_unit_test(times_are_kept_to_the_nanosecond),
        cmocka_unit_test(what_the_library_dropped_is_told),
        cmocka_unit_test(a_buffer_comes_while_the_library_is_asked),
        cmocka_unit_test(a_library_that_fails_is_an_error),
    };
    library = argc > 1 ? argv[1] : "";
    return cmocka_run_group_tests(tests, load_library, NULL);
}
