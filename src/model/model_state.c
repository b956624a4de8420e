// What a model has learned, between device and host: fresh weights, single parameters, snapshots.
#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "model/model.h"
#include "model/seam.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct FillContext {
    float *out; // of the parameter
    const LayoutSlice *slice;
    uint64_t seed, stream;
    float deviation;
} FillContext;

// Rows of a slice. An element's value depends on the parameter and on its place in it on a rank that holds all of it.
static void fill_rows(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const FillContext *fill = context;
    const LayoutSlice *slice = fill->slice;
    int64_t all_cols = slice->shape[1];
    for (int64_t row = begin; row < end; row++)
        rng_fill_normal(fill->out + slice->at + row * slice->stride, slice->cols, fill->seed, fill->stream,
                        (uint64_t)(slice->first + (slice->row + row) * all_cols + slice->col), 0, fill->deviation);
}

static void fill_matrix(const Layout *layout, const LayoutParam *param, uint64_t seed, float deviation, float *host) {
    memset(host, 0, (size_t)param->count * sizeof *host); // rows beyond the vocabulary
    // The stream names the parameter by what it is, not by its place, so that it is the same in any split.
    uint64_t stream = RNG_STREAM_PARAMETER + (uint64_t)(param->layer + 1) * PARAM_ID_COUNT + param->id;
    for (int i = 0; i < layout_slice_count(layout, param); i++) {
        LayoutSlice slice = layout_slice(layout, param, i);
        int64_t chunk = (1 << 14) / (slice.cols > 0 ? slice.cols : 1);
        FillContext fill = {host, &slice, seed, stream, deviation};
        threads_for(slice.rows, chunk > 0 ? chunk : 1, fill_rows, &fill);
    }
}

void model_init_weights(Model *model, uint64_t seed, bool scale_residual) {
    const Layout *layout = &model->layout;
    const ModelConfig *config = &layout->request.config;
    int64_t most = 0;
    for (int i = 0; i < layout->param_count; i++)
        most = layout->params[i].count > most ? layout->params[i].count : most;
    float *host = xmalloc((size_t)most * sizeof(float));
    for (int i = 0; i < layout->param_count; i++) {
        const LayoutParam *param = &layout->params[i];
        float deviation = config->init_std;
        if (scale_residual && param->residual) deviation /= sqrtf(2.0f * (float)config->layers);
        if (param->dims > 1) fill_matrix(layout, param, seed, deviation, host);
        for (int64_t k = 0; param->dims == 1 && k < param->count; k++)
            host[k] = 1.0f;
        model_write_param(model, param, MODEL_WEIGHTS, host);
    }
    free(host);
    seam_new_weights(model);
    model_zero_optimizer(model);
}

void model_share_weights(Model *model) {
    if (model->layout.zero >= ZERO_WEIGHTS) seam_new_weights(model);
}

static void widen(const Layout *layout, const void *weights, const void *master, int64_t count, float *out) {
    if (layout->dtype == DTYPE_F32 || (layout->dtype == DTYPE_F16 && master)) {
        memcpy(out, master ? master : weights, (size_t)count * sizeof(float));
    } else if (master) {
        for (int64_t i = 0; i < count; i++)
            out[i] = bf16_join(((const bf16 *)weights)[i], ((const int16_t *)master)[i]);
    } else {
        for (int64_t i = 0; i < count; i++)
            out[i] = storage_get(weights, i, layout->dtype);
    }
}

static void *master_at(void *block, const Layout *layout, int64_t index) { // NULL: there is none
    return block ? (char *)block + index * precision_master_bytes(layout->request.precision) : NULL;
}

static bool state_outer(ModelState state) {
    return state == MODEL_ANCHOR || state == MODEL_MOMENTUM;
}

static float *outer_pointer(float *outer, const Layout *layout, const LayoutParam *param, ModelState state) {
    return outer + (state == MODEL_MOMENTUM ? layout->shard_count : 0) + layout_part(layout, param, 0).at;
}

static float *state_pointer(const Model *model, int64_t at, ModelState state) {
    assert(state != MODEL_WEIGHTS && !state_outer(state));
    if (state == MODEL_GRADIENTS) return (float *)model->memory[LAYOUT_GRADIENTS] + at;
    int64_t all = model->layout.zero >= ZERO_MOMENTS ? model->layout.shard_count : model->layout.element_count;
    return (float *)model->memory[LAYOUT_MOMENTS] + (state == MODEL_V ? all : 0) + at;
}

void model_read_param(Model *model, const LayoutParam *param, ModelState state, float *host) {
    Ops *ops = model->ops;
    size_t count = (size_t)param->count, size = dtype_size(model->layout.dtype);
    assert(model->layout.zero == 0);
    if (state != MODEL_WEIGHTS) {
        ops->download(ops, host, state_pointer(model, param->offset, state), count * sizeof(float));
        return;
    }
    void *weights = xmalloc(count * size);
    void *low = master_at(model->memory[LAYOUT_MASTER], &model->layout, param->offset);
    size_t low_bytes = count * (size_t)precision_master_bytes(model->layout.request.precision);
    void *master = low ? xmalloc(low_bytes) : NULL;
    ops->download(ops, weights, (char *)model->memory[LAYOUT_WEIGHTS] + (size_t)param->offset * size, count * size);
    if (master) ops->download(ops, master, low, low_bytes);
    widen(&model->layout, weights, master, param->count, host);
    free(weights);
    free(master);
}

