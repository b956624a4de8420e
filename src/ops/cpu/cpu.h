// What the files of the CPU implementation share: its state, scratch memory, and matrix products on blocks.
#pragma once

#include "base/threads.h"
#include "ops/cpu/level.h"
#include "ops/shapes.h"

#ifdef HEARTH_HAVE_BLAS
#include <cblas.h>
#endif
#include <pthread.h>

enum { CPU_FETCH_SLOTS = 8, CPU_FETCH_BYTES = 4096, CPU_MARKS = 64 };

typedef struct Cpu {
    Ops ops; // first: an Ops * of this table is a Cpu *
    char *workspace;
    size_t workspace_bytes;
    pthread_mutex_t lock; // of the two counters: checkpoint and data threads may allocate too
    int64_t allocated, peak;
    double mark[CPU_MARKS];
    bool profiling;
    CpuBf16 bf16;
    double seconds[OP_COUNT];
    char fetched[CPU_FETCH_SLOTS][CPU_FETCH_BYTES];
} Cpu;

static inline Cpu *cpu_of(Ops *ops) {
    return (Cpu *)ops;
}

// Each function of the table opens with CPU_TIMED: while profiling, its time is added to the op when it returns.
typedef struct CpuTimer {
    Cpu *cpu; // NULL while not profiling
    OpId op;
    double start;
} CpuTimer;
CpuTimer cpu_timer_start(Ops *ops, OpId op);
void cpu_timer_stop(CpuTimer *timer);
#define CPU_TIMED(ops, op) __attribute__((cleanup(cpu_timer_stop), unused)) CpuTimer timer_ = cpu_timer_start(ops, op)

// ---- scratch: the bound workspace, cut into a part that all workers share and one part per worker -----------------

typedef struct CpuScratch {
    char *shared;
    char *workers;
    size_t worker_bytes;
} CpuScratch;

static inline size_t cpu_align(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}
CpuScratch cpu_scratch(Cpu *cpu, size_t shared_bytes, size_t worker_bytes); // asserts that the workspace suffices
static inline void *cpu_scratch_of(const CpuScratch *scratch, int worker) {
    return scratch->workers + (size_t)worker * scratch->worker_bytes;
}

// Sums over rows are taken in at most CPU_PARTS parts, whose number depends on the row count only.
enum { CPU_PARTS = 64 };
static inline int64_t cpu_part_rows(int64_t rows) {
    return (rows + CPU_PARTS - 1) / CPU_PARTS;
}
static inline int64_t cpu_part_count(int64_t rows) {
    return rows ? (rows + cpu_part_rows(rows) - 1) / cpu_part_rows(rows) : 0;
}
// Rows to hand to a thread at once in plain loops over [rows, dim].
static inline int64_t cpu_row_chunk(int64_t dim) {
    int64_t chunk = 16384 / (dim > 0 ? dim : 1);
    return chunk < 1 ? 1 : chunk;
}
// out[i] += sum over parts of partial[part * stride + i], in the order of the parts.
void cpu_add_parts(float *out, const double *partial, int64_t parts, int64_t stride, int64_t count);

// ---- matrix products (gemm.c) ---------------------------------------------------------------------------------------

typedef struct GemmOperand {
    const void *data;
    int64_t stride; // elements from one stored row to the next
    bool transposed;
    DType dtype;
    const float *table; // of FP8: what each of the 256 codes stands for
} GemmOperand;

// c[m, n] (+)= a . b, where a is [m, k] (stored [k, m] when transposed) and b is [k, n] (stored [n, k] when
// transposed).
typedef struct Gemm {
    int64_t m, n, k;
    GemmOperand a, b;
    void *c;
    int64_t c_stride;
    DType c_dtype;
    bool accumulate;
    const void *add; // like c: c = add + a . b; NULL: none
} Gemm;

static inline GemmOperand cpu_operand(Tensor tensor, bool transposed) {
    return (GemmOperand){tensor.data, tensor.stride, transposed, tensor.dtype, NULL};
}

