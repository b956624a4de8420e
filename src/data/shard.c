// Token shards: checked opening, and a writer whose file appears whole or not at all.
#include "data/shard.h"

#include "base/io.h"
#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static_assert(sizeof(ShardHeader) == 128, "the shard header is 128 bytes on disk");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are mapped as they are: little-endian hosts only");

#define HEADER_CHECKED_BYTES offsetof(ShardHeader, header_checksum)
#define SHARD_DAMAGED_HINT   "copy or prepare the data again; `hearth data inspect --deep` checks all of a dataset"
#define WRITE_BUFFER_BYTES   ((size_t)1 << 20)
#define SYNC_BYTES           ((size_t)16 << 20)

uint32_t shard_token_bytes(uint64_t vocab_size) {
    return vocab_size <= 65536 ? 2 : 4;
}

static uint64_t padded_to_8(uint64_t bytes) {
    return (bytes + 7) & ~(uint64_t)7;
}

// --- reading --------------------------------------------------------------------------------------------------------

static Status header_check(const ShardHeader *header, uint64_t file_bytes) {
    if (memcmp(header->magic, SHARD_MAGIC, 8) != 0) {
        return status_hint(status_usage("not a token shard: it does not start with " SHARD_MAGIC),
                           "make shards with `hearth data prepare`");
    }
    if (header->version != SHARD_VERSION) {
        return status_usage("shard version %u is not known (this hearth reads version %d)", header->version,
                            SHARD_VERSION);
    }
    if (header->header_checksum != XXH64(header, HEADER_CHECKED_BYTES, 0)) {
        return status_usage("the shard header is damaged: its checksum does not match");
    }
    if (header->vocab_size == 0 || header->vocab_size > (uint64_t)1 << 32) {
        return status_usage("the shard states an impossible vocabulary of %llu",
                            (unsigned long long)header->vocab_size);
    }
    if (header->token_bytes != shard_token_bytes(header->vocab_size)) {
        return status_usage("the shard stores %u bytes a token, its vocabulary of %llu needs %u", header->token_bytes,
                            (unsigned long long)header->vocab_size, shard_token_bytes(header->vocab_size));
    }
    // Compared by division first, so that no count can overflow the sum.
    uint64_t content = file_bytes - sizeof *header;
    if (header->token_count > content / header->token_bytes || header->document_count >= content / 8 ||
        padded_to_8(header->token_count * header->token_bytes) + (header->document_count + 1) * 8 != content) {
        return status_hint(
            status_usage("the shard holds %llu bytes, which is not what its header counts (%llu tokens, %llu "
                         "documents)",
                         (unsigned long long)file_bytes, (unsigned long long)header->token_count,
                         (unsigned long long)header->document_count),
            "the file was cut or changed; make or copy it again");
    }
    return NULL;
}

static Status index_check(const Shard *shard) {
    const uint64_t *documents = shard->documents;
    uint64_t count = shard->header->document_count;
    if (documents[0] != 0 || documents[count] != shard->header->token_count) {
        return status_usage("the shard's document index does not span its tokens");
    }
    for (uint64_t i = 0; i < count; i++) {
        if (documents[i] > documents[i + 1]) {
            return status_usage("the shard's document index goes backwards at document %llu", (unsigned long long)i);
        }
    }
    return NULL;
}

// The largest id, without a branch a token: as fast as memory.
static uint32_t largest_token(const Shard *shard) {
    uint64_t count = shard->header->token_count;
    uint32_t largest = 0;
    if (shard->header->token_bytes == 2) {
        const uint16_t *tokens = shard->tokens;
        uint16_t narrow = 0;
        for (uint64_t i = 0; i < count; i++)
            narrow = tokens[i] > narrow ? tokens[i] : narrow;
        return narrow;
    }
    const uint32_t *tokens = shard->tokens;
    for (uint64_t i = 0; i < count; i++)
        largest = tokens[i] > largest ? tokens[i] : largest;
    return largest;
}

