// Embedding: gather of rows, and its deterministic gradient, of all ids or of a rank's share. The gradient sorts the
// token ids stably (own radix sort, all on the device), then adds up the sorted rows in pieces of a fixed length: an id
// whose rows lie within one piece is added to dweight at once; an id that crosses pieces leaves its sums at the ends of
// the pieces, and a last kernel adds those in order. So a frequent id costs no more than a rare one and the order of
// additions never changes. Ids without a row here are sorted behind all others, where the sums end. workspace:
// embedding_backward uses workspace_embedding_backward(rows, dim).
#include "ops/cuda/cuda.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/cuda/workspace.h"

#include <assert.h>

// The id's row in a weight of `held` rows from that of id `first` on; `held` for ids outside. Since first + held is an
// int32, the difference of an id below first is at least held when taken without its sign.
static __device__ __forceinline__ int32_t weight_row(int32_t id, int first, int held) {
    uint32_t row = (uint32_t)id - (uint32_t)first;
    return row < (uint32_t)held ? (int32_t)row : held;
}

// ---- forward -------------------------------------------------------------------------------------------------------

template <typename T, int V>
static __global__ __launch_bounds__(256) void embedding_forward_kernel(T *__restrict__ out, const int32_t *ids,
                                                                       const T *__restrict__ weight, int64_t rows,
                                                                       int dim, int first, int held) {
    int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    int32_t from = weight_row(ids[row], first, held);
    if (from == held) {
        const float zeros[V] = {};
        for (int i = (int)threadIdx.x % 32 * V; i < dim; i += 32 * V)
            store_floats<V>(out + row * dim + i, zeros);
        return;
    }
    const T *in = weight + (int64_t)from * dim;
#pragma unroll 4
    for (int i = (int)threadIdx.x % 32 * V; i < dim; i += 32 * V) {
        float values[V];
        load_floats<V>(values, in + i);
        store_floats<V>(out + row * dim + i, values);
    }
}

extern "C" void cuda_embedding_forward(Ops *ops, Tensor out, Tensor ids, Tensor weight, int64_t first) {
    int64_t rows = out.rows;
    int dim = (int)out.cols, held = (int)weight.rows;
    if (rows == 0) return;
    CudaState *state = cuda_scope_begin(ops, OP_EMBEDDING_FORWARD);
    unsigned blocks = (unsigned)ceil_div64(rows, 8);
    const int32_t *tokens = (const int32_t *)ids.data;
    if (dim % 8 == 0 && all_aligned(16, out.data, weight.data))
        WITH_STORAGE(out.dtype, (embedding_forward_kernel<T, 8><<<blocks, 256, 0, state->stream>>>(
                                    (T *)out.data, tokens, (const T *)weight.data, rows, dim, (int)first, held)));
    else
        WITH_STORAGE(out.dtype, (embedding_forward_kernel<T, 1><<<blocks, 256, 0, state->stream>>>(
                                    (T *)out.data, tokens, (const T *)weight.data, rows, dim, (int)first, held)));
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// ---- stable sort of (weight row, position) by row ------------------------------------------------------------------
//
// The first pass reads ids; the later ones read what it wrote, which weight_row with first = 0 leaves as it is.

enum { DIGITS = 1 << SORT_BITS, SORT_WARPS = 8, SORT_ROUNDS = SORT_TILE / 32 / SORT_WARPS };

static __device__ __forceinline__ int digit_of(int32_t id, int shift) {
    return (int)((uint32_t)id >> shift) & (DIGITS - 1);
}

// counts[digit * tiles + tile]: in this order, one running sum over all of it gives every tile's first place per digit.
static __global__ __launch_bounds__(256) void sort_count_kernel(int32_t *counts, const int32_t *ids, int64_t rows,
                                                                int shift, int first_id, int held) {
    __shared__ int32_t histogram[DIGITS];
    for (int d = (int)threadIdx.x; d < DIGITS; d += 256)
        histogram[d] = 0;
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * SORT_TILE;
    for (int i = (int)threadIdx.x; i < SORT_TILE && first + i < rows; i += 256)
        atomicAdd(&histogram[digit_of(weight_row(ids[first + i], first_id, held), shift)], 1);
    __syncthreads();
    for (int d = (int)threadIdx.x; d < DIGITS; d += 256)
        counts[(int64_t)d * gridDim.x + blockIdx.x] = histogram[d];
}

// Exclusive running sum in place, by one block: each round takes 1024 * 8 values.
static __global__ __launch_bounds__(1024) void sort_scan_kernel(int32_t *values, int64_t count) {
    __shared__ int32_t warp_total[32];
    __shared__ int32_t carry;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (threadIdx.x == 0) carry = 0;
    for (int64_t first = 0; first < count; first += 1024 * 8) {
        int64_t at = first + (int64_t)threadIdx.x * 8;
        int32_t part[8], own = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            part[i] = at + i < count ? values[at + i] : 0;
            own += part[i];
        }
        int32_t inclusive = own;
        for (int step = 1; step < 32; step *= 2) {
            int32_t below = __shfl_up_sync(FULL_WARP, inclusive, step);
            if (lane >= step) inclusive += below;
        }
        if (lane == 31) warp_total[warp] = inclusive;
        __syncthreads();
        int32_t before = carry;
        for (int w = 0; w < warp; w++)
            before += warp_total[w];
        __syncthreads();
        if (threadIdx.x == 1023) carry = before + inclusive;
        before += inclusive - own;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (at + i < count) values[at + i] = before;
            before += part[i];
        }
    }
}

