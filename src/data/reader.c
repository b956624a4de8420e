// The list of files behind the inputs, and the walk through their records.
#include "data/reader.h"

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "data/reader_source.h"

#include <assert.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct InputFile {
    char *path;
    int64_t bytes;
} InputFile;

struct Reader {
    ReaderOptions options;
    InputFile *files;
    size_t file_count;
    int64_t total_bytes, done_bytes; // done: of files already left
    Source *source;                  // of files[position.file], or NULL
    ReaderPosition position;
    ReaderCounts counts;
    uint64_t warnings;
};

typedef Status SourceOpen(Source **source, const char *path, const ReaderOptions *options);

static SourceOpen *source_for(const char *path) {
    static const struct {
        const char *ending;
        SourceOpen *open;
    } kinds[] = {
        {".txt", source_open_text},      {".txt.gz", source_open_text},     {".txt.zst", source_open_text},
        {".jsonl", source_open_jsonl},   {".jsonl.gz", source_open_jsonl},  {".jsonl.zst", source_open_jsonl},
        {".ndjson", source_open_jsonl},  {".ndjson.gz", source_open_jsonl}, {".ndjson.zst", source_open_jsonl},
        {".json.gz", source_open_jsonl}, {".json.zst", source_open_jsonl},  {".parquet", source_open_parquet},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (text_ends_with(path, kinds[i].ending)) return kinds[i].open;
    }
    return NULL;
}

// --- inputs ---------------------------------------------------------------------------------------------------------

static Status reader_add_file(Reader *reader, const char *path) {
    int64_t bytes;
    TRY(file_size(&bytes, path));
    reader->files = xrealloc(reader->files, (reader->file_count + 1) * sizeof *reader->files);
    reader->files[reader->file_count++] = (InputFile){text_copy(path), bytes};
    reader->total_bytes += bytes;
    return NULL;
}

typedef struct Visited { // directories of one input: links may lead to them again, in circles too
    struct {
        dev_t device;
        ino_t inode;
    } * items;
    size_t count;
} Visited;

static bool visited_before(Visited *visited, const char *path) {
    struct stat info;
    if (stat(path, &info)) return false; // whoever reads it says why it cannot be
    for (size_t i = 0; i < visited->count; i++)
        if (visited->items[i].device == info.st_dev && visited->items[i].inode == info.st_ino) return true;
    visited->items = xrealloc(visited->items, (visited->count + 1) * sizeof *visited->items);
    visited->items[visited->count].device = info.st_dev;
    visited->items[visited->count++].inode = info.st_ino;
    return false;
}

static Status directory_append(Reader *reader, const char *path, Visited *visited) {
    char **names;
    size_t count;
    if (visited_before(visited, path)) return NULL;
    TRY(dir_list(&names, &count, path));
    Status status = NULL;
    for (size_t i = 0; i < count && !status; i++) {
        if (names[i][0] == '.') continue; // caches and version control
        char *child = path_join(path, names[i]);
        if (file_is_directory(child)) {
            status = directory_append(reader, child, visited);
        } else if (source_for(child)) {
            status = reader_add_file(reader, child);
        }
        free(child);
    }
    names_free(names, count);
    return status;
}

