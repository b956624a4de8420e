// One thread, and a list of events for each run that is watched.
#include "serve/live.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "base/threads.h"
#include "base/utf8.h"
#include "watch/metrics_table.h"
#include "watch/run_state.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
    LOOK_MS = 400,
    BEAT_SECONDS = 15,     // something is sent so often, so that a client that is gone is noticed
    READ_MOST = 1 << 20,   // of a file, in one look
    EVENTS_MOST = 1 << 20, // bytes kept for clients that are behind
    LINE_SHOWN = 1 << 12,  // bytes of a line of the log that is longer than what is read at once
};
#define LINE_CUT "[a longer line, cut here]"

typedef struct LiveMark { // of an event with lines
    int64_t offset;       // of metrics.jsonl, where it ends
    uint64_t at;          // where the event begins in the stream
} LiveMark;

typedef struct LiveRun {
    char *path, *metrics, *alarms, *log;
    TextBuffer events;
    uint64_t begin; // of the stream, where `events` begins
    LiveMark *marks;
    size_t mark_count;
    int64_t first_offset, last_offset; // of metrics.jsonl: clients that have less, or more, must read the whole again
    bool gone;
    int readers; // and one more while it is looked at
    struct LiveRun *next;
    // Of the thread that looks alone, without the lock: a disk that does not answer holds up no client.
    TextBuffer fresh; // events of this look
    bool fresh_reset, fresh_gone;
    size_t fresh_lines; // where the event with lines begins in `fresh`; SIZE_MAX: there is none
    int64_t metrics_at, alarms_at, log_at;
    bool log_in_line; // log_at is inside of a line whose beginning was shown, and whose rest will not be
    ino_t inode;
    RunState state;
    double beat;
} LiveRun;

struct LiveReader {
    Live *live;
    LiveRun *run;
    uint64_t at;
    TextBuffer first; // for this reader alone, before the stream
    size_t first_read;
    bool sleeping;
    void *client;
    LiveReader *next;
};

struct Live {
    LiveClients clients;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ending;
    LiveRun *runs;
    LiveReader *readers;
};

// ---- events ---------------------------------------------------------------------------------------------------------

static void event_add(TextBuffer *events, const char *name, int64_t id, json_t *data) { // takes data
    char *text = json_dumps(data, JSON_COMPACT);
    if (id >= 0) text_buffer_format(events, "id: %lld\n", (long long)id);
    text_buffer_format(events, "event: %s\ndata: %s\n\n", name, text ? text : "null");
    free(text);
    json_decref(data);
}

// The older half goes, up to the beginning of an event with lines.
static void events_trim(LiveRun *run) {
    if (run->events.length <= EVENTS_MOST) return;
    size_t first = 0;
    uint64_t least = run->begin + run->events.length - EVENTS_MOST / 2;
    while (first < run->mark_count && run->marks[first].at < least)
        first++;
    uint64_t cut = first < run->mark_count ? run->marks[first].at : run->begin + run->events.length;
    run->first_offset = first ? run->marks[first - 1].offset : run->first_offset;
    size_t bytes = (size_t)(cut - run->begin);
    memmove(run->events.data, run->events.data + bytes, run->events.length - bytes + 1);
    run->events.length -= bytes;
    run->begin = cut;
    memmove(run->marks, run->marks + first, (run->mark_count - first) * sizeof *run->marks);
    run->mark_count -= first;
}

// ---- looking --------------------------------------------------------------------------------------------------------

static int64_t size_of(const char *path) {
    int64_t size = 0;
    status_free(file_size(&size, path));
    return size;
}

// Figures that have a curve, and what they are drawn over.
static json_t *line_slim(const json_t *line) {
    MetricsLine kind = metrics_line_kind(line);
    if (kind == METRICS_NO_LINE) return NULL;
    json_t *slim = json_object();
    for (int i = 0; i < metrics_field_count(); i++) {
        const MetricsField *field = metrics_field(i);
        json_t *value = json_object_get(line, field->key);
        if (field->line == kind && (json_is_number(value) || json_is_boolean(value)))
            json_object_set(slim, field->key, value);
    }
    return slim;
}

static void take_line(const json_t *line, void *context) {
    json_t *slim = line_slim(line);
    if (slim) json_array_append_new(context, slim);
}

