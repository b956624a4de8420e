// The files of a profile: the timeline of every rank, joined by the first, and the summary.
#include "base/file.h"
#include "base/log.h"
#include "base/stats.h"
#include "train/loss_facts.h"
#include "train/profiler_internal.h"
#include "watch/trace_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- events of this rank --------------------------------------------------------------------------------------------

typedef struct Events {
    TraceEvent *events;
    int64_t count, room;
    TraceTrack *tracks;
    int *numbers; // of the tracks: thread or stream
    int track_count;
} Events;

static int track_of(Events *all, const char *name, int number, bool lanes) {
    for (int i = 0; i < all->track_count; i++)
        if (all->numbers[i] == number && all->tracks[i].lanes == lanes && text_starts_with(all->tracks[i].name, name))
            return i;
    size_t count = (size_t)all->track_count + 1;
    all->tracks = xrealloc(all->tracks, count * sizeof *all->tracks);
    all->numbers = xrealloc(all->numbers, count * sizeof *all->numbers);
    all->tracks[all->track_count] =
        (TraceTrack){number < 0 ? text_copy(name) : text_format("%s %d", name, number), lanes};
    all->numbers[all->track_count] = number;
    return all->track_count++;
}

static void event_add(Events *all, TraceEvent event) {
    if (all->count == all->room) {
        all->room = all->room ? 2 * all->room : 4096;
        all->events = xrealloc(all->events, (size_t)all->room * sizeof *all->events);
    }
    all->events[all->count++] = event;
}

static void events_free(Events *all) {
    for (int64_t i = 0; i < all->count; i++)
        free(all->events[i].args);
    for (int i = 0; i < all->track_count; i++)
        free(all->tracks[i].name);
    free(all->events);
    free(all->tracks);
    free(all->numbers);
}

// What is known of a call of an op. kernel, may be NULL: that ran for it.
static char *call_args(const Profiler *profiler, const ProfilerCall *call, const char *kernel) {
    const ProfilerKind *kind = &profiler->kinds[call->kind];
    TextBuffer out = {0};
    text_buffer_format(&out, "\"op\":\"%s\",\"pass\":\"%s\"", op_name(kind->call.call.op),
                       step_pass_name(kind->call.pass));
    if (call->layer >= 0) text_buffer_format(&out, ",\"layer\":%d", call->layer);
    if (kind->floor > 0) text_buffer_format(&out, ",\"floor_us\":%.3f", 1e6 * kind->floor);
    if (kernel) {
        text_buffer_format(&out, ",\"kernel\":");
        trace_add_text(&out, kernel);
    }
    return out.data;
}

// A range of a thread, or a counter.
static void add_range(Events *all, const TimelineEvent *event) {
    static const char *const categories[] = {"work", "data", "communication"};
    if (event->kind == TIMELINE_COUNTER) {
        event_add(all, (TraceEvent){-1, event->name, NULL, NULL, event->begin, event->end, event->value});
        return;
    }
    TextBuffer args = {0};
    if (event->detail) {
        text_buffer_format(&args, "\"group\":");
        trace_add_text(&args, event->detail);
    }
    int track = track_of(all, event->of ? event->of : "thread", event->thread, false);
    event_add(all, (TraceEvent){track, event->name, categories[event->kind], args.data, event->begin, event->end, 0,
                                event->number + 1});
}

static void add_steps(Events *all, const Profiler *profiler) {
    int track = track_of(all, "steps", profiler->thread, false);
    for (int i = 0; i < profiler->step_count; i++)
        event_add(all, (TraceEvent){track, "step", "step", NULL, profiler->steps[i].begin, profiler->steps[i].end, 0,
                                    profiler->steps[i].step + 1});
    for (int64_t i = 0; i < profiler->call_count; i++) {
        const ProfilerCall *call = &profiler->calls[i];
        const ProfilerKind *kind = &profiler->kinds[call->kind];
        if (!(call->end > call->begin) || call->begin < profiler->steps[0].begin) continue; // of the warm-up
        event_add(all, (TraceEvent){track, kind->name, op_category_name(op_category(kind->call.call.op)),
                                    call_args(profiler, call, NULL), call->begin, call->end, 0});
    }
    for (int i = 0; i < profiler->exchange_count; i++) {
        const CommEvent *exchange = &profiler->exchanges[i];
        TextBuffer args = {0};
        text_buffer_format(&args, "\"bytes\":%lld,\"group\":", (long long)exchange->bytes);
        trace_add_text(&args, exchange->group);
        event_add(all, (TraceEvent){track_of(all, "communication", -1, true), exchange->op, "communication", args.data,
                                    exchange->begun, exchange->ended, 0});
    }
}

