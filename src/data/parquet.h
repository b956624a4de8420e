// Parquet: the values of one or two flat columns of a file, row by row. Only the footer and the column chunks asked for
// are read, through a window; sizes that the file states are checked against what it holds before anything is
// allocated.
//
// Read: data pages v1 and v2; PLAIN, dictionary, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY and DELTA_BINARY_PACKED
// values; required and optional columns; no compression, snappy, gzip, zstd, LZ4, Brotli. Refused by name: other codecs
// and encodings, nested or repeated columns, encrypted files.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ParquetType { // as the format numbers them
    PARQUET_BOOLEAN = 0,
    PARQUET_INT32 = 1,
    PARQUET_INT64 = 2,
    PARQUET_INT96 = 3,
    PARQUET_FLOAT = 4,
    PARQUET_DOUBLE = 5,
    PARQUET_BYTES = 6,
    PARQUET_FIXED_BYTES = 7,
} ParquetType;

typedef struct ParquetChunk { // one column of one row group
    ParquetType type;
    int codec;
    int64_t values;
    int64_t start, end; // bytes of the file
} ParquetChunk;

typedef struct ParquetColumnMeta {
    char *name;
    ParquetType type;
    bool optional;
    ParquetChunk *chunks; // [row_groups]
} ParquetColumnMeta;

typedef struct ParquetFile {
    char *path;
    int fd;
    int64_t size;
    int64_t rows;
    size_t row_groups;
    int64_t *group_rows;        // [row_groups]
    ParquetColumnMeta *columns; // [column_count]: those asked for, in that order
    size_t column_count;
} ParquetFile;

// names: the columns to read. numeric[i]: column i must hold numbers, else it must hold byte strings.
Status parquet_open(ParquetFile *file, const char *path, const char *const *names, const bool *numeric, size_t count);
void parquet_close(ParquetFile *file);
Status parquet_read(const ParquetFile *file, int64_t offset, void *data, size_t bytes); // exactly, or an error

// An error in a row group at a byte of the file.
Status parquet_error(const ParquetFile *file, size_t row_group, int64_t offset, const char *what, ...)
    __attribute__((format(printf, 4, 5)));

typedef struct ParquetValue {
    bool null;
    const char *data; // byte strings: valid until the next value of the column
    size_t length;
    double number; // numeric columns
} ParquetValue;

typedef struct ParquetColumn ParquetColumn; // a cursor over the values of one column
ParquetColumn *parquet_column_new(const ParquetFile *file, size_t column);
void parquet_column_free(ParquetColumn *column);
Status parquet_column_enter(ParquetColumn *column, size_t row_group);   // to the first value of a row group
Status parquet_column_next(ParquetColumn *column, ParquetValue *value); // at most group_rows[row_group] times
int64_t parquet_column_offset(const ParquetColumn *column);             // byte of the file that was reached