// Steps beyond what anybody could see are left out evenly; validations and the last step stay.
static json_t *lines_thin(json_t *lines) { // takes it
    size_t count = json_array_size(lines), stride = (count + LIVE_LINES_AT_ONCE - 1) / LIVE_LINES_AT_ONCE;
    if (stride <= 1) return lines;
    json_t *thin = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *line = json_array_get(lines, i);
        if (i % stride == 0 || i == count - 1 || json_object_get(line, "val_loss")) json_array_append(thin, line);
    }
    json_decref(lines);
    return thin;
}

// From *at on to the last line end. What is so long that no line of hearth's ends in it is passed over.
static void read_lines(const char *path, int64_t *at, int64_t size, void (*take)(const json_t *line, void *context),
                       void *context) {
    int64_t before = *at;
    if (size <= before) return;
    status_free(metrics_read_from(path, at, READ_MOST, take, context));
    if (*at == before && size - before >= READ_MOST) *at += READ_MOST;
}

static void look_at_metrics(LiveRun *run) {
    struct stat found;
    if (stat(run->metrics, &found) != 0) return; // not begun yet
    bool other = run->inode && found.st_ino != run->inode;
    if (other || found.st_size < run->metrics_at) { // it was cut back, for a run that goes on
        run->metrics_at = found.st_size;
        run->fresh_reset = true;
        event_add(&run->fresh, "reset", -1, json_object());
    }
    run->inode = found.st_ino;
    if (found.st_size == run->metrics_at) return;
    json_t *lines = json_array();
    read_lines(run->metrics, &run->metrics_at, found.st_size, take_line, lines);
    if (json_array_size(lines)) {
        run->fresh_lines = run->fresh.length;
        event_add(&run->fresh, "lines", run->metrics_at, lines_thin(lines));
    } else {
        json_decref(lines);
    }
}

static void take_alarm(const json_t *line, void *context) {
    LiveRun *run = context;
    json_t *alarm = json_copy((json_t *)line);
    json_object_set_new(alarm, "at", json_integer(run->alarms_at));
    event_add(&run->fresh, "alarm", -1, alarm);
}

static void look_at_log(LiveRun *run) {
    char *text = NULL;
    size_t size = 0, begin = 0;
    struct stat found;
    if (stat(run->log, &found) != 0 || found.st_size <= run->log_at) return;
    status_free(file_read_from(&text, &size, run->log, run->log_at, READ_MOST));
    if (run->log_in_line && size) {
        const char *end = memchr(text, '\n', size);
        begin = end ? (size_t)(end - text) + 1 : size;
        run->log_in_line = !end;
    }
    size_t end = size;
    TextBuffer whole = {0};
    while (end > begin && text[end - 1] != '\n')
        end--; // what follows the last line end is not a line yet
    if (end > begin) {
        utf8_repair(&whole, text + begin, end - begin);
    } else if (!begin && size == READ_MOST) {
        utf8_repair(&whole, text, LINE_SHOWN);
        text_buffer_format(&whole, "%s\n", " " LINE_CUT);
        run->log_in_line = true;
        end = size;
    }
    run->log_at += (int64_t)end;
    if (whole.length)
        event_add(&run->fresh, "log", -1,
                  json_pack("{s:I,s:s%}", "at", (json_int_t)run->log_at, "text", whole.data, whole.length));
    text_buffer_free(&whole);
    free(text);
}

static void look_at_state(LiveRun *run, bool first) {
    RunState state = run->state;
    if (run_is_locked(run->path)) {
        state = RUN_RUNNING;
    } else if (first || run->state == RUN_RUNNING) {
        char *message;
        state = run_state_read(run->path, 0, &message);
        free(message);
    }
    if (!first && state != run->state)
        event_add(&run->fresh, "state", -1, json_pack("{s:s}", "state", run_state_name(state)));
    run->state = state;
}

static void look(LiveRun *run) {
    double now = clock_seconds();
    run->fresh.length = 0;
    run->fresh_reset = false;
    run->fresh_lines = SIZE_MAX;
    if (!file_is_directory(run->path)) {
        run->fresh_gone = true;
        event_add(&run->fresh, "gone", -1, json_object());
        return;
    }
    look_at_metrics(run);
    read_lines(run->alarms, &run->alarms_at, size_of(run->alarms), take_alarm, run);
    look_at_log(run);
    look_at_state(run, false);
    if (!run->fresh.length && now - run->beat >= BEAT_SECONDS) text_buffer_format(&run->fresh, ": beat\n\n");
    if (run->fresh.length) run->beat = now;
}

