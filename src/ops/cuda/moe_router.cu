// The router's matrix products: logits = in . weight^T in float, and both gradients. They are skinny (8 to 256
// experts), so with bf16 they are bound by reading the activations; the products run on the tensor cores (mma.sync)
// with float sums. A float gradient is cut into two bf16 parts (16 bits of mantissa) so that it loses nothing that
// matters. The weight gradient cuts the tokens into a fixed number of parts, whose sums are added in order. workspace:
// moe_router_backward uses workspace_moe_router_backward(rows, dim, experts).
#include "ops/cuda/cuda.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/sm80.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/cuda/workspace.h"

// Shared memory stays below the 99 KB that every supported GPU gives a block.
enum { PAD = 8, STAGES = 3, ROW_TILE = 64, K_TILE = 64, COLUMNS = ROUTER_TILE, TOKEN_TILE = 32, EXPERT_TILE = 128 };

// ---- forward -------------------------------------------------------------------------------------------------------

// A block computes ROW_TILE rows by NT experts; each of its four warps 16 rows.
template <int NT>
static __global__ __launch_bounds__(128) void router_forward_kernel(float *logits, const Bf16 *__restrict__ in,
                                                                    const Bf16 *__restrict__ weight, int64_t rows,
                                                                    int dim, int experts) {
    constexpr int WIDTH = K_TILE + PAD, STAGE = (ROW_TILE + NT) * WIDTH;
    extern __shared__ __align__(16) Bf16 tiles[]; // STAGES x (rows of in, rows of weight)
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t first_row = (int64_t)blockIdx.x * ROW_TILE;
    int first_expert = (int)blockIdx.y * NT, steps = (dim + K_TILE - 1) / K_TILE;

    auto load = [&](int step) {
        Bf16 *stage = tiles + step % STAGES * STAGE;
        for (int i = (int)threadIdx.x; i < (ROW_TILE + NT) * (K_TILE / 8); i += 128) {
            int r = i / (K_TILE / 8), k = step * K_TILE + i % (K_TILE / 8) * 8;
            bool is_in = r < ROW_TILE;
            int64_t row = is_in ? first_row + r : first_expert + r - ROW_TILE;
            bool real = k < dim && row < (is_in ? rows : experts);
            const Bf16 *from = is_in ? in : weight;
            copy16_async(shared_address(stage + r * WIDTH + i % (K_TILE / 8) * 8), real ? from + row * dim + k : from,
                         real);
        }
    };
    float c[NT / 8][4] = {};
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) load(s);
        copies_commit();
    }
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) load(step + STAGES - 1);
        copies_commit();
        const Bf16 *a_tile = tiles + step % STAGES * STAGE, *b_tile = a_tile + ROW_TILE * WIDTH;
#pragma unroll
        for (int k = 0; k < K_TILE; k += 16) {
            uint32_t a[4];
            matrices_load(a, shared_address(a_tile + (warp * 16 + lane % 16) * WIDTH + k + lane / 16 * 8));
#pragma unroll
            for (int n = 0; n < NT; n += 16) {
                uint32_t b[4];
                matrices_load(b,
                              shared_address(b_tile + (n + lane / 16 * 8 + lane % 8) * WIDTH + k + lane / 8 % 2 * 8));
                mma(c[n / 8], a, b[0], b[1]);
                mma(c[n / 8 + 1], a, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < NT / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t row = first_row + warp * 16 + lane / 4 + i / 2 * 8;
            int expert = first_expert + n * 8 + lane % 4 * 2 + i % 2;
            if (row < rows && expert < experts) logits[row * experts + expert] = c[n][i];
        }
    }
}

// Any type, width and alignment: a warp takes a row and goes through the experts.
template <typename T>
static __global__ __launch_bounds__(256) void router_forward_plain_kernel(float *logits, const T *in, const T *weight,
                                                                          int64_t rows, int dim, int experts) {
    int lane = (int)threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    for (int e = 0; e < experts; e++) {
        float sum = 0;
        for (int i = lane; i < dim; i += 32)
            sum += to_float(in[row * dim + i]) * to_float(weight[(int64_t)e * dim + i]);
        sum = warp_sum(sum);
        if (lane == 0) logits[row * experts + e] = sum;
    }
}

