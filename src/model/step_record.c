#include "model/step_record.h"

#include "base/text.h"
#include "model/fp8.h"
#include "model/transformer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATED_CALLS = 12 };

typedef struct Recorder {
    StepRecord *record;
    Model model;
    Ops ops;
    int group; // first call of what is being recorded: the same call again counts there
    int capacity;
    double times; // of the layer that is being recorded
} Recorder;

static bool same_shape(Tensor a, Tensor b) {
    return tensor_present(a) == tensor_present(b) && a.rows == b.rows && a.cols == b.cols && a.stride == b.stride &&
           a.dtype == b.dtype && a.name == b.name;
}

bool step_call_is(const StepCall *a, const OpRecord *call, StepPass pass) {
    if (a->call.op != call->op || a->pass != pass || a->call.flag != call->flag) return false;
    bool attention = call->op == OP_ATTENTION_FORWARD || call->op == OP_ATTENTION_BACKWARD;
    if (attention && a->call.attention.full != call->attention.full) return false;
    for (int i = 0; i < OP_RECORD_TENSORS; i++)
        if (!same_shape(a->call.tensor[i], call->tensor[i])) return false;
    return call->op != OP_ADAMW;
}

static void note_call(void *context, const OpRecord *call) {
    Recorder *recorder = context;
    StepRecord *record = recorder->record;
    op_check_or_abort(call);
    int nearest = record->count - REPEATED_CALLS; // chunks of the LM head repeat a few calls
    for (int i = nearest > recorder->group ? nearest : recorder->group; i < record->count; i++) {
        if (step_call_is(&record->calls[i], call, recorder->model.pass)) {
            record->calls[i].times += recorder->times;
            return;
        }
    }
    if (record->count == recorder->capacity) {
        recorder->capacity = recorder->capacity ? 2 * recorder->capacity : 64;
        record->calls = xrealloc(record->calls, (size_t)recorder->capacity * sizeof *record->calls);
    }
    record->calls[record->count++] = (StepCall){*call, recorder->model.pass, recorder->times};
}

static void begin_group(Recorder *recorder, double times) {
    recorder->group = recorder->record->count;
    recorder->times = times;
}

// The first layer of a kind stands for all of them.
static int first_of_kind(const Layout *layout, bool sparse, double *count) {
    int first = -1;
    *count = 0;
    for (int i = 0; i < layout->layer_count; i++) {
        int layer = layout_layer(layout, i);
        if (layout->request.config.sparse[layer] != sparse) continue;
        if (first < 0) first = layer;
        ++*count;
    }
    return first;
}

static void record_layers(Recorder *recorder, void (*layer_pass)(Model *, int)) {
    for (int sparse = 0; sparse < 2; sparse++) {
        double count;
        int layer = first_of_kind(&recorder->model.layout, sparse, &count);
        if (layer < 0) continue;
        begin_group(recorder, count);
        layer_pass(&recorder->model, layer);
    }
}

static void record_step(Recorder *recorder) {
    Model *model = &recorder->model;
    int stage = model->layout.place.pp;
    bool first_stage = stage == 0, last_stage = stage == model->layout.request.mesh.pp - 1;
    begin_group(recorder, 1);
    transformer_zero_added_gradients(model);
    if (first_stage) transformer_embed(model);
    record_layers(recorder, transformer_layer_forward);
    begin_group(recorder, 1);
    if (last_stage) transformer_head(model, true);
    for (model->chunk = 0; model->chunk < model->layout.chunk_count; model->chunk++)
        transformer_balance(model);
    model->chunk = 0;
    if (last_stage) transformer_head_backward(model);
    record_layers(recorder, transformer_layer_backward);
    begin_group(recorder, 1);
    if (first_stage) transformer_embed_backward(model);
    model_optimizer_step(model, &(OptimizerStep){.step = 1,
                                                 .lr = 1e-4f,
                                                 .beta1 = 0.9f,
                                                 .beta2 = 0.95f,
                                                 .eps = 1e-8f,
                                                 .weight_decay = 0.1f,
                                                 .max_norm = 1,
                                                 .loss_limit = INFINITY,
                                                 .norm_limit = INFINITY});
    fp8_step(model); // the new weights in FP8
}

void step_record_of_model(StepRecord *record, const Model *model) {
    *record = (StepRecord){0};
    Recorder recorder = {.record = record, .model = *model};
    recorder.model.ops = &recorder.ops;
    recorder.model.accumulate = false;
    recorder.model.fp8_scaled = true;
    ops_recorder(&recorder.ops, note_call, &recorder);
    record_step(&recorder);
    ops_stop_observing(&recorder.ops);
}

void step_record_make(StepRecord *record, const Layout *layout) {
    Model model = {.layout = *layout, .tokens = layout->tokens};
    for (int kind = 0; kind < LAYOUT_KIND_COUNT;
         kind++) // addresses that nothing has: a record only needs them to differ
        if (layout->bytes[kind]) model.memory[kind] = (void *)((uintptr_t)(kind + 1) << 48);
    step_record_of_model(record, &model);
}

void step_record_free(StepRecord *record) {
    free(record->calls);
    *record = (StepRecord){0};
}
