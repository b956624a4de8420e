// A small writer of Parquet files for the tests: one string column "text" and, in each row group, whatever pages a test
// asks for. Only what the reader must understand; nothing here is shared with the reader.
#pragma once

#include "testing.h"

#if HEARTH_HAVE_LZ4
#include <lz4.h>
#endif
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

enum {
    CODEC_NONE = 0,
    CODEC_SNAPPY = 1,
    CODEC_GZIP = 2,
    CODEC_LZO = 3,
    CODEC_LZ4 = 5,
    CODEC_ZSTD = 6,
    CODEC_LZ4_RAW = 7
};
enum { PLAIN = 0, DELTA_LENGTH = 6, DELTA_STRINGS = 7, DICTIONARY = 8, SPLIT_STREAM = 9 };

typedef struct GroupMeta {
    int64_t values, start, end, data_offset, dictionary_offset;
} GroupMeta;

typedef struct Build {
    TextBuffer file;
    int codec;
    bool optional, checksums;
    size_t statistics;             // bytes of padding that make page headers long
    const char *const *dictionary; // of the current row group
    size_t dictionary_count;
    GroupMeta groups[16];
    size_t group_count;
} Build;

// --- Thrift ---------------------------------------------------------------------------------------------------------

static inline void put_byte(TextBuffer *out, unsigned byte) {
    char c = (char)byte;
    text_buffer_add(out, &c, 1);
}

static inline void put_varint(TextBuffer *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7)
        put_byte(out, (unsigned)(value & 0x7f) | 0x80);
    put_byte(out, (unsigned)value);
}

static inline void put_zigzag(TextBuffer *out, int64_t value) {
    put_varint(out, ((uint64_t)value << 1) ^ (uint64_t)(value >> 63));
}

static inline void put_field(TextBuffer *out, int *last, int id, int type) {
    put_byte(out, (unsigned)((id - *last) << 4 | type));
    *last = id;
}

static inline void put_int(TextBuffer *out, int *last, int id, int type, int64_t value) {
    put_field(out, last, id, type);
    put_zigzag(out, value);
}

static inline void put_text(TextBuffer *out, const char *text) {
    put_varint(out, strlen(text));
    text_buffer_add(out, text, strlen(text));
}

// --- values ---------------------------------------------------------------------------------------------------------

static inline void put_le32(TextBuffer *out, uint32_t value) {
    for (int i = 0; i < 4; i++)
        put_byte(out, value >> (8 * i) & 0xff);
}

static inline void put_plain(TextBuffer *out, const char *const *texts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!texts[i]) continue;
        put_le32(out, (uint32_t)strlen(texts[i]));
        text_buffer_add(out, texts[i], strlen(texts[i]));
    }
}

// Levels as repeated runs.
static inline void put_levels(TextBuffer *out, const char *const *texts, size_t count) {
    for (size_t i = 0; i < count;) {
        size_t run = 1;
        while (i + run < count && !texts[i + run] == !texts[i])
            run++;
        put_varint(out, run << 1);
        put_byte(out, texts[i] != NULL);
        i += run;
    }
}

// Indices bit-packed with 5 bits.
static inline void put_indices(TextBuffer *out, const Build *build, const char *const *texts, size_t count) {
    uint32_t *indices = xcalloc(count + 8, sizeof *indices);
    size_t present = 0;
    for (size_t i = 0; i < count; i++) {
        if (!texts[i]) continue;
        uint32_t index = 0;
        while (index + 1 < build->dictionary_count && strcmp(build->dictionary[index], texts[i]) != 0)
            index++;
        indices[present++] = index;
    }
    size_t groups = (present + 7) / 8;
    put_byte(out, 5);
    put_varint(out, groups << 1 | 1);
    for (size_t g = 0; g < groups; g++) {
        uint64_t bits = 0;
        for (int i = 0; i < 8; i++)
            bits |= (uint64_t)indices[g * 8 + (size_t)i] << (5 * i);
        for (int i = 0; i < 5; i++)
            put_byte(out, bits >> (8 * i) & 0xff);
    }
    free(indices);
}

// DELTA_BINARY_PACKED with one miniblock width for all: 8 bits, blocks of 128 in 4 miniblocks. Deltas are kept small.
static inline void put_deltas(TextBuffer *out, const int64_t *values, size_t count) {
    put_varint(out, 128);
    put_varint(out, 4);
    put_varint(out, count);
    put_zigzag(out, count ? values[0] : 0);
    for (size_t first = 1; first < count; first += 128) {
        put_zigzag(out, -100);
        for (int i = 0; i < 4; i++)
            put_byte(out, 8);
        for (size_t i = first; i < first + 128; i++) {
            if ((i - first) % 32 == 0 && i >= count) break; // miniblocks without values are left out
            put_byte(out, i < count ? (unsigned)(values[i] - values[i - 1] + 100) & 0xff : 0);
        }
    }
}

