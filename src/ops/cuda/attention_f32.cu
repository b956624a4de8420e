// Attention in fp32, for parity tests: plain multiply-adds, a warp for each query (forward, dQ) or key (dK, dV). A tile
// of 32 rows of two matrices stands in shared memory; each lane takes one row for the dot products, then the sum over
// the tile is spread over the head dimension.
#include "ops/cuda/cuda.h"

#include <math_constants.h>

enum { F32_WARPS = 8, F32_DIM = OPS_CUDA_HEAD_DIM_MAX, F32_PITCH = F32_DIM + 1 }; // the pitch keeps 32 rows in 32 banks

struct F32Args {
    const float *q, *k, *v, *o, *dout;
    float *out, *dq, *dk, *dv, *lse, *row_sum;
    AttentionShape shape;
    int64_t grad_stride;
};

struct F32Shared {
    float first[32][F32_PITCH], second[32][F32_PITCH]; // a tile of K and V, or of Q and dout
    float own[F32_WARPS][2][F32_DIM];                  // each warp's query (or key) rows
};

static __device__ float warp_sum(float value) {
    for (int e = 16; e > 0; e /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, e);
    return value;
}

static __device__ void tile_read(float (*tile)[F32_PITCH], const float *from, int64_t stride, int rows, int columns) {
    for (int i = threadIdx.x; i < 32 * columns; i += F32_WARPS * 32) {
        int row = i / columns, column = i % columns;
        tile[row][column] = row < rows ? from[row * stride + column] : 0;
    }
}

static __device__ float dot(const float *x, const float *y, int count) {
    float total = 0;
    for (int i = 0; i < count; i++)
        total = fmaf(x[i], y[i], total);
    return total;
}

// Forward (GRADIENT false) and dQ (true) of one query a warp.
template <bool GRADIENT> static __global__ void f32_query_kernel(const __grid_constant__ F32Args args) {
    extern __shared__ float shared_memory[];
    F32Shared *shared = (F32Shared *)shared_memory;
    const AttentionShape &n = args.shape;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, d = n.head_dim;
    const int b = blockIdx.x / n.heads, h = blockIdx.x % n.heads, group = h / (n.heads / n.kv_heads);
    const int m0 = blockIdx.y * F32_WARPS, row = m0 + warp;
    const int64_t token0 = (int64_t)b * n.seq, line = (int64_t)blockIdx.x * n.seq + row;
    const bool there = row < n.seq;
    const int begin = there && n.doc_start ? n.doc_start[token0 + row] - n.first_key : 0;
    const int last = n.full ? n.seq - 1 : row, last_of_block = n.full ? n.seq : min(m0 + F32_WARPS, n.seq);
    float *own = shared->own[warp][0], *own_dout = shared->own[warp][1];
    float sum = 0, maximum = -CUDART_INF_F, acc[F32_DIM / 32] = {};
    float lse = 0, row_sum = 0;
    if (there) {
        for (int i = lane; i < d; i += 32) {
            own[i] = args.q[(token0 + row) * n.q_stride + h * d + i];
            if (GRADIENT) {
                own_dout[i] = args.dout[(token0 + row) * n.o_stride + h * d + i];
                row_sum = fmaf(own_dout[i], args.o[(token0 + row) * n.o_stride + h * d + i], row_sum);
            }
        }
        if (GRADIENT) {
            row_sum = warp_sum(row_sum);
            lse = args.lse[line];
            if (lane == 0) args.row_sum[line] = row_sum;
        }
    }
    for (int n0 = 0; n0 < last_of_block; n0 += 32) {
        __syncthreads();
        tile_read(shared->first, args.k + (token0 + n0) * n.k_stride + group * d, n.k_stride, n.seq - n0, d);
        tile_read(shared->second, args.v + (token0 + n0) * n.v_stride + group * d, n.v_stride, n.seq - n0, d);
        __syncthreads();
        if (!there || n0 > last || min(n0 + 31, n.seq - 1) < begin) continue;
        const int key = n0 + lane;
        const bool seen = key <= last && key >= begin;
        float weight = seen ? dot(own, shared->first[lane], d) * n.scale : -CUDART_INF_F, shrink = 1;
        if (GRADIENT) {
            float p = seen ? expf(weight - lse) : 0;
            weight = p * (dot(own_dout, shared->second[lane], d) - row_sum);
        } else {
            float top = fmaxf(maximum, weight);
            for (int e = 16; e > 0; e /= 2)
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, e));
            shrink = expf(maximum - top);
            weight = seen ? expf(weight - top) : 0;
            sum = sum * shrink + warp_sum(weight);
            maximum = top;
        }
        const float(*tile)[F32_PITCH] = GRADIENT ? shared->first : shared->second;
        for (int part = 0; part < F32_DIM / 32; part++)
            acc[part] *= shrink;
        for (int j = 0; j < 32; j++) {
            float w = __shfl_sync(0xffffffffu, weight, j);
            for (int part = 0; part < F32_DIM / 32; part++)
                if (part * 32 + lane < d) acc[part] = fmaf(w, tile[j][part * 32 + lane], acc[part]);
        }
    }
    if (!there) return;
    for (int part = 0; part < F32_DIM / 32; part++) {
        int column = part * 32 + lane;
        if (column >= d) continue;
        if (GRADIENT)
            args.dq[(token0 + row) * args.grad_stride + h * d + column] = acc[part] * n.scale;
        else
            args.out[(token0 + row) * n.o_stride + h * d + column] = sum > 0 ? acc[part] / sum : 0;
    }
    if (!GRADIENT && lane == 0) args.lse[line] = maximum + logf(sum);
}

