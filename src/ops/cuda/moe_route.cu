// MoE routing without a word to the host: softmax, choice of experts, counts, offsets and the stable permutation in
// three launches whose shapes depend on sizes only. Tokens are cut into tiles of ROUTE_TILE: the first kernel routes
// each tile and counts its slots per expert, the second turns the counts of all tiles into first rows (one block), the
// third ranks the slots of each tile in order and writes the permutation. Where experts are spread over ranks the first
// runs on a rank's own tokens, and the other two on the slots of all ranks, behind one that counts these. Also the
// gradient of the router's logits and the balancing loss. workspace: moe_route_forward uses
// workspace_moe_route_forward(tokens, experts), moe_place_rows workspace_moe_place_rows(tokens, experts).
#include "ops/cuda/cuda.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/cuda/workspace.h"

#include <assert.h>
#include <math.h>

enum { EXPERTS_MAX = OPS_CUDA_EXPERTS_MAX, ROUTE_WARPS = 8 };

struct RouteParams : MoePointers {
    int row_align; // expert rows start at multiples of this
};

// Floats as unsigned integers of the same order; 0 is below all of them, NaN comes lowest.
static __device__ __forceinline__ uint32_t ordered(float value) {
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 1;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Of the experts that rows are made for; -1: not one of them.
static __device__ __forceinline__ int expert_here(const RouteParams &p, int64_t slot) {
    int expert = p.expert[slot] - p.first_expert;
    return expert >= 0 && expert < p.experts ? expert : -1;
}

// Every row starts as unused; route_permute_kernel fills those in use.
static __device__ __forceinline__ void clear_rows(const RouteParams &p) {
    for (int64_t row = (int64_t)blockIdx.x * 256 + threadIdx.x; row < p.rows; row += (int64_t)gridDim.x * 256) {
        p.token_of_row[row] = -1;
        p.row_weight[row] = 0;
    }
}

// ---- forward: softmax and choice -----------------------------------------------------------------------------------

// A warp takes a token; lane l holds the experts l, l + 32, ... (P of them).
template <int P>
static __global__ __launch_bounds__(256) void route_choose_kernel(RouteParams p, int32_t *tile_counts,
                                                                  float *tile_probs) {
    __shared__ int32_t counts[EXPERTS_MAX];
    __shared__ float sums[ROUTE_WARPS][P * 32];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int e = (int)threadIdx.x; e < p.experts; e += 256)
        counts[e] = 0;
    clear_rows(p);
    __syncthreads();
    float prob_sum[P] = {}, bias[P];
#pragma unroll
    for (int i = 0; i < P; i++) {
        int e = lane + 32 * i;
        bias[i] = p.bias && e < p.experts ? p.bias[e] : 0;
    }
    for (int turn = warp; turn < ROUTE_TILE; turn += ROUTE_WARPS) {
        int64_t token = (int64_t)blockIdx.x * ROUTE_TILE + turn;
        if (token >= p.tokens) break;
        float prob[P], max = -INFINITY, sum = 0;
#pragma unroll
        for (int i = 0; i < P; i++) {
            int e = lane + 32 * i;
            prob[i] = e < p.experts ? p.logits[token * p.experts + e] : -INFINITY;
            max = fmaxf(max, prob[i]);
        }
        max = warp_max(max);
#pragma unroll
        for (int i = 0; i < P; i++) {
            prob[i] = lane + 32 * i < p.experts ? expf(prob[i] - max) : 0;
            sum += prob[i];
        }
        sum = warp_sum(sum);
        uint32_t key[P];
#pragma unroll
        for (int i = 0; i < P; i++) {
            int e = lane + 32 * i;
            prob[i] /= sum;
            prob_sum[i] += prob[i];
            key[i] = e < p.experts ? ordered(prob[i] + bias[i]) : 0;
            if (e < p.experts) p.probs[token * p.experts + e] = prob[i];
        }
        if (lane == 0) p.lse[token] = max + logf(sum);
        float chosen_prob = 0, total = 0; // of choice number `lane`
        int chosen = 0;
        for (int j = 0; j < p.top_k; j++) {
            int best;
            if (p.force == MOE_NATURAL) {
                uint32_t top = 0;
#pragma unroll
                for (int i = 0; i < P; i++)
                    top = key[i] > top ? key[i] : top;
                top = __reduce_max_sync(FULL_WARP, top);
                unsigned own = 1u << 30;
#pragma unroll
                for (int i = P - 1; i >= 0; i--)
                    if (key[i] == top) own = (unsigned)(lane + 32 * i);
                best = (int)__reduce_min_sync(FULL_WARP, own);
            } else {
                best = p.force == MOE_BALANCED ? (int)((token * p.top_k + j) % p.experts) : j;
            }
            float value = 0;
#pragma unroll
            for (int i = 0; i < P; i++) {
                float candidate = __shfl_sync(FULL_WARP, prob[i], best % 32);
                if (best / 32 == i) value = candidate;
                if (lane + 32 * i == best) key[i] = 0;
            }
            total += value;
            if (lane == j) chosen = best, chosen_prob = value;
        }
        if (lane < p.top_k) {
            int64_t slot = token * p.top_k + lane;
            p.expert[slot] = chosen;
            p.weight[slot] = p.norm_topk ? chosen_prob / total : chosen_prob;
            atomicAdd(&counts[chosen], 1);
        }
    }
#pragma unroll
    for (int i = 0; i < P; i++)
        sums[warp][lane + 32 * i] = prob_sum[i];
    __syncthreads();
    for (int e = (int)threadIdx.x; e < p.experts; e += 256) {
        float sum = 0;
        for (int w = 0; w < ROUTE_WARPS; w++)
            sum += sums[w][e];
        tile_counts[(int64_t)blockIdx.x * p.experts + e] = counts[e];
        tile_probs[(int64_t)blockIdx.x * p.experts + e] = sum;
    }
}

