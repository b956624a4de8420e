// Decoders for what lies inside a Parquet page. Each walks bytes in memory, never past their end, and allocates nothing
// by the counts that the page states. A false return means the bytes are malformed or ended too early.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ByteSpan {
    const uint8_t *at, *end;
} ByteSpan;

// RLE / bit-packed hybrid: definition levels and dictionary indices.
typedef struct RleDecoder {
    ByteSpan bytes;
    unsigned width;    // bits a value, 0..32
    uint64_t run_left; // values left in the current run
    bool packed;
    uint32_t value; // of a repeated run
    const uint8_t *packed_start, *packed_end;
    uint64_t packed_bit;
} RleDecoder;

bool rle_start(RleDecoder *rle, ByteSpan bytes, unsigned width); // false: width too large
bool rle_next(RleDecoder *rle, uint32_t *value);

// DELTA_BINARY_PACKED integers.
typedef struct DeltaDecoder {
    ByteSpan bytes; // behind the current miniblock
    uint64_t block_values, miniblocks, miniblock_values;
    uint64_t values_left;
    uint64_t last, min_delta;
    const uint8_t *widths; // of the current block
    uint64_t miniblock;    // index of the next one
    uint64_t miniblock_left;
    bool first;
    unsigned width;
    const uint8_t *packed_start, *packed_end;
    uint64_t packed_bit;
} DeltaDecoder;

bool delta_start(DeltaDecoder *delta, ByteSpan bytes);
bool delta_next(DeltaDecoder *delta, int64_t *value);
bool delta_finish(DeltaDecoder delta, ByteSpan *rest); // the bytes behind all its values

bool span_bytes(ByteSpan *span, size_t length, const uint8_t **data);         // takes `length` bytes
bool span_plain_string(ByteSpan *span, const uint8_t **data, size_t *length); // PLAIN: 4-byte length, then bytes