template <int NT>
static void router_forward_launch(CudaState *state, float *logits, const Bf16 *in, const Bf16 *weight, int64_t rows,
                                  int dim, int experts) {
    size_t shared = (size_t)(STAGES * (ROW_TILE + NT) * (K_TILE + PAD)) * sizeof(Bf16);
    CUDA_CHECK(state, cudaFuncSetAttribute(router_forward_kernel<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)shared));
    dim3 blocks((unsigned)ceil_div64(rows, ROW_TILE), (unsigned)ceil_div64(experts, NT));
    router_forward_kernel<NT><<<blocks, 128, shared, state->stream>>>(logits, in, weight, rows, dim, experts);
}

extern "C" void cuda_moe_router_forward(Ops *ops, Tensor logits, Tensor in, Tensor weight) {
    int64_t rows = in.rows;
    int dim = (int)in.cols, experts = (int)weight.rows;
    if (rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_MOE_ROUTER_FORWARD);
    float *out = (float *)logits.data;
    const Bf16 *in16 = (const Bf16 *)in.data, *weight16 = (const Bf16 *)weight.data;
    if (in.dtype != DTYPE_BF16 || dim % 8 || !all_aligned(16, in16, weight16))
        WITH_STORAGE(in.dtype,
                     (router_forward_plain_kernel<T><<<(unsigned)ceil_div64(rows, 8), 256, 0, state->stream>>>(
                         out, (const T *)in.data, (const T *)weight.data, rows, dim, experts)));
    else if (experts <= 16)
        router_forward_launch<16>(state, out, in16, weight16, rows, dim, experts);
    else if (experts <= 32)
        router_forward_launch<32>(state, out, in16, weight16, rows, dim, experts);
    else if (experts <= 64)
        router_forward_launch<64>(state, out, in16, weight16, rows, dim, experts);
    else
        router_forward_launch<128>(state, out, in16, weight16, rows, dim, experts);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// ---- gradient of the logits in two parts ---------------------------------------------------------------------------

static __global__ __launch_bounds__(256) void router_split_kernel(Bf16 *high, Bf16 *low,
                                                                  const float *__restrict__ dlogits, int64_t rows,
                                                                  int experts, int width) {
    int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 4;
    if (i >= rows * width) return;
    int64_t row = i / width;
    int e = (int)(i - row * width);
    float value[4] = {}, rest[4];
    if (e < experts) load_floats<4>(value, dlogits + row * experts + e); // experts is a multiple of 4 here
#pragma unroll
    for (int j = 0; j < 4; j++)
        rest[j] = value[j] - __bfloat162float(__float2bfloat16_rn(value[j]));
    store_floats<4>(high + i, value);
    store_floats<4>(low + i, rest);
}

// ---- gradient of the input -----------------------------------------------------------------------------------------

// din += dlogits . weight. A block holds its ROW_TILE rows of dlogits in shared memory, EXPERT_TILE experts at a time,
// and walks over column tiles. The columns of weight are laid down so that the eight sums a thread has of a row in 32
// columns are neighbours: column 8q + 2t + r of 32 goes to place 8t + 2q + r. So din is read (before the products) and
// written in 16-byte vectors.
static __global__ __launch_bounds__(128, 3) void router_din_kernel(Bf16 *din, const Bf16 *__restrict__ high_in,
                                                                   const Bf16 *__restrict__ low_in,
                                                                   const Bf16 *__restrict__ weight, int64_t rows,
                                                                   int dim, int experts, int width) {
    constexpr int B_WIDTH = COLUMNS + PAD, GROUPS = COLUMNS / 32;
    extern __shared__ __align__(16) char shared[];
    int span = min(width, (int)EXPERT_TILE), a_width = span + PAD;
    Bf16 *high = (Bf16 *)shared, *low = high + ROW_TILE * a_width, *b_tile = low + ROW_TILE * a_width;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t first_row = (int64_t)blockIdx.x * ROW_TILE;
    auto load_dlogits = [&](int first_expert) {
        for (int i = (int)threadIdx.x; i < ROW_TILE * (span / 8); i += 128) {
            int r = i / (span / 8), e = i % (span / 8) * 8;
            bool real = first_row + r < rows && first_expert + e < width;
            int64_t from = real ? (first_row + r) * width + first_expert + e : 0;
            copy16_async(shared_address(high + r * a_width + e), high_in + from, real);
            copy16_async(shared_address(low + r * a_width + e), low_in + from, real);
        }
        copies_commit();
    };
    if (width == span) load_dlogits(0); // all experts at once: they stay for all columns
    for (int first = (int)blockIdx.y * COLUMNS; first < dim; first += (int)gridDim.y * COLUMNS) {
        uint4 old[GROUPS][2];
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int64_t row = first_row + warp * 16 + lane / 4 + h * 8;
                int column = first + g * 32 + lane % 4 * 8;
                old[g][h] = row < rows && column < dim ? load16(din + row * dim + column) : make_uint4(0, 0, 0, 0);
            }
        }
        float c[COLUMNS / 8][4] = {};
        for (int first_expert = 0; first_expert < width; first_expert += span) {
            __syncthreads(); // nobody reads the last tiles any more
            if (width != span) load_dlogits(first_expert);
#pragma unroll 4
            for (int i = (int)threadIdx.x; i < span * (COLUMNS / 8); i += 128) {
                int e = i / (COLUMNS / 8), v = i % (COLUMNS / 8), column = first + v * 8;
                uint4 part = first_expert + e < experts && column < dim
                                 ? load16(weight + (int64_t)(first_expert + e) * dim + column)
                                 : make_uint4(0, 0, 0, 0);
                uint32_t *to = (uint32_t *)(b_tile + e * B_WIDTH + v / 4 * 32 + v % 4 * 2);
                to[0] = part.x, to[4] = part.y, to[8] = part.z, to[12] = part.w;
            }
            copies_wait<0>();
            __syncthreads();
            for (int k = 0; k < span; k += 16) {
                uint32_t a_high[4], a_low[4];
                matrices_load(a_high, shared_address(high + (warp * 16 + lane % 16) * a_width + k + lane / 16 * 8));
                matrices_load(a_low, shared_address(low + (warp * 16 + lane % 16) * a_width + k + lane / 16 * 8));
#pragma unroll
                for (int n = 0; n < COLUMNS; n += 16) {
                    uint32_t b[4];
                    matrices_load_transposed(b, shared_address(b_tile + (k + lane % 16) * B_WIDTH + n + lane / 16 * 8));
                    mma(c[n / 8], a_high, b[0], b[1]);
                    mma(c[n / 8 + 1], a_high, b[2], b[3]);
                    mma(c[n / 8], a_low, b[0], b[1]);
                    mma(c[n / 8 + 1], a_low, b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int64_t row = first_row + warp * 16 + lane / 4 + h * 8;
                int column = first + g * 32 + lane % 4 * 8;
                if (row >= rows || column >= dim) continue;
                float sum[8];
                vec_unpack<Bf16>(sum, old[g][h]);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    sum[j] += c[g * 4 + j / 2][h * 2 + j % 2];
                store16(din + row * dim + column, vec_pack<Bf16>(sum));
            }
        }
    }
}

template <typename T>
static __global__ __launch_bounds__(256) void router_din_plain_kernel(T *din, const float *dlogits, const T *weight,
                                                                      int64_t rows, int dim, int experts) {
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= rows * dim) return;
    int64_t row = i / dim, column = i - row * dim;
    float sum = 0;
    for (int e = 0; e < experts; e++)
        sum += dlogits[row * experts + e] * to_float(weight[(int64_t)e * dim + column]);
    din[i] = from_float<T>(to_float(din[i]) + sum);
}