// What a look found becomes part of the stream.
static void publish(LiveRun *run) {
    if (run->fresh_reset) {
        run->mark_count = 0;
        run->first_offset = run->metrics_at;
    }
    if (run->fresh_lines != SIZE_MAX) {
        run->marks = xrealloc(run->marks, (run->mark_count + 1) * sizeof *run->marks);
        run->marks[run->mark_count++] = (LiveMark){run->metrics_at, run->begin + run->events.length + run->fresh_lines};
    }
    if (run->fresh.length) text_buffer_add(&run->events, run->fresh.data, run->fresh.length);
    run->last_offset = run->metrics_at;
    run->gone = run->fresh_gone;
    events_trim(run);
}

static void wake_readers(Live *live) {
    for (LiveReader *reader = live->readers; reader; reader = reader->next) {
        const LiveRun *run = reader->run;
        if (!reader->sleeping) continue;
        if (!live->ending && !run->gone && reader->at == run->begin + run->events.length) continue;
        reader->sleeping = false;
        live->clients.wake(reader->client);
    }
}

static void run_free(LiveRun *run) {
    text_buffer_free(&run->events);
    text_buffer_free(&run->fresh);
    free(run->marks);
    free(run->path), free(run->metrics), free(run->alarms), free(run->log);
    free(run);
}

static void run_leave(Live *live, LiveRun *run) {
    if (--run->readers) return;
    LiveRun **at = &live->runs;
    while (*at != run)
        at = &(*at)->next;
    *at = run->next;
    run_free(run);
}

// Under the lock, which it gives up while it looks.
static void look_at_all(Live *live) {
    for (LiveRun *run = live->runs, *next; run && !live->ending; run = next) {
        run->readers++;
        pthread_mutex_unlock(&live->lock);
        if (!run->fresh_gone) look(run);
        pthread_mutex_lock(&live->lock);
        if (!run->gone) publish(run);
        next = run->next;
        run_leave(live, run);
    }
}

static void *look_again_and_again(void *context) {
    Live *live = context;
    pthread_mutex_lock(&live->lock);
    while (!live->ending) {
        look_at_all(live);
        wake_readers(live);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        int waited = 0;
        if (live->runs) // until it is time; without a run, until there is one
            while (!live->ending && waited != ETIMEDOUT)
                waited = pthread_cond_timedwait(&live->changed, &live->lock, &until);
        else
            pthread_cond_wait(&live->changed, &live->lock);
    }
    wake_readers(live);
    pthread_mutex_unlock(&live->lock);
    return NULL;
}

Live *live_start(const LiveClients *clients) {
    Live *live = xcalloc(1, sizeof *live);
    live->clients = *clients;
    pthread_mutex_init(&live->lock, NULL);
    condition_init(&live->changed);
    if (pthread_create(&live->thread, NULL, look_again_and_again, live) != 0) abort();
    return live;
}

void live_end(Live *live) {
    pthread_mutex_lock(&live->lock);
    live->ending = true;
    pthread_cond_broadcast(&live->changed);
    pthread_mutex_unlock(&live->lock);
    pthread_join(live->thread, NULL);
}

void live_close(Live *live) {
    pthread_cond_destroy(&live->changed);
    pthread_mutex_destroy(&live->lock);
    free(live);
}

// ---- readers --------------------------------------------------------------------------------------------------------

static bool is_line_start(const char *path, int64_t offset) {
    char *text = NULL;
    size_t size = 0;
    if (offset == 0) return true;
    if (offset < 0) return false;
    status_free(file_read_from(&text, &size, path, offset - 1, 1));
    bool start = size == 1 && text[0] == '\n';
    free(text);
    return start;
}

static LiveRun *run_make(const char *path, int64_t from) {
    LiveRun *run = xcalloc(1, sizeof *run);
    *run = (LiveRun){.path = text_copy(path),
                     .metrics = path_join(path, "metrics.jsonl"),
                     .alarms = path_join(path, "alarms.jsonl"),
                     .log = path_join(path, "log.txt"),
                     .fresh_lines = SIZE_MAX,
                     .beat = clock_seconds()};
    struct stat found;
    if (stat(run->metrics, &found) == 0) run->inode = found.st_ino;
    run->metrics_at = is_line_start(run->metrics, from) ? from : size_of(run->metrics);
    run->first_offset = run->last_offset = run->metrics_at;
    run->alarms_at = size_of(run->alarms);
    free(live_tail(run->log, READ_MOST, &run->log_at));
    look_at_state(run, true);
    return run;
}

