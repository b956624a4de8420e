// Attention through cuDNN's graph API (the C backend): the passes are described as graphs of matrix products, pointwise
// operations and reductions, which cuDNN recognises and runs as one fused kernel. Q, K and V are read in place by their
// strides; K (and V in the backward pass) are described transposed, as cuDNN wants them.
//
// The backward graph writes dQ straight from its product. That makes cuDNN keep dS in scratch ([batch, heads, seq, seq]
// bf16) instead of adding up dQ atomically, which would depend on the order of blocks. So that this scratch stays
// small, the plan is made for a part of the batch and run several times.
#include "ops/cuda/cuda.h"

#include <math.h>
#include <stdlib.h>

#ifdef HEARTH_HAVE_CUDNN

#include <cudnn.h>

struct CudnnLibrary {
    cudnnHandle_t handle;
};

enum { // unique ids of the tensors that have memory
    UID_Q = 1,
    UID_K,
    UID_V,
    UID_O,
    UID_STATS,
    UID_SCALE,
    UID_MINUS_INFINITY,
    UID_ONE,
    UID_DO,
    UID_DQ,
    UID_DK,
    UID_DV,
    UID_ROW_SUM,
    UID_VIRTUAL = 100, // first of the others
};

struct CudnnPlan {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t plan;
    int batch; // sequences of one run
    size_t row_sum_bytes, workspace_bytes;
};

CudnnLibrary *cudnn_open(CudaState *state) {
    cudnnHandle_t handle;
    if (cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) {
        log_warn("cuDNN cannot be opened; attention uses hearth's own kernels");
        return NULL;
    }
    cudnnSetStream(handle, state->stream);
    CudnnLibrary *library = xmalloc(sizeof *library);
    library->handle = handle;
    return library;
}

void cudnn_close(CudnnLibrary *library) {
    if (!library) return;
    cudnnDestroy(library->handle);
    free(library);
}

int cudnn_version(CudnnLibrary *library) {
    (void)library;
    return (int)cudnnGetVersion();
}

// ---- building a graph ---------------------------------------------------------------------------------------------

typedef cudnnBackendDescriptor_t Descriptor;

typedef struct Builder {
    Descriptor all[192]; // everything made, destroyed at the end
    int all_count;
    Descriptor operations[64];
    int operation_count;
    int64_t next_uid;
    char *why; // the first failure
} Builder;

static void builder_fail(Builder *b, const char *what, cudnnStatus_t status) {
    if (b->why) return;
    char detail[512] = "";
    cudnnGetLastErrorString(detail, sizeof detail);
    b->why = text_format("%s: %s: %s", what, cudnnGetErrorString(status), detail);
}

static Descriptor make(Builder *b, cudnnBackendDescriptorType_t type) {
    Descriptor descriptor = NULL;
    if (b->why) return NULL;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(type, &descriptor);
    if (status != CUDNN_STATUS_SUCCESS) {
        builder_fail(b, "create descriptor", status);
        return NULL;
    }
    b->all[b->all_count++] = descriptor;
    return descriptor;
}

static void set(Builder *b, Descriptor descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values) {
    if (b->why) return;
    cudnnStatus_t status = cudnnBackendSetAttribute(descriptor, name, type, count, values);
    if (status == CUDNN_STATUS_SUCCESS) return;
    char what[64];
    snprintf(what, sizeof what, "set attribute %d", (int)name);
    builder_fail(b, what, status);
}

