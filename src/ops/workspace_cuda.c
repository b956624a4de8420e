// How much workspace the CUDA implementation needs. Pure arithmetic on the model's shapes, built on every machine, so
// that the planner's memory is what a GPU run will ask for.
#include "ops/cuda/attention_sm90.h"
#include "ops/cuda/workspace.h"
#include "ops/ops.h"

static void cover(size_t *bytes, size_t needed) {
    if (needed > *bytes) *bytes = needed;
}

size_t ops_cuda_workspace(const OpsWorkspaceRequest *request) {
    size_t bytes = WORKSPACE_GEMM;
    cover(&bytes, workspace_attention_backward(request->tokens, request->heads));
    cover(&bytes, workspace_norm_backward(request->hidden));
    cover(&bytes, workspace_qk_rope_backward(request->head_dim));
    cover(&bytes, workspace_reduce());
    cover(&bytes, workspace_embedding_backward(request->tokens, request->hidden));
    if (request->experts > 0) {
        cover(&bytes, workspace_moe_route_forward(request->tokens, request->experts));
        if (request->placed_tokens)
            cover(&bytes, workspace_moe_place_rows(request->placed_tokens, request->placed_experts));
        cover(&bytes, workspace_moe_router_backward(request->tokens, request->hidden, request->experts));
    }
    return workspace_align(bytes);
}

size_t ops_cuda_attention_scratch(const OpsWorkspaceRequest *request) {
    if (request->dtype != DTYPE_BF16) return 0;
    return workspace_align(
        attention_sm90_backward_workspace(request->batch, request->seq, request->heads, request->head_dim));
}
