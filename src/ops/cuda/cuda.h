// What the files of the CUDA implementation share: its state, error recording, scratch memory, the profiling scope, and
// the functions behind the table. Usable from C and from .cu files.
//
// How an op is written:
//     extern "C" void cuda_thing(Ops *ops, ...) {
//         CudaState *state = cuda_scope_begin(ops, OP_THING);
//         thing_kernel<<<blocks, threads, shared, state->stream>>>(...);
//         LAUNCH_CHECK(state);
//         cuda_scope_end(state);
//     }
// An op enqueues on state->stream only, never waits for the device, and allocates nothing (it may be recorded into a
// graph). Scratch comes from cuda_scratch and lasts until the op returns.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "ops/shapes.h"
#include "ops/tune.h"

enum {
    CUDA_FETCH_SLOTS = 8,
    CUDA_FETCH_BYTES = 4096,
    CUDA_MARKS = 64,
    CUDA_UPLOAD_SLOTS = 16,
    CUDA_UPLOAD_BYTES = 512 << 10, // of one slot; longer uploads are cut
    CUDA_PROFILE_EVENTS = 4096,    // pairs held before they are summed
    CUDA_ROW_ALIGN = OPS_CUDA_ROW_ALIGN,
};

typedef struct GemmCache GemmCache;           // gemm.c
typedef struct AttentionCache AttentionCache; // attention.c
typedef struct RaceCache RaceCache;           // race.c

typedef struct CudaState {
    int device;
    int arch;         // compute capability, 90 for 9.0
    int sm_count;     // multiprocessors
    int shared_limit; // bytes of shared memory that one block may opt in to
    size_t l2_bytes;
    char gpu_name[256];

    cudaStream_t stream;      // all work, in order
    cudaStream_t copy_stream; // uploads from pinned memory

    int64_t allocated; // bytes that alloc gave and free did not take back

    void *workspace; // bound by the caller; 256-byte aligned
    size_t workspace_bytes;

    char *failure;     // the first failure since the last sync, or NULL
    bool capturing;    // between graph_begin and graph_end
    int disagreements; // kernels whose results a race has rejected

    struct { // pinned ring -> device staging on copy_stream -> destination on stream
        uint8_t *host, *staging;
        cudaEvent_t arrived[CUDA_UPLOAD_SLOTS], consumed[CUDA_UPLOAD_SLOTS];
        int next;
    } upload;
    struct {
        uint8_t *host; // pinned, CUDA_FETCH_BYTES a slot
        cudaEvent_t done[CUDA_FETCH_SLOTS];
    } fetch;
    cudaEvent_t marks[CUDA_MARKS];

    struct {
        bool on;
        int depth; // scopes may nest: only the outermost is timed
        int count;
        cudaEvent_t begin[CUDA_PROFILE_EVENTS], end[CUDA_PROFILE_EVENTS];
        uint8_t op[CUDA_PROFILE_EVENTS];
        double milliseconds[OP_COUNT];
    } profile;

    cublasLtHandle_t cublas;
    GemmCache *gemms;
    AttentionCache *attention;
    RaceCache *races;
    TuneFile *tune;
} CudaState;

static inline CudaState *cuda_state(Ops *ops) {
    return (CudaState *)ops->state;
}

// Keeps the first failure for sync() to report.
void cuda_fail(CudaState *state, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define CUDA_CHECK(state, call)                                                                       \
    do {                                                                                              \
        cudaError_t cuda_check_ = (call);                                                             \
        if (cuda_check_ != cudaSuccess)                                                               \
            cuda_fail((state), __FILE__, __LINE__, "%s: %s", #call, cudaGetErrorString(cuda_check_)); \
    } while (0)

// After every kernel launch.
#define LAUNCH_CHECK(state)                                                           \
    do {                                                                              \
        cudaError_t launch_check_ = cudaGetLastError();                               \
        if (launch_check_ != cudaSuccess)                                             \
            cuda_fail((state), __FILE__, __LINE__, "%s: launch failed: %s", __func__, \
                      cudaGetErrorString(launch_check_));                             \
    } while (0)

// A launch with dynamic shared memory of any size; kernel in parentheses.
#define LAUNCH_SHARED(state, kernel, grid, threads, bytes, args)                                                    \
    do {                                                                                                            \
        CUDA_CHECK(state, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))); \
        (kernel)<<<grid, threads, bytes, (state)->stream>>>(args);                                                  \
        LAUNCH_CHECK(state);                                                                                        \
    } while (0)