// Moves the ids and positions of a tile to their places. A warp owns consecutive ids, so rank = place of the tile's
// digit + those of earlier warps + those before it in the warp. positions_in NULL: the first pass, where they count up.
static __global__ __launch_bounds__(256) void sort_scatter_kernel(int32_t *ids_out, int32_t *positions_out,
                                                                  const int32_t *ids_in, const int32_t *positions_in,
                                                                  const int32_t *places, int64_t rows, int shift,
                                                                  int first_id, int held) {
    __shared__ int32_t warp_place[SORT_WARPS][DIGITS];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int d = (int)threadIdx.x; d < DIGITS * SORT_WARPS; d += 256)
        (&warp_place[0][0])[d] = 0;
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * SORT_TILE + warp * (SORT_ROUNDS * 32);
    int32_t id[SORT_ROUNDS];
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; r++) {
        int64_t i = first + r * 32 + lane;
        id[r] = i < rows ? weight_row(ids_in[i], first_id, held) : 0;
        if (i < rows) atomicAdd(&warp_place[warp][digit_of(id[r], shift)], 1);
    }
    __syncthreads();
    for (int d = (int)threadIdx.x; d < DIGITS; d += 256) {
        int32_t place = places[(int64_t)d * gridDim.x + blockIdx.x];
        for (int w = 0; w < SORT_WARPS; w++) {
            int32_t own = warp_place[w][d];
            warp_place[w][d] = place;
            place += own;
        }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < SORT_ROUNDS; r++) {
        int64_t i = first + r * 32 + lane;
        bool real = i < rows;
        int digit = real ? digit_of(id[r], shift) : DIGITS; // the lanes past the end match each other only
        unsigned same = __match_any_sync(FULL_WARP, digit);
        int before = __popc(same & ((1u << lane) - 1));
        int32_t place = real ? warp_place[warp][digit] + before : 0;
        __syncwarp();
        if (real) {
            if (before == 0) warp_place[warp][digit] += __popc(same);
            ids_out[place] = id[r];
            positions_out[place] = positions_in ? positions_in[i] : (int32_t)i;
        }
        __syncwarp();
    }
}

// ---- backward ------------------------------------------------------------------------------------------------------

// From here on, an id is a row of dweight. Block = piece of EMBEDDING_PIECE sorted rows, of which those without a row
// in dweight are the last. head gets the sum of the piece's first run when it began earlier; tail that of its last run
// when it began here and goes on in the next piece.
template <typename T, int V>
static __global__ void embedding_piece_kernel(float *dweight, float *head, float *tail, const T *__restrict__ dout,
                                              const int32_t *ids, const int32_t *positions, int64_t rows, int dim,
                                              int held) {
    constexpr int AHEAD = 8;
    __shared__ int32_t id[EMBEDDING_PIECE], position[EMBEDDING_PIECE];
    __shared__ bool from_before, goes_on;
    int64_t first = (int64_t)blockIdx.x * EMBEDDING_PIECE;
    bool real = (int)threadIdx.x < EMBEDDING_PIECE && first + (int)threadIdx.x < rows;
    if (real) {
        id[threadIdx.x] = ids[first + threadIdx.x];
        position[threadIdx.x] = positions[first + threadIdx.x];
    }
    int count = __syncthreads_count(real && id[threadIdx.x] < held);
    if (count == 0) return;
    if (threadIdx.x == 0) {
        from_before = first > 0 && ids[first - 1] == ids[first];
        goes_on = first + count < rows && ids[first + count] == ids[first + count - 1];
    }
    __syncthreads();
    for (int column = (int)threadIdx.x * V; column < dim; column += (int)blockDim.x * V) {
        float sum[V] = {};
        bool first_run = true;
        for (int base = 0; base < count; base += AHEAD) {
            float part[AHEAD][V];
#pragma unroll
            for (int a = 0; a < AHEAD; a++)
                if (base + a < count) load_floats<V>(part[a], dout + (int64_t)position[base + a] * dim + column);
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                int i = base + a;
                if (i >= count) break;
#pragma unroll
                for (int j = 0; j < V; j++)
                    sum[j] += part[a][j];
                bool last = i + 1 == count;
                if (!last && id[i + 1] == id[i]) continue;
                if (first_run && from_before) {
                    store_floats<V>(head + (int64_t)blockIdx.x * dim + column, sum);
                } else if (last && goes_on) {
                    store_floats<V>(tail + (int64_t)blockIdx.x * dim + column, sum);
                } else {
                    float *target = dweight + (int64_t)id[i] * dim + column;
                    float old[V];
                    load_floats<V>(old, target);
#pragma unroll
                    for (int j = 0; j < V; j++)
                        old[j] += sum[j];
                    store_floats<V>(target, old);
                }
                first_run = false;
#pragma unroll
                for (int j = 0; j < V; j++)
                    sum[j] = 0;
            }
        }
    }
}

