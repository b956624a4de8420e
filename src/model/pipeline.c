#include "model/pipeline.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/timeline.h"
#include "model/seam.h"
#include "model/transformer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { INPUTS = 3 }; // ids, targets, document starts
enum { DEVICE_MARKS = 64 };

// A pass as it is recorded: everything that makes it another one.
typedef struct PassKind {
    PipelinePass pass;
    int chunk, flight, half[2];
    bool accumulate, talks;
} PassKind;

typedef struct RecordedPass {
    PassKind kind;
    void *graph;
    int runs; // up to the recording
} RecordedPass;

struct Pipeline {
    int32_t *inputs;                       // host: [micro-batches, INPUTS, micro_batch * seq] of the step
    int inputs_room;                       // micro-batches
    int *owner;                            // [slots] micro_batch * chunks + chunk of the pass in flight; -1: free
    CommTicket sent[2][2][STAGE_MESSAGES]; // [PipelinePass][half]
    RecordedPass *recorded;
    int recorded_count;

    bool watching;
    double watch_start; // host's clock
    PipelineEvent *events;
    int64_t event_count, event_room;
};

Pipeline *pipeline_create(Model *model) {
    Pipeline *pipeline = xcalloc(1, sizeof *pipeline);
    pipeline->owner = xmalloc((size_t)model->layout.slots * sizeof *pipeline->owner);
    return pipeline;
}

void pipeline_forget(Model *model) {
    Pipeline *pipeline = model->pipeline;
    if (!pipeline) return;
    for (int pass = 0; pass < 2; pass++)
        for (model->half[pass] = 0; model->half[pass] < 2; model->half[pass]++)
            pipeline_wait_sent(model, (PipelinePass)pass);
    model->half[PIPELINE_FORWARD] = model->half[PIPELINE_BACKWARD] = 0;
    for (int i = 0; i < pipeline->recorded_count; i++)
        if (pipeline->recorded[i].graph) model->ops->graph_free(model->ops, pipeline->recorded[i].graph);
    free(pipeline->recorded);
    pipeline->recorded = NULL;
    pipeline->recorded_count = 0;
}

void pipeline_record_again(Model *model) {
    Pipeline *pipeline = model->pipeline;
    for (int i = 0; pipeline && i < pipeline->recorded_count; i++) {
        RecordedPass *pass = &pipeline->recorded[i];
        if (pass->graph) model->ops->graph_free(model->ops, pass->graph);
        pass->graph = NULL;
        pass->runs = pass->runs > 0;
    }
}

void pipeline_free(Model *model) {
    Pipeline *pipeline = model->pipeline;
    if (!pipeline) return;
    pipeline_forget(model);
    free(pipeline->inputs);
    free(pipeline->owner);
    free(pipeline->events);
    free(pipeline);
    model->pipeline = NULL;
}

// ---- messages -------------------------------------------------------------------------------------------------------

void pipeline_wait_sent(Model *model, PipelinePass pass) {
    CommTicket *sent = model->pipeline->sent[pass][model->half[pass]];
    for (int i = 0; i < STAGE_MESSAGES; i++)
        if (sent[i]) comm_wait(model->ranks.lane[pass][1], sent[i]);
    memset(sent, 0, STAGE_MESSAGES * sizeof *sent);
}

void pipeline_note_sent(Model *model, PipelinePass pass, int index, CommTicket ticket) {
    model->pipeline->sent[pass][model->half[pass]][index] = ticket;
}

// ---- inputs ---------------------------------------------------------------------------------------------------------

static size_t input_tokens(const Model *model) { // also those that other ranks have of the same sequences
    return (size_t)model->layout.request.micro_batch * (size_t)model->layout.request.seq;
}

static int32_t *micro_batch_inputs(const Model *model, int micro_batch) {
    return model->pipeline->inputs + (size_t)micro_batch * INPUTS * input_tokens(model);
}

static void keep_inputs(Model *model, int micro_batch, const int32_t *ids, const int32_t *targets,
                        const int32_t *doc_start) {
    Pipeline *pipeline = model->pipeline;
    size_t tokens = input_tokens(model);
    if (micro_batch >= pipeline->inputs_room) {
        pipeline->inputs_room = micro_batch + 1;
        pipeline->inputs =
            xrealloc(pipeline->inputs, (size_t)pipeline->inputs_room * INPUTS * tokens * sizeof *pipeline->inputs);
    }
    int32_t *kept = micro_batch_inputs(model, micro_batch);
    memcpy(kept, ids, tokens * sizeof *kept);
    memcpy(kept + tokens, targets, tokens * sizeof *kept);
    if (!model->layout.request.documents) return;
    assert(doc_start);
    memcpy(kept + 2 * tokens, doc_start, tokens * sizeof *kept);
}

