// How much of the bound workspace each of the CUDA ops uses: plain functions of sizes, so that the planner
// can ask without a device. The launchers ask for exactly these amounts.
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
    NORM_BACKWARD_BLOCKS = 264, // persistent blocks; each leaves one row of weight-gradient partials
    ROPE_BACKWARD_BLOCKS = 528, // the same for the QK-norm weights
    REDUCE_BLOCKS = 1024,       // partial sums of sum_f32 and norm_f32
    SORT_TILE = 1024,           // ids that one block of the radix sort handles
    SORT_BITS = 9,              // of one digit
    EMBEDDING_PIECE = 32,       // sorted rows that one block adds up
    ROUTE_TILE = 64,            // tokens that one block routes
    ROUTER_TILE = 128,          // columns of dweight that one block computes
    ROUTER_SPLITS_MAX = 64,     // parts of the token dimension
};

enum { WORKSPACE_GEMM = 64 << 20 }; // cuBLASLt's split-K partials, and what cuDNN may use

static inline size_t workspace_align(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

static inline size_t workspace_attention_backward(int64_t tokens, int heads) { // the row sums of dout * out
    return (size_t)tokens * (size_t)heads * sizeof(float);
}

static inline size_t workspace_norm_backward(int64_t dim) {
    return (size_t)NORM_BACKWARD_BLOCKS * (size_t)dim * sizeof(float);
}

static inline size_t workspace_qk_rope_backward(int head_dim) {
    return (size_t)ROPE_BACKWARD_BLOCKS * 2 * (size_t)head_dim * sizeof(float);
}

static inline size_t workspace_reduce(void) {
    return REDUCE_BLOCKS * sizeof(double);
}

static inline size_t workspace_embedding_backward(int64_t rows, int dim) {
    size_t tiles = (size_t)((rows + SORT_TILE - 1) / SORT_TILE);
    size_t pieces = (size_t)((rows + EMBEDDING_PIECE - 1) / EMBEDDING_PIECE);
    return 4 * workspace_align((size_t)rows * sizeof(int32_t))          // ids and positions, twice
           + workspace_align((tiles << SORT_BITS) * sizeof(int32_t))    // digit counts of the tiles
           + 2 * workspace_align(pieces * (size_t)dim * sizeof(float)); // ends of pieces
}

static inline size_t workspace_moe_route_forward(int64_t tokens, int experts) {
    size_t tiles = (size_t)((tokens + ROUTE_TILE - 1) / ROUTE_TILE);
    return 2 * workspace_align(tiles * (size_t)experts * sizeof(float)); // slots and probability of each tile
}

static inline size_t workspace_moe_place_rows(int64_t tokens, int experts) {
    size_t tiles = (size_t)((tokens + ROUTE_TILE - 1) / ROUTE_TILE);
    return workspace_align(tiles * (size_t)experts * sizeof(int32_t)); // slots of each tile
}

// Parts into which the tokens are cut for the router's weight gradient: enough blocks to fill a GPU, few enough that
// the partial results stay small.
static inline int router_splits(int64_t rows, int dim, int experts) {
    int64_t tiles = (int64_t)((dim + ROUTER_TILE - 1) / ROUTER_TILE) * ((experts + 127) / 128);
    int64_t blocks = experts <= 64 ? 528 : 264, splits = (blocks + tiles - 1) / tiles, most = (rows + 255) / 256;
    if (splits > most) splits = most;
    if (splits > ROUTER_SPLITS_MAX) splits = ROUTER_SPLITS_MAX;
    return splits < 1 ? 1 : (int)splits;
}

// The gradient of the logits as two bf16 parts, in rows of this many elements.
static inline int router_width(int experts) {
    return (experts + 15) / 16 * 16;
}

static inline size_t workspace_router_part(int64_t rows, int experts) {
    return workspace_align((size_t)rows * (size_t)router_width(experts) * 2);
}

static inline size_t workspace_moe_router_backward(int64_t rows, int dim, int experts) {
    return 2 * workspace_router_part(rows, experts) +
           (size_t)router_splits(rows, dim, experts) * (size_t)experts * (size_t)dim * sizeof(float);
}
