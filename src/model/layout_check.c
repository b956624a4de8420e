// Which requests have a layout, and which of them the kernels have room for.
#include "model/layout_build.h"

#include <assert.h>
#include <stdlib.h>

static Status require_divides(int whole, int parts, const char *whole_name, const char *parts_name) {
    if (parts >= 1 && whole % parts == 0) return NULL;
    return status_usage("%s %d does not divide by %s %d", whole_name, whole, parts_name, parts);
}

// The divisor of `whole` that is nearest to `wanted` and with which `others` still divides `ranks`.
static int nearest_degree(int wanted, int whole, int others, int ranks) {
    int nearest = 1;
    for (int degree = 1; degree <= whole; degree++)
        if (whole % degree == 0 && ranks % (degree * others) == 0 && abs(degree - wanted) <= abs(nearest - wanted))
            nearest = degree;
    return nearest;
}

static Status hint_degree(Status status, const char *what, int degree) {
    return status ? status_hint(status, "the nearest degree that does is %s = %d", what, degree) : NULL;
}

Status layout_check_experts(const LayoutRequest *request) {
    const ModelConfig *config = &request->config;
    const Mesh *mesh = &request->mesh;
    int ranks = mesh_stage_ranks(mesh);
    if (mesh->ep * mesh->etp == 1) return NULL;
    if (!config->experts)
        return status_hint(status_usage("%s parallelism of degree %d needs a model with experts",
                                        mesh->ep > 1 ? "expert" : "expert-tensor", mesh->ep > 1 ? mesh->ep : mesh->etp),
                           "set parallelism.expert = 1 and parallelism.expert_tensor = 1");
    TRY(hint_degree(
        require_divides(config->moe_ffn, mesh->etp, "the expert width", "the expert-tensor-parallel degree"),
        "parallelism.expert_tensor", nearest_degree(mesh->etp, config->moe_ffn, 1, ranks)));
    if (ranks % mesh->etp)
        return hint_degree(
            require_divides(ranks, mesh->etp, "data x context x tensor ranks", "the expert-tensor-parallel degree"),
            "parallelism.expert_tensor", nearest_degree(mesh->etp, config->moe_ffn, 1, ranks));
    int ep = nearest_degree(mesh->ep, config->experts, mesh->etp, ranks);
    TRY(hint_degree(require_divides(config->experts, mesh->ep, "the number of experts", "the expert-parallel degree"),
                    "parallelism.expert", ep));
    return hint_degree(require_divides(ranks, mesh->ep * mesh->etp, "data x context x tensor ranks",
                                       "the expert-parallel degrees (expert x expert_tensor)"),
                       "parallelism.expert", ep);
}

Status layout_check_tf32(const LayoutRequest *request) {
    if (!request->tf32 || (request->precision == PRECISION_FP32 && request->device == DEVICE_CUDA)) return NULL;
    if (request->precision != PRECISION_FP32)
        return status_usage("TF32 is for products of fp32, and the precision is %s",
                            precision_name(request->precision));
    return status_hint(status_usage("TF32 is a format of NVIDIA GPUs, and the device is a CPU"),
                       "leave it out, or train on a GPU");
}

Status layout_check_kernels(const LayoutRequest *request) {
    const ModelConfig *config = &request->config;
    TRY(layout_check_tf32(request));
    if (request->device != DEVICE_CUDA) return NULL;
    if (config->head_dim > OPS_CUDA_HEAD_DIM_MAX)
        return status_usage("attention on a GPU has heads of at most %d columns, and head_dim is %d",
                            OPS_CUDA_HEAD_DIM_MAX, config->head_dim);
    if (request->precision != PRECISION_FP32 && config->head_dim % OPS_CUDA_HEAD_DIM_PIECE)
        return status_usage("attention in 16 bits on a GPU needs a head_dim that is a multiple of %d, and it is %d",
                            OPS_CUDA_HEAD_DIM_PIECE, config->head_dim);
    if (config->experts > OPS_CUDA_EXPERTS_MAX || config->top_k > OPS_CUDA_TOP_K_MAX)
        return status_usage("a GPU routes to at most %d experts, %d of them for a token, and the model has %d and %d",
                            OPS_CUDA_EXPERTS_MAX, OPS_CUDA_TOP_K_MAX, config->experts, config->top_k);
    return NULL;
}

// A sequence can be cut for context parallelism, and its tokens on a rank for tensor parallelism.
static bool seq_divides(const LayoutRequest *request, int64_t seq) {
    const Mesh *mesh = &request->mesh;
    return seq % (2 * mesh->cp) == 0 && request->micro_batch * (seq / mesh->cp) % mesh->tp == 0;
}

static Status check_chunks(const LayoutRequest *request) {
    const Mesh *mesh = &request->mesh;
    if (mesh->cp == 1 || seq_divides(request, request->seq)) return NULL;
    int64_t below = request->seq, above = request->seq;
    while (below > 0 && !seq_divides(request, below))
        below--;
    while (!seq_divides(request, above))
        above++;
    Status status = status_usage(
        "sequences of %d tokens cannot be cut for context parallelism of degree %d: into %d equal chunks, two "
        "for each rank%s",
        request->seq, mesh->cp, 2 * mesh->cp, mesh->tp > 1 ? ", whose tokens tensor-parallel ranks share evenly" : "");
    if (below == 0) return status_hint(status, "the nearest length is %lld", (long long)above);
    return status_hint(status, "the nearest lengths are %lld and %lld", (long long)below, (long long)above);
}

static bool tensor_degree_fits(const ModelConfig *config, int tp) {
    return config->heads % tp == 0 && config->ffn % tp == 0 &&
           (config->kv_heads % tp == 0 || tp % config->kv_heads == 0);
}

static Status check_tensor_degree(const ModelConfig *config, int tp) {
    if (tensor_degree_fits(config, tp)) return NULL;
    Status status = require_divides(config->heads, tp, "attention heads", "the tensor-parallel degree");
    if (!status) status = require_divides(config->ffn, tp, "the MLP width", "the tensor-parallel degree");
    if (!status)
        status = status_usage("%d KV heads neither divide by nor divide the tensor-parallel degree %d",
                              config->kv_heads, tp);
    int below = tp, above = tp;
    while (!tensor_degree_fits(config, below)) // 1 does
        below--;
    while (above <= config->heads && !tensor_degree_fits(config, above))
        above++;
    if (above > config->heads) return status_hint(status, "the nearest degree that fits is %d", below);
    return status_hint(status, "the nearest degrees that fit are %d and %d", below, above);
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
    TRY(check_tensor_degree(config, mesh->tp));
    TRY(check_chunks(request));
    int64_t tokens = (int64_t)request->micro_batch * request->seq / mesh->cp;
    if (tokens % mesh->tp)
        return status_hint(
            status_usage("%lld tokens of a micro-batch (%d x %d) do not divide by the tensor-parallel degree %d",
                         (long long)tokens, request->micro_batch, request->seq, mesh->tp),
            "choose a micro_batch or seq that is a multiple of %d", mesh->tp);
    TRY(layout_check_experts(request));
    if (mesh->pp > config->layers)
        return status_hint(status_usage("%d layers cannot fill %d pipeline stages", config->layers, mesh->pp),
                           "take %d stages at most", config->layers);
    if (mesh->pp * layout_chunks(request) > config->layers)
        return status_usage("%d layers cannot fill %d x %d virtual stages", config->layers, mesh->pp,
                            request->virtual_stages);
    assert(request->rank >= 0 && request->rank < mesh_ranks(mesh));
    return NULL;
}
