// The curves of a run: every figure of the table that has a curve, in few enough points to draw. Of the steps that fall
// into one bucket the least and the greatest are kept, so that a spike stays; when there are too many buckets, each two
// become one.
#include "base/file.h"
#include "serve/runs_api.h"
#include "serve/site.h"
#include "watch/metrics_table.h"
#include "watch/run_read.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 400, READ_BYTES = 4 << 20 };

typedef struct Point {
    double step, tokens, time, value;
} Point;

typedef struct Bucket {
    Point low, high;
    bool used;
} Bucket;

typedef struct Series {
    Bucket buckets[BUCKETS];
    int64_t lines, stride; // lines so far, and in a bucket
} Series;

typedef struct Reading {
    Series *of; // [metrics_field_count()]
    RunClock clock;
} Reading;

static void bucket_take(Bucket *bucket, const Point *low, const Point *high) {
    if (!bucket->used || low->value < bucket->low.value) bucket->low = *low;
    if (!bucket->used || high->value > bucket->high.value) bucket->high = *high;
    bucket->used = true;
}

static void series_halve(Series *series) {
    for (int i = 0; i < BUCKETS; i++) {
        Bucket from = series->buckets[i];
        series->buckets[i].used = false;
        if (from.used) bucket_take(&series->buckets[i / 2], &from.low, &from.high);
    }
    series->stride *= 2;
}

static void series_add(Series *series, const Point *point) {
    if (!series->stride) series->stride = 1;
    if (series->lines / series->stride == BUCKETS) series_halve(series);
    Bucket *bucket = &series->buckets[series->lines++ / series->stride];
    if (isfinite(point->value)) bucket_take(bucket, point, point);
}

static void take_line(const json_t *line, void *context) {
    Reading *reading = context;
    MetricsLine kind = metrics_line_kind(line);
    if (kind == METRICS_NO_LINE) return;
    double elapsed = kind == METRICS_STEP ? metrics_line_value(line, "elapsed") : NAN;
    Point point = {metrics_line_value(line, "step"), metrics_line_value(line, "tokens"),
                   run_clock_advance(&reading->clock, elapsed), NAN};
    if (!isfinite(point.step) || !isfinite(point.tokens) || !isfinite(point.time)) return;
    for (int i = 0; i < metrics_field_count(); i++) {
        const MetricsField *field = metrics_field(i);
        if (field->line != kind || !field->tag) continue;
        point.value = metrics_line_value(line, field->key);
        series_add(&reading->of[i], &point);
    }
}

static void points_write(const Series *series, TextBuffer *out) {
    static const size_t member[] = {offsetof(Point, step), offsetof(Point, tokens), offsetof(Point, time),
                                    offsetof(Point, value)};
    static const char *const name[] = {"step", "tokens", "time", "y"};
    for (int m = 0; m < 4; m++) {
        const char *before = "";
        text_buffer_format(out, "%s\"%s\":[", m ? "," : "", name[m]);
        for (int i = 0; i < BUCKETS; i++) {
            const Bucket *bucket = &series->buckets[i];
            if (!bucket->used) continue;
            bool low_first = bucket->low.step <= bucket->high.step;
            const Point *point[] = {low_first ? &bucket->low : &bucket->high, low_first ? &bucket->high : &bucket->low};
            for (int p = 0; p < (bucket->low.value == bucket->high.value ? 1 : 2); p++) {
                double value;
                memcpy(&value, (const char *)point[p] + member[m], sizeof value);
                text_buffer_format(out, m < 2 ? "%s%.0f" : "%s%.7g", before, value);
                before = ",";
            }
        }
        text_buffer_format(out, "]");
    }
}

static bool series_shown(const MetricsField *field, const Series *series) {
    for (int i = 0; i < BUCKETS; i++)
        if (series->buckets[i].used && (!field->silent_zero || series->buckets[i].high.value != 0)) return true;
    return false;
}

static void series_write(const MetricsField *field, const Series *series, TextBuffer *out) {
    static const char *const scales[] = {"plain", "percent", "count", "grouped", "bytes", "duration", "clock", "plain"};
    json_t *about = json_pack("{s:s,s:s,s:s,s:s,s:s}", "key", field->key, "tag", field->tag, "unit", field->unit,
                              "scale", scales[field->scale], "meaning", field->meaning);
    char *text = json_dumps(about, JSON_COMPACT);
    text_buffer_add(out, text, strlen(text) - 1); // without its last brace
    text_buffer_format(out, ",\"eval\":%s,", field->line == METRICS_EVALUATION ? "true" : "false");
    points_write(series, out);
    text_buffer_format(out, "}");
    free(text);
    json_decref(about);
}

static Status series_read(const char *path, Reading *reading, int64_t *offset) {
    char *metrics = path_join(path, "metrics.jsonl");
    Status status = NULL;
    if (file_exists(metrics)) {
        int64_t before = -1;
        while (!status && *offset != before) {
            before = *offset;
            status = metrics_read_from(metrics, offset, READ_BYTES, take_line, reading);
        }
    }
    free(metrics);
    return status;
}

static Status make_series(const ServeRequest *request, char *const *paths, int count, ServeReply *reply) {
    (void)request, (void)count;
    Reading reading = {.of = xcalloc((size_t)metrics_field_count(), sizeof *reading.of)};
    int64_t offset = 0;
    Status status = series_read(paths[0], &reading, &offset);
    if (!status) {
        TextBuffer body = {0};
        const char *before = "";
        text_buffer_format(&body, "{\"offset\":%lld,\"clock\":[%.9g,%.9g],\"series\":[", (long long)offset,
                           reading.clock.before, reading.clock.last);
        for (int i = 0; i < metrics_field_count(); i++) {
            if (!metrics_field(i)->tag || !series_shown(metrics_field(i), &reading.of[i])) continue;
            text_buffer_format(&body, "%s", before);
            series_write(metrics_field(i), &reading.of[i], &body);
            before = ",";
        }
        text_buffer_format(&body, "]}");
        serve_reply_text(reply, &body);
        reply->type = "application/json";
    }
    free(reading.of);
    return status;
}

Status series_answer(const ServeRequest *request, ServeReply *reply) {
    return runs_answer_one(request, "series", make_series, reply);
}