static void set_descriptor(Builder *b, Descriptor descriptor, cudnnBackendAttributeName_t name, Descriptor value) {
    set(b, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(Builder *b, Descriptor descriptor, const char *what) {
    if (b->why) return;
    cudnnStatus_t status = cudnnBackendFinalize(descriptor);
    if (status != CUDNN_STATUS_SUCCESS) builder_fail(b, what, status);
}

typedef enum TensorPlace { TENSOR_MEMORY, TENSOR_VIRTUAL, TENSOR_BY_VALUE } TensorPlace;

static Descriptor tensor(Builder *b, int64_t uid, cudnnDataType_t type, TensorPlace place, const int64_t dims[4],
                         const int64_t strides[4]) {
    Descriptor t = make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = 16;
    bool is_virtual = place == TENSOR_VIRTUAL, by_value = place == TENSOR_BY_VALUE;
    if (is_virtual) uid = b->next_uid++;
    set(b, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(b, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(b, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(b, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    set(b, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    set(b, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(b, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finish(b, t, "tensor");
    return t;
}

static Descriptor scalar(Builder *b, int64_t uid) {
    static const int64_t one[4] = {1, 1, 1, 1};
    return tensor(b, uid, CUDNN_DATA_FLOAT, TENSOR_BY_VALUE, one, one);
}

static void matmul(Builder *b, Descriptor c, Descriptor a, Descriptor second, const char *what) {
    Descriptor product = make(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    set(b, product, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finish(b, product, what);
    Descriptor operation = make(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, second);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, product);
    finish(b, operation, what);
    b->operations[b->operation_count++] = operation;
}

// y = mode(x, second, third); second and third may be NULL. axis is used by GEN_INDEX only.
static void pointwise(Builder *b, cudnnPointwiseMode_t mode, cudnnDataType_t compute, Descriptor y, Descriptor x,
                      Descriptor second, Descriptor third, int64_t axis, const char *what) {
    Descriptor function = make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(b, function, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(b, function, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) set(b, function, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish(b, function, what);
    Descriptor operation = make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (second) set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, second);
    if (third) set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, third);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    finish(b, operation, what);
    b->operations[b->operation_count++] = operation;
}

static void reduction(Builder *b, cudnnReduceTensorOp_t op, Descriptor y, Descriptor x, const char *what) {
    Descriptor function = make(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    set(b, function, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    set(b, function, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finish(b, function, what);
    Descriptor operation = make(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, function);
    finish(b, operation, what);
    b->operations[b->operation_count++] = operation;
}

static void reshape(Builder *b, Descriptor y, Descriptor x, const char *what) {
    Descriptor operation = make(b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    finish(b, operation, what);
    b->operations[b->operation_count++] = operation;
}

// ---- the two graphs -----------------------------------------------------------------------------------------------

typedef struct Dims { // of one run
    int64_t b, h, kv, s, d;
} Dims;

static Descriptor tokens_tensor(Builder *b, int64_t uid, const Dims *n, int64_t heads, int64_t stride, bool transposed,
                                TensorPlace place) {
    int64_t dims[4] = {n->b, heads, n->s, n->d}, strides[4] = {n->s * stride, n->d, stride, 1};
    if (transposed) dims[2] = n->d, dims[3] = n->s, strides[2] = 1, strides[3] = stride;
    return tensor(b, uid, CUDNN_DATA_BFLOAT16, place, dims, strides);
}

static Descriptor scores(Builder *b, const Dims *n, cudnnDataType_t type) { // virtual [b, h, s, s]
    int64_t dims[4] = {n->b, n->h, n->s, n->s}, strides[4] = {n->h * n->s * n->s, n->s * n->s, n->s, 1};
    return tensor(b, 0, type, TENSOR_VIRTUAL, dims, strides);
}

static Descriptor scores_transposed(Builder *b, const Dims *n) {
    int64_t dims[4] = {n->b, n->h, n->s, n->s}, strides[4] = {n->h * n->s * n->s, n->s * n->s, 1, n->s};
    return tensor(b, 0, CUDNN_DATA_BFLOAT16, TENSOR_VIRTUAL, dims, strides);
}

static Descriptor rows(Builder *b, int64_t uid, const Dims *n, TensorPlace place) { // float [b, h, s, 1]
    int64_t dims[4] = {n->b, n->h, n->s, 1}, strides[4] = {n->h * n->s, n->s, 1, 1};
    return tensor(b, uid, CUDNN_DATA_FLOAT, place, dims, strides);
}

static Descriptor causal(Builder *b, const Dims *n, Descriptor score) {
    Descriptor row = scores(b, n, CUDNN_DATA_INT32), column = scores(b, n, CUDNN_DATA_INT32);
    pointwise(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, row, score, NULL, NULL, 2, "row index");
    pointwise(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, column, score, NULL, NULL, 3, "column index");
    Descriptor kept = scores(b, n, CUDNN_DATA_BOOLEAN);
    pointwise(b, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, kept, row, column, NULL, 0, "row >= column");
    Descriptor masked = scores(b, n, CUDNN_DATA_FLOAT);
    pointwise(b, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, masked, score, scalar(b, UID_MINUS_INFINITY), kept, 0,
              "mask");
    return masked;
}

#define FLOAT_POINTWISE(mode, y, x, second) pointwise(b, mode, CUDNN_DATA_FLOAT, y, x, second, NULL, 0, #mode " " #y)

static void graph_forward(Builder *b, const Dims *n, const AttentionShape *shape) {
    Descriptor q = tokens_tensor(b, UID_Q, n, n->h, shape->q_stride, false, TENSOR_MEMORY);
    Descriptor k = tokens_tensor(b, UID_K, n, n->kv, shape->k_stride, true, TENSOR_MEMORY);
    Descriptor v = tokens_tensor(b, UID_V, n, n->kv, shape->v_stride, false, TENSOR_MEMORY);
    Descriptor o = tokens_tensor(b, UID_O, n, n->h, shape->o_stride, false, TENSOR_MEMORY);
    Descriptor raw = scores(b, n, CUDNN_DATA_FLOAT), scaled = scores(b, n, CUDNN_DATA_FLOAT);
    matmul(b, raw, q, k, "q k");
    FLOAT_POINTWISE(CUDNN_POINTWISE_MUL, scaled, raw, scalar(b, UID_SCALE));
    Descriptor masked = shape->full ? scaled : causal(b, n, scaled);
    Descriptor maximum = rows(b, 0, n, TENSOR_VIRTUAL), shifted = scores(b, n, CUDNN_DATA_FLOAT);
    reduction(b, CUDNN_REDUCE_TENSOR_MAX, maximum, masked, "maximum");
    FLOAT_POINTWISE(CUDNN_POINTWISE_SUB, shifted, masked, maximum);
    Descriptor exponential = scores(b, n, CUDNN_DATA_FLOAT), sum = rows(b, 0, n, TENSOR_VIRTUAL);
    FLOAT_POINTWISE(CUDNN_POINTWISE_EXP, exponential, shifted, NULL);
    reduction(b, CUDNN_REDUCE_TENSOR_ADD, sum, exponential, "sum");
    Descriptor logarithm = rows(b, 0, n, TENSOR_VIRTUAL), stats = rows(b, UID_STATS, n, TENSOR_MEMORY);
    FLOAT_POINTWISE(CUDNN_POINTWISE_LOG, logarithm, sum, NULL);
    FLOAT_POINTWISE(CUDNN_POINTWISE_ADD, stats, maximum, logarithm);
    Descriptor probability = scores(b, n, CUDNN_DATA_BFLOAT16);
    FLOAT_POINTWISE(CUDNN_POINTWISE_DIV, probability, exponential, sum);
    matmul(b, o, probability, v, "p v");
}

// dout of K and V: with grouped queries the product is per query head, and the heads of a group are added up.
static void group_product(Builder *b, const Dims *n, Descriptor out, Descriptor a, Descriptor second,
                          const char *what) {
    if (n->h == n->kv) {
        matmul(b, out, a, second, what);
        return;
    }
    int64_t dims[4] = {n->b, n->h, n->s, n->d}, strides[4] = {n->h * n->s * n->d, n->s * n->d, n->d, 1};
    Descriptor per_head = tensor(b, 0, CUDNN_DATA_BFLOAT16, TENSOR_VIRTUAL, dims, strides);
    matmul(b, per_head, a, second, what);
    reduction(b, CUDNN_REDUCE_TENSOR_ADD, out, per_head, what);
}

static void graph_backward(Builder *b, const Dims *n, const AttentionShape *shape, int64_t grad_stride) {
    Descriptor q = tokens_tensor(b, UID_Q, n, n->h, shape->q_stride, false, TENSOR_MEMORY);
    Descriptor kt = tokens_tensor(b, UID_K, n, n->kv, shape->k_stride, true, TENSOR_MEMORY);
    Descriptor vt = tokens_tensor(b, UID_V, n, n->kv, shape->v_stride, true, TENSOR_MEMORY);
    Descriptor o = tokens_tensor(b, UID_O, n, n->h, shape->o_stride, false, TENSOR_MEMORY);
    Descriptor d_o = tokens_tensor(b, UID_DO, n, n->h, shape->o_stride, false, TENSOR_MEMORY);
    Descriptor dq = tokens_tensor(b, UID_DQ, n, n->h, grad_stride, false, TENSOR_MEMORY);
    Descriptor dk = tokens_tensor(b, UID_DK, n, n->kv, grad_stride, false, TENSOR_MEMORY);
    Descriptor dv = tokens_tensor(b, UID_DV, n, n->kv, grad_stride, false, TENSOR_MEMORY);
    Descriptor scale = scalar(b, UID_SCALE);

    int64_t dims[4] = {n->b, n->h, n->s, n->d}, strides[4] = {n->h * n->s * n->d, n->s * n->d, n->h * n->d, 1};
    Descriptor product = tensor(b, 0, CUDNN_DATA_FLOAT, TENSOR_VIRTUAL, dims, strides);
    FLOAT_POINTWISE(CUDNN_POINTWISE_MUL, product, d_o, o);
    Descriptor sum = rows(b, 0, n, TENSOR_VIRTUAL), row_sum = rows(b, UID_ROW_SUM, n, TENSOR_MEMORY);
    reduction(b, CUDNN_REDUCE_TENSOR_ADD, sum, product, "sum of do o");
    FLOAT_POINTWISE(CUDNN_POINTWISE_MUL, row_sum, sum, scalar(b, UID_ONE)); // the place of a dropout scale

    Descriptor raw = scores(b, n, CUDNN_DATA_FLOAT), scaled = scores(b, n, CUDNN_DATA_FLOAT);
    matmul(b, raw, q, kt, "q k");
    FLOAT_POINTWISE(CUDNN_POINTWISE_MUL, scaled, raw, scale);
    Descriptor shifted = scores(b, n, CUDNN_DATA_FLOAT);
    FLOAT_POINTWISE(CUDNN_POINTWISE_SUB, shifted, scaled, rows(b, UID_STATS, n, TENSOR_MEMORY));
    Descriptor masked = shape->full ? shifted : causal(b, n, shifted), p = scores(b, n, CUDNN_DATA_FLOAT);
    FLOAT_POINTWISE(CUDNN_POINTWISE_EXP, p, masked, NULL);
    Descriptor pt = scores_transposed(b, n);
    reshape(b, pt, p, "p transposed");
    group_product(b, n, dv, pt, d_o, "p do");

    Descriptor dp = scores(b, n, CUDNN_DATA_FLOAT), centred = scores(b, n, CUDNN_DATA_FLOAT);
    matmul(b, dp, d_o, vt, "do v");
    FLOAT_POINTWISE(CUDNN_POINTWISE_SUB, centred, dp, row_sum);
    Descriptor unscaled = scores(b, n, CUDNN_DATA_FLOAT), ds = scores(b, n, CUDNN_DATA_FLOAT);
    FLOAT_POINTWISE(CUDNN_POINTWISE_MUL, unscaled, centred, p);
    FLOAT_POINTWISE(CUDNN_POINTWISE_MUL, ds, unscaled, scale);
    Descriptor dst = scores_transposed(b, n);
    reshape(b, dst, ds, "ds transposed");
    group_product(b, n, dk, dst, q, "ds q");
    Descriptor k = tokens_tensor(b, 0, n, n->kv, shape->k_stride, false, TENSOR_VIRTUAL);
    reshape(b, k, kt, "k transposed");
    matmul(b, dq, ds, k, "ds k");
}

// ---- plans --------------------------------------------------------------------------------------------------------

// The first engine of cuDNN's heuristic that makes a plan.
static Descriptor plan_make(Builder *b, cudnnHandle_t handle) {
    Descriptor graph = make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->operation_count, b->operations);
    finish(b, graph, "graph");
    Descriptor heuristic = make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    set_descriptor(b, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(b, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(b, heuristic, "heuristic");
    Descriptor configs[8];
    for (int i = 0; i < 8; i++)
        configs[i] = make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (b->why) return NULL;
    int64_t count = 0;
    cudnnStatus_t status = cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 8, &count, configs);
    for (int64_t i = 0; status == CUDNN_STATUS_SUCCESS && i < count && i < 8; i++) {
        Descriptor plan = NULL;
        if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) != CUDNN_STATUS_SUCCESS) break;
        status = cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
        if (status == CUDNN_STATUS_SUCCESS)
            status = cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                              CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &configs[i]);
        if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(plan);
        if (status == CUDNN_STATUS_SUCCESS) return plan;
        cudnnBackendDestroyDescriptor(plan);
        if (i + 1 < count) status = CUDNN_STATUS_SUCCESS; // try the next
    }
    if (status == CUDNN_STATUS_SUCCESS) status = CUDNN_STATUS_NOT_SUPPORTED;
    builder_fail(b, "no engine takes the graph", status);
    return NULL;
}

static CudnnPlan *plan_finish(Builder *b, CudnnLibrary *library, const Dims *n, bool backward, char **why) {
    Descriptor descriptor = b->why ? NULL : plan_make(b, library->handle);
    for (int i = b->all_count - 1; i >= 0; i--)
        cudnnBackendDestroyDescriptor(b->all[i]);
    if (!descriptor) {
        *why = b->why;
        return NULL;
    }
    free(b->why);
    CudnnPlan *plan = xcalloc(1, sizeof *plan);
    int64_t bytes = 0, count = 0;
    cudnnBackendGetAttribute(descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes);
    plan->handle = library->handle;
    plan->plan = descriptor;
    plan->batch = (int)n->b;
    plan->row_sum_bytes = backward ? ((size_t)(n->b * n->h * n->s) * sizeof(float) + 255) / 256 * 256 : 0;
    plan->workspace_bytes = (size_t)bytes;
    return plan;
}

CudnnPlan *cudnn_plan_forward(CudnnLibrary *library, const AttentionShape *shape, char **why) {
    Builder b = {.next_uid = UID_VIRTUAL};
    Dims n = {shape->batch, shape->heads, shape->kv_heads, shape->seq, shape->head_dim};
    graph_forward(&b, &n, shape);
    return plan_finish(&b, library, &n, false, why);
}

CudnnPlan *cudnn_plan_backward(CudnnLibrary *library, const AttentionShape *shape, int64_t dqkv_stride,
                               size_t scratch_limit, char **why) {
    if (shape->seq % 128 != 0 && cudnnGetVersion() <= 91500) { // these versions need a padding mask there
        *why = text_copy("the sequence is not a multiple of 128");
        return NULL;
    }
    size_t sequence = (size_t)shape->heads * (size_t)shape->seq * (size_t)shape->seq * 2;
    for (int batch = shape->batch; batch >= 1; batch--) {
        if (shape->batch % batch != 0 || (size_t)batch * sequence > scratch_limit) continue;
        Builder b = {.next_uid = UID_VIRTUAL};
        Dims n = {batch, shape->heads, shape->kv_heads, shape->seq, shape->head_dim};
        graph_backward(&b, &n, shape, dqkv_stride);
        CudnnPlan *plan = plan_finish(&b, library, &n, true, why);
        if (!plan || cudnn_plan_scratch(plan) <= scratch_limit) return plan;
        cudnn_plan_free(plan);
    }
    *why = text_format("one sequence needs more than %zu bytes of scratch", scratch_limit);
    return NULL;
}

size_t cudnn_plan_scratch(const CudnnPlan *plan) {
    return plan->row_sum_bytes + plan->workspace_bytes;
}

void cudnn_plan_free(CudnnPlan *plan) {
    if (!plan) return;
    cudnnBackendDestroyDescriptor(plan->plan);
    free(plan);
}

static void plan_run(CudaState *state, CudnnPlan *plan, int count, const int64_t *uids, void **pointers,
                     void *scratch) {
    Descriptor pack = NULL;
    cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status =
            cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &scratch);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendExecute(plan->handle, plan->plan, pack);
    if (status != CUDNN_STATUS_SUCCESS) {
        char detail[512] = "";
        cudnnGetLastErrorString(detail, sizeof detail);
        cuda_fail(state, __FILE__, __LINE__, "cuDNN attention: %s: %s", cudnnGetErrorString(status), detail);
    }
    if (pack) cudnnBackendDestroyDescriptor(pack);
}

void cudnn_run_forward(CudaState *state, CudnnPlan *plan, void *out, float *lse, const void *q, const void *k,
                       const void *v, const AttentionShape *shape) {
    float scale = shape->scale, minus_infinity = -INFINITY;
    const int64_t uids[] = {UID_Q, UID_K, UID_V, UID_O, UID_STATS, UID_SCALE, UID_MINUS_INFINITY};
    void *pointers[] = {(void *)q, (void *)k, (void *)v, out, lse, &scale, &minus_infinity};
    void *scratch = plan->workspace_bytes ? cuda_scratch(state, plan->workspace_bytes) : NULL;
    if (plan->workspace_bytes && !scratch) return;                       // the failure is recorded
    plan_run(state, plan, shape->full ? 6 : 7, uids, pointers, scratch); // without a mask, no number for it
}

void cudnn_run_backward(CudaState *state, CudnnPlan *plan, void *dq, void *dk, void *dv, int64_t dqkv_stride,
                        const void *dout, const void *out, const float *lse, const void *q, const void *k,
                        const void *v, const AttentionShape *shape) {
    float scale = shape->scale, minus_infinity = -INFINITY, one = 1;
    uint8_t *scratch = cuda_scratch(state, cudnn_plan_scratch(plan));
    if (!scratch) return;
    const int64_t uids[] = {UID_Q,  UID_K,  UID_V,  UID_O,       UID_STATS, UID_SCALE,         UID_DO,
                            UID_DQ, UID_DK, UID_DV, UID_ROW_SUM, UID_ONE,   UID_MINUS_INFINITY};
    for (int64_t first = 0; first < shape->batch; first += plan->batch) {
        int64_t token = first * shape->seq;
        size_t size = sizeof(bf16);
        void *pointers[] = {(char *)q + (size_t)(token * shape->q_stride) * size,
                            (char *)k + (size_t)(token * shape->k_stride) * size,
                            (char *)v + (size_t)(token * shape->v_stride) * size,
                            (char *)out + (size_t)(token * shape->o_stride) * size,
                            (float *)lse + token * shape->heads,
                            &scale,
                            (char *)dout + (size_t)(token * shape->o_stride) * size,
                            (char *)dq + (size_t)(token * dqkv_stride) * size,
                            (char *)dk + (size_t)(token * dqkv_stride) * size,
                            (char *)dv + (size_t)(token * dqkv_stride) * size,
                            scratch,
                            &one,
                            &minus_infinity};
        plan_run(state, plan, shape->full ? 12 : 13, uids, pointers, scratch + plan->row_sum_bytes);
    }
}

#else

CudnnLibrary *cudnn_open(CudaState *state) {
    (void)state;
    return NULL;
}

void cudnn_close(CudnnLibrary *library) {
    (void)library;
}

int cudnn_version(CudnnLibrary *library) {
    (void)library;
    return 0;
}

CudnnPlan *cudnn_plan_forward(CudnnLibrary *library, const AttentionShape *shape, char **why) {
    (void)library, (void)shape;
    *why = text_copy("built without cuDNN");
    return NULL;
}

CudnnPlan *cudnn_plan_backward(CudnnLibrary *library, const AttentionShape *shape, int64_t dqkv_stride,
                               size_t scratch_limit, char **why) {
    (void)library, (void)shape, (void)dqkv_stride, (void)scratch_limit;
    *why = text_copy("built without cuDNN");
    return NULL;
}

size_t cudnn_plan_scratch(const CudnnPlan *plan) {
    (void)plan;
    return 0;
}

void cudnn_plan_free(CudnnPlan *plan) {
    (void)plan;
}

void cudnn_run_forward(CudaState *state, CudnnPlan *plan, void *out, float *lse, const void *q, const void *k,
                       const void *v, const AttentionShape *shape) {
    (void)state, (void)plan, (void)out, (void)lse, (void)q, (void)k, (void)v, (void)shape;
}

void cudnn_run_backward(CudaState *state, CudnnPlan *plan, void *dq, void *dk, void *dv, int64_t dqkv_stride,
                        const void *dout, const void *out, const float *lse, const void *q, const void *k,
                        const void *v, const AttentionShape *shape) {
    (void)state, (void)plan, (void)dq, (void)dk, (void)dv, (void)dqkv_stride, (void)dout, (void)out, (void)lse;
    (void)q, (void)k, (void)v, (void)shape;
}

#endif