static inline void put_delta_strings(TextBuffer *out, const char *const *texts, size_t count, bool prefixes) {
    int64_t *shared = xcalloc(count + 1, sizeof *shared), *rest = xcalloc(count + 1, sizeof *rest);
    TextBuffer bytes = {0};
    const char *before = "";
    size_t present = 0;
    for (size_t i = 0; i < count; i++) {
        if (!texts[i]) continue;
        size_t same = 0;
        while (prefixes && before[same] && before[same] == texts[i][same])
            same++;
        shared[present] = (int64_t)same;
        rest[present++] = (int64_t)(strlen(texts[i]) - same);
        text_buffer_add(&bytes, texts[i] + same, strlen(texts[i]) - same);
        before = texts[i];
    }
    if (prefixes) put_deltas(out, shared, present);
    put_deltas(out, rest, present);
    if (bytes.length) text_buffer_add(out, bytes.data, bytes.length);
    text_buffer_free(&bytes);
    free(shared);
    free(rest);
}

// --- pages ----------------------------------------------------------------------------------------------------------

static inline void compress_add(TextBuffer *out, int codec, const char *data, size_t size) {
    char *to = xmalloc(2 * size + 1024);
    size_t length = 2 * size + 1024;
    if (codec == CODEC_SNAPPY) {
        assert_int_equal(snappy_compress(data, size, to, &length), SNAPPY_OK);
    } else if (codec == CODEC_GZIP) {
        z_stream stream = {
            .next_in = (Bytef *)data, .avail_in = (uInt)size, .next_out = (Bytef *)to, .avail_out = (uInt)length};
        assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
        assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
        length -= stream.avail_out;
        deflateEnd(&stream);
#if HEARTH_HAVE_LZ4
    } else if (codec == CODEC_LZ4) { // as Hadoop: two blocks, their sizes before them
        length = 0;
        for (int i = 0; i < 2; i++) {
            size_t from = i ? size / 2 : 0, count = i ? size - from : size / 2;
            int stored = LZ4_compress_default(data + from, to + length + 8, (int)count, (int)(size + 256));
            uint32_t sizes[2] = {__builtin_bswap32((uint32_t)count), __builtin_bswap32((uint32_t)stored)};
            memcpy(to + length, sizes, 8);
            length += 8 + (size_t)stored;
        }
    } else if (codec == CODEC_LZ4_RAW) {
        length = (size_t)LZ4_compress_default(data, to, (int)size, (int)length);
#endif
    } else if (codec == CODEC_ZSTD) {
        length = ZSTD_compress(to, length, data, size, 1);
    } else {
        memcpy(to, data, size);
        length = size;
    }
    text_buffer_add(out, to, length);
    free(to);
}

// type 0: data v1, 2: dictionary, 3: data v2. levels: bytes at the start of body that a v2 page stores plain.
static inline void page_add(Build *build, int type, int encoding, size_t values, const TextBuffer *body,
                            size_t levels) {
    TextBuffer stored = {0}, *out = &build->file;
    const char *data = body->data ? body->data : "";
    text_buffer_add(&stored, data, levels);
    compress_add(&stored, build->codec, data + levels, body->length - levels);
    int last = 0, inner = 0;
    put_int(out, &last, 1, 5, type);
    put_int(out, &last, 2, 5, (int64_t)body->length);
    put_int(out, &last, 3, 5, (int64_t)stored.length);
    if (build->checksums) put_int(out, &last, 4, 5, (int32_t)crc32(0, (const Bytef *)stored.data, (uInt)stored.length));
    put_field(out, &last, type == 0 ? 5 : type == 2 ? 7 : 8, 12);
    put_int(out, &inner, 1, 5, (int64_t)values);
    if (type == 3) {
        put_int(out, &inner, 2, 5, 0);
        put_int(out, &inner, 3, 5, (int64_t)values);
        put_int(out, &inner, 4, 5, encoding);
        put_int(out, &inner, 5, 5, (int64_t)levels);
        put_int(out, &inner, 6, 5, 0);
        put_field(out, &inner, 7, build->codec == CODEC_NONE ? 2 : 1);
    } else {
        put_int(out, &inner, 2, 5, encoding);
        if (type == 0) {
            put_int(out, &inner, 3, 5, 3);
            put_int(out, &inner, 4, 5, 3);
        }
    }
    if (build->statistics && type != 2) { // a struct with a long minimum
        int deep = 0;
        put_field(out, &inner, type == 0 ? 5 : 8, 12);
        put_field(out, &deep, 5, 8);
        put_varint(out, build->statistics);
        for (size_t i = 0; i < build->statistics; i++)
            put_byte(out, 's');
        put_byte(out, 0);
    }
    put_byte(out, 0);
    put_byte(out, 0);
    text_buffer_add(out, stored.data ? stored.data : "", stored.length);
    text_buffer_free(&stored);
}

