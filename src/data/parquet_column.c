// The values of one column: pages one after the other through a window on the file, levels, dictionary and values
// decoded as they are asked for.
#include "base/text.h"
#include "data/parquet.h"
#include "data/parquet_codec.h"
#include "data/parquet_values.h"
#include "data/thrift.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#if HEARTH_HAVE_ZLIB
#include <zlib.h>
#endif

#define WINDOW_BYTES ((size_t)1 << 20)
#define PAGE_LIMIT   ((int64_t)256 << 20) // bytes of one decompressed page: room for the largest document

enum { PAGE_DATA = 0, PAGE_INDEX = 1, PAGE_DICTIONARY = 2, PAGE_DATA_V2 = 3 };

typedef enum Encoding { // as the format numbers them
    ENCODING_PLAIN = 0,
    ENCODING_PLAIN_DICTIONARY = 2,
    ENCODING_RLE = 3,
    ENCODING_BIT_PACKED = 4,
    ENCODING_DELTA_BINARY_PACKED = 5,
    ENCODING_DELTA_LENGTH_BYTE_ARRAY = 6,
    ENCODING_DELTA_BYTE_ARRAY = 7,
    ENCODING_RLE_DICTIONARY = 8,
    ENCODING_BYTE_STREAM_SPLIT = 9,
} Encoding;

typedef struct PageHeader {
    int type;
    int64_t size, compressed; // bytes of the body, decompressed and as stored
    bool has_crc, is_compressed;
    uint32_t crc;
    int64_t values;
    int encoding, level_encoding;
    int64_t definition_bytes, repetition_bytes; // of v2
    bool has_details;
} PageHeader;

typedef struct Dictionary {
    uint8_t *data; // a copy of the page: it outlives it
    size_t capacity, count;
    ByteSpan *strings; // [count]
    double *numbers;   // [count]
} Dictionary;

struct ParquetColumn {
    const ParquetFile *file;
    const ParquetColumnMeta *meta;
    size_t group;
    const ParquetChunk *chunk;
    int64_t offset;      // of the next page
    int64_t page_offset; // of the current one
    int64_t values_left; // of the chunk, in pages not yet loaded

    uint8_t *window; // bytes [window_offset, window_offset + window_size) of the file
    size_t window_size, window_capacity;
    int64_t window_offset;

    uint8_t *page; // decompressed
    size_t page_capacity;
    int64_t page_values; // left in the current page
    Encoding encoding;
    RleDecoder levels;
    ByteSpan values;
    RleDecoder indices;
    DeltaDecoder deltas, prefixes;
    char *joined; // DELTA_BYTE_ARRAY: the last string
    size_t joined_length, joined_capacity;
    Dictionary dictionary;
    bool has_dictionary;
};

