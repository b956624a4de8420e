// Writing TensorBoard's event files by hand. The numbers of fields are those of event.proto, summary.proto and
// tensor.proto.
#include "watch/tensorboard.h"

#include "base/file.h"
#include "base/text.h"
#include "watch/metrics_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct TensorBoard {
    AppendFile *file;
};

// ---- checksums ------------------------------------------------------------------------------------------------------

uint32_t crc32c(uint32_t crc, const void *data, size_t size) {
    const unsigned char *bytes = data;
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

uint32_t crc32c_masked(const void *data, size_t size) {
    uint32_t crc = crc32c(0, data, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// ---- protocol buffers -----------------------------------------------------------------------------------------------

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

static void put_varint(TextBuffer *out, uint64_t value) {
    char bytes[10];
    size_t count = 0;
    do {
        bytes[count++] = (char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value);
    text_buffer_add(out, bytes, count);
}

static void put_key(TextBuffer *out, int field, int wire) {
    put_varint(out, (uint64_t)field << 3 | (uint64_t)wire);
}

static void put_int(TextBuffer *out, int field, int64_t value) {
    put_key(out, field, WIRE_VARINT);
    put_varint(out, (uint64_t)value);
}

// x86-64 and ARM are little-endian, and so is the format.
static void put_double(TextBuffer *out, int field, double value) {
    put_key(out, field, WIRE_FIXED64);
    text_buffer_add(out, (const char *)&value, sizeof value);
}

static void put_float(TextBuffer *out, int field, float value) {
    put_key(out, field, WIRE_FIXED32);
    text_buffer_add(out, (const char *)&value, sizeof value);
}

static void put_bytes(TextBuffer *out, int field, const void *data, size_t size) {
    put_key(out, field, WIRE_BYTES);
    put_varint(out, size);
    if (size) text_buffer_add(out, data, size);
}

static void put_text(TextBuffer *out, int field, const char *text) {
    put_bytes(out, field, text, strlen(text));
}

static void put_message(TextBuffer *out, int field, TextBuffer *message) { // takes the message
    put_bytes(out, field, message->data, message->length);
    text_buffer_free(message);
}

// ---- events ---------------------------------------------------------------------------------------------------------

enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_HISTOGRAM = 5, VALUE_TENSOR = 8, VALUE_METADATA = 9 };

static TextBuffer event_begin(double time, int64_t step) {
    TextBuffer event = {0};
    put_double(&event, EVENT_TIME, time);
    put_int(&event, EVENT_STEP, step);
    return event;
}

// As TFRecord frames it: length, checksum of the length, data, checksum of the data. Takes the event.
static Status event_write(TensorBoard *board, TextBuffer *event, int64_t step) {
    TextBuffer record = {0};
    uint64_t length = event->length;
    uint32_t length_crc = crc32c_masked(&length, sizeof length), crc = crc32c_masked(event->data, event->length);
    text_buffer_add(&record, (const char *)&length, sizeof length);
    text_buffer_add(&record, (const char *)&length_crc, sizeof length_crc);
    text_buffer_add(&record, event->data, event->length);
    text_buffer_add(&record, (const char *)&crc, sizeof crc);
    Status status = append_record(board->file, record.data, record.length, step);
    text_buffer_free(&record);
    text_buffer_free(event);
    return status;
}

static Status summary_write(TensorBoard *board, TextBuffer *summary, int64_t step, double time) {
    if (!summary->length) return NULL;
    TextBuffer event = event_begin(time, step);
    put_message(&event, EVENT_SUMMARY, summary);
    return event_write(board, &event, step);
}

static void scalar_add(TextBuffer *summary, const char *tag, double number) {
    TextBuffer value = {0};
    put_text(&value, VALUE_TAG, tag);
    put_float(&value, VALUE_SIMPLE, (float)number);
    put_message(summary, SUMMARY_VALUE, &value);
}

static void scalars_add(TextBuffer *summary, MetricsLine line, const void *values) {
    for (int i = 0; i < metrics_field_count(); i++) {
        const MetricsField *field = metrics_field(i);
        if (field->line != line || !field->tag || !metrics_field_present(field, values)) continue;
        if (field->type != METRICS_SPLIT) {
            double value = metrics_field_value(field, values);
            if (value != 0 || !field->silent_zero) scalar_add(summary, field->tag, value);
            continue;
        }
        const MetricsStep *step = values;
        for (int part = 0; part < step->split_count; part++) {
            char *tag = text_format("%s/%s", field->tag, step->split_name[part]);
            scalar_add(summary, tag, step->split_ms[part]);
            free(tag);
        }
    }
}

Status tensorboard_step(TensorBoard *board, const MetricsStep *step) {
    TextBuffer summary = {0};
    MetricsStep whole = metrics_step_whole(step);
    scalars_add(&summary, METRICS_STEP, &whole);
    return summary_write(board, &summary, step->step, step->time);
}

Status tensorboard_evaluation(TensorBoard *board, int64_t step, double time, const Evaluation *evaluation) {
    TextBuffer summary = {0};
    scalars_add(&summary, METRICS_EVALUATION, &(MetricsEvaluation){.step = step, .evaluation = *evaluation});
    return summary_write(board, &summary, step, time);
}

// A tensor of one string, marked for the text plugin.
Status tensorboard_text(TensorBoard *board, const char *tag, const char *text, int64_t step, double time) {
    enum { DT_STRING = 7, TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_STRING = 8, SHAPE_DIM = 2, DIM_SIZE = 1 };
    TextBuffer dim = {0}, shape = {0}, tensor = {0}, plugin = {0}, metadata = {0}, value = {0}, summary = {0};
    put_int(&dim, DIM_SIZE, 1);
    put_message(&shape, SHAPE_DIM, &dim);
    put_int(&tensor, TENSOR_DTYPE, DT_STRING);
    put_message(&tensor, TENSOR_SHAPE, &shape);
    put_text(&tensor, TENSOR_STRING, text);
    put_text(&plugin, 1, "text");
    put_message(&metadata, 1, &plugin);
    put_text(&value, VALUE_TAG, tag);
    put_message(&value, VALUE_TENSOR, &tensor);
    put_message(&value, VALUE_METADATA, &metadata);
    put_message(&summary, SUMMARY_VALUE, &value);
    return summary_write(board, &summary, step, time);
}

Status tensorboard_histogram(TensorBoard *board, const char *tag, const Histogram *histogram, int64_t step,
                             double time) {
    double *limits, *counts;
    int buckets = histogram_buckets(histogram, &limits, &counts);
    TextBuffer histo = {0}, value = {0}, summary = {0};
    put_double(&histo, 1, histogram->min);
    put_double(&histo, 2, histogram->max);
    put_double(&histo, 3, (double)histogram->count);
    put_double(&histo, 4, histogram->sum);
    put_double(&histo, 5, histogram->sum_squares);
    put_bytes(&histo, 6, limits, (size_t)buckets * sizeof *limits);
    put_bytes(&histo, 7, counts, (size_t)buckets * sizeof *counts);
    put_text(&value, VALUE_TAG, tag);
    put_message(&value, VALUE_HISTOGRAM, &histo);
    put_message(&summary, SUMMARY_VALUE, &value);
    free(limits);
    free(counts);
    return summary_write(board, &summary, step, time);
}

// ---- the file -------------------------------------------------------------------------------------------------------

#define EVENT_FILE "events.out.tfevents."

// TensorBoard reads the files of a folder in the order of their names, which start with seconds.
static Status event_file_path(const char *folder, double time, char **path) {
    char **names, host[256] = "host";
    size_t count;
    int64_t seconds = (int64_t)time;
    TRY(dir_list(&names, &count, folder));
    for (size_t i = 0; i < count; i++) {
        if (!text_starts_with(names[i], EVENT_FILE)) continue;
        int64_t taken = strtoll(names[i] + strlen(EVENT_FILE), NULL, 10);
        if (seconds <= taken) seconds = taken + 1;
    }
    names_free(names, count);
    gethostname(host, sizeof host - 1);
    *path = text_format("%s/" EVENT_FILE "%010lld.%s.%ld", folder, (long long)seconds, host, (long)getpid());
    return NULL;
}

static Status session_begin(TensorBoard *board, int64_t last_step, double time) {
    enum { SESSION_STATUS = 1, SESSION_START = 1 };
    TextBuffer version = event_begin(time, 0), session = {0};
    put_text(&version, EVENT_VERSION, "brain.Event:2");
    TRY(event_write(board, &version, last_step));
    int64_t first = last_step > 0 ? last_step + 1 : 0; // of what this file says; a run's first may have one of step 0
    TextBuffer start = event_begin(time, first);
    put_int(&session, SESSION_STATUS, SESSION_START);
    put_message(&start, EVENT_SESSION, &session);
    return event_write(board, &start, last_step);
}

Status tensorboard_open(TensorBoard **out, const char *folder, int64_t last_step, double time) {
    *out = NULL;
    char *path = NULL;
    AppendFile *file = NULL;
    Status status = dir_make(folder);
    if (!status) status = event_file_path(folder, time, &path);
    if (!status) status = append_open(&file, path);
    free(path);
    TRY(status);
    TensorBoard *board = xmalloc(sizeof *board);
    *board = (TensorBoard){file};
    status = session_begin(board, last_step, time);
    if (status)
        tensorboard_close(board);
    else
        *out = board;
    return status;
}

void tensorboard_close(TensorBoard *board) {
    if (!board) return;
    append_close(board->file);
    free(board);
}
