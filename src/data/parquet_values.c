#include "data/parquet_values.h"

#include <string.h>

bool span_bytes(ByteSpan *span, size_t length, const uint8_t **data) {
    if ((size_t)(span->end - span->at) < length) return false;
    *data = span->at;
    span->at += length;
    return true;
}

static bool span_varint(ByteSpan *span, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64 && span->at < span->end; shift += 7) {
        uint8_t byte = *span->at++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

bool span_plain_string(ByteSpan *span, const uint8_t **data, size_t *length) {
    const uint8_t *head;
    if (!span_bytes(span, 4, &head)) return false;
    *length = (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    return span_bytes(span, *length, data);
}

// `width` bits (at most 64) from bit `bit` of start, least significant first; bits beyond the end are the caller's
// error.
static uint64_t bits_at(const uint8_t *start, const uint8_t *end, uint64_t bit, unsigned width) {
    if (width == 0) return 0;
    const uint8_t *from = start + (bit >> 3);
    unsigned shift = bit & 7;
    uint64_t low = 0;
    size_t left = (size_t)(end - from);
    memcpy(&low, from, left < 8 ? left : 8);
    low >>= shift;
    if (shift + width > 64) low |= (uint64_t)from[8] << (64 - shift);
    return width == 64 ? low : low & (((uint64_t)1 << width) - 1);
}

// --- RLE / bit-packed hybrid ----------------------------------------------------------------------------------------

bool rle_start(RleDecoder *rle, ByteSpan bytes, unsigned width) {
    *rle = (RleDecoder){.bytes = bytes, .width = width};
    return width <= 32;
}

static bool rle_run_next(RleDecoder *rle) {
    uint64_t head;
    const uint8_t *data;
    if (!span_varint(&rle->bytes, &head)) return false;
    rle->packed = head & 1;
    uint64_t count = head >> 1;
    size_t left = (size_t)(rle->bytes.end - rle->bytes.at);
    if (rle->packed) {
        // Groups of eight values; the last group may lack the bytes of values that do not exist.
        uint64_t bytes = count > left ? left : count * rle->width;
        if (bytes > left) bytes = left;
        span_bytes(&rle->bytes, bytes, &rle->packed_start);
        rle->packed_end = rle->packed_start + bytes;
        rle->packed_bit = 0;
        rle->run_left = rle->width == 0 ? (count > UINT64_MAX / 8 ? UINT64_MAX : count * 8) : bytes * 8 / rle->width;
        return rle->run_left > 0;
    }
    if (!span_bytes(&rle->bytes, (rle->width + 7) / 8, &data)) return false;
    rle->value = 0;
    for (unsigned i = 0; i < (rle->width + 7) / 8; i++)
        rle->value |= (uint32_t)data[i] << (8 * i);
    rle->run_left = count;
    return count > 0;
}

bool rle_next(RleDecoder *rle, uint32_t *value) {
    if (rle->run_left == 0 && !rle_run_next(rle)) return false;
    rle->run_left--;
    if (rle->packed) {
        *value = (uint32_t)bits_at(rle->packed_start, rle->packed_end, rle->packed_bit, rle->width);
        rle->packed_bit += rle->width;
    } else {
        *value = rle->value;
    }
    return true;
}

// --- DELTA_BINARY_PACKED --------------------------------------------------------------------------------------------

bool delta_start(DeltaDecoder *delta, ByteSpan bytes) {
    *delta = (DeltaDecoder){.bytes = bytes, .first = true};
    uint64_t first;
    if (!span_varint(&delta->bytes, &delta->block_values) || !span_varint(&delta->bytes, &delta->miniblocks) ||
        !span_varint(&delta->bytes, &delta->values_left) || !span_varint(&delta->bytes, &first)) {
        return false;
    }
    if (delta->block_values == 0 || delta->block_values > 1 << 24 || delta->miniblocks == 0 ||
        delta->block_values % delta->miniblocks != 0) {
        return false;
    }
    delta->miniblock_values = delta->block_values / delta->miniblocks;
    delta->miniblock = delta->miniblocks; // a block header comes next
    delta->last = (first >> 1) ^ -(first & 1);
    return delta->miniblock_values % 8 == 0;
}

static bool delta_miniblock_next(DeltaDecoder *delta) {
    if (delta->miniblock == delta->miniblocks) {
        uint64_t min_delta;
        if (!span_varint(&delta->bytes, &min_delta) || !span_bytes(&delta->bytes, delta->miniblocks, &delta->widths))
            return false;
        delta->min_delta = (min_delta >> 1) ^ -(min_delta & 1);
        delta->miniblock = 0;
    }
    delta->width = delta->widths[delta->miniblock++];
    if (delta->width > 64) return false;
    uint64_t bytes = delta->miniblock_values * delta->width / 8;
    if (!span_bytes(&delta->bytes, bytes, &delta->packed_start)) return false;
    delta->packed_end = delta->packed_start + bytes;
    delta->packed_bit = 0;
    delta->miniblock_left = delta->miniblock_values;
    return true;
}

bool delta_next(DeltaDecoder *delta, int64_t *value) {
    if (delta->values_left == 0) return false;
    if (delta->first) {
        delta->first = false;
    } else {
        if (delta->miniblock_left == 0 && !delta_miniblock_next(delta)) return false;
        uint64_t step = bits_at(delta->packed_start, delta->packed_end, delta->packed_bit, delta->width);
        delta->packed_bit += delta->width;
        delta->miniblock_left--;
        delta->last += delta->min_delta + step; // wraps as the format says
    }
    delta->values_left--;
    *value = (int64_t)delta->last;
    return true;
}

bool delta_finish(DeltaDecoder delta, ByteSpan *rest) {
    uint64_t left = delta.values_left;
    if (delta.first && left > 0) left--;
    while (left > delta.miniblock_left) {
        left -= delta.miniblock_left;
        delta.miniblock_left = 0;
        if (!delta_miniblock_next(&delta)) return false;
    }
    *rest = delta.bytes;
    return true;
}
