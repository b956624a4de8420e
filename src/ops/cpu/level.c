#include "ops/cpu/level.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static bool level_always(void) {
    return true;
}

#if defined(HEARTH_CPU_V3) || defined(HEARTH_CPU_V4)
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

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define HEARTH_WITH_AVX512 true
#else
#define HEARTH_WITH_AVX512 false
#endif

static const CpuLevel cpu_levels[] = {
#ifdef HEARTH_CPU_V4
    {"v4", "AVX-512", true, level_v4, cpu_install_v4},
#endif
#ifdef HEARTH_CPU_V3
    {"v3", "AVX2 and FMA", false, level_v3, cpu_install_v3},
#endif
#ifdef HEARTH_CPU_ONLY
    {HEARTH_CPU_ONLY, "all that the building machine has", HEARTH_WITH_AVX512, level_always, cpu_install_plain},
#elif defined(__x86_64__)
    {"v1", "SSE2, as every x86-64 has it", false, level_always, cpu_install_plain},
#else
    {"plain", "what every CPU of this kind has", false, level_always, cpu_install_plain},
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

// ---- products of bf16 -----------------------------------------------------------------------------------------------

#if defined(__x86_64__)
static bool avx512_bf16_there(void) {
    return __builtin_cpu_supports("avx512bf16");
}

static bool amx_there(void) {
    enum { BF16_AND_TILES = 1 << 22 | 1 << 24, OSXSAVE = 1 << 27, TILE_STATE = 3 << 17 };
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; // of arch_prctl
    unsigned a, b, c, d, low, high;
    if (!avx512_bf16_there() || !__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & BF16_AND_TILES) != BF16_AND_TILES) return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); // what the system keeps for each thread
    if ((low & TILE_STATE) != TILE_STATE) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0; // for all threads of the process
}
#else
static bool avx512_bf16_there(void) {
    return false;
}

static bool amx_there(void) {
    return false;
}
#endif

Status cpu_bf16(CpuBf16 *bf16) {
    static const char *const names[] = {[CPU_BF16_FLOATS] = "0", [CPU_BF16_AVX512] = "avx512", [CPU_BF16_AMX] = "amx"};
    const char *asked = getenv("HEARTH_CPU_BF16");
    const CpuLevel *level;
    int most = CPU_BF16_AMX;
    bool named = asked && asked[0];
    TRY(cpu_level(&level));
    while (named && most >= 0 && strcmp(asked, names[most]) != 0)
        most--;
    if (most < 0) return status_usage("HEARTH_CPU_BF16 is \"%s\", and must be 0, avx512 or amx", asked);
    *bf16 = CPU_BF16_FLOATS;
    if (level->avx512 && most >= CPU_BF16_AVX512 && avx512_bf16_there()) *bf16 = CPU_BF16_AVX512;
    if (level->avx512 && most == CPU_BF16_AMX && amx_there()) *bf16 = CPU_BF16_AMX;
    if (!named || (int)*bf16 == most) return NULL;
    return status_hint(status_usage("HEARTH_CPU_BF16 is \"%s\", and this CPU, or the level of HEARTH_CPU, has no such "
                                    "products of bf16",
                                    asked),
                       "leave HEARTH_CPU_BF16 out: hearth takes the best that there is");
}

const char *cpu_bf16_title(CpuBf16 bf16) {
    return bf16 == CPU_BF16_AMX ? "AMX" : bf16 == CPU_BF16_AVX512 ? "AVX512-BF16" : NULL;
}

const char *cpu_device_name(CpuBf16 bf16) {
    return bf16 == CPU_BF16_AMX ? "cpu-amx" : "cpu";
}