// The one that is watched already, else `made`; the other is freed.
static LiveRun *run_watch(Live *live, LiveRun *made) {
    for (LiveRun *run = live->runs; run; run = run->next)
        if (strcmp(run->path, made->path) == 0 && !run->gone) {
            run_free(made);
            return run;
        }
    made->next = live->runs;
    live->runs = made;
    pthread_cond_signal(&live->changed);
    return made;
}

// Where the first event begins that this client has not.
static bool stream_find(const LiveRun *run, int64_t from, uint64_t *at) {
    *at = run->begin + run->events.length;
    if (from < run->first_offset || from > run->last_offset) return false;
    for (size_t i = run->mark_count; i > 0 && run->marks[i - 1].offset > from; i--)
        *at = run->marks[i - 1].at;
    return true;
}

LiveReader *live_open(Live *live, const char *path, int64_t from, void *client) {
    LiveReader *reader = xcalloc(1, sizeof *reader);
    LiveRun *made = run_make(path, from);
    pthread_mutex_lock(&live->lock);
    LiveRun *run = run_watch(live, made);
    *reader = (LiveReader){.live = live, .run = run, .client = client, .next = live->readers};
    text_buffer_format(&reader->first, "retry: 2000\n\n");
    if (!stream_find(run, from, &reader->at)) event_add(&reader->first, "reset", -1, json_object());
    run->readers++;
    live->readers = reader;
    pthread_mutex_unlock(&live->lock);
    return reader;
}

static ssize_t take(char *out, size_t room, const char *data, size_t length) {
    size_t bytes = length < room ? length : room;
    memcpy(out, data, bytes);
    return (ssize_t)bytes;
}

ssize_t live_read(LiveReader *reader, char *out, size_t room) {
    Live *live = reader->live;
    LiveRun *run = reader->run;
    ssize_t bytes = 0;
    pthread_mutex_lock(&live->lock);
    uint64_t end = run->begin + run->events.length;
    if (reader->first_read < reader->first.length) {
        bytes = take(out, room, reader->first.data + reader->first_read, reader->first.length - reader->first_read);
        reader->first_read += (size_t)bytes;
    } else if (live->ending || reader->at < run->begin || (run->gone && reader->at == end)) {
        bytes = -1; // one that is too far behind comes again and reads the whole
    } else if (reader->at < end) {
        bytes = take(out, room, run->events.data + (reader->at - run->begin), (size_t)(end - reader->at));
        reader->at += (uint64_t)bytes;
    } else {
        reader->sleeping = true;
        live->clients.sleep(reader->client);
    }
    pthread_mutex_unlock(&live->lock);
    return bytes;
}

void live_reader_close(LiveReader *reader) {
    Live *live = reader->live;
    pthread_mutex_lock(&live->lock);
    LiveReader **at = &live->readers;
    while (*at != reader)
        at = &(*at)->next;
    *at = reader->next;
    run_leave(live, reader->run);
    pthread_mutex_unlock(&live->lock);
    text_buffer_free(&reader->first);
    free(reader);
}

char *live_tail(const char *path, size_t most, int64_t *end) {
    char *text = NULL;
    size_t size = 0, begin = 0;
    int64_t bytes = size_of(path), from = bytes > (int64_t)most ? bytes - (int64_t)most : 0;
    TextBuffer whole = {0};
    *end = 0;
    text_buffer_add(&whole, "", 0);
    status_free(file_read_from(&text, &size, path, from, most));
    size_t read = size;
    while (size && text[size - 1] != '\n')
        size--;
    while (from && begin < size && text[begin++] != '\n')
        continue;
    if (from && begin == size && read) { // the end of one line, or of what will be one
        if (!size) size = read;
        begin = size > LINE_SHOWN ? size - LINE_SHOWN : 0;
        text_buffer_format(&whole, "%s", LINE_CUT " ");
    }
    if (size) *end = from + (int64_t)size;
    if (size > begin) utf8_repair(&whole, text + begin, size - begin);
    free(text);
    return whole.data;
}