static Status input_append(Reader *reader, const char *input) {
    size_t before = reader->file_count;
    if (file_is_directory(input)) {
        Visited visited = {0};
        Status status = directory_append(reader, input, &visited);
        free(visited.items);
        TRY(status);
        if (reader->file_count > before) return NULL;
        return status_hint(status_usage("%s holds no readable files", input),
                           "hearth reads .txt, .jsonl and .ndjson (also .gz and .zst) and .parquet");
    }
    if (file_exists(input) || !strpbrk(input, "*?[")) {
        if (file_exists(input) && !source_for(input)) {
            return status_hint(status_usage("%s: the name does not say what the file holds", input),
                               "hearth reads .txt, .jsonl and .ndjson (also .gz and .zst) and .parquet");
        }
        return reader_add_file(reader, input);
    }
    glob_t found = {0};
    Status status = NULL;
    if (glob(input, 0, NULL, &found) != 0) status = status_usage("no file matches %s", input);
    for (size_t i = 0; i < found.gl_pathc && !status; i++)
        status = reader_add_file(reader, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

Status reader_open(Reader **out, const ReaderOptions *options, const char *const *inputs, size_t count) {
    Reader *reader = xcalloc(1, sizeof *reader);
    reader->options = *options;
    Status status = NULL;
    for (size_t i = 0; i < count && !status; i++)
        status = input_append(reader, inputs[i]);
    if (status) {
        reader_close(reader);
        reader = NULL;
    }
    *out = reader;
    return status;
}

void reader_close(Reader *reader) {
    if (!reader) return;
    if (reader->source) reader->source->close(reader->source);
    for (size_t i = 0; i < reader->file_count; i++)
        free(reader->files[i].path);
    free(reader->files);
    free(reader);
}

// --- records --------------------------------------------------------------------------------------------------------

static void file_leave(Reader *reader) {
    if (reader->source) reader->source->close(reader->source);
    reader->source = NULL;
    reader->done_bytes += reader->files[reader->position.file].bytes;
    reader->position.file++;
    reader->position.record = 0;
}

static void failure_log(Reader *reader, Status status, bool resumable, uint64_t lost, bool damaged) {
    const char *text = status_text(status); // without the hint, which speaks of --skip-bad
    int length = (int)strcspn(text, "\n");
    if (damaged) {
        log_warn("skipped: %.*s; kept are only the %llu records of it that can be trusted", length, text,
                 (unsigned long long)reader->position.record);
    } else if (reader->warnings++ < 10) {
        char rows[48] = "";
        if (lost > 1) snprintf(rows, sizeof rows, " (%llu records)", (unsigned long long)lost);
        log_warn("skipped: %.*s%s%s", length, text, rows, resumable ? "" : " (and the rest of the file)");
    }
}

// A failed record: an error, or with skip_bad a count and a line in the log; for bad records only the first few.
static Status record_failed(Reader *reader, Status status, bool resumable) {
    if (!reader->options.skip_bad || status_code(status) == STATUS_RUNTIME) return status;
    uint64_t lost = reader->source && reader->source->lost ? reader->source->lost : 1;
    bool damaged = reader->source && reader->source->damaged;
    failure_log(reader, status, resumable, lost, damaged);
    reader->counts.damaged += damaged;
    reader->counts.bad += damaged ? 0 : lost;
    reader->position.record++;
    status_free(status);
    if (!resumable) file_leave(reader);
    return NULL;
}

// One record, or a step to the next file. *found: a document was read.
static Status record_next(Reader *reader, Document *document, bool *found) {
    const char *path = reader->files[reader->position.file].path;
    RecordKind kind = RECORD_END;
    bool resumable = false;
    *found = false;
    Status status = NULL;
    if (!reader->source) status = source_for(path)(&reader->source, path, &reader->options);
    if (!status) status = reader->source->next(reader->source, document, &kind, &resumable);
    if (status) return record_failed(reader, status, resumable);
    if (kind == RECORD_END) {
        file_leave(reader);
        return NULL;
    }
    reader->position.record++;
    if (kind == RECORD_NULL) reader->counts.nulls++;
    *found = kind == RECORD_DOCUMENT;
    return NULL;
}

Status reader_next(Reader *reader, Document *document, bool *more) {
    *more = false;
    *document = (Document){0};
    while (!*more && reader->position.file < reader->file_count)
        TRY(record_next(reader, document, more));
    reader->counts.documents += *more;
    return NULL;
}

Status reader_seek(Reader *reader, ReaderPosition position) {
    assert(position.file <= reader->file_count);
    if (reader->source) reader->source->close(reader->source);
    reader->source = NULL;
    reader->position = (ReaderPosition){0};
    reader->done_bytes = 0;
    while (reader->position.file < position.file)
        file_leave(reader);
    Document document;
    bool found;
    while (reader->position.file == position.file && reader->position.record < position.record)
        TRY(record_next(reader, &document, &found));
    if (reader->position.file != position.file || reader->position.record != position.record) {
        Status status = status_usage("%s: record %llu, up to which it was read, cannot be found again",
                                     reader->files[position.file].path, (unsigned long long)position.record);
        return status_hint(status, "the file is another one, or damaged; start again with --overwrite");
    }
    reader->counts = (ReaderCounts){0};
    return NULL;
}

ReaderPosition reader_position(const Reader *reader) {
    return reader->position;
}

ReaderCounts reader_counts(const Reader *reader) {
    return reader->counts;
}

size_t reader_file_count(const Reader *reader) {
    return reader->file_count;
}

const char *reader_file(const Reader *reader, size_t index) {
    return reader->files[index].path;
}

int64_t reader_file_bytes(const Reader *reader, size_t index) {
    return reader->files[index].bytes;
}

int64_t reader_total_bytes(const Reader *reader) {
    return reader->total_bytes;
}

int64_t reader_consumed_bytes(const Reader *reader) {
    return reader->done_bytes + (reader->source ? reader->source->consumed(reader->source) : 0);
}