typedef struct NarrowContext {
    const float *in;
    uint16_t *out;
    int16_t *low; // of bf16; NULL: no master weights
    DType dtype;
    bool to_even; // where no run has any: halves round as everywhere else
} NarrowContext;

static void narrow_weights(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    NarrowContext *narrow = context;
    for (int64_t i = begin; i < end; i++)
        narrow->out[i] = narrow->dtype == DTYPE_F16 ? f16_from_f32(narrow->in[i])
                         : narrow->low              ? bf16_split(narrow->in[i], &narrow->low[i])
                         : narrow->to_even          ? bf16_from_f32(narrow->in[i])
                                                    : bf16_split_weight(narrow->in[i]);
}

static void write_weights(Model *model, const LayoutParam *param, const float *host) {
    Ops *ops = model->ops;
    const Layout *layout = &model->layout;
    LayoutPart part = layout_part(layout, param, ZERO_WEIGHTS), low = layout_part(layout, param, ZERO_MOMENTS);
    size_t size = dtype_size(layout->dtype);
    char *weights = (char *)model->memory[LAYOUT_WEIGHTS] + (size_t)part.at * size;
    if (layout->dtype == DTYPE_F32) {
        ops->upload(ops, weights, host + part.first, (size_t)part.count * sizeof(float));
        return;
    }
    size_t count = (size_t)param->count;
    void *master = master_at(model->memory[LAYOUT_MASTER], layout, low.at);
    bool split = master && layout->dtype == DTYPE_BF16;
    NarrowContext narrow = {host, xmalloc(count * 2), split ? xmalloc(count * 2) : NULL, layout->dtype,
                            layout->request.precision == PRECISION_BF16_PURE};
    threads_for(param->count, 1 << 16, narrow_weights, &narrow);
    ops->upload(ops, weights, narrow.out + part.first, (size_t)part.count * 2);
    if (split)
        ops->upload(ops, master, narrow.low + low.first, (size_t)low.count * 2);
    else if (master)
        ops->upload(ops, master, host + low.first, (size_t)low.count * sizeof(float));
    free(narrow.out);
    free(narrow.low);
}

void model_write_param(Model *model, const LayoutParam *param, ModelState state, const float *host) {
    if (state == MODEL_WEIGHTS) {
        write_weights(model, param, host);
        model->fp8_fresh = false;
        return;
    }
    if (state_outer(state)) {
        LayoutPart own = layout_part(&model->layout, param, 0);
        memcpy(outer_pointer(model->outer, &model->layout, param, state), host + own.first,
               (size_t)own.count * sizeof(float));
        return;
    }
    LayoutPart part = layout_part(&model->layout, param, state == MODEL_GRADIENTS ? ZERO_GRADIENTS : ZERO_MOMENTS);
    model->ops->upload(model->ops, state_pointer(model, part.at, state), host + part.first,
                       (size_t)part.count * sizeof(float));
}

Status model_snapshot(Model *model, ModelSnapshot *snapshot, bool with_moments) {
    Ops *ops = model->ops;
    struct {
        LayoutKind kind;
        void **host;
    } block[] = {{LAYOUT_WEIGHTS, &snapshot->weights},
                 {LAYOUT_MASTER, &snapshot->master},
                 {LAYOUT_MOMENTS, (void **)&snapshot->moments}};
    for (int i = 0; i < (with_moments ? 3 : 2); i++) {
        size_t bytes = (size_t)model->layout.bytes[block[i].kind];
        if (!bytes) continue;
        if (!*block[i].host) *block[i].host = malloc(bytes);
        if (!*block[i].host) return status_runtime("no host memory for a checkpoint snapshot (%zu bytes)", bytes);
        ops->download(ops, *block[i].host, model->memory[block[i].kind], bytes);
    }
    if (!model->outer || !with_moments) return NULL;
    size_t bytes = 2 * (size_t)model->layout.shard_count * sizeof(float);
    if (!snapshot->outer) snapshot->outer = malloc(bytes);
    if (!snapshot->outer) return status_runtime("no host memory for a checkpoint snapshot (%zu bytes)", bytes);
    memcpy(snapshot->outer, model->outer, bytes);
    return NULL;
}

void model_snapshot_free(ModelSnapshot *snapshot) {
    free(snapshot->weights);
    free(snapshot->master);
    free(snapshot->moments);
    free(snapshot->outer);
    *snapshot = (ModelSnapshot){0};
}

void model_snapshot_read(const ModelSnapshot *snapshot, const Layout *layout, const LayoutParam *param,
                         ModelState state, int64_t first, int64_t count, float *out) {
    assert(state != MODEL_GRADIENTS && first + count <= param->count);
    LayoutPart part = layout_part(layout, param, ZERO_WEIGHTS), own = layout_part(layout, param, ZERO_MOMENTS);
    assert(first >= own.first && first + count <= own.first + own.count);
    int64_t at = own.at + first - own.first;
    if (state_outer(state)) {
        const float *from = outer_pointer(snapshot->outer, layout, param, state);
        memcpy(out, from + first - layout_part(layout, param, 0).first, (size_t)count * sizeof(float));
    } else if (state == MODEL_WEIGHTS) {
        const char *weights =
            (const char *)snapshot->weights + (size_t)(part.at + first - part.first) * dtype_size(layout->dtype);
        widen(layout, weights, master_at(snapshot->master, layout, at), count, out);
    } else {
        int64_t all = layout->zero >= ZERO_MOMENTS ? layout->shard_count : layout->element_count;
        memcpy(out, snapshot->moments + (state == MODEL_V ? all : 0) + at, (size_t)count * sizeof(float));
    }
}
