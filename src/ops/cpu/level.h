// Instruction sets. The files of this folder that compute are compiled once for each level
// (cmake/HearthCpuLevels.cmake), and CPU_INSTALL is the one name of a copy that the rest of the program sees.
#pragma once

#include "ops/ops.h"

#ifndef CPU_INSTALL
#define CPU_INSTALL cpu_install_plain
#endif

// What multiplies bf16: floats made of it, or the CPU's own instructions for it.
typedef enum CpuBf16 { CPU_BF16_FLOATS, CPU_BF16_AVX512, CPU_BF16_AMX } CpuBf16;

typedef struct CpuLevel {
    const char *name;  // as HEARTH_CPU names it: a level of the x86-64 ABI
    const char *title; // what it adds
    bool avx512;       // its code has AVX-512, and with it products of bf16 where the CPU has them
    bool (*there)(void);
    Status (*install)(Ops *ops);
} CpuLevel;

// The highest level of this build that the CPU has, or the lower one that HEARTH_CPU names. A usage error when
// HEARTH_CPU asks for what the CPU or the build has not.
Status cpu_level(const CpuLevel **level);
void cpu_level_names(char *out, size_t size); // of all levels in this build: "v1 v3 v4"

// The best that the CPU and its level have, or the one that HEARTH_CPU_BF16 names; a usage error likewise. Asks the
// system for AMX, which it gives to a process that asks.
Status cpu_bf16(CpuBf16 *bf16);
const char *cpu_bf16_title(CpuBf16 bf16);  // "AMX", "AVX512-BF16"; NULL: floats
const char *cpu_device_name(CpuBf16 bf16); // of such a CPU in the hardware catalogue

Status cpu_install_plain(Ops *ops);
Status cpu_install_v3(Ops *ops);
Status cpu_install_v4(Ops *ops);
