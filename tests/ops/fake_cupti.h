// What a test may ask of the fake library beside what CUPTI has: found with dlsym.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_CUPTI_AHEAD  1700000000000000000u // nanoseconds: CUPTI counts from 1970
#define FAKE_CUPTI_BUFFER 4096                 // bytes that it fills of a buffer

typedef struct FakeCuptiPlan {
    const char *fails;    // name of the function; NULL: none
    uint32_t version;     // 0: as its header
    size_t dropped;       // records, with every buffer
    const char *delivers; // name of the function that waits, once, while another thread hands over a buffer with one
                          // kernel; it fails when that takes seconds. NULL: none
} FakeCuptiPlan;

void fake_cupti_plan(FakeCuptiPlan plan);
void fake_cupti_node(bool created, uint64_t node, uint64_t original);
// Times of its clock, nanoseconds. node and graph 0: launched by `launch` alone.
void fake_cupti_kernel(const char *name, uint64_t node, uint32_t graph, uint32_t launch, uint64_t begin, uint64_t end);
void fake_cupti_copy(uint64_t bytes, uint64_t begin, uint64_t end); // and a clear of a microsecond behind it
