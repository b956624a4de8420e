// Parquet rows as documents: a string column, and beside it in step a numeric one where a score is asked for.
#include "data/parquet.h"

#include "base/text.h"
#include "base/utf8.h"
#include "data/reader_source.h"

#include <stdlib.h>

typedef struct ParquetSource {
    Source source;
    ParquetFile file;
    ParquetColumn *text, *score; // score may be NULL
    size_t group;                // the current row group
    int64_t row, rows_left;      // in it
    bool entered;
} ParquetSource;

static Status group_enter(ParquetSource *parquet) {
    parquet->entered = true;
    parquet->row = 0;
    parquet->rows_left = parquet->file.group_rows[parquet->group];
    if (parquet->rows_left == 0) return NULL;
    TRY(parquet_column_enter(parquet->text, parquet->group));
    return parquet->score ? parquet_column_enter(parquet->score, parquet->group) : NULL;
}

static Status row_read(ParquetSource *parquet, ParquetValue *text, ParquetValue *score) {
    parquet->row++;
    parquet->rows_left--;
    TRY(parquet_column_next(parquet->text, text));
    return parquet->score ? parquet_column_next(parquet->score, score) : NULL;
}

static Status document_check(ParquetSource *parquet, const ParquetValue *text) {
    size_t malformed = utf8_first_malformed(text->data, text->length);
    if (text->length <= READER_DOCUMENT_LIMIT && malformed == text->length) return NULL;
    Status status =
        text->length > READER_DOCUMENT_LIMIT
            ? parquet_error(&parquet->file, parquet->group, parquet_column_offset(parquet->text),
                            "row %lld is longer than 64 MiB", (long long)parquet->row - 1)
            : parquet_error(&parquet->file, parquet->group, parquet_column_offset(parquet->text),
                            "row %lld has malformed UTF-8 at its byte %zu", (long long)parquet->row - 1, malformed);
    return status_hint(status, "--skip-bad counts such records and goes on");
}

static Status parquet_next(Source *source, Document *document, RecordKind *kind, bool *resumable) {
    ParquetSource *parquet = (ParquetSource *)source;
    ParquetValue text, score = {.null = true};
    *resumable = true;
    for (;;) {
        Status status = NULL;
        if (parquet->group >= parquet->file.row_groups) {
            *kind = RECORD_END;
            return NULL;
        }
        if (!parquet->entered) status = group_enter(parquet);
        int64_t rows_left = parquet->rows_left;
        if (!status && parquet->rows_left > 0) {
            status = row_read(parquet, &text, &score);
            if (!status) break;
        }
        parquet->group++; // done, or damaged: what lies behind a damaged page cannot be told apart
        parquet->entered = false;
        source->lost = (uint64_t)rows_left;
        if (status) return status;
    }
    source->lost = 0;
    if (text.null) {
        *kind = RECORD_NULL;
        return NULL;
    }
    TRY(document_check(parquet, &text));
    *document = (Document){text.data, text.length, score.number, !score.null};
    *kind = RECORD_DOCUMENT;
    return NULL;
}

// Bytes by the share of rows: the file also holds columns that are not read.
static int64_t parquet_consumed(const Source *source) {
    const ParquetSource *parquet = (const ParquetSource *)source;
    double done = (double)parquet->group + (parquet->entered && parquet->row + parquet->rows_left > 0
                                                ? (double)parquet->row / (double)(parquet->row + parquet->rows_left)
                                                : 0);
    size_t groups = parquet->file.row_groups;
    return groups ? (int64_t)(done / (double)groups * (double)parquet->file.size) : 0;
}

static void parquet_source_close(Source *source) {
    ParquetSource *parquet = (ParquetSource *)source;
    parquet_column_free(parquet->text);
    parquet_column_free(parquet->score);
    parquet_close(&parquet->file);
    free(parquet);
}

Status source_open_parquet(Source **source, const char *path, const ReaderOptions *options) {
    ParquetSource *parquet = xcalloc(1, sizeof *parquet);
    parquet->source = (Source){.next = parquet_next, .consumed = parquet_consumed, .close = parquet_source_close};
    const char *names[] = {options->field ? options->field : "text", options->score};
    const bool numeric[] = {false, true};
    Status status = parquet_open(&parquet->file, path, names, numeric, options->score ? 2 : 1);
    if (status) {
        free(parquet);
        *source = NULL;
        return status;
    }
    parquet->text = parquet_column_new(&parquet->file, 0);
    if (options->score) parquet->score = parquet_column_new(&parquet->file, 1);
    *source = &parquet->source;
    return NULL;
}