// ---- forward: places -----------------------------------------------------------------------------------------------

static __global__ __launch_bounds__(256) void count_slots_kernel(RouteParams p, int32_t *tile_counts) {
    __shared__ int32_t counts[EXPERTS_MAX];
    for (int e = (int)threadIdx.x; e < p.experts; e += 256)
        counts[e] = 0;
    clear_rows(p);
    __syncthreads();
    int64_t slots = p.tokens * p.top_k, begin = (int64_t)blockIdx.x * ROUTE_TILE * p.top_k;
    int64_t end = begin + ROUTE_TILE * p.top_k < slots ? begin + ROUTE_TILE * p.top_k : slots;
    for (int64_t slot = begin + threadIdx.x; slot < end; slot += 256) {
        int expert = expert_here(p, slot);
        if (expert >= 0) atomicAdd(&counts[expert], 1);
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < p.experts; e += 256)
        tile_counts[(int64_t)blockIdx.x * p.experts + e] = counts[e];
}

// One block. Thread (slice, e) owns a range of tiles of expert e; afterwards tile_counts holds the first row of each
// tile. Experts that end beyond the last row are cut there. tile_probs and needed may be NULL.
static __global__ __launch_bounds__(1024) void route_place_kernel(RouteParams p, int32_t *tile_counts,
                                                                  const float *tile_probs, int tiles, int32_t *needed) {
    __shared__ int32_t part[1024], first[EXPERTS_MAX + 1];
    __shared__ float prob_part[1024];
    int width = 1;
    while (width < p.experts)
        width *= 2;
    int slices = 1024 / width, e = (int)threadIdx.x % width, slice = (int)threadIdx.x / width;
    int per_slice = (tiles + slices - 1) / slices, begin = slice * per_slice;
    int end = begin + per_slice < tiles ? begin + per_slice : tiles;
    int32_t count = 0;
    float probs = 0;
    if (e < p.experts) {
#pragma unroll 8
        for (int tile = begin; tile < end; tile++) {
            count += tile_counts[(int64_t)tile * p.experts + e];
            if (tile_probs) probs += tile_probs[(int64_t)tile * p.experts + e];
        }
    }
    part[threadIdx.x] = count;
    prob_part[threadIdx.x] = probs;
    __syncthreads();
    if (slice == 0 && e < p.experts) {
        int32_t total = 0;
        float prob_total = 0;
        for (int s = 0; s < slices; s++) {
            int32_t own = part[s * width + e];
            part[s * width + e] = total;
            total += own;
            prob_total += prob_part[s * width + e];
        }
        p.counts[e] = total;
        if (tile_probs) p.prob_sum[e] = prob_total;
        first[e + 1] = (total + p.row_align - 1) / p.row_align * p.row_align;
    }
    if (threadIdx.x == 0) first[0] = 0;
    __syncthreads();
    for (int step = 1; step <= p.experts; step *= 2) { // running sum of the padded counts
        int32_t below = 0;
        int at = (int)threadIdx.x;
        if (at <= p.experts && at >= step) below = first[at - step];
        __syncthreads();
        if (at <= p.experts && at >= step) first[at] += below;
        __syncthreads();
    }
    if (!p.offsets) return; // only the choice was asked for
    int32_t rows = (int32_t)p.rows, all = first[p.experts];
    if ((int)threadIdx.x <= p.experts) p.offsets[threadIdx.x] = min(first[threadIdx.x], rows);
    if (needed && threadIdx.x == 0 && all > rows && all > *needed) *needed = all;
    if (e >= p.experts) return;
    if (slice == 0 && all > rows) p.counts[e] = min(p.counts[e], min(first[e + 1], rows) - min(first[e], rows));
    int32_t row = first[e] + part[threadIdx.x];
#pragma unroll 4
    for (int tile = begin; tile < end; tile++) {
        int32_t *at = tile_counts + (int64_t)tile * p.experts + e, own = *at;
        *at = row;
        row += own;
    }
}