// Block = piece in which a run begins that goes on: its tail, then the heads of the pieces that follow, up to its end.
static __global__ void embedding_join_kernel(float *dweight, const float *head, const float *tail, const int32_t *ids,
                                             int64_t rows, int dim, int held) {
    int64_t piece = blockIdx.x, first = piece * EMBEDDING_PIECE, next = first + EMBEDDING_PIECE;
    if (next >= rows) return;
    int32_t id = ids[next - 1];
    if (ids[next] != id || id == held) return;
    if (ids[first] == id && first > 0 && ids[first - 1] == id) return; // began earlier
    __shared__ int64_t last;                                           // piece in which the run ends
    if (threadIdx.x == 0) {
        int64_t low = next, high = rows; // the ids are sorted: find the first one beyond the run
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (ids[middle] <= id)
                low = middle + 1;
            else
                high = middle;
        }
        last = (low - 1) / EMBEDDING_PIECE;
    }
    __syncthreads();
    for (int column = (int)threadIdx.x; column < dim; column += (int)blockDim.x) {
        float sum = tail[piece * dim + column];
#pragma unroll 8
        for (int64_t p = piece + 1; p <= last; p++)
            sum += head[p * dim + column];
        dweight[(int64_t)id * dim + column] += sum;
    }
}

extern "C" void cuda_embedding_backward(Ops *ops, Tensor dweight, Tensor dout, Tensor ids, int64_t first) {
    int64_t rows = dout.rows;
    int dim = (int)dout.cols, held = (int)dweight.rows; // the key of ids outside, and the largest one
    if (rows == 0) return;
    assert(rows < INT32_MAX);
    CudaState *state = cuda_scope_begin(ops, OP_EMBEDDING_BACKWARD);
    char *scratch = (char *)cuda_scratch(state, workspace_embedding_backward(rows, dim));
    if (!scratch) {
        cuda_scope_end(state);
        return;
    }
    int64_t tiles = ceil_div64(rows, SORT_TILE), pieces = ceil_div64(rows, EMBEDDING_PIECE);
    size_t list = workspace_align((size_t)rows * sizeof(int32_t));
    int32_t *sorted_ids[2] = {(int32_t *)scratch, (int32_t *)(scratch + list)};
    int32_t *positions[2] = {(int32_t *)(scratch + 2 * list), (int32_t *)(scratch + 3 * list)};
    int32_t *counts = (int32_t *)(scratch + 4 * list);
    float *head = (float *)(scratch + 4 * list + workspace_align((size_t)(tiles << SORT_BITS) * sizeof(int32_t)));
    float *tail = (float *)((char *)head + workspace_align((size_t)pieces * (size_t)dim * sizeof(float)));

    int from = 0;
    for (int shift = 0; shift == 0 || held >> shift; shift += SORT_BITS) {
        const int32_t *in = shift ? sorted_ids[from] : (const int32_t *)ids.data;
        const int32_t *in_positions = shift ? positions[from] : NULL;
        int to = shift ? 1 - from : 0, first_id = shift ? 0 : (int)first;
        sort_count_kernel<<<(unsigned)tiles, 256, 0, state->stream>>>(counts, in, rows, shift, first_id, held);
        sort_scan_kernel<<<1, 1024, 0, state->stream>>>(counts, tiles << SORT_BITS);
        sort_scatter_kernel<<<(unsigned)tiles, 256, 0, state->stream>>>(sorted_ids[to], positions[to], in, in_positions,
                                                                        counts, rows, shift, first_id, held);
        LAUNCH_CHECK(state);
        from = to;
    }
    float *sums = (float *)dweight.data;
    bool vector_path = dim % 8 == 0 && all_aligned(16, dout.data, sums);
    int columns = vector_path ? dim / 8 : dim, threads = columns <= 128 ? 128 : 256;
    if (vector_path)
        WITH_STORAGE(dout.dtype,
                     (embedding_piece_kernel<T, 8><<<(unsigned)pieces, threads, 0, state->stream>>>(
                         sums, head, tail, (const T *)dout.data, sorted_ids[from], positions[from], rows, dim, held)));
    else
        WITH_STORAGE(dout.dtype,
                     (embedding_piece_kernel<T, 1><<<(unsigned)pieces, threads, 0, state->stream>>>(
                         sums, head, tail, (const T *)dout.data, sorted_ids[from], positions[from], rows, dim, held)));
    LAUNCH_CHECK(state);
    embedding_join_kernel<<<(unsigned)pieces, 256, 0, state->stream>>>(sums, head, tail, sorted_ids[from], rows, dim,
                                                                       held);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}
