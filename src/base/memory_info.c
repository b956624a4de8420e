#include "base/memory_info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A line "name:  12345 kB" in bytes.
static int64_t meminfo_bytes(const char *name) {
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file) return 0;
    char line[256];
    long long kib = 0;
    size_t length = strlen(name);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, name, length) == 0 && line[length] == ':') {
            kib = strtoll(line + length + 1, NULL, 10);
            break;
        }
    }
    fclose(file);
    return (int64_t)kib * 1024;
}

int64_t memory_total_bytes(void) {
    return meminfo_bytes("MemTotal");
}

int64_t memory_available_bytes(void) {
    return meminfo_bytes("MemAvailable");
}