static const char *encoding_name(int encoding) {
    static const char *const names[] = {
        "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
        "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
        "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
    return encoding >= 0 && encoding < (int)(sizeof names / sizeof names[0]) ? names[encoding] : "unknown";
}

#define column_error(column, ...) parquet_error((column)->file, (column)->group, (column)->page_offset, __VA_ARGS__)

ParquetColumn *parquet_column_new(const ParquetFile *file, size_t index) {
    assert(index < file->column_count);
    ParquetColumn *column = xcalloc(1, sizeof *column);
    column->file = file;
    column->meta = &file->columns[index];
    return column;
}

void parquet_column_free(ParquetColumn *column) {
    if (!column) return;
    free(column->window);
    free(column->page);
    free(column->joined);
    free(column->dictionary.data);
    free(column->dictionary.strings);
    free(column->dictionary.numbers);
    free(column);
}

Status parquet_column_enter(ParquetColumn *column, size_t row_group) {
    assert(row_group < column->file->row_groups);
    column->group = row_group;
    column->chunk = &column->meta->chunks[row_group];
    column->offset = column->page_offset = column->chunk->start;
    column->values_left = column->chunk->values;
    column->page_values = 0;
    column->has_dictionary = false;
    column->window_size = 0;
    if (!parquet_codec_is_supported(column->chunk->codec)) {
        return column_error(column, "column \"%s\" is compressed with %s, which this hearth does not read",
                            column->meta->name, parquet_codec_name(column->chunk->codec));
    }
    return NULL;
}

int64_t parquet_column_offset(const ParquetColumn *column) {
    return column->offset;
}

// --- the window -----------------------------------------------------------------------------------------------------

// Makes bytes [offset, offset + bytes) available; the caller has checked that they lie inside the chunk.
static Status window_need(ParquetColumn *column, int64_t offset, size_t bytes, const uint8_t **data) {
    int64_t end = column->window_offset + (int64_t)column->window_size;
    if (column->window_size == 0 || offset < column->window_offset || offset > end) {
        column->window_offset = offset;
        column->window_size = 0;
        end = offset;
    }
    if (offset + (int64_t)bytes > end) {
        size_t kept = (size_t)(end - offset);
        size_t wanted = bytes > WINDOW_BYTES ? bytes : WINDOW_BYTES;
        if ((int64_t)wanted > column->chunk->end - offset) wanted = (size_t)(column->chunk->end - offset);
        if (column->window_capacity < wanted) { // wanted is never more than the chunk, so never more than the file
            column->window_capacity = wanted;
            column->window = xrealloc(column->window, wanted);
        }
        memmove(column->window, column->window + (offset - column->window_offset), kept);
        column->window_offset = offset;
        column->window_size = kept;
        TRY(parquet_read(column->file, end, column->window + kept, wanted - kept));
        column->window_size = wanted;
    }
    *data = column->window + (offset - column->window_offset);
    return NULL;
}

// --- page headers ---------------------------------------------------------------------------------------------------

static void details_read(Thrift *thrift, PageHeader *header, int kind) {
    ThriftField field = {0};
    header->has_details = true;
    while (thrift_field(thrift, &field)) {
        if (field.id == 1) {
            header->values = thrift_int(thrift, field);
        } else if (kind != PAGE_DATA_V2 && field.id == 2) {
            header->encoding = (int)thrift_int(thrift, field);
        } else if (kind == PAGE_DATA && field.id == 3) {
            header->level_encoding = (int)thrift_int(thrift, field);
        } else if (kind == PAGE_DATA_V2 && field.id == 4) {
            header->encoding = (int)thrift_int(thrift, field);
        } else if (kind == PAGE_DATA_V2 && field.id == 5) {
            header->definition_bytes = thrift_int(thrift, field);
        } else if (kind == PAGE_DATA_V2 && field.id == 6) {
            header->repetition_bytes = thrift_int(thrift, field);
        } else if (kind == PAGE_DATA_V2 && field.id == 7) {
            header->is_compressed = thrift_bool(thrift, field);
        } else {
            thrift_skip(thrift, field.type);
        }
    }
}

static PageHeader header_parse(Thrift *thrift) {
    PageHeader header = {.type = -1, .level_encoding = ENCODING_RLE, .is_compressed = true};
    ThriftField field = {0};
    while (thrift_field(thrift, &field)) {
        if (field.id == 1) {
            header.type = (int)thrift_int(thrift, field);
        } else if (field.id == 2) {
            header.size = thrift_int(thrift, field);
        } else if (field.id == 3) {
            header.compressed = thrift_int(thrift, field);
        } else if (field.id == 4) {
            header.crc = (uint32_t)thrift_int(thrift, field);
            header.has_crc = true;
        } else if (field.id == 5 && field.type == THRIFT_STRUCT && header.type == PAGE_DATA) {
            details_read(thrift, &header, PAGE_DATA);
        } else if (field.id == 7 && field.type == THRIFT_STRUCT && header.type == PAGE_DICTIONARY) {
            details_read(thrift, &header, PAGE_DICTIONARY);
        } else if (field.id == 8 && field.type == THRIFT_STRUCT && header.type == PAGE_DATA_V2) {
            details_read(thrift, &header, PAGE_DATA_V2);
        } else {
            thrift_skip(thrift, field.type);
        }
    }
    return header;
}

// A header has no stated length, and statistics can make it long: try with what is at hand, then with twice as much.
static Status header_read(ParquetColumn *column, PageHeader *header, int64_t *body) {
    column->page_offset = column->offset;
    int64_t left = column->chunk->end - column->offset;
    for (int64_t bytes = 512;; bytes *= 2) {
        if (bytes > left) bytes = left;
        const uint8_t *data;
        TRY(window_need(column, column->offset, (size_t)bytes, &data));
        Thrift thrift = {.start = data, .at = data, .end = data + bytes};
        *header = header_parse(&thrift);
        if (!thrift_failed(&thrift)) {
            *body = column->offset + (thrift.at - thrift.start);
            break;
        }
        if (thrift.broken || bytes == left) return column_error(column, "the page header is damaged");
    }
    if (header->size < 0 || header->compressed < 0 || header->compressed > column->chunk->end - *body) {
        return column_error(column, "the page is said to be longer than its column chunk");
    }
    if (header->type != PAGE_INDEX && (!header->has_details || header->values < 0)) {
        return column_error(column, "the page header lacks its details");
    }
    return NULL;
}

// --- page bodies ----------------------------------------------------------------------------------------------------

static Status crc_check(const ParquetColumn *column, const PageHeader *header, const uint8_t *data) {
#if HEARTH_HAVE_ZLIB
    if (header->has_crc && crc32(0, data, (uInt)header->compressed) != header->crc) {
        return column_error(column, "the page is damaged: its checksum does not match");
    }
#else
    (void)column, (void)header, (void)data;
#endif
    return NULL;
}

static Status buffer_reserve(const ParquetColumn *column, uint8_t **data, size_t *capacity, int64_t size) {
    if (size > PAGE_LIMIT)
        return column_error(column, "a page of %lld bytes is over the limit of 256 MiB", (long long)size);
    if (!*data || *capacity < (size_t)size) {
        free(*data);
        *data = xmalloc((size_t)size + 1);
        *capacity = (size_t)size;
    }
    return NULL;
}

// Decompresses a body whose first `plain` bytes (the levels of a v2 page) are stored as they are.
static Status body_decompress(const ParquetColumn *column, const PageHeader *header, const uint8_t *body, int64_t plain,
                              uint8_t **out, size_t *capacity) {
    int codec = header->is_compressed ? column->chunk->codec : PARQUET_CODEC_NONE;
    size_t compressed = (size_t)(header->compressed - plain), size = (size_t)(header->size - plain);
    if (!parquet_codec_plausible(codec, compressed, size)) {
        return column_error(column, "a page of %lld bytes cannot come from %lld", (long long)header->size,
                            (long long)header->compressed);
    }
    TRY(buffer_reserve(column, out, capacity, header->size));
    if (header->size == 0) return NULL;
    memcpy(*out, body, (size_t)plain);
    if (codec == PARQUET_CODEC_NONE) {
        memcpy(*out + plain, body + plain, size);
        return NULL;
    }
    const char *wrong = parquet_decompress(codec, body + plain, compressed, *out + plain, size);
    return wrong ? column_error(column, "%s", wrong) : NULL;
}

static size_t number_bytes(ParquetType type) {
    return type == PARQUET_INT32 || type == PARQUET_FLOAT ? 4 : 8;
}

static double number_at(ParquetType type, const uint8_t *data) {
    union {
        int32_t i32;
        int64_t i64;
        float f32;
        double f64;
    } value = {0};
    memcpy(&value, data, number_bytes(type));
    switch (type) {
    case PARQUET_INT32: return value.i32;
    case PARQUET_INT64: return (double)value.i64;
    case PARQUET_FLOAT: return value.f32;
    default: return value.f64;
    }
}

static Status dictionary_load(ParquetColumn *column, const PageHeader *header, const uint8_t *body) {
    Dictionary *dictionary = &column->dictionary;
    bool strings = column->meta->type == PARQUET_BYTES;
    if (header->encoding != ENCODING_PLAIN && header->encoding != ENCODING_PLAIN_DICTIONARY) {
        return column_error(column, "a dictionary in the encoding %s", encoding_name(header->encoding));
    }
    TRY(body_decompress(column, header, body, 0, &dictionary->data, &dictionary->capacity));
    size_t least = strings ? 4 : number_bytes(column->meta->type); // bytes an entry takes
    if (header->values > header->size / (int64_t)least) {
        return column_error(column, "a dictionary of %lld entries in %lld bytes", (long long)header->values,
                            (long long)header->size);
    }
    dictionary->count = (size_t)header->values;
    ByteSpan span = {dictionary->data, dictionary->data + header->size};
    if (strings) {
        dictionary->strings = xrealloc(dictionary->strings, (dictionary->count + 1) * sizeof *dictionary->strings);
    } else {
        dictionary->numbers = xrealloc(dictionary->numbers, (dictionary->count + 1) * sizeof *dictionary->numbers);
    }
    for (size_t i = 0; i < dictionary->count; i++) {
        const uint8_t *data;
        size_t length = least;
        if (strings ? !span_plain_string(&span, &data, &length) : !span_bytes(&span, least, &data)) {
            return column_error(column, "the dictionary ends too early");
        }
        if (strings) {
            dictionary->strings[i] = (ByteSpan){data, data + length};
        } else {
            dictionary->numbers[i] = number_at(column->meta->type, data);
        }
    }
    column->has_dictionary = true;
    return NULL;
}

// The definition levels at the start of a page; *values becomes what is behind them.
static Status levels_start(ParquetColumn *column, const PageHeader *header, ByteSpan *page) {
    const uint8_t *data;
    size_t length;
    if (header->type == PAGE_DATA_V2) {
        length = (size_t)header->definition_bytes;
        span_bytes(page, (size_t)header->repetition_bytes, &data);
        span_bytes(page, length, &data);
    } else {
        if (!column->meta->optional) return NULL;
        if (header->level_encoding != ENCODING_RLE) {
            return column_error(column, "definition levels in the encoding %s", encoding_name(header->level_encoding));
        }
        if (!span_plain_string(page, &data, &length))
            return column_error(column, "the definition levels end too early");
    }
    rle_start(&column->levels, (ByteSpan){data, data + length}, 1);
    return NULL;
}

static bool delta_lengths_start(ParquetColumn *column, ByteSpan bytes) {
    return delta_start(&column->deltas, bytes) && delta_finish(column->deltas, &column->values);
}

static Status values_start(ParquetColumn *column, ByteSpan bytes) {
    bool strings = column->meta->type == PARQUET_BYTES, started = true;
    column->values = bytes;
    switch (column->encoding) {
    case ENCODING_PLAIN: break;
    case ENCODING_PLAIN_DICTIONARY:
    case ENCODING_RLE_DICTIONARY: {
        if (!column->has_dictionary) return column_error(column, "the page needs a dictionary, and there is none");
        const uint8_t *width;
        if (bytes.at == bytes.end) { // nulls only
            rle_start(&column->indices, bytes, 0);
        } else {
            started = span_bytes(&bytes, 1, &width) && rle_start(&column->indices, bytes, *width);
        }
        break;
    }
    case ENCODING_DELTA_LENGTH_BYTE_ARRAY:
        if (!strings) goto unsupported;
        started = delta_lengths_start(column, bytes);
        break;
    case ENCODING_DELTA_BYTE_ARRAY:
        if (!strings) goto unsupported;
        column->joined_length = 0;
        started = delta_start(&column->prefixes, bytes) && delta_finish(column->prefixes, &bytes) &&
                  delta_lengths_start(column, bytes);
        break;
    case ENCODING_DELTA_BINARY_PACKED:
        if (column->meta->type != PARQUET_INT32 && column->meta->type != PARQUET_INT64) goto unsupported;
        started = delta_start(&column->deltas, bytes);
        break;
    default: goto unsupported;
    }
    return started ? NULL : column_error(column, "the page's values are damaged");
unsupported:
    return column_error(column, "column \"%s\" uses the encoding %s, which hearth does not read for it",
                        column->meta->name, encoding_name((int)column->encoding));
}

static Status data_page_load(ParquetColumn *column, const PageHeader *header, const uint8_t *body) {
    int64_t plain = 0;
    if (header->type == PAGE_DATA_V2) {
        if (header->definition_bytes < 0 || header->repetition_bytes < 0 ||
            header->definition_bytes > header->compressed || header->definition_bytes > header->size ||
            header->repetition_bytes > header->compressed - header->definition_bytes ||
            header->repetition_bytes > header->size - header->definition_bytes) {
            return column_error(column, "the page's levels are said to be longer than the page");
        }
        plain = header->definition_bytes + header->repetition_bytes;
    }
    if (header->values > column->values_left) {
        return column_error(column, "the pages hold more values than the column chunk states");
    }
    TRY(body_decompress(column, header, body, plain, &column->page, &column->page_capacity));
    ByteSpan page = {column->page, column->page + header->size};
    column->encoding = (Encoding)header->encoding;
    column->page_values = header->values;
    column->values_left -= header->values;
    TRY(levels_start(column, header, &page));
    return header->values > 0 ? values_start(column, page) : NULL;
}

// Loads pages until one with values is at hand.
static Status page_next(ParquetColumn *column) {
    while (column->page_values == 0) {
        PageHeader header;
        int64_t body = 0;
        const uint8_t *data;
        if (column->offset >= column->chunk->end) {
            column->page_offset = column->offset;
            return column_error(column, "the column chunk ends %lld values too early", (long long)column->values_left);
        }
        TRY(header_read(column, &header, &body));
        TRY(window_need(column, body, (size_t)header.compressed, &data));
        if (header.type != PAGE_INDEX) TRY(crc_check(column, &header, data));
        if (header.type == PAGE_DICTIONARY) {
            TRY(dictionary_load(column, &header, data));
        } else if (header.type == PAGE_DATA || header.type == PAGE_DATA_V2) {
            TRY(data_page_load(column, &header, data));
        } else if (header.type != PAGE_INDEX) {
            return column_error(column, "a page of the unknown type %d", header.type);
        }
        column->offset = body + header.compressed;
    }
    return NULL;
}

// --- values ---------------------------------------------------------------------------------------------------------

static bool dictionary_value(ParquetColumn *column, ParquetValue *value) {
    uint32_t index;
    if (!rle_next(&column->indices, &index) || index >= column->dictionary.count) return false;
    if (column->meta->type == PARQUET_BYTES) {
        ByteSpan span = column->dictionary.strings[index];
        value->data = (const char *)span.at;
        value->length = (size_t)(span.end - span.at);
    } else {
        value->number = column->dictionary.numbers[index];
    }
    return true;
}

static bool plain_value(ParquetColumn *column, ParquetValue *value) {
    const uint8_t *data;
    if (column->meta->type == PARQUET_BYTES) {
        if (!span_plain_string(&column->values, &data, &value->length)) return false;
        value->data = (const char *)data;
        return true;
    }
    if (!span_bytes(&column->values, number_bytes(column->meta->type), &data)) return false;
    value->number = number_at(column->meta->type, data);
    return true;
}

static bool delta_length_value(ParquetColumn *column, ParquetValue *value) {
    int64_t length;
    const uint8_t *data;
    if (!delta_next(&column->deltas, &length) || length < 0) return false;
    if (!span_bytes(&column->values, (size_t)length, &data)) return false;
    value->data = (const char *)data;
    value->length = (size_t)length;
    return true;
}

static bool delta_string_value(ParquetColumn *column, ParquetValue *value) {
    int64_t prefix;
    if (!delta_next(&column->prefixes, &prefix) || prefix < 0 || (uint64_t)prefix > column->joined_length) return false;
    if (!delta_length_value(column, value)) return false;
    size_t length = (size_t)prefix + value->length;
    if (length > (size_t)PAGE_LIMIT) return false;
    if (column->joined_capacity < length + 1) {
        column->joined_capacity = length + length / 2 + 64;
        column->joined = xrealloc(column->joined, column->joined_capacity);
    }
    memcpy(column->joined + prefix, value->data, value->length);
    column->joined_length = length;
    value->data = column->joined;
    value->length = length;
    return true;
}

static bool delta_number_value(ParquetColumn *column, ParquetValue *value) {
    int64_t number;
    if (!delta_next(&column->deltas, &number)) return false;
    value->number = column->meta->type == PARQUET_INT32 ? (double)(int32_t)number : (double)number;
    return true;
}

static bool value_decode(ParquetColumn *column, ParquetValue *value) {
    switch (column->encoding) {
    case ENCODING_PLAIN: return plain_value(column, value);
    case ENCODING_DELTA_LENGTH_BYTE_ARRAY: return delta_length_value(column, value);
    case ENCODING_DELTA_BYTE_ARRAY: return delta_string_value(column, value);
    case ENCODING_DELTA_BINARY_PACKED: return delta_number_value(column, value);
    default: return dictionary_value(column, value);
    }
}

Status parquet_column_next(ParquetColumn *column, ParquetValue *value) {
    *value = (ParquetValue){.data = ""};
    if (column->page_values == 0) TRY(page_next(column));
    column->page_values--;
    uint32_t level = 1;
    if (column->meta->optional && !rle_next(&column->levels, &level)) {
        return column_error(column, "the definition levels end too early");
    }
    value->null = level == 0;
    if (value->null || value_decode(column, value)) return NULL;
    return column_error(column, "the page's values are damaged or end too early");
}