static void router_din_launch(CudaState *state, Bf16 *din, const Bf16 *high, const Bf16 *low, const Bf16 *weight,
                              int64_t rows, int dim, int experts) {
    int width = router_width(experts), span = width < EXPERT_TILE ? width : EXPERT_TILE;
    size_t shared = (size_t)(2 * ROW_TILE * (span + PAD) + span * (COLUMNS + PAD)) * sizeof(Bf16);
    CUDA_CHECK(state,
               cudaFuncSetAttribute(router_din_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    dim3 blocks((unsigned)ceil_div64(rows, ROW_TILE), (unsigned)ceil_div64(dim, COLUMNS * 4));
    router_din_kernel<<<blocks, 128, shared, state->stream>>>(din, high, low, weight, rows, dim, experts, width);
}

// ---- gradient of the weight ----------------------------------------------------------------------------------------

// partial[split] = dlogits^T . in over the split's tokens. A block computes MT experts by COLUMNS columns; its eight
// warps stand MT / 16 by 128 / MT.
template <int MT>
static __global__ __launch_bounds__(256, 2) void router_dweight_kernel(float *partials, const Bf16 *__restrict__ high,
                                                                       const Bf16 *__restrict__ low,
                                                                       const Bf16 *__restrict__ in, int64_t rows,
                                                                       int dim, int experts, int width,
                                                                       int64_t rows_per_split) {
    constexpr int A_WIDTH = MT + PAD, B_WIDTH = COLUMNS + PAD, WARPS_M = MT / 16, WARPS_N = 8 / WARPS_M;
    constexpr int STAGE = TOKEN_TILE * (B_WIDTH + 2 * A_WIDTH);
    constexpr int N = COLUMNS / WARPS_N;          // columns of a warp
    extern __shared__ __align__(16) Bf16 tiles[]; // STAGES x (in, high, low), each of TOKEN_TILE rows
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
    int first_column = (int)blockIdx.x * COLUMNS, first_expert = (int)blockIdx.z * MT;
    int64_t begin = blockIdx.y * rows_per_split, end = begin + rows_per_split < rows ? begin + rows_per_split : rows;
    int steps = end > begin ? (int)((end - begin + TOKEN_TILE - 1) / TOKEN_TILE) : 0;

    auto load = [&](int step) {
        Bf16 *b = tiles + step % STAGES * STAGE, *a = b + TOKEN_TILE * B_WIDTH;
        int64_t token = begin + (int64_t)step * TOKEN_TILE;
        for (int i = (int)threadIdx.x; i < TOKEN_TILE * (COLUMNS / 8); i += 256) {
            int t = i / (COLUMNS / 8), column = first_column + i % (COLUMNS / 8) * 8;
            bool real = token + t < end && column < dim;
            copy16_async(shared_address(b + t * B_WIDTH + i % (COLUMNS / 8) * 8),
                         real ? in + (token + t) * dim + column : in, real);
        }
        for (int i = (int)threadIdx.x; i < TOKEN_TILE * (MT / 8); i += 256) {
            int t = i / (MT / 8), e = i % (MT / 8) * 8;
            bool real = token + t < end && first_expert + e < width;
            int64_t from = real ? (token + t) * width + first_expert + e : 0;
            copy16_async(shared_address(a + t * A_WIDTH + e), high + from, real);
            copy16_async(shared_address(a + (TOKEN_TILE + t) * A_WIDTH + e), low + from, real);
        }
    };
    float c[N / 8][4] = {};
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) load(s);
        copies_commit();
    }
    for (int step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads(); // the stage has arrived, and nobody reads the oldest one any more
        if (step + STAGES - 1 < steps) load(step + STAGES - 1);
        copies_commit();
        const Bf16 *b_tile = tiles + step % STAGES * STAGE, *a_tile = b_tile + TOKEN_TILE * B_WIDTH;
#pragma unroll
        for (int k = 0; k < TOKEN_TILE; k += 16) {
            uint32_t a_high[4], a_low[4];
            const Bf16 *a = a_tile + (k + lane / 16 * 8 + lane % 8) * A_WIDTH + warp_m * 16 + lane / 8 % 2 * 8;
            matrices_load_transposed(a_high, shared_address(a));
            matrices_load_transposed(a_low, shared_address(a + TOKEN_TILE * A_WIDTH));
#pragma unroll
            for (int n = 0; n < N; n += 16) {
                uint32_t b[4];
                matrices_load_transposed(
                    b, shared_address(b_tile + (k + lane % 16) * B_WIDTH + warp_n * N + n + lane / 16 * 8));
                mma(c[n / 8], a_high, b[0], b[1]);
                mma(c[n / 8 + 1], a_high, b[2], b[3]);
                mma(c[n / 8], a_low, b[0], b[1]);
                mma(c[n / 8 + 1], a_low, b[2], b[3]);
            }
        }
    }
    float *partial = partials + (int64_t)blockIdx.y * experts * dim;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int expert = first_expert + warp_m * 16 + lane / 4 + i / 2 * 8;
            int column = first_column + warp_n * N + n * 8 + lane % 4 * 2 + i % 2;
            if (expert < experts && column < dim) partial[(int64_t)expert * dim + column] = c[n][i];
        }
    }
}