// The two ends of every op: the time between them counts for it when profiling is on.
CudaState *cuda_scope_begin(Ops *ops, OpId op);
void cuda_scope_end(CudaState *state);

// The bound workspace as scratch of this op, at least `bytes` of it (the whole of it may be used); records a failure
// and returns NULL when it is too small. What each op needs is added up in ops/workspace_cuda.c.
void *cuda_scratch(CudaState *state, size_t bytes);

static inline int64_t ceil_div64(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// ---- the functions behind the table, by file ----------------------------------------------------------------------

// elementwise.cu and its neighbours
void cuda_add(Ops *ops, Tensor out, Tensor in);
void cuda_convert(Ops *ops, Tensor out, Tensor in, bool accumulate);
void cuda_sum_f32(Ops *ops, Tensor out, Tensor in, bool accumulate);
void cuda_embedding_forward(Ops *ops, Tensor out, Tensor ids, Tensor weight, int64_t first);
void cuda_embedding_backward(Ops *ops, Tensor dweight, Tensor dout, Tensor ids, int64_t first);
void cuda_add_rmsnorm_forward(Ops *ops, Tensor out, Tensor sum, Tensor rstd, Tensor residual, Tensor branch,
                              Tensor weight, float eps);
void cuda_add_rmsnorm_backward(Ops *ops, Tensor dsum, Tensor dweight, Tensor dout, Tensor out, Tensor rstd,
                               Tensor weight, bool dsum_is_zero);
void cuda_qk_rope_forward(Ops *ops, Tensor out, Tensor rstd, Tensor in, const Rope *rope);
void cuda_qk_rope_backward(Ops *ops, Tensor grad, Tensor dq_weight, Tensor dk_weight, Tensor in, Tensor rstd,
                           const Rope *rope);
void cuda_swiglu_forward(Ops *ops, Tensor out, Tensor gate_up, Tensor row_weight, Tensor row_count);
void cuda_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor out, Tensor drow_weight, Tensor gate_up, Tensor dout,
                          Tensor row_weight, Tensor row_count);
void cuda_swiglu_packed_forward(Ops *ops, Tensor gate_up);
void cuda_swiglu_packed_backward(Ops *ops, Tensor dgate_up, Tensor gate_hidden, Tensor dhidden);
void cuda_quantize(Ops *ops, Tensor rows, Tensor cols, Tensor amax, Tensor in, Tensor scale);
void cuda_quantize_scales(Ops *ops, Tensor scale, Tensor amax, float most);
void cuda_rmsnorm_fp8_forward(Ops *ops, Tensor out, Tensor rows, Tensor amax, Tensor rstd, Tensor residual,
                              Tensor weight, Tensor scale, float eps);
void cuda_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8, Tensor gate_up_amax,
                             Tensor gate_up, Tensor hidden_scale, Tensor gate_up_scale, Tensor row_weight,
                             Tensor row_count);
void cuda_swiglu_fp8_backward(Ops *ops, Tensor drows, Tensor dcols, Tensor damax, Tensor hidden_cols,
                              Tensor drow_weight, Tensor gate_up8, Tensor dhidden, Tensor dscale, Tensor hidden_scale,
                              Tensor gate_up_scale, Tensor row_weight, Tensor row_count);
void cuda_cross_entropy(Ops *ops, Tensor losses, Tensor logits, Tensor targets, Tensor scale);
void cuda_cross_entropy_fp8(Ops *ops, Tensor losses, Tensor codes, Tensor logits, Tensor targets, Tensor scale,
                            Tensor codes_scale);
void cuda_cross_entropy_stats(Ops *ops, Tensor stats, Tensor logits, Tensor targets, int64_t first, int64_t vocab);
void cuda_cross_entropy_apply(Ops *ops, Tensor losses, Tensor logits, Tensor targets, Tensor stats, Tensor scale,
                              int64_t first, int64_t vocab);
void cuda_attention_merge(Ops *ops, Tensor out, Tensor lse, Tensor part, Tensor part_lse);
void cuda_attention_cached(Ops *ops, Tensor out, Tensor q, Tensor k_cache, Tensor v_cache, int first, int head_dim,
                           float scale);
void cuda_moe_router_forward(Ops *ops, Tensor logits, Tensor in, Tensor weight);
void cuda_moe_router_backward(Ops *ops, Tensor din, Tensor dweight, Tensor dlogits, Tensor in, Tensor weight,
                              bool accumulate);
