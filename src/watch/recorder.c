// The recorder's thread and its queue.
#include "watch/recorder.h"

#include "base/file.h"
#include "base/text.h"
#include "base/threads.h"
#include "base/timeline.h"
#include "watch/tensorboard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { QUEUE_MOST = 4096 };

typedef enum ItemKind { ITEM_STEP, ITEM_EVALUATION, ITEM_HISTOGRAM } ItemKind;

typedef struct Item {
    struct Item *next;
    ItemKind kind;
    MetricsStep step; // of other kinds: step, tokens and time alone
    ExpertLoad *moe;
    Evaluation evaluation;
    char *tag;
    Histogram *histogram;
} Item;

typedef struct Message {
    struct Message *next;
    char *text;
} Message;

struct Recorder {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Item *head, **tail; // under the lock, as all down to `messages`
    int queued;         // those taken and not done yet included
    bool ending;
    Message *messages, **message_tail;
    atomic_bool has_message;

    // The thread's own, or of others between recorder_flush and the next item.
    Metrics *metrics;
    TensorBoard *board;
    AppendFile *alarm_file; // NULL until there is an alarm
    char *alarm_path, *directory;
    bool metrics_failing, board_failing; // said once, until something could be written again
    Machine *machine;
    Alarms alarms;
    MetricsStep last;
    double disk_looked;
};

#define DISK_SECONDS 60.0

static double wall_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// ---- messages -------------------------------------------------------------------------------------------------------

static void say(Recorder *recorder, char *text) { // takes the text
    Message *message = xmalloc(sizeof *message);
    *message = (Message){.text = text};
    pthread_mutex_lock(&recorder->lock);
    *recorder->message_tail = message;
    recorder->message_tail = &message->next;
    recorder->has_message = true;
    pthread_mutex_unlock(&recorder->lock);
}

char *recorder_said(Recorder *recorder) {
    if (!recorder->has_message) return NULL;
    pthread_mutex_lock(&recorder->lock);
    Message *message = recorder->messages;
    recorder->messages = message->next;
    if (!message->next) {
        recorder->message_tail = &recorder->messages;
        recorder->has_message = false;
    }
    pthread_mutex_unlock(&recorder->lock);
    char *text = message->text;
    free(message);
    return text;
}

// ---- writing, by the thread -----------------------------------------------------------------------------------------

// What cannot be written is no reason to lose the training too.
static void note_failure(Recorder *recorder, Status status, bool *failing, const char *what) {
    if (status && !*failing)
        say(recorder, text_format("%s cannot be written: %s\ntraining goes on, and their lines are kept until there is "
                                  "room",
                                  what, status_text(status)));
    *failing = status != NULL;
    status_free(status);
}

static void write_alarms(Recorder *recorder, Alarm *alarms, int count) {
    for (int i = 0; i < count; i++) {
        TextBuffer line = {0};
        alarm_line(&alarms[i], &line);
        Status status = recorder->alarm_file ? NULL : append_open(&recorder->alarm_file, recorder->alarm_path);
        if (!status) status = append_record(recorder->alarm_file, line.data, line.length, alarms[i].step);
        status_free(status); // it is said all the same
        say(recorder, text_format("%s\n%s", alarms[i].message, alarm_advice(alarms[i].kind)));
        text_buffer_free(&line);
        alarm_free(&alarms[i]);
    }
}

static void look_at_disk(Recorder *recorder) {
    Alarm raised[ALARM_COUNT];
    int64_t bytes;
    double now = wall_seconds();
    if (now - recorder->disk_looked < DISK_SECONDS) return;
    recorder->disk_looked = now;
    Status status = disk_free_bytes(&bytes, recorder->directory);
    if (!status)
        write_alarms(recorder, raised, alarms_disk(&recorder->alarms, &recorder->last, now, (double)bytes, raised));
    status_free(status); // a directory that is gone for now has no disk to look at
}

