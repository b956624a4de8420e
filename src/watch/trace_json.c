#include "watch/trace_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES_MOST = 100 }; // of a track

static int64_t nanoseconds(double seconds, double origin) {
    return llround(1e9 * (seconds - origin));
}

void trace_add_text(TextBuffer *out, const char *text) {
    text_buffer_add(out, "\"", 1);
    for (const char *at = text; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == '"' || c == '\\')
            text_buffer_format(out, "\\%c", c);
        else
            text_buffer_add(out, c < 0x20 || c > 0x7e ? "?" : at, 1);
    }
    text_buffer_add(out, "\"", 1);
}

// A parent begins no later than its children and ends no earlier: it comes first.
static int event_order(const void *a, const void *b) {
    const TraceEvent *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end;
}

// The first lane of the event's track that is free; the last where all are taken. A kernel begins while the last blocks
// of the one before it end: what such a pair shares is the earlier one's, so that they stay in one lane.
static int lane_take(double *lane_ends, TraceEvent *event) {
    double shared = fmin(5e-6, (event->end - event->begin) / 4);
    int lane = 0;
    while (lane < LANES_MOST - 1 && lane_ends[lane] > event->begin + shared)
        lane++;
    if (lane_ends[lane] > event->begin && lane_ends[lane] <= event->begin + shared) event->begin = lane_ends[lane];
    lane_ends[lane] = event->end;
    return lane;
}

static void name_line(TextBuffer *out, const char *what, int process, int thread, const char *name) {
    text_buffer_format(out, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":", process, thread,
                       what);
    trace_add_text(out, name);
    text_buffer_format(out, "}}\n");
}

static void time_text(TextBuffer *out, const char *key, int64_t ns) {
    text_buffer_format(out, "\"%s\":%lld.%03lld", key, (long long)(ns / 1000), (long long)(ns % 1000));
}

static void event_line(TextBuffer *out, const TraceEvent *event, int process, int thread, double origin) {
    int64_t begin = nanoseconds(event->begin, origin), end = nanoseconds(event->end, origin);
    if (begin < 0) begin = 0; // clocks of ranks agree to within what a message takes
    if (end < begin) end = begin;
    text_buffer_format(out, "{");
    time_text(out, "ts", begin);
    text_buffer_format(out, ",\"ph\":\"%c\",\"pid\":%d,\"tid\":%d,\"name\":", event->track < 0 ? 'C' : 'X', process,
                       thread);
    trace_add_text(out, event->name);
    if (event->number > 0) { // inside of the quotes
        out->length--;
        text_buffer_format(out, " %lld\"", (long long)(event->number - 1));
    }
    if (event->track < 0) {
        text_buffer_format(out, ",\"args\":{\"value\":%.6g}}\n", isfinite(event->value) ? event->value : 0);
        return;
    }
    text_buffer_format(out, ",\"cat\":");
    trace_add_text(out, event->category);
    text_buffer_format(out, ",");
    time_text(out, "dur", end - begin);
    if (event->args) text_buffer_format(out, ",\"args\":{%s}", event->args);
    text_buffer_format(out, "}\n");
}

void trace_lines(TraceEvent *events, int64_t count, const TraceTrack *tracks, int track_count, int process,
                 const char *process_name, double origin, TextBuffer *out) {
    double *lane_ends = xmalloc((size_t)(track_count + 1) * LANES_MOST * sizeof *lane_ends);
    int *lanes = xcalloc((size_t)track_count + 1, sizeof *lanes),
        *lane_of = xcalloc((size_t)count + 1, sizeof *lane_of);
    for (int i = 0; i < track_count * LANES_MOST; i++)
        lane_ends[i] = -INFINITY;
    qsort(events, (size_t)count, sizeof *events, event_order);
    for (int64_t i = 0; i < count; i++) {
        int track = events[i].track;
        if (track < 0) continue;
        if (tracks[track].lanes) lane_of[i] = lane_take(lane_ends + (size_t)track * LANES_MOST, &events[i]);
        if (lane_of[i] >= lanes[track]) lanes[track] = lane_of[i] + 1;
    }
    name_line(out, "process_name", process, 0, process_name);
    for (int track = 0; track < track_count; track++)
        for (int lane = 0; lane < lanes[track]; lane++)
            name_line(out, "thread_name", process, (track + 1) * LANES_MOST + lane, tracks[track].name);
    for (int64_t i = 0; i < count; i++)
        event_line(out, &events[i], process, events[i].track < 0 ? 0 : (events[i].track + 1) * LANES_MOST + lane_of[i],
                   origin);
    free(lane_ends);
    free(lanes);
    free(lane_of);
}

// ---- joining --------------------------------------------------------------------------------------------------------

typedef struct Line {
    const char *text;
    size_t length;
    double time; // of lines without one: before all
    int64_t place;
} Line;

static int line_order(const void *a, const void *b) {
    const Line *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

void trace_join(const char *const *lines, int count, TextBuffer *out) {
    static const char time_key[] = "{\"ts\":";
    Line *all = NULL;
    int64_t line_count = 0, room = 0;
    for (int i = 0; i < count; i++)
        for (const char *at = lines[i]; *at;) {
            size_t length = strcspn(at, "\n");
            if (line_count == room) {
                room = room ? 2 * room : 1024;
                all = xrealloc(all, (size_t)room * sizeof *all);
            }
            bool timed = text_starts_with(at, time_key);
            all[line_count] = (Line){at, length, timed ? strtod(at + sizeof time_key - 1, NULL) : -1, line_count};
            line_count++;
            at += length + (at[length] == '\n');
        }
    if (line_count) qsort(all, (size_t)line_count, sizeof *all, line_order);
    text_buffer_format(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (int64_t i = 0; i < line_count; i++) {
        text_buffer_add(out, all[i].text, all[i].length);
        text_buffer_add(out, i + 1 < line_count ? ",\n" : "\n", i + 1 < line_count ? 2 : 1);
    }
    text_buffer_format(out, "]}\n");
    free(all);
}