// ---- forward: permutation ------------------------------------------------------------------------------------------

// A block ranks the slots of a tile: a warp owns consecutive slots, as in the radix sort of embedding.cu.
static __global__ __launch_bounds__(256) void route_permute_kernel(RouteParams p, const int32_t *tile_rows) {
    extern __shared__ int32_t place[]; // [ROUTE_WARPS, experts]
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t slots = p.tokens * p.top_k, tile_first = (int64_t)blockIdx.x * ROUTE_TILE * p.top_k;
    int per_warp = ROUTE_TILE / ROUTE_WARPS * p.top_k;
    int64_t begin = tile_first + warp * per_warp, end = begin + per_warp < slots ? begin + per_warp : slots;
    for (int i = (int)threadIdx.x; i < ROUTE_WARPS * p.experts; i += 256)
        place[i] = 0;
    __syncthreads();
    int32_t *own = place + warp * p.experts;
    for (int64_t slot = begin + lane; slot < end; slot += 32) {
        int expert = expert_here(p, slot);
        if (expert >= 0) atomicAdd(&own[expert], 1);
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < p.experts; e += 256) {
        int32_t row = tile_rows[(int64_t)blockIdx.x * p.experts + e];
        for (int w = 0; w < ROUTE_WARPS; w++) {
            int32_t count = place[w * p.experts + e];
            place[w * p.experts + e] = row;
            row += count;
        }
    }
    __syncthreads();
    for (int64_t base = begin; base < end; base += 32) {
        int64_t slot = base + lane;
        bool real = slot < end;
        int expert = real ? expert_here(p, slot) : -1;
        unsigned same = __match_any_sync(FULL_WARP, expert);
        int before = __popc(same & ((1u << lane) - 1));
        int32_t row = expert >= 0 ? own[expert] + before : -1;
        __syncwarp();
        if (expert >= 0 && before == 0) own[expert] += __popc(same);
        if (row >= p.rows) row = -1; // no room
        if (real) p.row_of_slot[slot] = row;
        if (row >= 0) {
            p.token_of_row[row] = (int32_t)(slot / p.top_k);
            p.row_weight[row] = p.weight[slot];
        }
        __syncwarp();
    }
}

static RouteParams route_params(Ops *ops, const MoeRouting *routing) {
    RouteParams p = {moe_pointers(routing), ops->row_align};
    assert(p.experts <= EXPERTS_MAX && p.top_k <= OPS_CUDA_TOP_K_MAX && (p.top_k <= p.experts || !p.probs));
    assert(p.tokens * p.top_k + (int64_t)p.experts * p.row_align < INT32_MAX);
    return p;
}

static void launch_permute(CudaState *state, const RouteParams &p, int tiles, const int32_t *tile_rows) {
    size_t shared = (size_t)(ROUTE_WARPS * p.experts) * sizeof(int32_t);
    route_permute_kernel<<<tiles, 256, shared, state->stream>>>(p, tile_rows);
    LAUNCH_CHECK(state);
}