// What the chunk needs of a micro-batch, into the pass's slot.
static void upload_inputs(Model *model, int micro_batch) {
    const LayoutChunk *chunk = &model->layout.chunks[model->chunk];
    const int32_t *kept = micro_batch_inputs(model, micro_batch);
    size_t tokens = input_tokens(model);
    if (chunk->embeds) seam_upload_tokens(model, CONST_IDS, kept);
    if (chunk->predicts) seam_upload_tokens(model, CONST_TARGETS, kept + tokens);
    if (model->layout.request.documents) seam_upload_tokens(model, CONST_DOC_START, kept + 2 * tokens);
}

// ---- one pass -------------------------------------------------------------------------------------------------------

static void chunk_forward(Model *model) {
    const LayoutChunk *chunk = &model->layout.chunks[model->chunk];
    seam_micro_step_begin(model);
    if (chunk->embeds) transformer_embed(model);
    for (int i = 0; i < chunk->count; i++)
        transformer_layer_forward(model, chunk->first + i);
}

// The head's own forward half is here: its logits do not wait for the backward pass.
static void chunk_backward(Model *model) {
    const LayoutChunk *chunk = &model->layout.chunks[model->chunk];
    seam_micro_step_begin(model);
    if (chunk->predicts) {
        transformer_head(model, true);
        transformer_head_backward(model);
    }
    for (int i = chunk->count - 1; i >= 0; i--)
        transformer_layer_backward(model, chunk->first + i);
    if (chunk->embeds) transformer_embed_backward(model);
    seam_pass_end(model);
}

static void run_chunk(Model *model, PipelinePass pass) {
    if (pass == PIPELINE_FORWARD) {
        chunk_forward(model);
        transformer_balance(model);
    } else {
        chunk_backward(model);
    }
}

static RecordedPass *recorded_pass(Model *model, PipelinePass pass) {
    Pipeline *pipeline = model->pipeline;
    PassKind kind = {.pass = pass, .chunk = model->chunk, .flight = model->flight};
    memcpy(kind.half, model->half, sizeof kind.half);
    kind.half[!pass] = 0; // the other kind's message is not this one's business
    if (pass == PIPELINE_BACKWARD) kind.accumulate = model->accumulate, kind.talks = seam_ends_gradients(model);
    for (int i = 0; i < pipeline->recorded_count; i++) {
        const PassKind *other = &pipeline->recorded[i].kind;
        if (other->pass == kind.pass && other->chunk == kind.chunk && other->flight == kind.flight &&
            memcmp(other->half, kind.half, sizeof kind.half) == 0 && other->accumulate == kind.accumulate &&
            other->talks == kind.talks)
            return &pipeline->recorded[i];
    }
    pipeline->recorded =
        xrealloc(pipeline->recorded, (size_t)(pipeline->recorded_count + 1) * sizeof *pipeline->recorded);
    RecordedPass *pass_of_kind = &pipeline->recorded[pipeline->recorded_count++];
    *pass_of_kind = (RecordedPass){.kind = kind};
    return pass_of_kind;
}

// Messages between stages stay outside of what is recorded: a graph ends when all in it has ended, and a send ends when
// the neighbour takes it.
static void run_pass(Model *model, PipelinePass pass) {
    Ops *ops = model->ops;
    if (model->direct || !seam_in_graph(model)) {
        run_chunk(model, pass);
        return;
    }
    RecordedPass *recorded = recorded_pass(model, pass);
    if (recorded->graph) {
        ops->graph_launch(ops, recorded->graph);
    } else if (recorded->runs++ != 1) {
        run_chunk(model, pass); // the first of its kind: libraries set themselves up and choose algorithms
    } else {
        ops->graph_begin(ops);
        run_chunk(model, pass);
        Status status = ops->graph_end(ops, &recorded->graph);
        status_free(status); // a failure is kept for sync(), which ends the run with it
        if (recorded->graph) ops->graph_launch(ops, recorded->graph);
    }
}

// ---- what ran when --------------------------------------------------------------------------------------------------

static bool by_marks(const Model *model) { // a GPU works behind the host's back
    return model->ops->kind == DEVICE_CUDA;
}

int64_t pipeline_watch_limit(const Model *model) {
    return by_marks(model) ? DEVICE_MARKS / 2 - 1 : INT64_MAX;
}

void pipeline_watch(Model *model) {
    Pipeline *pipeline = model->pipeline;
    pipeline->watching = true;
    pipeline->event_count = 0;
    if (by_marks(model)) model->ops->mark(model->ops, 0);
    pipeline->watch_start = clock_seconds();
}

