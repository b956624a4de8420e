// Which requests have a layout, and which of them the kernels have room for.
#include "model/layout_build.h"

#include <assert.h>

static Status require_divides(int whole, int parts, const char *whole_name, const char *parts_name) {
    if (parts >= 1 && whole % parts == 0) return NULL;
    return status_usage("%s %d does not divide by %s %d", whole_name, whole, parts_name, parts);
}

Status layout_check_kernels(const LayoutRequest *request) {
    const ModelConfig *config = &request->config;
    if (request->device != DEVICE_CUDA) return NULL;
    if (config->head_dim > OPS_CUDA_HEAD_DIM_MAX)
        return status_usage("attention on a GPU has heads of at most %d columns, and head_dim is %d",
                            OPS_CUDA_HEAD_DIM_MAX, config->head_dim);
    if (request->precision != PRECISION_FP32 && config->head_dim % OPS_CUDA_HEAD_DIM_PIECE)
        return status_usage("attention in bf16 on a GPU needs a head_dim that is a multiple of %d, and it is %d",
                            OPS_CUDA_HEAD_DIM_PIECE, config->head_dim);
    if (config->experts > OPS_CUDA_EXPERTS_MAX || config->top_k > OPS_CUDA_TOP_K_MAX)
        return status_usage("a GPU routes to at most %d experts, %d of them for a token, and the model has %d and %d",
                            OPS_CUDA_EXPERTS_MAX, OPS_CUDA_TOP_K_MAX, config->experts, config->top_k);
    return NULL;
}

Status layout_check_request(const LayoutRequest *request) {
    const ModelConfig *config = &request->config;
    const Mesh *mesh = &request->mesh;
    if (request->micro_batch < 1 || request->seq < 1)
        return status_usage("micro_batch and seq must be at least 1 (they are %d and %d)", request->micro_batch,
                            request->seq);
    if (mesh->dp < 1 || mesh->tp < 1 || mesh->pp < 1 || mesh->ep < 1 || mesh->cp < 1 || mesh->etp < 1)
        return status_usage("every parallel degree must be at least 1");
    if (mesh->zero < 0 || mesh->zero > 3)
        return status_usage("the ZeRO stage must be 0, 1, 2 or 3, not %d", mesh->zero);
    if (request->precision == PRECISION_FP8 && mesh->zero > 2 && mesh_data_ranks(mesh) > 1)
        return status_hint(status_usage("FP8 keeps copies of whole weights, which ZeRO 3 does not have on a rank"),
                           "use zero 2 or less with fp8, or bf16");
    TRY(require_divides(config->heads, mesh->tp, "attention heads", "the tensor-parallel degree"));
    if (config->kv_heads % mesh->tp && mesh->tp % config->kv_heads)
        return status_usage("%d KV heads neither divide by nor divide the tensor-parallel degree %d", config->kv_heads,
                            mesh->tp);
    TRY(require_divides(config->ffn, mesh->tp, "the MLP width", "the tensor-parallel degree"));
    int64_t tokens = (int64_t)request->micro_batch * request->seq / mesh->cp;
    if (tokens % mesh->tp)
        return status_hint(
            status_usage("%lld tokens of a micro-batch (%d x %d) do not divide by the tensor-parallel degree %d",
                         (long long)tokens, request->micro_batch, request->seq, mesh->tp),
            "choose a micro_batch or seq that is a multiple of %d", mesh->tp);
    TRY(require_divides(request->seq, mesh->cp, "the sequence length", "the context-parallel degree"));
    TRY(require_divides(mesh->dp * mesh->cp * mesh->tp, mesh->ep * mesh->etp, "the data- and tensor-parallel ranks",
                        "expert-parallel ranks"));
    if (config->experts) {
        TRY(require_divides(config->experts, mesh->ep, "the number of experts", "the expert-parallel degree"));
        TRY(require_divides(config->moe_ffn, mesh->etp, "the expert width", "the expert-tensor-parallel degree"));
    } else if (mesh->ep > 1) {
        return status_usage("expert parallelism of degree %d needs a model with experts", mesh->ep);
    }
    if (mesh->pp > config->layers)
        return status_usage("%d layers cannot fill %d pipeline stages", config->layers, mesh->pp);
    assert(request->rank >= 0 && request->rank < mesh_ranks(mesh));
    return NULL;
}