// dK and dV of one key a warp, over all queries of all heads of its group.
static __global__ void f32_key_kernel(const __grid_constant__ F32Args args) {
    extern __shared__ float shared_memory[];
    F32Shared *shared = (F32Shared *)shared_memory;
    const AttentionShape &n = args.shape;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, d = n.head_dim;
    const int b = blockIdx.x / n.kv_heads, group = blockIdx.x % n.kv_heads, group_heads = n.heads / n.kv_heads;
    const int n0 = blockIdx.y * F32_WARPS, key = n0 + warp;
    const int64_t token0 = (int64_t)b * n.seq;
    const bool there = key < n.seq;
    float *own_k = shared->own[warp][0], *own_v = shared->own[warp][1];
    float dk[F32_DIM / 32] = {}, dv[F32_DIM / 32] = {};
    for (int i = lane; there && i < d; i += 32) {
        own_k[i] = args.k[(token0 + key) * n.k_stride + group * d + i];
        own_v[i] = args.v[(token0 + key) * n.v_stride + group * d + i];
    }
    for (int g = 0; g < group_heads; g++) {
        const int h = group * group_heads + g;
        for (int m0 = n.full ? 0 : n0 / 32 * 32; m0 < n.seq; m0 += 32) {
            __syncthreads();
            tile_read(shared->first, args.q + (token0 + m0) * n.q_stride + h * d, n.q_stride, n.seq - m0, d);
            tile_read(shared->second, args.dout + (token0 + m0) * n.o_stride + h * d, n.o_stride, n.seq - m0, d);
            __syncthreads();
            if (!there) continue;
            const int row = m0 + lane;
            const bool seen = row < n.seq && (n.full || row >= key) &&
                              (!n.doc_start || n.doc_start[token0 + row] - n.first_key <= key);
            float p = 0, ds = 0;
            if (seen) {
                int64_t line = ((int64_t)b * n.heads + h) * n.seq + row;
                p = expf(dot(own_k, shared->first[lane], d) * n.scale - args.lse[line]);
                ds = p * (dot(own_v, shared->second[lane], d) - args.row_sum[line]);
            }
            for (int j = 0; j < 32; j++) {
                float p_j = __shfl_sync(0xffffffffu, p, j), ds_j = __shfl_sync(0xffffffffu, ds, j);
                for (int part = 0; part < F32_DIM / 32; part++) {
                    int column = part * 32 + lane;
                    if (column >= d) continue;
                    dv[part] = fmaf(p_j, shared->second[j][column], dv[part]);
                    dk[part] = fmaf(ds_j, shared->first[j][column], dk[part]);
                }
            }
        }
    }
    for (int part = 0; there && part < F32_DIM / 32; part++) {
        int column = part * 32 + lane;
        if (column >= d) continue;
        args.dk[(token0 + key) * args.grad_stride + group * d + column] = dk[part] * n.scale;
        args.dv[(token0 + key) * args.grad_stride + group * d + column] = dv[part];
    }
}

#define F32_LAUNCH(state, kernel, heads, args)                                                                         \
    do {                                                                                                               \
        dim3 grid((unsigned)((args).shape.batch * (heads)), (unsigned)ceil_div64((args).shape.seq, F32_WARPS));        \
        CUDA_CHECK(state,                                                                                              \
                   cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(F32Shared))); \
        (kernel)<<<grid, F32_WARPS * 32, sizeof(F32Shared), (state)->stream>>>(args);                                  \
        LAUNCH_CHECK(state);                                                                                           \
    } while (0)

void flash_forward_f32(CudaState *state, float *out, float *lse, const float *q, const float *k, const float *v,
                       const AttentionShape *shape) {
    F32Args args = {};
    args.q = q, args.k = k, args.v = v, args.out = out, args.lse = lse, args.shape = *shape;
    F32_LAUNCH(state, f32_query_kernel<false>, shape->heads, args);
}

void flash_backward_f32(CudaState *state, float *dq, float *dk, float *dv, int64_t dqkv_stride, const float *dout,
                        const float *out, const float *lse, float *row_sum, const float *q, const float *k,
                        const float *v, const AttentionShape *shape) {
    F32Args args = {};
    args.q = q, args.k = k, args.v = v, args.o = out, args.dout = dout, args.lse = (float *)lse, args.row_sum = row_sum;
    args.dq = dq, args.dk = dk, args.dv = dv, args.grad_stride = dqkv_stride, args.shape = *shape;
    F32_LAUNCH(state, f32_query_kernel<true>, shape->heads, args);
    F32_LAUNCH(state, f32_key_kernel, shape->kv_heads, args);
}