void cuda_moe_route_forward(Ops *ops, const MoeRouting *routing);
void cuda_moe_place_rows(Ops *ops, Tensor needed, const MoeRouting *routing);
void cuda_moe_slot_gradient(Ops *ops, Tensor dweight, Tensor drow_weight, const MoeRouting *routing);
void cuda_moe_route_backward(Ops *ops, Tensor dlogits, Tensor drow_weight, Tensor dprob, Tensor z_coef,
                             const MoeRouting *routing);
void cuda_moe_balance(Ops *ops, Tensor loss, Tensor dprob, Tensor scale, Tensor counts, Tensor prob_sum,
                      MoeBalance balance, int64_t tokens);
void cuda_moe_add_counts(Ops *ops, Tensor total, Tensor counts, bool accumulate);
void cuda_moe_load_stats(Ops *ops, Tensor stats, Tensor counts);
void cuda_moe_bias_update(Ops *ops, Tensor bias, Tensor counts, Tensor skip, float rate);
void cuda_moe_gather(Ops *ops, Tensor out, Tensor in, const MoeRouting *routing);
void cuda_moe_gather_fp8(Ops *ops, Tensor rows, Tensor cols, Tensor in, const MoeRouting *routing);
void cuda_moe_sum(Ops *ops, Tensor out, Tensor in, Tensor add, const MoeRouting *routing);
void cuda_norm_f32(Ops *ops, Tensor out, Tensor in);
void cuda_guard(Ops *ops, Tensor skip, Tensor loss, Tensor norm, Tensor refuse, float loss_limit, float norm_limit);
void cuda_adamw(Ops *ops, const AdamwArgs *args);

// grouped_gemm.c
void cuda_grouped_linear_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor offsets, Tensor token_of_row,
                                 Tensor scratch);
void cuda_grouped_linear_backward_input(Ops *ops, Tensor din, Tensor dout, Tensor weight, Tensor offsets);
void cuda_grouped_linear_backward_weight(Ops *ops, Tensor dweight, Tensor dout, Tensor in, Tensor offsets,
                                         Tensor token_of_row, Tensor scratch, bool accumulate);

// grouped_swiglu.c: chooses between one kernel and two, by time
void cuda_grouped_swiglu_forward(Ops *ops, Tensor hidden, Tensor gate_up, Tensor in, Tensor weight, Tensor offsets,
                                 Tensor row_weight, Tensor token_of_row, Tensor scratch);
void cuda_grouped_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor hidden, Tensor drow_weight, Tensor gate_up,
                                  Tensor dnext, Tensor weight, Tensor offsets, Tensor row_weight);

// grouped_fp8.c: chooses its kernel by time
void cuda_grouped_linear_fp8(Ops *ops, Tensor out, Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor offsets,
                             bool accumulate);

// gemm.c: cuBLASLt
void gemm_linear_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor add);
void gemm_linear_backward_input(Ops *ops, Tensor din, Tensor dout, Tensor weight);
void cuda_linear_backward_weight(Ops *ops, Tensor dweight, Tensor dout, Tensor in, bool accumulate);
void cuda_linear_fp8(Ops *ops, Tensor out, Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor add,
                     bool accumulate);
GemmCache *gemm_cache_create(void);
void gemm_cache_free(GemmCache *cache);

// swiglu_gemm.c: chooses between one kernel and two, by time
void cuda_linear_swiglu_forward(Ops *ops, Tensor gate_hidden, Tensor in, Tensor weight);
void cuda_linear_swiglu_backward(Ops *ops, Tensor dgate_up, Tensor scratch, Tensor gate_hidden, Tensor dnext,
                                 Tensor weight);

// swiglu_fp8.c: likewise
void cuda_linear_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8, Tensor gate_up_amax,
                                    Tensor scratch, Tensor in, Tensor weight, Tensor in_scale, Tensor weight_scale,
                                    Tensor hidden_scale, Tensor gate_up_scale);
void cuda_grouped_swiglu_fp8_forward(Ops *ops, Tensor hidden, Tensor hidden_amax, Tensor gate_up8, Tensor gate_up_amax,
                                     Tensor scratch, Tensor in, Tensor weight, Tensor in_scale, Tensor weight_scale,
                                     Tensor hidden_scale, Tensor gate_up_scale, Tensor row_weight, Tensor offsets);

// linear.c: likewise
void cuda_linear_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, Tensor add);
void cuda_linear_backward_input(Ops *ops, Tensor din, Tensor dout, Tensor weight);
void cuda_linear_rope_forward(Ops *ops, Tensor out, Tensor in, Tensor weight, const Rope *rope);