Status shard_token_damaged(const Shard *shard, uint64_t index) {
    return status_hint(
        status_at(status_runtime("token %llu of the shard (at byte %llu) is %u, outside its vocabulary of %llu: the "
                                 "file is damaged",
                                 (unsigned long long)index,
                                 (unsigned long long)(sizeof(ShardHeader) + index * shard->header->token_bytes),
                                 shard_token(shard, index), (unsigned long long)shard->header->vocab_size),
                  shard->path, 0, 0),
        SHARD_DAMAGED_HINT);
}

static Status content_check(const Shard *shard) {
    const ShardHeader *header = shard->header;
    if (header->token_count && largest_token(shard) >= header->vocab_size)
        for (uint64_t i = 0; i < header->token_count; i++)
            if (shard_token(shard, i) >= header->vocab_size) return shard_token_damaged(shard, i);
    if (XXH64(shard->tokens, header->token_count * header->token_bytes, 0) != header->tokens_checksum) {
        return status_hint(status_runtime("the shard's tokens are damaged: their checksum does not match"),
                           SHARD_DAMAGED_HINT);
    }
    if (XXH64(shard->documents, (header->document_count + 1) * 8, 0) != header->documents_checksum) {
        return status_hint(status_runtime("the shard's document index is damaged: its checksum does not match"),
                           SHARD_DAMAGED_HINT);
    }
    return NULL;
}

Status shard_check_content(const Shard *shard) {
    return status_at(content_check(shard), shard->path, 0, 0);
}

static Status shard_check(Shard *shard, bool deep) {
    if (shard->map.size < sizeof(ShardHeader)) {
        return status_usage("not a token shard: %zu bytes are less than its header", shard->map.size);
    }
    // A copy: whoever writes to the file while it is in use changes no size that was checked.
    shard->header = memcpy(xmalloc(sizeof(ShardHeader)), shard->map.data, sizeof(ShardHeader));
    TRY(header_check(shard->header, shard->map.size));
    shard->tokens = (const char *)shard->map.data + sizeof(ShardHeader);
    shard->documents = (const uint64_t *)((const char *)shard->tokens +
                                          padded_to_8(shard->header->token_count * shard->header->token_bytes));
    TRY(index_check(shard));
    return deep ? content_check(shard) : NULL;
}

Status shard_open(Shard *shard, const char *path, bool deep) {
    *shard = (Shard){0};
    TRY(file_map(&shard->map, path));
    shard->path = text_copy(path);
    Status status = status_at(shard_check(shard, deep), path, 0, 0);
    if (status) shard_close(shard);
    return status;
}

void shard_close(Shard *shard) {
    file_unmap(&shard->map);
    free((void *)shard->header);
    free(shard->path);
    *shard = (Shard){0};
}

// --- writing --------------------------------------------------------------------------------------------------------

struct ShardWriter {
    char *path, *partial; // the file is written as `partial` and renamed when it is whole
    int fd;
    ShardHeader header;
    XXH64_state_t *hash;
    uint64_t *documents; // [document_count + 1]
    size_t documents_capacity;
    char *buffer; // [WRITE_BUFFER_BYTES]
    size_t buffered, unsynced;
};

static void writer_free(ShardWriter *writer) {
    XXH64_freeState(writer->hash);
    free(writer->documents);
    free(writer->buffer);
    free(writer->path);
    free(writer->partial);
    free(writer);
}