static void add_activities(Events *all, const Profiler *profiler, const ProfilerRecord *record) {
    for (int64_t i = 0; i < record->activity_count; i++) {
        const DeviceActivity *activity = &record->activities[i];
        const ProfilerCall *call = profiler_call_of(profiler, activity);
        if (activity->kind == DEVICE_API) {
            int track = track_of(all, "CUDA calls of thread", (int)activity->thread, true);
            event_add(all, (TraceEvent){track, activity->name, "call", NULL, activity->begin, activity->end, 0});
            continue;
        }
        const char *category = call ? op_category_name(op_category(profiler->kinds[call->kind].call.call.op))
                               : profiler_is_exchange(activity)  ? "communication"
                               : activity->kind == DEVICE_KERNEL ? "kernel"
                                                                 : op_category_name(CATEGORY_COPY);
        char *args = call                  ? call_args(profiler, call, activity->name)
                     : activity->bytes > 0 ? text_format("\"bytes\":%lld", (long long)activity->bytes)
                                           : NULL;
        int track = track_of(all, "GPU, stream", (int)activity->stream, true);
        event_add(all, (TraceEvent){track, call ? profiler->kinds[call->kind].name : activity->name, category, args,
                                    activity->begin, activity->end, 0});
    }
}

static int launch_order(const void *a, const void *b) {
    const DeviceActivity *x = a, *y = b;
    if (x->launched != y->launched) return x->launched < y->launched ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

// From the first to the last of what one launch of a graph ran.
static void add_graphs(Events *all, const ProfilerRecord *record) {
    DeviceActivity *of_graphs = xmalloc((size_t)(record->activity_count + 1) * sizeof *of_graphs);
    int64_t count = 0;
    for (int64_t i = 0; i < record->activity_count; i++)
        if (record->activities[i].graph) of_graphs[count++] = record->activities[i];
    if (count) qsort(of_graphs, (size_t)count, sizeof *of_graphs, launch_order);
    for (int64_t i = 0, next; i < count; i = next) {
        double end = of_graphs[i].end;
        for (next = i + 1; next < count && of_graphs[next].launched == of_graphs[i].launched; next++)
            end = fmax(end, of_graphs[next].end);
        event_add(all, (TraceEvent){track_of(all, "GPU, graphs", -1, true), "graph", "graph",
                                    text_format("\"graph\":%u", of_graphs[i].graph), of_graphs[i].begin, end, 0});
    }
    free(of_graphs);
}

// ---- one clock for all ranks ----------------------------------------------------------------------------------------

// What this rank's clock is ahead of rank 0's: of hosts that leave a barrier together; the median of several.
static double clock_ahead(World *world) {
    enum { ROUNDS = 9 };
    if (!world || world->size == 1) return 0;
    double ahead[ROUNDS], *all = xmalloc((size_t)world->size * sizeof *all);
    for (int i = 0; i < ROUNDS; i++) {
        world_barrier(world);
        double now = clock_seconds();
        world_gather_doubles(world, &now, 1, all);
        ahead[i] = now - all[0];
    }
    free(all);
    return strcmp(world->hosts[world->rank], world->hosts[0]) == 0 ? 0 : double_median(ahead, ROUNDS);
}

// The earliest event of all ranks, on rank 0's clock: where the file's time begins.
static double first_time(World *world, const Events *all, double ahead) {
    double first = INFINITY;
    for (int64_t i = 0; i < all->count; i++)
        first = fmin(first, all->events[i].begin - ahead);
    if (!world || world->size == 1) return first;
    double *of_ranks = xmalloc((size_t)world->size * sizeof *of_ranks);
    world_gather_doubles(world, &first, 1, of_ranks);
    for (int i = 0; i < world->size; i++)
        first = fmin(first, of_ranks[i]);
    free(of_ranks);
    return first;
}

// ---- files ----------------------------------------------------------------------------------------------------------

static char *part_path(const char *directory, int rank) {
    char *name = text_format(".rank-%d.part", rank), *path = path_join(directory, name);
    free(name);
    return path;
}

// The other ranks' lines, on a file system that all of them see; a part that is not to be read is left out.
static Status join_parts(const Profiler *profiler, const char *own, const char *path) {
    const World *world = profiler->options.world;
    int count = world ? world->size : 1;
    char **lines = xcalloc((size_t)count, sizeof *lines);
    const char **known = xcalloc((size_t)count, sizeof *known);
    TextBuffer out = {0};
    known[0] = own;
    for (int rank = 1; rank < count; rank++) {
        size_t size;
        char *part = part_path(profiler->options.directory, rank);
        Status status = file_read(&lines[rank], &size, part);
        if (status) log_warn("the profile is without rank %d: %s", rank, status_message(status));
        status_free(status);
        known[rank] = lines[rank] ? lines[rank] : "";
        remove(part);
        free(part);
    }
    trace_join(known, count, &out);
    Status status = file_write_atomic(path, out.data, out.length);
    for (int rank = 1; rank < count; rank++)
        free(lines[rank]);
    free(lines);
    free(known);
    text_buffer_free(&out);
    return status;
}

static Status write_timeline(const Profiler *profiler, Events *all, const char *path) {
    const ProfilerOptions *options = &profiler->options;
    World *world = options->world;
    int rank = world ? world->rank : 0;
    double ahead = clock_ahead(world), origin = first_time(world, all, ahead);
    TextBuffer lines = {0};
    char *process = world && world->size > 1 ? text_format("rank %d on %s", rank, world->hosts[rank])
                                             : text_format("hearth on %s", options->model->ops->device);
    trace_lines(all->events, all->count, all->tracks, all->track_count, rank, process, origin + ahead, &lines);
    free(process);
    Status status = rank == 0 ? dir_make(options->directory) : NULL;
    if (world) status = world_share(world, status);
    if (!status && rank > 0) {
        char *part = part_path(options->directory, rank);
        status = file_write_atomic(part, lines.data, lines.length);
        if (status) log_warn("this rank is not in the profile: %s", status_message(status));
        status_free(status);
        status = NULL;
        free(part);
    }
    if (!status && world) world_barrier(world); // the parts are there
    if (!status && rank == 0) status = join_parts(profiler, lines.data, path);
    text_buffer_free(&lines);
    return status;
}

// The parts of every rank, for the summary; NULL but on rank 0 of several.
static json_t *parts_of_ranks(World *world, const ProfileSummary *summary) {
    if (!world || world->size == 1) return NULL;
    enum { FIGURES = PROFILE_PART_COUNT + 1 };
    double mine[FIGURES] = {summary->step_seconds}, *all = xmalloc((size_t)world->size * sizeof mine);
    memcpy(mine + 1, summary->part, sizeof summary->part);
    world_gather_doubles(world, mine, FIGURES, all);
    json_t *list = world->rank == 0 ? json_array() : NULL;
    for (int rank = 0; list && rank < world->size; rank++) {
        json_t *parts = json_pack("{s:i,s:f}", "rank", rank, "step_seconds", all[rank * FIGURES]);
        for (int i = 0; i < PROFILE_PART_COUNT; i++)
            json_object_set_new(parts, profile_part_name((ProfilePart)i), json_real(all[rank * FIGURES + 1 + i]));
        json_array_append_new(list, parts);
    }
    free(all);
    return list;
}

static Status write_summary(const Profiler *profiler, const ProfileSummary *summary, const LossFacts *facts,
                            json_t *of_ranks) {
    json_t *root = profile_json(summary, facts);
    if (of_ranks) json_object_set(root, "rank_parts", of_ranks);
    char *path = path_join(profiler->options.directory, "summary.json");
    Status status = json_write_file(root, path);
    free(path);
    json_decref(root);
    return status;
}

static char *say_all(const ProfileSummary *summary, const LossFacts *facts, const char *path, int64_t lost,
                     Status failure) {
    TextBuffer out = {0};
    profile_text(summary, facts, &out);
    if (lost > 0) text_buffer_format(&out, "  %lld events had no place and are missing\n", (long long)lost);
    if (failure)
        text_buffer_format(&out, "  the profile is not kept: %s", status_text(failure));
    else
        text_buffer_format(&out, "  timeline: %s (open it in Perfetto or chrome://tracing)", path);
    return out.data;
}

void profiler_write(Profiler *profiler, ProfilerRecord *record) {
    World *world = profiler->options.world;
    bool first = !world || world->rank == 0;
    ProfileSummary summary;
    Events all = {0};
    profiler_price(profiler);
    profiler_summarize(profiler, record, &summary);
    snprintf(summary.trace, sizeof summary.trace, "step-%lld.json", (long long)summary.first_step);
    add_steps(&all, profiler);
    for (int64_t i = 0; i < record->event_count; i++)
        add_range(&all, &record->events[i]);
    add_activities(&all, profiler, record);
    add_graphs(&all, record);
    char *path = path_join(profiler->options.directory, summary.trace);
    Status status = write_timeline(profiler, &all, path);
    json_t *of_ranks = parts_of_ranks(world, &summary);
    LossFacts facts = loss_facts(first ? profiler->options.prediction : NULL);
    if (first && !status) status = write_summary(profiler, &summary, &facts, of_ranks);
    if (first) profiler->said = say_all(&summary, &facts, path, record->lost, status);
    status_free(status);
    json_decref(of_ranks);
    events_free(&all);
    free(path);
}
