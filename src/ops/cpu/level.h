// Instruction sets. The files of this folder that compute are compiled once for each level
// (cmake/HearthCpuLevels.cmake), and CPU_INSTALL is the one name of a copy that the rest of the program sees.
#pragma once

#include "ops/ops.h"

#ifndef CPU_INSTALL
#define CPU_INSTALL cpu_install_plain
#endif

typedef struct CpuLevel {
    const char *name;  // as HEARTH_CPU names it: a level of the x86-64 ABI
    const char *title; // what it adds
    bool (*there)(void);
    Status (*install)(Ops *ops);
} CpuLevel;

// The highest level of this build that the CPU has, or the lower one that HEARTH_CPU names. A usage error when
// HEARTH_CPU asks for what the CPU or the build has not.
Status cpu_level(const CpuLevel **level);
void cpu_level_names(char *out, size_t size); // of all levels in this build: "v1 v3 v4"

Status cpu_install_plain(Ops *ops);
Status cpu_install_v3(Ops *ops);
Status cpu_install_v4(Ops *ops);
