// Sources made of lines or of whole text files.
#include "base/text.h"
#include "base/utf8.h"
#include "data/reader_jsonl.h"
#include "data/reader_source.h"
#include "data/reader_stream.h"

#include <stdlib.h>
#include <string.h>

typedef struct LineSource {
    Source source;
    char *path;
    ByteStream *stream;
    const char *chunk; // what is left of the current chunk
    size_t chunk_left, chunk_size;
    int64_t consumed_before; // bytes of the file behind the chunks before this one
    bool ended;
    bool skip_bad;      // see record_refuse
    TextBuffer held;    // a line that began in an earlier chunk
    uint64_t offset;    // of the next line, in the decompressed text
    uint64_t line;      // number of the current line, from 1
    JsonlFields fields; // of JSONL
    JsonlRecord record;
    bool field_found; // by a record of this file
} LineSource;

static Status chunk_next(LineSource *lines) {
    lines->consumed_before = stream_consumed(lines->stream);
    Status status = stream_next(lines->stream, &lines->chunk, &lines->chunk_left);
    lines->source.damaged = status != NULL;
    TRY(status);
    lines->chunk_size = lines->chunk_left;
    lines->ended = lines->chunk_left == 0;
    return NULL;
}

typedef struct Line {
    const char *data;
    size_t length;
    uint64_t offset;
    bool too_long;
    bool end; // there is no line
} Line;

// The next line without its newline, straight from the chunk where it can be, else put together in `held`. A line over
// the limit is passed over without being kept.
static Status line_next(LineSource *lines, Line *line) {
    *line = (Line){.offset = lines->offset};
    lines->held.length = 0;
    bool held = false;
    for (;;) {
        if (lines->chunk_left == 0) {
            if (!lines->ended) TRY(chunk_next(lines));
            if (lines->ended) {
                line->end = !held;
                break;
            }
        }
        const char *newline = memchr(lines->chunk, '\n', lines->chunk_left);
        size_t length = newline ? (size_t)(newline - lines->chunk) : lines->chunk_left;
        const char *piece = lines->chunk;
        size_t used = length + (newline != NULL);
        lines->chunk += used;
        lines->chunk_left -= used;
        lines->offset += used;
        if (newline && !held) {
            line->data = piece;
            line->length = length;
            lines->line++;
            return NULL;
        }
        held = true;
        line->too_long |= lines->held.length + length > READER_DOCUMENT_LIMIT;
        if (line->too_long) {
            lines->held.length = 0;
        } else {
            text_buffer_add(&lines->held, piece, length);
        }
        if (newline) break;
    }
    line->data = lines->held.data;
    line->length = lines->held.length;
    lines->line++;
    return NULL;
}

static Status line_error_bare(const LineSource *lines, uint64_t offset, size_t column, const char *reason) {
    Status status = status_usage("%s (byte %llu of the %sfile)", reason, (unsigned long long)(offset + column),
                                 stream_is_compressed(lines->stream) ? "decompressed " : "");
    return status_at(status, lines->path, (int)lines->line, (int)column + 1);
}

static Status line_error(const LineSource *lines, uint64_t offset, size_t column, const char *reason) {
    return status_hint(line_error_bare(lines, offset, column, reason), "--skip-bad counts such records and goes on");
}

// Damaged compressed data often decodes to rubbish for a while before the decoder notices: then the damage is what is
// wrong. Where bad records are skipped, the file was verified before.
static Status record_refuse(LineSource *lines, uint64_t offset, size_t column, const char *reason) {
    Status status = line_error(lines, offset, column, reason);
    Status damage = lines->skip_bad ? NULL : stream_drain(lines->stream);
    if (!damage) return status;
    status_free(status);
    return damage;
}

static bool line_blank(const Line *line) {
    for (size_t i = 0; i < line->length; i++) {
        if (!strchr(" \t\r", line->data[i]) || !line->data[i]) return false;
    }
    return true;
}

// As long as no record had the field, a wrong name is likelier than a bad record.
static Status field_missing(const LineSource *lines, const Line *line) {
    char *reason = text_format("the object has no field \"%s\"", lines->fields.text);
    char *names = jsonl_field_names(line->data, line->length);
    Status status = lines->field_found ? line_error(lines, line->offset, 0, reason)
                                       : status_hint(line_error_bare(lines, line->offset, 0, reason),
                                                     "it has: %s; choose with --field", names);
    free(names);
    free(reason);
    return status;
}