template <typename T>
static __global__ __launch_bounds__(128) void router_dweight_plain_kernel(float *partials, const float *dlogits,
                                                                          const T *in, int64_t rows, int dim,
                                                                          int experts, int64_t rows_per_split) {
    int column = (int)(blockIdx.x * 128 + threadIdx.x), expert = (int)blockIdx.z;
    if (column >= dim) return;
    int64_t begin = blockIdx.y * rows_per_split, end = begin + rows_per_split < rows ? begin + rows_per_split : rows;
    float sum = 0;
    for (int64_t row = begin; row < end; row++)
        sum += dlogits[row * experts + expert] * to_float(in[row * dim + column]);
    partials[((int64_t)blockIdx.y * experts + expert) * dim + column] = sum;
}

template <int MT>
static void router_dweight_launch(CudaState *state, float *partials, const Bf16 *high, const Bf16 *low, const Bf16 *in,
                                  int64_t rows, int dim, int experts, int splits) {
    size_t shared = (size_t)(STAGES * TOKEN_TILE * (COLUMNS + PAD + 2 * (MT + PAD))) * sizeof(Bf16);
    CUDA_CHECK(state, cudaFuncSetAttribute(router_dweight_kernel<MT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)shared));
    dim3 blocks((unsigned)ceil_div64(dim, COLUMNS), (unsigned)splits, (unsigned)ceil_div64(experts, MT));
    router_dweight_kernel<MT><<<blocks, 256, shared, state->stream>>>(partials, high, low, in, rows, dim, experts,
                                                                      router_width(experts), ceil_div64(rows, splits));
}

