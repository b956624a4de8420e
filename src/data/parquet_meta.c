// The footer of a Parquet file: schema, row groups, where the chunks of the wanted columns lie.
#include "base/file.h"
#include "base/text.h"
#include "data/parquet.h"
#include "data/thrift.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC_BYTES 4
#define TAIL_BYTES  8 // footer length, magic

Status parquet_error(const ParquetFile *file, size_t row_group, int64_t offset, const char *what, ...) {
    va_list args;
    va_start(args, what);
    char *text = text_vformat(what, args);
    va_end(args);
    Status status = status_usage("row group %zu, byte %lld: %s", row_group, (long long)offset, text);
    free(text);
    return status_at(status, file->path, 0, 0);
}

static Status footer_error(const ParquetFile *file, const char *what) {
    return status_at(status_usage("%s", what), file->path, 0, 0);
}

Status parquet_read(const ParquetFile *file, int64_t offset, void *data, size_t bytes) {
    char *to = data;
    while (bytes > 0) {
        ssize_t n = pread(file->fd, to, bytes, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return status_errno("cannot read %s", file->path);
        if (n == 0) return footer_error(file, "the file became shorter while it was read");
        to += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return NULL;
}

// --- schema ---------------------------------------------------------------------------------------------------------

typedef struct SchemaElement {
    int type, repetition; // -1 when absent
    int64_t children;
    const char *name; // inside the footer
    size_t name_length;
} SchemaElement;

static SchemaElement schema_element_read(Thrift *thrift) {
    SchemaElement element = {.type = -1, .name = ""};
    ThriftField field = {0};
    while (thrift_field(thrift, &field)) {
        switch (field.id) {
        case 1: element.type = (int)thrift_int(thrift, field); break;
        case 3: element.repetition = (int)thrift_int(thrift, field); break;
        case 4: element.name = thrift_binary(thrift, field.type, &element.name_length); break;
        case 5: element.children = thrift_int(thrift, field); break;
        default: thrift_skip(thrift, field.type);
        }
    }
    return element;
}

static bool name_equals(const char *name, const char *text, size_t length) {
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

static Status column_declare(ParquetFile *file, ParquetColumnMeta *column, const SchemaElement *element, bool numeric) {
    if (element->children > 0 || element->repetition == 2) {
        return status_at(status_usage("column \"%s\" is nested or repeated; hearth reads flat columns", column->name),
                         file->path, 0, 0);
    }
    column->type = (ParquetType)element->type;
    column->optional = element->repetition == 1;
    bool fits = numeric ? element->type == PARQUET_INT32 || element->type == PARQUET_INT64 ||
                              element->type == PARQUET_FLOAT || element->type == PARQUET_DOUBLE
                        : element->type == PARQUET_BYTES;
    if (!fits) {
        return status_at(status_usage("column \"%s\" does not hold %s", column->name, numeric ? "numbers" : "strings"),
                         file->path, 0, 0);
    }
    return NULL;
}

static Status column_missing(const ParquetFile *file, const char *name, const TextBuffer *known) {
    Status status = strchr(name, '.') ? status_usage("no flat column \"%s\"; nested columns are not read", name)
                                      : status_usage("no column \"%s\"", name);
    return status_hint(status_at(status, file->path, 0, 0), "the file has: %s; choose with --column",
                       known->length ? known->data : "none");
}

// The elements come depth first; `inside` counts the descendants still to pass over below the top level.
static Status schema_read(ParquetFile *file, Thrift *thrift, ThriftType type, const bool *numeric) {
    ThriftType element_type;
    size_t count = thrift_list(thrift, type, &element_type);
    if (element_type != THRIFT_STRUCT || count == 0) return footer_error(file, "the footer has no schema");
    TextBuffer known = {0};
    Status status = NULL;
    bool found[8] = {0};
    int64_t inside = 0;
    for (size_t i = 0; i < count && !status; i++) {
        SchemaElement element = schema_element_read(thrift);
        if (thrift_failed(thrift) || element.children < 0 || element.children > (int64_t)count) {
            status = footer_error(file, "the schema in the footer is damaged");
            break;
        }
        if (i == 0) continue; // the root
        if (inside > 0) {
            inside += element.children - 1;
            continue;
        }
        inside = element.children;
        text_buffer_format(&known, "%s%.*s", known.length ? ", " : "", (int)element.name_length, element.name);
        for (size_t k = 0; k < file->column_count && !status; k++) {
            if (!name_equals(file->columns[k].name, element.name, element.name_length)) continue;
            found[k] = true;
            status = column_declare(file, &file->columns[k], &element, numeric[k]);
        }
    }
    for (size_t k = 0; k < file->column_count && !status; k++) {
        if (!found[k]) status = column_missing(file, file->columns[k].name, &known);
    }
    text_buffer_free(&known);
    return status;
}

// --- row groups -----------------------------------------------------------------------------------------------------

typedef struct ChunkMeta {
    ParquetChunk chunk;
    const char *name; // of a flat column; NULL when nested
    size_t name_length;
    int64_t data_offset, dictionary_offset, bytes;
    bool has_dictionary, has_meta, encrypted, elsewhere;
} ChunkMeta;

static void chunk_path_read(Thrift *thrift, ThriftType type, ChunkMeta *meta) {
    ThriftType element;
    size_t parts = thrift_list(thrift, type, &element);
    for (size_t i = 0; i < parts && !thrift_failed(thrift); i++) {
        size_t length;
        const char *part = thrift_binary(thrift, element, &length);
        if (parts == 1) {
            meta->name = part;
            meta->name_length = length;
        }
    }
}

static void chunk_meta_read(Thrift *thrift, ChunkMeta *meta) {
    ThriftField field = {0};
    meta->has_meta = true;
    while (thrift_field(thrift, &field)) {
        switch (field.id) {
        case 1: meta->chunk.type = (ParquetType)thrift_int(thrift, field); break;
        case 3: chunk_path_read(thrift, field.type, meta); break;
        case 4: meta->chunk.codec = (int)thrift_int(thrift, field); break;
        case 5: meta->chunk.values = thrift_int(thrift, field); break;
        case 7: meta->bytes = thrift_int(thrift, field); break;
        case 9: meta->data_offset = thrift_int(thrift, field); break;
        case 11:
            meta->dictionary_offset = thrift_int(thrift, field);
            meta->has_dictionary = meta->dictionary_offset > 0; // some writers put 0 for "none"
            break;
        default: thrift_skip(thrift, field.type);
        }
    }
}

static ChunkMeta chunk_read(Thrift *thrift) {
    ChunkMeta meta = {0};
    ThriftField field = {0};
    while (thrift_field(thrift, &field)) {
        if (field.id == 3 && field.type == THRIFT_STRUCT) {
            chunk_meta_read(thrift, &meta);
        } else {
            meta.elsewhere |= field.id == 1;
            meta.encrypted |= field.id == 8 || field.id == 9;
            thrift_skip(thrift, field.type);
        }
    }
    return meta;
}

static Status chunk_place(ParquetFile *file, size_t group, ParquetColumnMeta *column, const ChunkMeta *meta,
                          int64_t footer_start) {
    ParquetChunk *chunk = &column->chunks[group];
    *chunk = meta->chunk;
    chunk->start = meta->has_dictionary && meta->dictionary_offset < meta->data_offset ? meta->dictionary_offset
                                                                                       : meta->data_offset;
    if (meta->elsewhere) return parquet_error(file, group, footer_start, "the column lies in another file");
    if (meta->encrypted) return parquet_error(file, group, footer_start, "the column is encrypted");
    if (chunk->type != column->type) {
        return parquet_error(file, group, footer_start, "column \"%s\" changes its type", column->name);
    }
    if (chunk->values == 0) { // an empty chunk need not lie anywhere
        chunk->start = chunk->end = MAGIC_BYTES;
        return NULL;
    }
    if (chunk->start < MAGIC_BYTES || meta->bytes < 0 || chunk->start > footer_start ||
        meta->bytes > footer_start - chunk->start || chunk->values < 0) {
        return parquet_error(file, group, footer_start, "column \"%s\" is said to lie outside the file", column->name);
    }
    chunk->end = chunk->start + meta->bytes;
    return NULL;
}

static Status group_columns_read(ParquetFile *file, Thrift *thrift, ThriftType type, size_t group,
                                 int64_t footer_start) {
    ThriftType element;
    size_t count = thrift_list(thrift, type, &element);
    bool found[8] = {0};
    for (size_t i = 0; i < count && !thrift_failed(thrift); i++) {
        ChunkMeta meta = chunk_read(thrift);
        if (thrift_failed(thrift)) break;
        for (size_t k = 0; k < file->column_count; k++) {
            ParquetColumnMeta *column = &file->columns[k];
            if (!meta.has_meta || !meta.name || !name_equals(column->name, meta.name, meta.name_length)) continue;
            found[k] = true;
            TRY(chunk_place(file, group, column, &meta, footer_start));
        }
    }
    for (size_t k = 0; k < file->column_count && !thrift_failed(thrift); k++) {
        if (!found[k]) {
            return parquet_error(file, group, footer_start, "column \"%s\" is missing", file->columns[k].name);
        }
    }
    return NULL;
}

static Status group_read(ParquetFile *file, Thrift *thrift, size_t group, int64_t footer_start) {
    ThriftField field = {0};
    bool has_columns = false;
    while (thrift_field(thrift, &field)) {
        if (field.id == 1) {
            has_columns = true;
            TRY(group_columns_read(file, thrift, field.type, group, footer_start));
        } else if (field.id == 3) {
            file->group_rows[group] = thrift_int(thrift, field);
        } else {
            thrift_skip(thrift, field.type);
        }
    }
    if (thrift_failed(thrift)) return footer_error(file, "the row groups in the footer are damaged");
    if (!has_columns) return parquet_error(file, group, footer_start, "the row group has no columns");
    for (size_t k = 0; k < file->column_count; k++) {
        if (file->columns[k].chunks[group].values != file->group_rows[group]) {
            return parquet_error(file, group, footer_start, "column \"%s\" has %lld values for %lld rows",
                                 file->columns[k].name, (long long)file->columns[k].chunks[group].values,
                                 (long long)file->group_rows[group]);
        }
    }
    return NULL;
}

static Status groups_read(ParquetFile *file, Thrift *thrift, ThriftType type, int64_t footer_start) {
    ThriftType element;
    size_t count = thrift_list(thrift, type, &element); // at most the footer's bytes
    if (count && element != THRIFT_STRUCT) return footer_error(file, "the row groups in the footer are damaged");
    file->group_rows = xcalloc(count + 1, sizeof *file->group_rows);
    for (size_t k = 0; k < file->column_count; k++) {
        file->columns[k].chunks = xcalloc(count + 1, sizeof *file->columns[k].chunks);
    }
    file->row_groups = count;
    for (size_t i = 0; i < count; i++)
        TRY(group_read(file, thrift, i, footer_start));
    return NULL;
}

// --- file -----------------------------------------------------------------------------------------------------------

static Status footer_parse(ParquetFile *file, Thrift *thrift, const bool *numeric, int64_t footer_start) {
    ThriftField field = {0};
    bool has_schema = false, has_groups = false;
    while (thrift_field(thrift, &field)) {
        if (field.id == 2 && !has_schema) {
            has_schema = true;
            TRY(schema_read(file, thrift, field.type, numeric));
        } else if (field.id == 3) {
            file->rows = thrift_int(thrift, field);
        } else if (field.id == 4 && has_schema && !has_groups) {
            has_groups = true;
            TRY(groups_read(file, thrift, field.type, footer_start));
        } else {
            thrift_skip(thrift, field.type);
        }
    }
    if (thrift_failed(thrift) || !has_schema || !has_groups) return footer_error(file, "the footer is damaged");
    return NULL;
}

static Status footer_read(ParquetFile *file, const bool *numeric) {
    uint8_t tail[TAIL_BYTES], head[MAGIC_BYTES];
    if (file->size < MAGIC_BYTES + TAIL_BYTES) return footer_error(file, "not a Parquet file: it is too short");
    TRY(parquet_read(file, 0, head, sizeof head));
    TRY(parquet_read(file, file->size - TAIL_BYTES, tail, sizeof tail));
    if (memcmp(tail + 4, "PARE", 4) == 0) return footer_error(file, "the file's footer is encrypted");
    if (memcmp(head, "PAR1", 4) != 0 || memcmp(tail + 4, "PAR1", 4) != 0) {
        return status_hint(footer_error(file, "not a Parquet file, or one that was cut: PAR1 is missing"),
                           "download or copy it again");
    }
    uint32_t length = (uint32_t)tail[0] | (uint32_t)tail[1] << 8 | (uint32_t)tail[2] << 16 | (uint32_t)tail[3] << 24;
    if (length > file->size - TAIL_BYTES - MAGIC_BYTES) {
        return footer_error(file, "the footer is said to be longer than the file");
    }
    int64_t start = file->size - TAIL_BYTES - length;
    uint8_t *footer = xmalloc((size_t)length + 1);
    Status status = parquet_read(file, start, footer, length);
    Thrift thrift = {.start = footer, .at = footer, .end = footer + length};
    if (!status) status = footer_parse(file, &thrift, numeric, start);
    free(footer);
    return status;
}

static Status file_start(ParquetFile *file, const bool *numeric) {
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0) {
        return errno == ENOENT ? status_usage("no such file: %s", file->path)
                               : status_errno("cannot open %s", file->path);
    }
    struct stat info;
    if (fstat(file->fd, &info) != 0) return status_errno("cannot stat %s", file->path);
    if (!S_ISREG(info.st_mode)) return status_usage("not a regular file: %s", file->path);
    file->size = info.st_size;
    return footer_read(file, numeric);
}

Status parquet_open(ParquetFile *file, const char *path, const char *const *names, const bool *numeric, size_t count) {
    *file = (ParquetFile){.path = text_copy(path), .fd = -1, .column_count = count};
    file->columns = xcalloc(count, sizeof *file->columns);
    for (size_t i = 0; i < count; i++)
        file->columns[i].name = text_copy(names[i]);
    Status status = file_start(file, numeric);
    if (status) parquet_close(file);
    return status;
}

void parquet_close(ParquetFile *file) {
    for (size_t i = 0; i < file->column_count; i++) {
        free(file->columns[i].name);
        free(file->columns[i].chunks);
    }
    free(file->columns);
    free(file->group_rows);
    free(file->path);
    if (file->fd >= 0) close(file->fd);
    *file = (ParquetFile){.fd = -1};
}
