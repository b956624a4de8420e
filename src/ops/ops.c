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

Status ops_create(Ops **ops, const char *device) {
    *ops = NULL;
    if (strcmp(device, "auto") == 0) device = ops_cuda_available() ? "cuda" : "cpu";
    if (strcmp(device, "cpu") == 0) return ops_cpu_create(ops);
    if (strcmp(device, "cuda") == 0) return create_cuda(ops, 0);
    int64_t index;
    if (text_starts_with(device, "cuda:") && text_to_int64(device + 5, &index) && index >= 0 && index < 1024)
        return create_cuda(ops, (int)index);
    return status_hint(status_usage("unknown device \"%s\"", device), "use cpu, cuda, cuda:N or auto");
}

const char *op_category_name(OpCategory category) {
    static const char *const names[OP_CATEGORY_COUNT] = {
        [OP_GEMM] = "gemm",           [OP_ATTENTION] = "attention", [OP_MOE] = "moe", [OP_ELEMENTWISE] = "elementwise",
        [OP_OPTIMIZER] = "optimizer", [OP_COPY] = "copy",
    };
    return names[category];
}

void ops_destroy(Ops *ops) {
    if (!ops) return;
    if (strcmp(ops->name, "cpu") == 0)
        ops_cpu_destroy(ops);
    else
        ops_cuda_destroy(ops);
}

// ---- fused ops as their parts ---------------------------------------------------------------------------------------

void ops_linear_then_rope_forward(Ops *ops, void *out, const void *in, const void *weight, int in_dim,
                                  const QkRopeShape *rope, DType dtype) {
    int out_dim = (rope->heads + 2 * rope->kv_heads) * rope->head_dim;
    ops->linear_forward(ops, out, in, in_dim, weight, NULL, rope->tokens, in_dim, out_dim, dtype);
    ops->qk_rope_forward(ops, out, out_dim, out, out_dim, NULL, rope, dtype);
}

void ops_linear_then_swiglu_forward(Ops *ops, void *gate_hidden, const void *in, const void *weight, int64_t rows,
                                    int in_dim, int dim, DType dtype) {
    ops->linear_forward(ops, gate_hidden, in, in_dim, weight, NULL, rows, in_dim, 2 * dim, dtype);
    ops->swiglu_packed_forward(ops, gate_hidden, rows, dim, dtype);
}

void ops_linear_then_swiglu_backward(Ops *ops, void *dgate_up, void *scratch, const void *gate_hidden,
                                     const void *dnext, const void *weight, int64_t rows, int dim, int next_dim,
                                     DType dtype) {
    ops->linear_backward_input(ops, scratch, dnext, weight, rows, dim, next_dim, dtype);
    ops->swiglu_packed_backward(ops, dgate_up, gate_hidden, scratch, rows, dim, dtype);
}