extern "C" void cuda_moe_router_backward(Ops *ops, Tensor din, Tensor dweight, Tensor dlogits, Tensor in, Tensor weight,
                                         bool accumulate) {
    CudaState *state = cuda_scope_begin(ops, OP_MOE_ROUTER_BACKWARD);
    const int64_t rows = in.rows;
    const int dim = (int)in.cols, experts = (int)weight.rows;
    float *sums = (float *)dweight.data;
    const float *grad = (const float *)dlogits.data;
    if (rows == 0) {
        if (!accumulate)
            CUDA_CHECK(state, cudaMemsetAsync(sums, 0, (size_t)experts * dim * sizeof(float), state->stream));
        cuda_scope_end(state);
        return;
    }
    char *scratch = (char *)cuda_scratch(state, workspace_moe_router_backward(rows, dim, experts));
    if (!scratch) {
        cuda_scope_end(state);
        return;
    }
    size_t part = workspace_router_part(rows, experts);
    Bf16 *high = (Bf16 *)scratch, *low = (Bf16 *)(scratch + part);
    float *partials = (float *)(scratch + 2 * part);
    int splits = router_splits(rows, dim, experts), width = router_width(experts);
    const Bf16 *in16 = (const Bf16 *)in.data;
    bool plain =
        in.dtype != DTYPE_BF16 || dim % 8 || experts % 4 || !all_aligned(16, din.data, in.data, weight.data, grad);
    if (plain) {
        WITH_STORAGE(in.dtype,
                     (router_din_plain_kernel<T><<<(unsigned)ceil_div64(rows * dim, 256), 256, 0, state->stream>>>(
                         (T *)din.data, grad, (const T *)weight.data, rows, dim, experts)));
    } else {
        router_split_kernel<<<(unsigned)ceil_div64(rows * width, 1024), 256, 0, state->stream>>>(high, low, grad, rows,
                                                                                                 experts, width);
        router_din_launch(state, (Bf16 *)din.data, high, low, (const Bf16 *)weight.data, rows, dim, experts);
    }
    LAUNCH_CHECK(state);
    dim3 blocks((unsigned)ceil_div64(dim, 128), (unsigned)splits, (unsigned)experts);
    if (plain)
        WITH_STORAGE(in.dtype, (router_dweight_plain_kernel<T><<<blocks, 128, 0, state->stream>>>(
                                   partials, grad, (const T *)in.data, rows, dim, experts, ceil_div64(rows, splits))));
    else if (experts <= 16)
        router_dweight_launch<16>(state, partials, high, low, in16, rows, dim, experts, splits);
    else if (experts <= 32)
        router_dweight_launch<32>(state, partials, high, low, in16, rows, dim, experts, splits);
    else if (experts <= 64)
        router_dweight_launch<64>(state, partials, high, low, in16, rows, dim, experts, splits);
    else
        router_dweight_launch<128>(state, partials, high, low, in16, rows, dim, experts, splits);
    LAUNCH_CHECK(state);
    columns_reduce(state->stream, sums, partials, splits, (int64_t)experts * dim, accumulate);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}