static void watch_pass(Model *model, PipelineTask task, bool begins) {
    Pipeline *pipeline = model->pipeline;
    if (!pipeline->watching) return;
    if (begins && pipeline->event_count == pipeline->event_room) {
        pipeline->event_room = pipeline->event_room ? 2 * pipeline->event_room : 64;
        pipeline->events = xrealloc(pipeline->events, (size_t)pipeline->event_room * sizeof *pipeline->events);
    }
    pipeline->event_count += begins;
    PipelineEvent *event = &pipeline->events[pipeline->event_count - 1];
    event->task = task;
    if (by_marks(model))
        model->ops->mark(model->ops, (int)(2 * pipeline->event_count - begins));
    else
        *(begins ? &event->begin : &event->end) = clock_seconds() - pipeline->watch_start;
}

int64_t pipeline_events(Model *model, const PipelineEvent **events) {
    Pipeline *pipeline = model->pipeline;
    for (int64_t i = 0; i < pipeline->event_count && by_marks(model); i++) {
        pipeline->events[i].begin = model->ops->mark_elapsed(model->ops, 0, (int)(2 * i + 1)) / 1e3;
        pipeline->events[i].end = model->ops->mark_elapsed(model->ops, 0, (int)(2 * i + 2)) / 1e3;
    }
    *events = pipeline->events;
    return pipeline->event_count;
}

// ---- the step -------------------------------------------------------------------------------------------------------

// The slot of a pass: taken by its forward half, free again after its backward half.
static int slot_of(const Model *model, int owner) {
    const int *owners = model->pipeline->owner;
    int slot = 0;
    while (slot < model->layout.slots && owners[slot] != owner)
        slot++;
    assert(slot < model->layout.slots); // the layout has as many as the schedule needs
    return slot;
}

static void run_task(Model *model, PipelineTask task) {
    Pipeline *pipeline = model->pipeline;
    bool forward = task.pass == PIPELINE_FORWARD;
    int owner = task.micro_batch * model->layout.chunk_count + task.chunk;
    model->chunk = task.chunk;
    model->flight = slot_of(model, forward ? -1 : owner);
    pipeline->owner[model->flight] = forward ? owner : -1;
    model->accumulate = task.micro_batch > 0;
    model->last = task.micro_batch == model->step_micro_batches - 1;
    if (forward) upload_inputs(model, task.micro_batch);
    seam_stage_receive(model, task.pass, true);
    watch_pass(model, task, true);
    double begin = timeline_begin();
    run_pass(model, task.pass);
    timeline_end(begin, forward ? "forward pass" : "backward pass", task.micro_batch);
    watch_pass(model, task, false);
    seam_stage_send(model, task.pass, true);
}

static void run_step(Model *model) {
    const LayoutRequest *request = &model->layout.request;
    int pp = request->mesh.pp, chunks = model->layout.chunk_count, micro_batches = model->step_micro_batches;
    for (int i = 0; i < model->layout.slots; i++)
        model->pipeline->owner[i] = -1;
    model->chunk = model->flight = 0;
    Tensor total = model_const(model, CONST_EXPERT_TOTAL);
    if (tensor_present(total)) model->ops->zero(model->ops, total);
    transformer_zero_added_gradients(model);
    for (int64_t i = 0; i < pipeline_task_count(chunks, micro_batches); i++)
        run_task(model, pipeline_task(layout_schedule(request), pp, chunks, model->layout.place.pp, micro_batches, i));
    model->accumulate = false; // vectors were added up all along: their pieces are copied
    model->last = true;
    seam_micro_step_begin(model);
    seam_micro_step_end(model);
    seam_tied_embedding(model);
    model->pipeline->watching = false;
}

void pipeline_micro_step(Model *model, const int32_t *ids, const int32_t *targets, const int32_t *doc_start) {
    keep_inputs(model, model->micro_batches_run, ids, targets, doc_start);
    if (++model->micro_batches_run == model->step_micro_batches) run_step(model);
}

void pipeline_eval_step(Model *model, const int32_t *ids, const int32_t *targets, const int32_t *doc_start) {
    keep_inputs(model, 0, ids, targets, doc_start);
    model->flight = 0;
    for (model->chunk = 0; model->chunk < model->layout.chunk_count; model->chunk++) {
        upload_inputs(model, 0);
        seam_stage_receive(model, PIPELINE_FORWARD, false);
        chunk_forward(model);
        if (model->layout.chunks[model->chunk].predicts) transformer_head(model, false);
        seam_stage_send(model, PIPELINE_FORWARD, false);
    }
    model->chunk = 0;
}
