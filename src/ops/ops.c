// Which table runs: the choice of a device by name; and the names of what time is split into.
#include "ops/ops.h"

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#ifndef HEARTH_HAVE_CUDA

Status ops_cuda_create(Ops **ops, int device, const char *tune_cache) {
    (void)device, (void)tune_cache;
    *ops = NULL;
    return status_hint(status_usage("this hearth was built without CUDA"),
                       "use device \"cpu\", or build with -DHEARTH_CUDA=ON where a CUDA toolkit is installed");
}

void ops_cuda_destroy(Ops *ops) {
    (void)ops;
}

bool ops_cuda_available(void) {
    return false;
}

int ops_cuda_count(void) {
    return 0;
}

#endif

// Where a GPU's algorithm choices are kept, so that every run after the first starts fast and takes the same ones
// (other algorithms sum in another order: without the file, two runs may differ in the last bits). HEARTH_TUNE_CACHE
// names another file; empty switches it off. Malloc'd, NULL for none.
static char *tune_cache_path(void) {
    const char *own = getenv("HEARTH_TUNE_CACHE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own) return *own ? text_copy(own) : NULL;
    char *directory = cache && *cache ? text_format("%s/hearth", cache)
                      : home          ? text_format("%s/.cache/hearth", home)
                                      : NULL;
    if (!directory) return NULL;
    Status status = dir_make(directory);
    char *path = status ? NULL : path_join(directory, "tune.txt");
    if (status) log_warn("algorithm choices are not kept: %s", status_message(status));
    status_free(status);
    free(directory);
    return path;
}

static Status create_cuda(Ops **ops, int index) {
    char *cache = tune_cache_path();
    Status status = ops_cuda_create(ops, index, cache);
    free(cache);
    return status;
}

int device_ordinal(const char *device) {
    const char *prefix = "cuda:";
    int64_t index;
    bool named = text_starts_with(device, prefix) && text_to_int64(device + strlen(prefix), &index);
    return named && index >= 0 && index < 1024 ? (int)index : -1;
}

Status ops_create(Ops **ops, const char *device) {
    *ops = NULL;
    if (strcmp(device, "auto") == 0) device = ops_cuda_available() ? "cuda" : "cpu";
    if (strcmp(device, "cpu") == 0) return ops_cpu_create(ops);
    if (strcmp(device, "cuda") == 0) return create_cuda(ops, 0);
    int ordinal = device_ordinal(device);
    if (ordinal >= 0) return create_cuda(ops, ordinal);
    return status_hint(status_usage("unknown device \"%s\"", device), "use cpu, cuda, cuda:N or auto");
}

const char *device_kind_name(DeviceKind kind) {
    return kind == DEVICE_CUDA ? "cuda" : "cpu";
}

const char *op_category_name(OpCategory category) {
    static const char *const names[CATEGORY_COUNT] = {
        [CATEGORY_GEMM] = "gemm",       [CATEGORY_GROUPED] = "grouped",         [CATEGORY_ATTENTION] = "attention",
        [CATEGORY_ROUTING] = "routing", [CATEGORY_ELEMENTWISE] = "elementwise", [CATEGORY_OPTIMIZER] = "optimizer",
        [CATEGORY_COPY] = "copy",
    };
    return names[category];
}

const char *op_name(OpId op) {
#define OPS_LIST_NAME(id, function, category) #function,
    static const char *const names[OP_COUNT] = {OPS_LIST(OPS_LIST_NAME)};
#undef OPS_LIST_NAME
    return names[op];
}

OpCategory op_category(OpId op) {
#define OPS_LIST_CATEGORY(id, function, category) category,
    static const OpCategory categories[OP_COUNT] = {OPS_LIST(OPS_LIST_CATEGORY)};
#undef OPS_LIST_CATEGORY
    return categories[op];
}

void op_sum_categories(const double of_ops[OP_COUNT], double of_categories[CATEGORY_COUNT]) {
    for (int i = 0; i < CATEGORY_COUNT; i++)
        of_categories[i] = 0;
    for (int i = 0; i < OP_COUNT; i++)
        of_categories[op_category((OpId)i)] += of_ops[i];
}

void ops_destroy(Ops *ops) {
    if (!ops) return;
    if (ops->kind == DEVICE_CPU)
        ops_cpu_destroy(ops);
    else
        ops_cuda_destroy(ops);
}

// ---- fused ops as their parts ---------------------------------------------------------------------------------------

void ops_linear_then_rope_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, const Rope *rope) {
    Tensor qk = tensor_cols(out, 0, (int64_t)(rope->heads + rope->kv_heads) * rope->head_dim);
    ops->linear_forward(ops, out, in, weight, TENSOR_NONE);
    ops->qk_rope_forward(ops, qk, TENSOR_NONE, qk, rope);
}

void ops_linear_then_swiglu_forward(Ops *ops, Tensor gate_hidden, Tensor in, Tensor weight) {
    ops->linear_forward(ops, gate_hidden, in, weight, TENSOR_NONE);
    ops->swiglu_packed_forward(ops, gate_hidden);
}

void ops_linear_then_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor scratch, Tensor gate_hidden, Tensor dnext,
                                     Tensor weight) {
    ops->linear_backward_input(ops, scratch, dnext, weight);
    ops->swiglu_packed_backward(ops, dgate_up, gate_hidden, scratch);
}

void ops_linear_then_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8,
                                        Tensor gate_up_amax, Tensor scratch, Tensor in, Tensor weight, Tensor in_scale,
                                        Tensor weight_scale, Tensor hidden_scale, Tensor gate_up_scale) {
    ops->linear_fp8(ops, scratch, in, weight, in_scale, weight_scale, TENSOR_NONE, false);
    ops->swiglu_fp8_forward(ops, hidden, hidden_amax, gate_up8, gate_up_amax, scratch, hidden_scale, gate_up_scale,
                            TENSOR_NONE, TENSOR_NONE);
}

static Tensor rows_in_use(Tensor offsets) { // their number
    return tensor_cols(offsets, offsets.cols - 1, 1);
}

void ops_grouped_then_swiglu_forward(Ops *ops, Tensor hidden, Tensor gate_up, Tensor in, Tensor weight, Tensor offsets,
                                     Tensor row_weight, Tensor token_of_row, Tensor scratch) {
    ops->grouped_linear_forward(ops, gate_up, in, weight, offsets, token_of_row, scratch);
    ops->swiglu_forward(ops, hidden, gate_up, row_weight, rows_in_use(offsets));
}

void ops_grouped_then_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor hidden, Tensor drow_weight, Tensor gate_up,
                                      Tensor dnext, Tensor weight, Tensor offsets, Tensor row_weight) {
    ops->grouped_linear_backward_input(ops, hidden, dnext, weight, offsets);
    ops->swiglu_backward(ops, dgate_up, hidden, drow_weight, gate_up, hidden, row_weight, rows_in_use(offsets));
}

void ops_grouped_then_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8,
                                         Tensor gate_up_amax, Tensor scratch, Tensor in, Tensor weight, Tensor in_scale,
                                         Tensor weight_scale, Tensor hidden_scale, Tensor gate_up_scale,
                                         Tensor row_weight, Tensor offsets) {
    ops->grouped_linear_fp8(ops, scratch, in, weight, in_scale, weight_scale, offsets, false);
    ops->swiglu_fp8_forward(ops, hidden, hidden_amax, gate_up8, gate_up_amax, scratch, hidden_scale, gate_up_scale,
                            row_weight, rows_in_use(offsets));
}
