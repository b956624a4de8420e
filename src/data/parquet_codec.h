// Decompression of one Parquet page body.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PARQUET_CODEC_NONE = 0 };

const char *parquet_codec_name(int codec);  // "LZ4_RAW", or "unknown"
bool parquet_codec_is_supported(int codec); // by this build
// Whether `compressed` bytes could hold `size` bytes at all; asked before room for them is allocated.
bool parquet_codec_plausible(int codec, size_t compressed, size_t size);
// Exactly `size` bytes must come out. NULL on success, else what is wrong.
const char *parquet_decompress(int codec, const uint8_t *data, size_t compressed, uint8_t *out, size_t size);
