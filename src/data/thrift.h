// Thrift compact protocol, as far as Parquet metadata needs it: a cursor over bytes in memory that never reads past the
// end. After any failure the cursor stays failed and every read gives zero, so a caller checks once per struct.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ThriftType {
    THRIFT_STOP = 0,
    THRIFT_TRUE = 1,
    THRIFT_FALSE = 2,
    THRIFT_BYTE = 3,
    THRIFT_I16 = 4,
    THRIFT_I32 = 5,
    THRIFT_I64 = 6,
    THRIFT_DOUBLE = 7,
    THRIFT_BINARY = 8,
    THRIFT_LIST = 9,
    THRIFT_SET = 10,
    THRIFT_MAP = 11,
    THRIFT_STRUCT = 12,
} ThriftType;

typedef struct Thrift {
    const uint8_t *start, *at, *end;
    bool cut;    // failed because the bytes ended: more of them might do
    bool broken; // failed because they are malformed
    int depth;
} Thrift;

typedef struct ThriftField {
    int id; // of the struct being read; start with {0}
    ThriftType type;
} ThriftField;

static inline bool thrift_failed(const Thrift *thrift) {
    return thrift->cut || thrift->broken;
}

// Steps to the next field of a struct; false at its end or on failure.
bool thrift_field(Thrift *thrift, ThriftField *field);
int64_t thrift_int(Thrift *thrift, ThriftField field); // byte, i16, i32, i64; another type is broken
bool thrift_bool(Thrift *thrift, ThriftField field);
const char *thrift_binary(Thrift *thrift, ThriftType type, size_t *length); // inside the buffer, not NUL-terminated
// Elements of a list; every element takes at least one byte of what is left, so the count is bounded by the buffer.
size_t thrift_list(Thrift *thrift, ThriftType type, ThriftType *element);
void thrift_skip(Thrift *thrift, ThriftType type);
