#include "model/trace.h"

#include "base/clock.h"

static void wait_for_device(Model *model) {
    status_free(model->ops->sync(model->ops)); // a failure comes again with the step's own
}

void trace_begin(Model *model, Trace *trace) {
    int layers = model->layout.layer_count;
    *trace = (Trace){.every = 1 + layers / (TRACE_MARKS - 8)};
    wait_for_device(model);
    model->ops->mark(model->ops, 0);
    wait_for_device(model);
    trace->begin = clock_seconds();
    model->trace = trace;
}

void trace_end(Model *model) {
    Trace *trace = model->trace;
    wait_for_device(model);
    for (int i = 0; i < trace->count; i++)
        trace->marks[i].seconds = trace->begin + 1e-3 * model->ops->mark_elapsed(model->ops, 0, i + 1);
    model->trace = NULL;
}

void trace_mark(Model *model, const char *what, int layer) {
    Trace *trace = model->trace;
    if (!trace || !model->last || trace->count == TRACE_MARKS) return;
    trace->marks[trace->count++] = (TraceMark){.what = what, .layer = layer};
    model->ops->mark(model->ops, trace->count);
}

void trace_backward(Model *model) {
    if (model->trace && !model->trace->count) trace_mark(model, "the backward pass begins", -1);
}

void trace_layer(Model *model, int layer) {
    if (model->trace && layer % model->trace->every == 0) trace_mark(model, "backward pass done: layer", layer);
}
