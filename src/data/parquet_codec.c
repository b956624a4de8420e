#include "data/parquet_codec.h"

#if HEARTH_HAVE_BROTLI
#include <brotli/decode.h>
#endif
#if HEARTH_HAVE_LZ4
#include <lz4.h>
#endif
#if HEARTH_HAVE_SNAPPY
#include <snappy-c.h>
#endif
#if HEARTH_HAVE_ZLIB
#include <zlib.h>
#endif
#if HEARTH_HAVE_ZSTD
#include <zstd.h>
#endif

enum { CODEC_SNAPPY = 1, CODEC_GZIP = 2, CODEC_BROTLI = 4, CODEC_LZ4 = 5, CODEC_ZSTD = 6, CODEC_LZ4_RAW = 7 };

const char *parquet_codec_name(int codec) {
    static const char *const names[] = {"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"};
    return codec >= 0 && codec < (int)(sizeof names / sizeof names[0]) ? names[codec] : "unknown";
}

bool parquet_codec_is_supported(int codec) {
    switch (codec) {
    case PARQUET_CODEC_NONE: return true;
#if HEARTH_HAVE_SNAPPY
    case CODEC_SNAPPY: return true;
#endif
#if HEARTH_HAVE_ZLIB
    case CODEC_GZIP: return true;
#endif
#if HEARTH_HAVE_ZSTD
    case CODEC_ZSTD: return true;
#endif
#if HEARTH_HAVE_BROTLI
    case CODEC_BROTLI: return true;
#endif
#if HEARTH_HAVE_LZ4
    case CODEC_LZ4:
    case CODEC_LZ4_RAW: return true;
#endif
    default: return false;
    }
}

// The densest each format can be: snappy 64 bytes from a 3-byte copy, deflate 1032:1, LZ4 255 from one byte more of a
// length, zstd a 128 KiB block from 4 bytes, brotli 16 MiB from a few.
bool parquet_codec_plausible(int codec, size_t compressed, size_t size) {
    switch (codec) {
    case PARQUET_CODEC_NONE: return compressed == size;
    case CODEC_SNAPPY: return size <= compressed * 22 + 64;
    case CODEC_GZIP: return size <= compressed * 1040 + 64;
    case CODEC_LZ4:
    case CODEC_LZ4_RAW: return size <= compressed * 256 + 64;
    case CODEC_BROTLI: return size / ((size_t)16 << 20) <= compressed;
    default: return size <= compressed * 32768 + 64;
    }
}

#if HEARTH_HAVE_ZLIB
static const char *gzip_decompress(const uint8_t *data, size_t compressed, uint8_t *out, size_t size) {
    z_stream stream = {0};
    if (inflateInit2(&stream, 15 + 32) != Z_OK) return "zlib could not start";
    stream.next_in = (Bytef *)data;
    stream.avail_in = (uInt)compressed;
    stream.next_out = out;
    stream.avail_out = (uInt)size;
    int result = Z_OK;
    while (result == Z_OK) {
        result = inflate(&stream, Z_NO_FLUSH);
        if (result == Z_STREAM_END && stream.avail_in > 0 && stream.avail_out > 0) { // another member follows
            inflateReset(&stream);
            result = Z_OK;
        } else if (result == Z_OK && stream.avail_in == 0 && stream.avail_out > 0) {
            break;
        }
    }
    bool whole = stream.avail_out == 0 && (result == Z_STREAM_END || result == Z_OK || result == Z_BUF_ERROR);
    inflateEnd(&stream);
    return whole ? NULL : "the gzip data is damaged";
}
#endif

#if HEARTH_HAVE_LZ4
static bool lz4_block(const uint8_t *data, size_t compressed, uint8_t *out, size_t size) {
    return LZ4_decompress_safe((const char *)data, (char *)out, (int)compressed, (int)size) == (int)size;
}

static size_t big_endian(const uint8_t *at) {
    return (size_t)at[0] << 24 | (size_t)at[1] << 16 | (size_t)at[2] << 8 | at[3];
}

// The older of the two has blocks with both of their sizes before them, as Hadoop writes them; some programs have
// written a bare block under its name.
static const char *lz4_decompress(const uint8_t *data, size_t compressed, uint8_t *out, size_t size) {
    size_t at = 0, made = 0;
    while (compressed - at >= 8) {
        size_t block = big_endian(data + at), stored = big_endian(data + at + 4);
        if (block > size - made || stored > compressed - at - 8 || !lz4_block(data + at + 8, stored, out + made, block))
            break;
        at += 8 + stored;
        made += block;
    }
    if (at == compressed && made == size) return NULL;
    return lz4_block(data, compressed, out, size) ? NULL : "the LZ4 data is damaged";
}
#endif

const char *parquet_decompress(int codec, const uint8_t *data, size_t compressed, uint8_t *out, size_t size) {
    if (size == 0) return NULL;
    switch (codec) {
#if HEARTH_HAVE_SNAPPY
    case CODEC_SNAPPY: {
        size_t stated = 0, written = size;
        if (snappy_uncompressed_length((const char *)data, compressed, &stated) != SNAPPY_OK || stated != size ||
            snappy_uncompress((const char *)data, compressed, (char *)out, &written) != SNAPPY_OK || written != size) {
            return "the snappy data is damaged";
        }
        return NULL;
    }
#endif
#if HEARTH_HAVE_ZLIB
    case CODEC_GZIP: return gzip_decompress(data, compressed, out, size);
#endif
#if HEARTH_HAVE_ZSTD
    case CODEC_ZSTD: {
        size_t written = ZSTD_decompress(out, size, data, compressed);
        return ZSTD_isError(written) ? ZSTD_getErrorName(written) : written == size ? NULL : "the zstd data is damaged";
    }
#endif
#if HEARTH_HAVE_BROTLI
    case CODEC_BROTLI: {
        size_t written = size;
        bool whole = BrotliDecoderDecompress(compressed, data, &written, out) == BROTLI_DECODER_RESULT_SUCCESS;
        return whole && written == size ? NULL : "the brotli data is damaged";
    }
#endif
#if HEARTH_HAVE_LZ4
    case CODEC_LZ4: return lz4_decompress(data, compressed, out, size);
    case CODEC_LZ4_RAW: return lz4_block(data, compressed, out, size) ? NULL : "the LZ4 data is damaged";
#endif
    default: (void)data, (void)compressed, (void)out; return "the codec is not supported";
    }
}