// attention.c: chooses the engine, by time where several can
void cuda_attention_forward(Ops *ops, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, const Attention *how);
void cuda_attention_backward(Ops *ops, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                             Tensor k, Tensor v, const Attention *how, const Rope *rope);
AttentionCache *attention_cache_create(void);
void attention_cache_free(AttentionCache *cache);

// attention_flash.cu: hearth's own kernels: every shape that a layout admits, both dtypes, documents. variant picks a
// tile shape, from 0 to FLASH_VARIANTS - 1; all give right results.
enum { FLASH_VARIANTS = 2 };
void flash_forward(CudaState *state, void *out, float *lse, const void *q, const void *k, const void *v,
                   const AttentionShape *shape, DType dtype, int variant);
void flash_backward(CudaState *state, void *dq, void *dk, void *dv, int64_t dqkv_stride, const void *dout,
                    const void *out, const float *lse, const void *q, const void *k, const void *v,
                    const AttentionShape *shape, DType dtype, int variant);

// attention_hopper.cu: bf16 on compute capability 9.0, when hearth was built for sm_90a.
enum { HOPPER_VARIANTS = 2 };
bool hopper_available(CudaState *state);
void hopper_backward(CudaState *state, void *dq, void *dk, void *dv, int64_t dqkv_stride, const void *dout,
                     const void *out, const float *lse, const void *q, const void *k, const void *v,
                     const AttentionShape *shape, int variant);

// attention_sm90_backward.cu: bf16 on compute capability 9.0, without documents; attention_sm90.h gives its scratch.
// False when this GPU or shape cannot: then nothing was done.
bool attention_sm90_backward_supported(const CudaState *state, int64_t dqkv_stride, const AttentionShape *shape);
bool attention_sm90_rotates(const AttentionShape *shape, const QkRopeShape *rope); // takes dq and dk back through rope
bool attention_sm90_backward(CudaState *state, void *dq, void *dk, void *dv, int64_t dqkv_stride, const void *dout,
                             const void *out, const float *lse, const void *q, const void *k, const void *v,
                             const AttentionShape *shape, const QkRopeShape *rope);

// attention_sm90_forward.cu: bf16 on compute capability 9.0, heads of up to 64 columns, with documents too.
// False when this GPU or shape cannot.
bool attention_sm90_forward_supported(const CudaState *state, const AttentionShape *shape);
bool attention_sm90_forward(CudaState *state, void *out, float *lse, const void *q, const void *k, const void *v,
                            const AttentionShape *shape);

// attention_f32.cu. row_sum is scratch of [batch, heads, seq].
void flash_forward_f32(CudaState *state, float *out, float *lse, const float *q, const float *k, const float *v,
                       const AttentionShape *shape);
void flash_backward_f32(CudaState *state, float *dq, float *dk, float *dv, int64_t dqkv_stride, const float *dout,
                        const float *out, const float *lse, float *row_sum, const float *q, const float *k,
                        const float *v, const AttentionShape *shape);

// attention_cudnn.c: bf16 without documents. A plan belongs to one shape; NULL (and the reason in *why, malloc'd) when
// cuDNN cannot do it. The backward plan is deterministic, and works through the batch in parts so that its scratch
// stays within scratch_limit.
typedef struct CudnnPlan CudnnPlan;
typedef struct CudnnLibrary CudnnLibrary;
CudnnLibrary *cudnn_open(CudaState *state); // NULL when it is not there
void cudnn_close(CudnnLibrary *library);
int cudnn_version(CudnnLibrary *library);
CudnnPlan *cudnn_plan_forward(CudnnLibrary *library, const AttentionShape *shape, char **why);
CudnnPlan *cudnn_plan_backward(CudnnLibrary *library, const AttentionShape *shape, int64_t dqkv_stride,
                               size_t scratch_limit, char **why);
size_t cudnn_plan_scratch(const CudnnPlan *plan);
void cudnn_plan_free(CudnnPlan *plan);
void cudnn_run_forward(CudaState *state, CudnnPlan *plan, void *out, float *lse, const void *q, const void *k,
                       const void *v, const AttentionShape *shape);
void cudnn_run_backward(CudaState *state, CudnnPlan *plan, void *dq, void *dk, void *dv, int64_t dqkv_stride,
                        const void *dout, const void *out, const float *lse, const void *q, const void *k,
                        const void *v, const AttentionShape *shape);

#ifdef __cplusplus
}
#endif