void cpu_gemm(Cpu *cpu, const Gemm *gemm); // all threads
// A part of the product by the calling worker alone; at most GEMM_TILE rows and columns, but for the two kinds below.
void cpu_gemm_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch);
// The same with AVX-512 (gemm_avx512.c), of what cpu_avx512_multiplies(); at most AVX512_ROWS. A pass along k takes
// AVX512_DEPTH cells (a float, or two bf16), and where the sums of a bf16 result wait for another pass, there are at
// most AVX512_WAITING_ROWS and AVX512_WAITING_COLUMNS.
enum { AVX512_TILE_ROWS = 14, AVX512_TILE_COLUMNS = 32, AVX512_DEPTH = 192 };
enum { AVX512_ROWS = 74 * AVX512_TILE_ROWS, AVX512_COLUMNS = 1024 };
enum { AVX512_WAITING_ROWS = 28 * AVX512_TILE_ROWS, AVX512_WAITING_COLUMNS = 384 };
void cpu_avx512_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch);
void cpu_avx512_start(bool bf16); // before the first product: those of bf16 too
bool cpu_avx512_multiplies(const Gemm *gemm);
static inline bool cpu_avx512_waits(const Gemm *gemm) {
    return gemm->c_dtype != DTYPE_F32 && gemm->k > 2 * AVX512_DEPTH;
}
// The same with AMX (gemm_amx.c).
enum { AMX_ROWS = 512, AMX_COLUMNS = 384, AMX_BLOCK = 32 };
void cpu_amx_part(const Gemm *gemm, int64_t row, int64_t rows, int64_t column, int64_t columns, float *scratch);
void cpu_amx_start(bool used);
bool cpu_amx_multiplies(const Gemm *gemm);
// The whole product by the calling worker alone, any size.
void cpu_gemm_block(const Gemm *gemm, float *scratch);

enum {
    GEMM_LANES = 16, // of the widest vector
    GEMM_TILE = 256,
    GEMM_DEPTH = 512,
    GEMM_SCRATCH_FLOATS = 2 * (GEMM_TILE + 32) * GEMM_DEPTH + GEMM_TILE * GEMM_TILE
};
size_t cpu_gemm_scratch_bytes(void);
Status cpu_gemm_start(void); // before the first product
// Size of equal tiles of at most `most`, a multiple of `whole` as most is.
int64_t cpu_gemm_tile(int64_t size, int64_t most, int64_t whole);

// What a cut of a product costs whose tiles decide about no bit: cycles for some elements along k. Counted in whole
// register tiles: one that is cut takes as long, but for rows with AVX-512.
typedef struct GemmCost {
    int64_t tile_rows, tile_columns; // register tile
    int64_t most_rows, most_columns; // of what a thread takes at a time, multiples of these
    int64_t product, pack_a, pack_b; // of a register tile, and of its rows of a and columns of b
} GemmCost;
GemmCost cpu_gemm_costs(const Gemm *gemm, bool amx);
int64_t cpu_gemm_cost(const GemmCost *cost, int64_t m, int64_t n, int64_t rows, int64_t columns, int64_t threads);
// A cut into rows x columns whose busiest thread is done first, or nearly; m and n are at least 1.
void cpu_gemm_cut(const GemmCost *cost, int64_t m, int64_t n, int64_t threads, int64_t *rows, int64_t *columns);

#ifdef HEARTH_HAVE_BLAS
typedef __typeof__(cblas_sgemm) CblasSgemm;
extern CblasSgemm *cpu_blas_sgemm;
Status cpu_blas_start(void);
void cpu_blas_release(void); // before each product: what was kept free for its buffers is theirs
#endif

size_t cpu_attention_scratch_bytes(int seq, int heads, int kv_heads, int head_dim);
size_t cpu_sum_scratch_bytes(void);

// ---- rows as floats -------------------------------------------------------------------------------------------------

void cpu_to_floats(float *out, const void *in, DType dtype, int64_t count);
void cpu_from_floats(void *out, DType dtype, const float *in, int64_t count);

static inline int64_t cpu_width(DType dtype) {
    return dtype == DTYPE_F32 ? 4 : dtype == DTYPE_BF16 || dtype == DTYPE_F16 ? 2 : 1;
}
static inline const void *cpu_at(const void *data, int64_t index, DType dtype) {
    return (const char *)data + index * cpu_width(dtype);
}
static inline void *cpu_at_mut(void *data, int64_t index, DType dtype) {
    return (char *)data + index * cpu_width(dtype);
}

void cpu_fp8_table(float table[256], DType dtype, Tensor scale); // what codes stand for
void cpu_fp8_to_floats(float *out, const uint8_t *in, const float table[256], int64_t count);

// Rows [0, rows) of out from the tokens of in: [.., dim]; zeros where token_of_row is negative (moe.c).
void cpu_gather_rows(void *out, const void *in, const int32_t *token_of_row, int64_t rows, int dim, DType dtype);

// ---- each file puts its functions into the table ------------------------------------------------------------------

void cpu_install_attention(Ops *ops);
void cpu_install_cross_entropy(Ops *ops);
void cpu_install_elements(Ops *ops);
void cpu_install_embedding(Ops *ops);
void cpu_install_fp8(Ops *ops);
Status cpu_install_gemm(Ops *ops);
void cpu_install_grouped(Ops *ops);
void cpu_install_moe(Ops *ops);
void cpu_install_norm(Ops *ops);
void cpu_install_optimizer(Ops *ops);
void cpu_install_rope(Ops *ops);
void cpu_install_swiglu(Ops *ops);
