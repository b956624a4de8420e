// What ring attention does between its parts: sums in float of parts that may be of 16 bits, and results over some keys
// merged with results over others.
#include "ops/cuda/cuda.h"
#include "ops/cuda/vector.cuh"

#include <math_constants.h>

// ---- convert --------------------------------------------------------------------------------------------------------

// V columns a thread.
template <typename TO, typename FROM, int V>
static __global__ __launch_bounds__(256) void convert_kernel(TO *out, int64_t out_stride, const FROM *in,
                                                             int64_t in_stride, int64_t pieces, int64_t count,
                                                             bool accumulate) {
    const int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
        const int64_t row = i < pieces ? 0 : i / pieces, column = (i - row * pieces) * V;
        float value[V], sum[V];
        load_floats<V>(value, in + row * in_stride + column);
        if (accumulate) {
            load_floats<V>(sum, out + row * out_stride + column);
#pragma unroll
            for (int k = 0; k < V; k++)
                value[k] += sum[k];
        }
        store_floats<V>(out + row * out_stride + column, value);
    }
}

template <typename TO, typename FROM>
static void convert_launch(CudaState *state, Tensor out, Tensor in, bool accumulate) {
    const bool fours = (out.cols | out.stride | in.stride) % 4 == 0 && all_aligned(16, out.data, in.data);
    const int64_t pieces = fours ? out.cols / 4 : out.cols, count = out.rows * pieces, most = ceil_div64(count, 256);
    const unsigned blocks = (unsigned)(most < 65536 ? most : 65536);
    if (!count) return;
    TO *to = (TO *)out.data;
    const FROM *from = (const FROM *)in.data;
    if (fours)
        convert_kernel<TO, FROM, 4>
            <<<blocks, 256, 0, state->stream>>>(to, out.stride, from, in.stride, pieces, count, accumulate);
    else
        convert_kernel<TO, FROM, 1>
            <<<blocks, 256, 0, state->stream>>>(to, out.stride, from, in.stride, pieces, count, accumulate);
    LAUNCH_CHECK(state);
}

extern "C" void cuda_convert(Ops *ops, Tensor out, Tensor in, bool accumulate) {
    CudaState *state = cuda_scope_begin(ops, OP_CONVERT);
    if (out.dtype == DTYPE_BF16)
        WITH_STORAGE(in.dtype, (convert_launch<Bf16, T>(state, out, in, accumulate)));
    else if (out.dtype == DTYPE_F16)
        WITH_STORAGE(in.dtype, (convert_launch<Fp16, T>(state, out, in, accumulate)));
    else
        WITH_STORAGE(in.dtype, (convert_launch<float, T>(state, out, in, accumulate)));
    cuda_scope_end(state);
}

// ---- merge ----------------------------------------------------------------------------------------------------------

// A warp for a query of a head. Its lanes read the lse before one of them writes it.
template <typename T>
static __global__ __launch_bounds__(256) void merge_kernel(float *out, float *lse, const T *part, const float *part_lse,
                                                           MergeShape shape) {
    const int64_t i = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x & 31;
    if (i >= shape.tokens * shape.heads) return;
    const int64_t token = i / shape.heads, head = i - token * shape.heads, batch = token / shape.seq;
    const int64_t line = (batch * shape.heads + head) * shape.seq + token - batch * shape.seq;
    const float own = lse[line], other = part_lse[line];
    if (other == -CUDART_INF_F) return;
    const float high = fmaxf(own, other), a = expf(own - high), b = expf(other - high), sum = a + b;
    const float keep = a / sum, take = b / sum;
    __syncwarp();
    if (lane == 0) lse[line] = high + logf(sum);
    for (int c = lane; c < shape.head_dim; c += 32) {
        const int64_t at = i * shape.head_dim + c;
        out[at] = out[at] * keep + to_float(part[at]) * take;
    }
}

extern "C" void cuda_attention_merge(Ops *ops, Tensor out, Tensor lse, Tensor part, Tensor part_lse) {
    CudaState *state = cuda_scope_begin(ops, OP_ATTENTION_MERGE);
    const MergeShape shape = merge_shape(out, lse);
    const int64_t blocks = ceil_div64(shape.tokens * shape.heads, 8);
    if (blocks > 0) {
        WITH_STORAGE(part.dtype, (merge_kernel<T><<<(unsigned)blocks, 256, 0, state->stream>>>(
                                     (float *)out.data, (float *)lse.data, (const T *)part.data,
                                     (const float *)part_lse.data, shape)));
        LAUNCH_CHECK(state);
    }
    cuda_scope_end(state);
}