static Status writer_flush(ShardWriter *writer) {
    size_t bytes = writer->buffered;
    writer->buffered = 0;
    TRY(file_write_all(writer->fd, writer->buffer, bytes, writer->partial));
    // Lets the disk begin now, so that the fsync at the end has little left to wait for.
    writer->unsynced += bytes;
    if (writer->unsynced >= SYNC_BYTES) {
        sync_file_range(writer->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
        writer->unsynced = 0;
    }
    return NULL;
}

Status shard_writer_open(ShardWriter **out, const char *path, uint64_t vocab_size, uint64_t tokenizer_hash) {
    assert(vocab_size > 0 && vocab_size <= (uint64_t)1 << 32);
    ShardWriter *writer = xcalloc(1, sizeof *writer);
    *out = NULL;
    writer->path = text_copy(path);
    writer->partial = text_format("%s.partial", path);
    writer->fd = io_open(writer->partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (writer->fd < 0) {
        Status status = status_errno("cannot write %s", writer->partial);
        writer_free(writer);
        return status;
    }
    memcpy(writer->header.magic, SHARD_MAGIC, 8);
    writer->header.version = SHARD_VERSION;
    writer->header.token_bytes = shard_token_bytes(vocab_size);
    writer->header.vocab_size = vocab_size;
    writer->header.tokenizer_hash = tokenizer_hash;
    writer->hash = memory_or_exit(XXH64_createState(), 88);
    XXH64_reset(writer->hash, 0);
    writer->documents_capacity = 1024;
    writer->documents = xmalloc(writer->documents_capacity * sizeof *writer->documents);
    writer->documents[0] = 0;
    writer->buffer = xmalloc(WRITE_BUFFER_BYTES);
    // The header's place; it is filled in last, so that a file cut short never carries a valid one.
    memset(writer->buffer, 0, sizeof writer->header);
    writer->buffered = sizeof writer->header;
    *out = writer;
    return NULL;
}

static Status writer_add_tokens(ShardWriter *writer, const uint32_t *ids, size_t count) {
    size_t token_bytes = writer->header.token_bytes;
    while (count > 0) {
        size_t room = (WRITE_BUFFER_BYTES - writer->buffered) / token_bytes;
        size_t now = count < room ? count : room;
        char *to = writer->buffer + writer->buffered;
        uint32_t largest = 0;
        for (size_t i = 0; i < now; i++)
            largest = ids[i] > largest ? ids[i] : largest;
        if (largest >= writer->header.vocab_size) {
            return status_usage("token id %u is outside the vocabulary of %llu", largest,
                                (unsigned long long)writer->header.vocab_size);
        }
        if (token_bytes == 4) {
            memcpy(to, ids, now * 4);
        } else {
            uint16_t *narrow = (uint16_t *)to;
            for (size_t i = 0; i < now; i++)
                narrow[i] = (uint16_t)ids[i];
        }
        XXH64_update(writer->hash, to, now * token_bytes);
        writer->buffered += now * token_bytes;
        ids += now;
        count -= now;
        if (writer->buffered == WRITE_BUFFER_BYTES) TRY(writer_flush(writer));
    }
    return NULL;
}

Status shard_writer_add(ShardWriter *writer, const uint32_t *ids, size_t count, uint64_t text_bytes) {
    ShardHeader *header = &writer->header;
    TRY(writer_add_tokens(writer, ids, count));
    header->token_count += count;
    header->text_bytes += text_bytes;
    header->document_count++;
    if (header->document_count >= writer->documents_capacity) {
        writer->documents_capacity *= 2;
        writer->documents = xrealloc(writer->documents, writer->documents_capacity * sizeof *writer->documents);
    }
    writer->documents[header->document_count] = header->token_count;
    return NULL;
}

static Status writer_finish(ShardWriter *writer) {
    ShardHeader *header = &writer->header;
    size_t index_bytes = (header->document_count + 1) * sizeof *writer->documents;
    uint64_t token_bytes = header->token_count * header->token_bytes;
    TRY(writer_flush(writer));
    TRY(file_write_all(writer->fd, (const char[8]){0}, padded_to_8(token_bytes) - token_bytes, writer->partial));
    TRY(file_write_all(writer->fd, writer->documents, index_bytes, writer->partial));
    header->tokens_checksum = XXH64_digest(writer->hash);
    header->documents_checksum = XXH64(writer->documents, index_bytes, 0);
    header->header_checksum = XXH64(header, HEADER_CHECKED_BYTES, 0);
    if (lseek(writer->fd, 0, SEEK_SET) != 0) return status_errno("cannot seek in %s", writer->partial);
    TRY(file_write_all(writer->fd, header, sizeof *header, writer->partial));
    return NULL;
}

Status shard_writer_close(ShardWriter *writer, ShardHeader *header) {
    Status status = writer_finish(writer);
    if (status)
        file_discard(writer->fd, writer->partial);
    else
        status = file_publish(writer->fd, writer->partial, writer->path);
    if (!status && header) *header = writer->header;
    writer_free(writer);
    return status;
}

void shard_writer_abort(ShardWriter *writer) {
    if (!writer) return;
    file_discard(writer->fd, writer->partial);
    writer_free(writer);
}
