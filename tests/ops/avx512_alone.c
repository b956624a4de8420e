// src/ops/cpu/gemm_avx512.c under names of its own, so that parts of any size can be asked for.
#include "gemm_parts.h"

#define cpu_avx512_start      avx512_alone_start
#define cpu_avx512_multiplies avx512_alone_multiplies
#define cpu_avx512_part       avx512_alone_part
bool cpu_avx512_multiplies(const Gemm *gemm);
#include "ops/cpu/gemm_avx512.c"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
const bool avx512_alone_built = true;
#else
const bool avx512_alone_built = false;
#endif
