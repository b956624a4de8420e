// What the machine's memory is, from /proc/meminfo.
#pragma once

#include <stdint.h>

int64_t memory_total_bytes(void);     // 0 when the system does not say
int64_t memory_available_bytes(void); // without swapping; 0 when the system does not say