static inline void build_start(Build *build, int codec, bool optional) {
    *build = (Build){.codec = codec, .optional = optional};
    text_buffer_add(&build->file, "PAR1", 4);
}

static inline void build_group(Build *build) {
    GroupMeta *group = &build->groups[build->group_count++];
    group->start = (int64_t)build->file.length;
    build->dictionary_count = 0;
}

static inline void build_dictionary(Build *build, const char *const *texts, size_t count) {
    TextBuffer body = {0};
    put_plain(&body, texts, count);
    build->groups[build->group_count - 1].dictionary_offset = (int64_t)build->file.length;
    page_add(build, 2, PLAIN, count, &body, 0);
    build->dictionary = texts;
    build->dictionary_count = count;
    text_buffer_free(&body);
}

static inline void build_page(Build *build, int version, int encoding, const char *const *texts, size_t count) {
    TextBuffer body = {0}, levels = {0};
    GroupMeta *group = &build->groups[build->group_count - 1];
    put_levels(&levels, texts, count);
    if (build->optional && version == 1) put_le32(&body, (uint32_t)levels.length);
    if (build->optional) text_buffer_add(&body, levels.data, levels.length);
    size_t level_bytes = build->optional && version == 2 ? levels.length : 0;
    if (encoding == DICTIONARY) {
        put_indices(&body, build, texts, count);
    } else if (encoding == DELTA_LENGTH || encoding == DELTA_STRINGS) {
        put_delta_strings(&body, texts, count, encoding == DELTA_STRINGS);
    } else {
        put_plain(&body, texts, count);
    }
    if (!group->data_offset) group->data_offset = (int64_t)build->file.length;
    page_add(build, version == 1 ? 0 : 3, encoding, count, &body, level_bytes);
    group->values += (int64_t)count;
    group->end = (int64_t)build->file.length;
    text_buffer_free(&body);
    text_buffer_free(&levels);
}

// --- footer ---------------------------------------------------------------------------------------------------------

static inline void put_schema_element(TextBuffer *out, int type, int repetition, const char *name, int children) {
    int last = 0;
    if (type >= 0) put_int(out, &last, 1, 5, type);
    if (repetition >= 0) put_int(out, &last, 3, 5, repetition);
    put_field(out, &last, 4, 8);
    put_text(out, name);
    if (children) put_int(out, &last, 5, 5, children);
    put_byte(out, 0);
}

static inline void put_group(TextBuffer *out, const Build *build, const GroupMeta *group) {
    int last = 0, column = 0, meta = 0;
    put_field(out, &last, 1, 9);
    put_byte(out, 1 << 4 | 12);
    put_int(out, &column, 2, 6, 0);
    put_field(out, &column, 3, 12);
    put_int(out, &meta, 1, 5, 6);
    put_field(out, &meta, 2, 9);
    put_byte(out, 1 << 4 | 5);
    put_zigzag(out, 0);
    put_field(out, &meta, 3, 9);
    put_byte(out, 1 << 4 | 8);
    put_text(out, "text");
    put_int(out, &meta, 4, 5, build->codec);
    put_int(out, &meta, 5, 6, group->values);
    put_int(out, &meta, 6, 6, group->end - group->start);
    put_int(out, &meta, 7, 6, group->end - group->start);
    put_int(out, &meta, 9, 6, group->data_offset);
    if (group->dictionary_offset) put_int(out, &meta, 11, 6, group->dictionary_offset);
    put_byte(out, 0);
    put_byte(out, 0);
    put_int(out, &last, 2, 6, group->end - group->start);
    put_int(out, &last, 3, 6, group->values);
    put_byte(out, 0);
}

// Ends the file with its footer. Whatever a test wants wrong in the groups' figures it changes before.
static inline void build_finish(Build *build) {
    TextBuffer footer = {0};
    int last = 0;
    int64_t rows = 0;
    for (size_t i = 0; i < build->group_count; i++)
        rows += build->groups[i].values;
    put_int(&footer, &last, 1, 5, 1);
    put_field(&footer, &last, 2, 9);
    put_byte(&footer, 4 << 4 | 12);
    put_schema_element(&footer, -1, -1, "schema", 2);
    put_schema_element(&footer, -1, 1, "nested", 1);
    put_schema_element(&footer, 6, 1, "text", 0); // must not be taken for the flat one
    put_schema_element(&footer, 6, build->optional ? 1 : 0, "text", 0);
    put_int(&footer, &last, 3, 6, rows);
    put_field(&footer, &last, 4, 9);
    put_byte(&footer, (unsigned)build->group_count << 4 | 12);
    for (size_t i = 0; i < build->group_count; i++)
        put_group(&footer, build, &build->groups[i]);
    put_byte(&footer, 0);
    text_buffer_add(&build->file, footer.data, footer.length);
    put_le32(&build->file, (uint32_t)footer.length);
    text_buffer_add(&build->file, "PAR1", 4);
    text_buffer_free(&footer);
}
