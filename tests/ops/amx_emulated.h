// Products with AMX on CPUs without it, slowly.
#pragma once

#include "ops/cpu/cpu.h"

bool amx_emulated_here(void);   // this CPU has the instructions beside those of tiles
bool amx_emulated_in_use(void); // tiles are set up: what the thread does now is slower until they are released
void amx_emulated_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch);