extern "C" void cuda_moe_route_forward(Ops *ops, const MoeRouting *routing) {
    CudaState *state = cuda_scope_begin(ops, OP_MOE_ROUTE_FORWARD);
    const RouteParams p = route_params(ops, routing);
    char *scratch = (char *)cuda_scratch(state, workspace_moe_route_forward(p.tokens, p.experts));
    if (scratch) {
        int tiles = (int)ceil_div64(p.tokens, ROUTE_TILE);
        int32_t *tile_counts = (int32_t *)scratch;
        float *tile_probs = (float *)(scratch + workspace_align((size_t)tiles * (size_t)p.experts * sizeof(float)));
        if (p.experts <= 32)
            route_choose_kernel<1><<<tiles, 256, 0, state->stream>>>(p, tile_counts, tile_probs);
        else if (p.experts <= 64)
            route_choose_kernel<2><<<tiles, 256, 0, state->stream>>>(p, tile_counts, tile_probs);
        else if (p.experts <= 128)
            route_choose_kernel<4><<<tiles, 256, 0, state->stream>>>(p, tile_counts, tile_probs);
        else
            route_choose_kernel<8><<<tiles, 256, 0, state->stream>>>(p, tile_counts, tile_probs);
        LAUNCH_CHECK(state);
        route_place_kernel<<<1, 1024, 0, state->stream>>>(p, tile_counts, tile_probs, tiles, NULL);
        LAUNCH_CHECK(state);
        if (p.offsets) launch_permute(state, p, tiles, tile_counts);
    }
    cuda_scope_end(state);
}

extern "C" void cuda_moe_place_rows(Ops *ops, Tensor needed, const MoeRouting *routing) {
    CudaState *state = cuda_scope_begin(ops, OP_MOE_PLACE_ROWS);
    const RouteParams p = route_params(ops, routing);
    int32_t *tile_counts = (int32_t *)cuda_scratch(state, workspace_moe_place_rows(p.tokens, p.experts));
    if (tile_counts) {
        int tiles = (int)ceil_div64(p.tokens, ROUTE_TILE);
        count_slots_kernel<<<tiles, 256, 0, state->stream>>>(p, tile_counts);
        LAUNCH_CHECK(state);
        route_place_kernel<<<1, 1024, 0, state->stream>>>(p, tile_counts, NULL, tiles, (int32_t *)needed.data);
        LAUNCH_CHECK(state);
        launch_permute(state, p, tiles, tile_counts);
    }
    cuda_scope_end(state);
}

// ---- backward: combine weights -------------------------------------------------------------------------------------

static __global__ __launch_bounds__(256) void slot_gradient_kernel(float *dweight, const float *drow_weight,
                                                                   const int32_t *row_of_slot, int64_t slots) {
    int64_t slot = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (slot >= slots) return;
    int32_t row = row_of_slot[slot];
    dweight[slot] = row >= 0 ? drow_weight[row] : 0;
}

