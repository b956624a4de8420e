// The parts of products that one thread computes, by themselves: with AVX-512, and with AMX on CPUs without it.
#pragma once

#include "ops/cpu/cpu.h"

// False: the compiler has no AVX-512, and these must not be called. They need a CPU with AVX512-BF16.
extern const bool amx_emulated_built, avx512_alone_built;
void amx_emulated_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch);
bool amx_emulated_in_use(void); // tiles are set up: a thread that goes on so keeps the CPU from saving power
void avx512_alone_start(bool bf16);
void avx512_alone_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch);
