// What ranks said to each other in a step, beside the backward pass of the layers: for people, or as JSON.
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/bench_commands.h"

#include <stdlib.h>

json_t *bench_comm_json(const BenchExchange *comm) {
    double step = comm->end - comm->begin;
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "step_ms", 1e3 * step, "running_ms", 1e3 * comm->running,
                     "behind_backward_ms", 1e3 * comm->behind, "exposed_ms", 1e3 * comm->exposed, "exposed_share",
                     comm->exposed / step, "sent_mb", (double)comm->sent_bytes / 1e6);
}

static double since(const BenchExchange *comm, double seconds) { // milliseconds
    return 1e3 * (seconds - comm->begin);
}

static void write_json(const BenchExchange *comm, TextBuffer *text) {
    json_t *root = bench_comm_json(comm), *marks = json_array(), *events = json_array();
    for (int i = 0; i < comm->trace.count; i++) {
        const TraceMark *mark = &comm->trace.marks[i];
        json_t *item = json_pack("{s:s, s:f}", "what", mark->what, "ms", since(comm, mark->seconds));
        if (mark->layer >= 0) json_object_set_new(item, "layer", json_integer(mark->layer));
        json_array_append_new(marks, item);
    }
    for (int i = 0; i < comm->event_count; i++) {
        const CommEvent *event = &comm->events[i];
        json_array_append_new(events,
                              json_pack("{s:s, s:s, s:I, s:f, s:f, s:f}", "op", event->op, "group", event->group,
                                        "bytes", (json_int_t)event->bytes, "started_ms", since(comm, event->started),
                                        "begun_ms", since(comm, event->begun), "ended_ms", since(comm, event->ended)));
    }
    json_object_set_new(root, "marks", marks);
    json_object_set_new(root, "events", events);
    char *dump = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(7));
    text_buffer_format(text, "%s\n", dump);
    free(dump);
    json_decref(root);
}

// Operations by the time at which they began, marks in between.
static void write_table(const BenchExchange *comm, TextBuffer *text) {
    const Trace *trace = &comm->trace;
    text_buffer_format(text, "%10s %10s %10s %12s  %s\n", "started", "begun", "ended ms", "bytes", "what");
    for (int mark = 0, event = 0; mark < trace->count || event < comm->event_count;) {
        if (event == comm->event_count ||
            (mark < trace->count && trace->marks[mark].seconds <= comm->events[event].begun)) {
            const TraceMark *m = &trace->marks[mark++];
            text_buffer_format(text, "%10s %10s %10.3f %12s  -- %s", "", "", since(comm, m->seconds), "", m->what);
            text_buffer_format(text, m->layer >= 0 ? " %d --\n" : " --\n", m->layer);
        } else {
            const CommEvent *e = &comm->events[event++];
            text_buffer_format(text, "%10.3f %10.3f %10.3f %12lld  %s of %s\n", since(comm, e->started),
                               since(comm, e->begun), since(comm, e->ended), (long long)e->bytes, e->op, e->group);
        }
    }
    text_buffer_format(
        text,
        "step %.3f ms; operations ran %.3f ms, of which %.3f while the backward pass computed; the computation stood "
        "still for them for %.3f ms (%.1f %%)\n",
        since(comm, comm->end), 1e3 * comm->running, 1e3 * comm->behind, 1e3 * comm->exposed,
        100 * comm->exposed / (comm->end - comm->begin));
}

Status bench_write_events(const BenchExchange *comm, const char *path) {
    TextBuffer text = {0};
    if (text_ends_with(path, ".json"))
        write_json(comm, &text);
    else
        write_table(comm, &text);
    Status status = file_write_atomic(path, text.data, text.length);
    text_buffer_free(&text);
    return status;
}