extern "C" void cuda_moe_slot_gradient(Ops *ops, Tensor dweight, Tensor drow_weight, const MoeRouting *routing) {
    CudaState *state = cuda_scope_begin(ops, OP_MOE_SLOT_GRADIENT);
    const MoePointers p = moe_pointers(routing);
    int64_t slots = p.tokens * p.top_k;
    slot_gradient_kernel<<<(unsigned)ceil_div64(slots, 256), 256, 0, state->stream>>>(
        (float *)dweight.data, (const float *)drow_weight.data, p.row_of_slot, slots);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// ---- backward ------------------------------------------------------------------------------------------------------

// With S the sum of the chosen probabilities and w_j = p_j / S: dp_j = (dw_j - sum of dw w) / S; then through the
// softmax.
template <int P>
static __global__ __launch_bounds__(256) void route_backward_kernel(RouteParams p, float *dlogits,
                                                                    const float *drow_weight, const float *dprob,
                                                                    const float *z_coef) {
    int lane = (int)threadIdx.x % 32;
    int64_t token = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (token >= p.tokens) return;
    int chosen = -1;
    float dchosen = 0, chosen_prob = 0, weight = 0;
    if (lane < p.top_k) {
        int64_t slot = token * p.top_k + lane;
        chosen = p.expert[slot];
        chosen_prob = p.probs[token * p.experts + chosen];
        weight = p.weight[slot];
        if (drow_weight) dchosen = drow_weight[p.row_of_slot ? p.row_of_slot[slot] : slot];
    }
    if (p.norm_topk) {
        float sum = warp_sum(chosen_prob), dot = warp_sum(dchosen * weight);
        dchosen = lane < p.top_k ? (dchosen - dot) / sum : 0;
    }
    float prob[P], grad[P], dot = 0;
#pragma unroll
    for (int i = 0; i < P; i++) {
        int e = lane + 32 * i;
        prob[i] = e < p.experts ? p.probs[token * p.experts + e] : 0;
        grad[i] = dprob && e < p.experts ? dprob[e] : 0;
    }
    for (int j = 0; j < p.top_k; j++) {
        int expert = __shfl_sync(FULL_WARP, chosen, j);
        float value = __shfl_sync(FULL_WARP, dchosen, j);
#pragma unroll
        for (int i = 0; i < P; i++)
            if (lane + 32 * i == expert) grad[i] += value;
    }
#pragma unroll
    for (int i = 0; i < P; i++)
        dot += prob[i] * grad[i];
    dot = warp_sum(dot);
    float z = z_coef ? 2.0f * *z_coef * p.lse[token] : 0;
#pragma unroll
    for (int i = 0; i < P; i++) {
        int e = lane + 32 * i;
        if (e < p.experts) dlogits[token * p.experts + e] = prob[i] * (grad[i] - dot + z);
    }
}

extern "C" void cuda_moe_route_backward(Ops *ops, Tensor dlogits, Tensor drow_weight, Tensor dprob, Tensor z_coef,
                                        const MoeRouting *routing) {
    CudaState *state = cuda_scope_begin(ops, OP_MOE_ROUTE_BACKWARD);
    const RouteParams p = route_params(ops, routing);
    unsigned blocks = (unsigned)ceil_div64(p.tokens, 8);
    float *grad = (float *)dlogits.data;
    const float *drow = (const float *)drow_weight.data, *dp = (const float *)dprob.data;
    const float *z = (const float *)z_coef.data;
    if (p.experts <= 32)
        route_backward_kernel<1><<<blocks, 256, 0, state->stream>>>(p, grad, drow, dp, z);
    else if (p.experts <= 64)
        route_backward_kernel<2><<<blocks, 256, 0, state->stream>>>(p, grad, drow, dp, z);
    else if (p.experts <= 128)
        route_backward_kernel<4><<<blocks, 256, 0, state->stream>>>(p, grad, drow, dp, z);
    else
        route_backward_kernel<8><<<blocks, 256, 0, state->stream>>>(p, grad, drow, dp, z);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}

// ---- balancing loss ------------------------------------------------------------------------------------------------

// A thread takes an expert of a part: of `each` layers that count together.
static __global__ __launch_bounds__(256) void balance_kernel(float *loss, float *dprob, const float *scale,
                                                             const int32_t *counts, const float *prob_sum, int parts,
                                                             int each, int64_t tokens, int experts) {
    __shared__ double shared[32];
    double rows = (double)each * (double)tokens, total = 0;
    for (int i = (int)threadIdx.x; i < parts * experts; i += 256) {
        int first = i / experts * each * experts + i % experts; // in the part's first layer
        int64_t count = 0;
        double probs = 0;
        for (int layer = 0; layer < each; layer++) {
            count += counts[first + layer * experts];
            probs += prob_sum[first + layer * experts];
        }
        double share = (double)count / rows;
        total += share * (probs / rows);
        for (int layer = 0; layer < each; layer++)
            dprob[first + layer * experts] = (float)((double)*scale * experts * share / rows);
    }
    total = block_sum(total, shared);
    if (threadIdx.x == 0) *loss += (float)(total * experts / parts);
}

extern "C" void cuda_moe_balance(Ops *ops, Tensor loss, Tensor dprob, Tensor scale, Tensor counts, Tensor prob_sum,
                                 MoeBalance balance, int64_t tokens) {
    CudaState *state = cuda_scope_begin(ops, OP_MOE_BALANCE);
    int layers = (int)counts.rows, parts = balance == BALANCE_LAYERS ? layers : 1;
    balance_kernel<<<1, 256, 0, state->stream>>>((float *)loss.data, (float *)dprob.data, (const float *)scale.data,
                                                 (const int32_t *)counts.data, (const float *)prob_sum.data, parts,
                                                 layers / parts, tokens, (int)counts.cols);
    LAUNCH_CHECK(state);
    cuda_scope_end(state);
}