static Status jsonl_next(Source *source, Document *document, RecordKind *kind, bool *resumable) {
    LineSource *lines = (LineSource *)source;
    Line line;
    *resumable = false;
    do {
        TRY(line_next(lines, &line));
        if (line.end) {
            *kind = RECORD_END;
            return NULL;
        }
        if (line.offset == 0 && line.length >= 3 && memcmp(line.data, "\xef\xbb\xbf", 3) == 0) {
            line.data += 3; // a byte-order mark
            line.length -= 3;
            line.offset += 3;
        }
    } while (!line.too_long && line_blank(&line));
    *resumable = true;
    if (line.too_long) return line_error(lines, line.offset, 0, "the line is longer than 64 MiB");
    switch (jsonl_scan(line.data, line.length, &lines->fields, &lines->record)) {
    case JSONL_BAD: return record_refuse(lines, line.offset, lines->record.offset, lines->record.reason);
    case JSONL_MISSING: return field_missing(lines, &line);
    case JSONL_NULL:
        lines->field_found = true;
        *kind = RECORD_NULL;
        return NULL;
    case JSONL_TEXT: break;
    }
    lines->field_found = true;
    *document = (Document){lines->record.text, lines->record.length, lines->record.score, lines->record.has_score};
    *kind = RECORD_DOCUMENT;
    return NULL;
}

static Status text_check(LineSource *lines, const char *text, size_t length, uint64_t offset) {
    size_t malformed = utf8_first_malformed(text, length);
    return malformed < length ? record_refuse(lines, offset, malformed, "malformed UTF-8") : NULL;
}

static Status text_line_next(Source *source, Document *document, RecordKind *kind, bool *resumable) {
    LineSource *lines = (LineSource *)source;
    Line line;
    *resumable = false;
    do {
        TRY(line_next(lines, &line));
        if (line.end) {
            *kind = RECORD_END;
            return NULL;
        }
        if (line.length && line.data[line.length - 1] == '\r') line.length--;
    } while (!line.too_long && line.length == 0);
    *resumable = true;
    if (line.too_long) return line_error(lines, line.offset, 0, "the line is longer than 64 MiB");
    TRY(text_check(lines, line.data, line.length, line.offset));
    *document = (Document){.text = line.data, .length = line.length};
    *kind = RECORD_DOCUMENT;
    return NULL;
}

static Status text_file_next(Source *source, Document *document, RecordKind *kind, bool *resumable) {
    LineSource *lines = (LineSource *)source;
    *resumable = false;
    *kind = RECORD_END;
    if (lines->ended) return NULL;
    for (;;) {
        TRY(chunk_next(lines));
        if (lines->ended) break;
        if (lines->held.length + lines->chunk_left > READER_DOCUMENT_LIMIT) {
            return status_hint(status_usage("%s: a document of more than 64 MiB", lines->path),
                               "--lines takes each line as a document; or split the file");
        }
        text_buffer_add(&lines->held, lines->chunk, lines->chunk_left);
    }
    if (lines->held.length == 0) return NULL;
    size_t malformed = utf8_first_malformed(lines->held.data, lines->held.length);
    if (malformed < lines->held.length) {
        Status status = status_usage("malformed UTF-8 at byte %zu", malformed);
        return status_hint(status_at(status, lines->path, 0, 0), "convert it to UTF-8, or pass --skip-bad");
    }
    *document = (Document){.text = lines->held.data, .length = lines->held.length};
    *kind = RECORD_DOCUMENT;
    return NULL;
}

// Bytes of the file, to within the current chunk by the share of it that was used.
static int64_t lines_consumed(const Source *source) {
    const LineSource *lines = (const LineSource *)source;
    double used = lines->chunk_size ? 1 - (double)lines->chunk_left / (double)lines->chunk_size : 1;
    int64_t chunk = stream_consumed(lines->stream) - lines->consumed_before;
    return lines->consumed_before + (int64_t)(used * (double)chunk);
}

static void lines_close(Source *source) {
    LineSource *lines = (LineSource *)source;
    stream_close(lines->stream);
    text_buffer_free(&lines->held);
    free(lines->record.text);
    free(lines->path);
    free(lines);
}

static Status lines_open(Source **source, const char *path, const ReaderOptions *options,
                         Status (*next)(Source *, Document *, RecordKind *, bool *)) {
    LineSource *lines = xcalloc(1, sizeof *lines);
    lines->source = (Source){.next = next, .consumed = lines_consumed, .close = lines_close};
    lines->path = text_copy(path);
    lines->skip_bad = options->skip_bad;
    lines->fields = (JsonlFields){options->field ? options->field : "text", options->score};
    *source = &lines->source;
    Status status = stream_open(&lines->stream, path, options->skip_bad && !options->sampled);
    if (status) {
        lines_close(*source);
        *source = NULL;
    }
    return status;
}

Status source_open_jsonl(Source **source, const char *path, const ReaderOptions *options) {
    return lines_open(source, path, options, jsonl_next);
}

Status source_open_text(Source **source, const char *path, const ReaderOptions *options) {
    return lines_open(source, path, options, options->lines ? text_line_next : text_file_next);
}