static void take_step(Recorder *recorder, Item *item) {
    Alarm raised[ALARM_COUNT];
    item->step.moe = item->moe;
    item->step.machine = machine_mean(recorder->machine);
    note_failure(recorder, metrics_step(recorder->metrics, &item->step), &recorder->metrics_failing, "metrics");
    if (recorder->board)
        note_failure(recorder, tensorboard_step(recorder->board, &item->step), &recorder->board_failing,
                     "TensorBoard's files");
    write_alarms(recorder, raised, alarms_step(&recorder->alarms, &item->step, raised));
    recorder->last = item->step;
    look_at_disk(recorder);
}

static void take_item(Recorder *recorder, Item *item) {
    const MetricsStep *at = &item->step;
    switch (item->kind) {
    case ITEM_STEP: take_step(recorder, item); break;
    case ITEM_EVALUATION:
        note_failure(recorder, metrics_evaluation(recorder->metrics, at->step, at->tokens, at->time, &item->evaluation),
                     &recorder->metrics_failing, "metrics");
        if (recorder->board)
            note_failure(recorder, tensorboard_evaluation(recorder->board, at->step, at->time, &item->evaluation),
                         &recorder->board_failing, "TensorBoard's files");
        break;
    case ITEM_HISTOGRAM:
        if (recorder->board)
            note_failure(recorder,
                         tensorboard_histogram(recorder->board, item->tag, item->histogram, at->step, at->time),
                         &recorder->board_failing, "TensorBoard's files");
        break;
    }
}

static void item_free(Item *item) {
    free(item->moe);
    free(item->tag);
    free(item->histogram);
    free(item);
}

// Wakes up about once a second to read the machine's sensors, also while a long step runs.
static Item *item_wait(Recorder *recorder) { // NULL: it has ended
    pthread_mutex_lock(&recorder->lock);
    while (!recorder->head && !recorder->ending) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&recorder->changed, &recorder->lock, &until);
        pthread_mutex_unlock(&recorder->lock);
        machine_sample(recorder->machine);
        pthread_mutex_lock(&recorder->lock);
    }
    Item *item = recorder->head;
    if (item) recorder->head = item->next;
    if (!recorder->head) recorder->tail = &recorder->head;
    pthread_mutex_unlock(&recorder->lock);
    return item;
}

static void *recorder_main(void *context) {
    Recorder *recorder = context;
    timeline_name_thread("metrics");
    for (Item *item; (item = item_wait(recorder));) {
        double begin = timeline_begin();
        machine_sample(recorder->machine);
        take_item(recorder, item);
        timeline_end(begin, "write metrics", -1);
        item_free(item);
        pthread_mutex_lock(&recorder->lock);
        if (--recorder->queued == 0 || recorder->queued == QUEUE_MOST - 1) pthread_cond_broadcast(&recorder->changed);
        pthread_mutex_unlock(&recorder->lock);
    }
    return NULL;
}

// ---- handing over, by the step --------------------------------------------------------------------------------------

static void item_put(Recorder *recorder, Item *item) {
    item->step.time = wall_seconds();
    pthread_mutex_lock(&recorder->lock);
    while (recorder->queued >= QUEUE_MOST)
        pthread_cond_wait(&recorder->changed, &recorder->lock);
    *recorder->tail = item;
    recorder->tail = &item->next;
    if (recorder->queued++ == 0) pthread_cond_broadcast(&recorder->changed);
    pthread_mutex_unlock(&recorder->lock);
}

void recorder_step(Recorder *recorder, const MetricsStep *step) {
    Item *item = xcalloc(1, sizeof *item);
    item->step = *step;
    if (step->moe_count) {
        size_t bytes = (size_t)step->moe_count * sizeof *step->moe;
        item->moe = xmalloc(bytes);
        memcpy(item->moe, step->moe, bytes);
    }
    item_put(recorder, item);
}

void recorder_evaluation(Recorder *recorder, int64_t step, int64_t tokens, const Evaluation *evaluation) {
    Item *item = xcalloc(1, sizeof *item);
    *item = (Item){.kind = ITEM_EVALUATION, .step = {.step = step, .tokens = tokens}, .evaluation = *evaluation};
    item_put(recorder, item);
}

