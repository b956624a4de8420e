// The bytes of a file, chunk by chunk: as they are, or decompressed (.gz, .zst) on a thread of their own, so that
// decompression overlaps with parsing. Memory is a few fixed buffers whatever the file.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ByteStream ByteStream;

// The compression follows from the name's ending. verify: a compressed file is decompressed once beforehand; of a
// damaged one stream_next then gives only what stands before the member or frame that is damaged, as its checksum comes
// last.
Status stream_open(ByteStream **stream, const char *path, bool verify);
// The next chunk, valid until the next call; *size is 0 at the end.
Status stream_next(ByteStream *stream, const char **data, size_t *size);
bool stream_is_compressed(const ByteStream *stream);
Status stream_drain(ByteStream *stream); // passes over the rest of a compressed file: whether it is damaged
int64_t
stream_consumed(const ByteStream *stream); // bytes of the file itself behind the chunks handed out, for progress
void stream_close(ByteStream *stream);
