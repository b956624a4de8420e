#include "ops/cpu/level.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool level_always(void) {
    return true;
}

#if defined(HEARTH_CPU_V3) || defined(HEARTH_CPU_V4)
#include <cpuid.h>

// __builtin_cpu_supports also asks whether the system saves the wide registers; not every compiler lets it be asked for
// the last three, which a virtual machine may hide one by one.
static bool level_v3(void) {
    unsigned a, b, c, d, extended;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid(0x80000001, &a, &b, &extended, &d)) return false;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && (c & bit_MOVBE) && (c & bit_F16C) && (extended & bit_LZCNT);
}

static bool level_v4(void) {
    return level_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

static const CpuLevel cpu_levels[] = {
#ifdef HEARTH_CPU_V4
    {"v4", "AVX-512", level_v4, cpu_install_v4},
#endif
#ifdef HEARTH_CPU_V3
    {"v3", "AVX2 and FMA", level_v3, cpu_install_v3},
#endif
#ifdef HEARTH_CPU_ONLY
    {HEARTH_CPU_ONLY, "all that the building machine has", level_always, cpu_install_plain},
#elif defined(__x86_64__)
    {"v1", "SSE2, as every x86-64 has it", level_always, cpu_install_plain},
#else
    {"plain", "what every CPU of this kind has", level_always, cpu_install_plain},
#endif
};
enum { CPU_LEVELS = sizeof cpu_levels / sizeof cpu_levels[0] };

void cpu_level_names(char *out, size_t size) {
    out[0] = '\0';
    for (int i = CPU_LEVELS - 1; i >= 0; i--)
        snprintf(out + strlen(out), size - strlen(out), "%s%s", out[0] ? " " : "", cpu_levels[i].name);
}

Status cpu_level(const CpuLevel **level) {
    const char *asked = getenv("HEARTH_CPU");
    char names[64];
    for (int i = 0; i < CPU_LEVELS; i++) {
        *level = &cpu_levels[i];
        if (asked && asked[0] && strcmp(asked, cpu_levels[i].name) != 0) continue;
        if (cpu_levels[i].there()) return NULL;
        if (asked && asked[0])
            return status_hint(status_usage("HEARTH_CPU is \"%s\", and this CPU has no %s", asked, cpu_levels[i].title),
                               "leave HEARTH_CPU out: hearth takes the most that the CPU has");
    }
    cpu_level_names(names, sizeof names);
    return status_usage("HEARTH_CPU is \"%s\", and this hearth has code for: %s", asked, names);
}