void recorder_histogram(Recorder *recorder, int64_t step, const char *tag, const Histogram *histogram) {
    Item *item = xcalloc(1, sizeof *item);
    *item = (Item){.kind = ITEM_HISTOGRAM, .tag = text_copy(tag)};
    item->step.step = step;
    item->histogram = xmalloc(sizeof *histogram);
    *item->histogram = *histogram;
    item_put(recorder, item);
}

void recorder_flush(Recorder *recorder) {
    pthread_mutex_lock(&recorder->lock);
    while (recorder->queued)
        pthread_cond_wait(&recorder->changed, &recorder->lock);
    pthread_mutex_unlock(&recorder->lock);
}

AppendMissing recorder_missing(Recorder *recorder) {
    recorder_flush(recorder);
    return metrics_missing(recorder->metrics);
}

double recorder_cpu_seconds(Recorder *recorder) {
    clockid_t clock;
    struct timespec used = {0};
    if (pthread_getcpuclockid(recorder->thread, &clock) == 0) clock_gettime(clock, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

// ---- opening and closing --------------------------------------------------------------------------------------------

// The configuration as a block of Markdown, which is what the page shows texts as.
static Status board_begin(TensorBoard *board, const char *config, int64_t step, double time) {
    TextBuffer text = {0};
    for (const char *line = config; *line;) {
        size_t length = strcspn(line, "\n");
        text_buffer_format(&text, "    %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    Status status = tensorboard_text(board, "config", text.data ? text.data : "", step, time);
    text_buffer_free(&text);
    return status;
}

static void open_board(Recorder *recorder, const RecorderOptions *options) {
    char *folder = path_join(options->directory, "tensorboard");
    double now = wall_seconds();
    int64_t first = options->last_step > 0 ? options->last_step : 0;
    Status status = tensorboard_open(&recorder->board, folder, first, now);
    if (!status && options->config_text)
        note_failure(recorder, board_begin(recorder->board, options->config_text, first, now), &recorder->board_failing,
                     "TensorBoard's files");
    if (status) say(recorder, text_format("there will be no TensorBoard files: %s", status_text(status)));
    status_free(status);
    free(folder);
}

Status recorder_open(Recorder **out, const RecorderOptions *options) {
    *out = NULL;
    Metrics *metrics;
    char *path = path_join(options->directory, "metrics.jsonl");
    Status status = metrics_open(&metrics, path, options->last_step);
    free(path);
    TRY(status);
    Recorder *recorder = xcalloc(1, sizeof *recorder);
    recorder->metrics = metrics;
    recorder->directory = text_copy(options->directory);
    recorder->alarm_path = path_join(options->directory, "alarms.jsonl");
    recorder->tail = &recorder->head;
    recorder->message_tail = &recorder->messages;
    recorder->machine = machine_open(&options->machine);
    alarms_begin(&recorder->alarms, &options->alarms);
    pthread_mutex_init(&recorder->lock, NULL);
    condition_init(&recorder->changed);
    if (options->tensorboard) open_board(recorder, options);
    int error = pthread_create(&recorder->thread, NULL, recorder_main, recorder);
    if (error) {
        recorder->thread = 0;
        recorder_close(recorder);
        return status_runtime("cannot start a thread for metrics: %s", strerror(error));
    }
    *out = recorder;
    return NULL;
}

void recorder_close(Recorder *recorder) {
    if (!recorder) return;
    pthread_mutex_lock(&recorder->lock);
    recorder->ending = true;
    pthread_cond_broadcast(&recorder->changed);
    pthread_mutex_unlock(&recorder->lock);
    if (recorder->thread) pthread_join(recorder->thread, NULL);
    for (char *text; (text = recorder_said(recorder));)
        free(text);
    metrics_close(recorder->metrics);
    tensorboard_close(recorder->board);
    append_close(recorder->alarm_file);
    machine_close(recorder->machine);
    pthread_cond_destroy(&recorder->changed);
    pthread_mutex_destroy(&recorder->lock);
    free(recorder->alarm_path);
    free(recorder->directory);
    free(recorder);
}
