// Vocabulary storage and its hash index, and the byte alphabet.
#include "data/vocab.h"

#include "base/text.h"
#include "data/unicode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash_bytes(const uint8_t *text, size_t length) {
    uint64_t hash = 0x9e3779b97f4a7c15u ^ length;
    for (; length >= 8; text += 8, length -= 8) {
        uint64_t part;
        memcpy(&part, text, 8);
        hash = (hash ^ part) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    uint64_t part = 0;
    memcpy(&part, text, length);
    hash = (hash ^ part) * 0xff51afd7ed558ccdu;
    return hash ^ hash >> 29;
}

void vocab_init(Vocab *vocab, size_t size) {
    *vocab = (Vocab){0};
    vocab->slot_count = 1024;
    while (vocab->slot_count < 2 * size)
        vocab->slot_count *= 2;
    vocab->slots = xmalloc(vocab->slot_count * sizeof *vocab->slots);
    memset(vocab->slots, 0xff, vocab->slot_count * sizeof *vocab->slots);
    vocab_grow(vocab, size);
}

void vocab_free(Vocab *vocab) {
    free(vocab->bytes);
    free(vocab->offsets);
    free(vocab->lengths);
    free(vocab->slots);
    *vocab = (Vocab){0};
}

void vocab_grow(Vocab *vocab, size_t size) {
    if (size <= vocab->size) return;
    vocab->offsets = xrealloc(vocab->offsets, size * sizeof *vocab->offsets);
    vocab->lengths = xrealloc(vocab->lengths, size * sizeof *vocab->lengths);
    for (size_t id = vocab->size; id < size; id++) {
        vocab->offsets[id] = 0;
        vocab->lengths[id] = VOCAB_NONE;
    }
    vocab->size = size;
}

void vocab_set(Vocab *vocab, uint32_t id, const void *text, size_t length) {
    assert(id < vocab->size && length < VOCAB_NONE);
    if (vocab->byte_count + length > vocab->byte_capacity) {
        vocab->byte_capacity = 2 * (vocab->byte_count + length) + 4096;
        vocab->bytes = xrealloc(vocab->bytes, vocab->byte_capacity);
    }
    if (length) memcpy(vocab->bytes + vocab->byte_count, text, length);
    vocab->offsets[id] = vocab->byte_count;
    vocab->lengths[id] = (uint32_t)length;
    vocab->byte_count += length;
}

void vocab_index(Vocab *vocab, uint32_t id) {
    const uint8_t *text = vocab->bytes + vocab->offsets[id];
    size_t slot = hash_bytes(text, vocab->lengths[id]) & (vocab->slot_count - 1);
    while (vocab->slots[slot] != VOCAB_NONE)
        slot = (slot + 1) & (vocab->slot_count - 1);
    vocab->slots[slot] = id;
}

uint32_t vocab_find(const Vocab *vocab, const void *text, size_t length) {
    size_t slot = hash_bytes(text, length) & (vocab->slot_count - 1);
    for (;; slot = (slot + 1) & (vocab->slot_count - 1)) {
        uint32_t id = vocab->slots[slot];
        if (id == VOCAB_NONE) return VOCAB_NONE;
        if (vocab->lengths[id] == length && memcmp(vocab->bytes + vocab->offsets[id], text, length) == 0) return id;
    }
}

// Printable Latin-1 characters stand for themselves; the other 68 bytes are counted off from U+0100.
static bool byte_is_printable(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

uint32_t vocab_byte_char(uint8_t byte) {
    if (byte_is_printable(byte)) return byte;
    if (byte <= 0x20) return 0x100 + byte;
    if (byte <= 0xa0) return 0x121 + (byte - 0x7f);
    return 0x143; // 0xad
}

int vocab_char_byte(uint32_t character) {
    if (character < 0x100) return byte_is_printable((int)character) ? (int)character : -1;
    if (character <= 0x120) return (int)character - 0x100;
    if (character <= 0x142) return (int)character - 0x121 + 0x7f;
    return character == 0x143 ? 0xad : -1;
}

bool vocab_text_to_bytes(const char *text, size_t length, uint8_t *out, size_t *out_length) {
    const uint8_t *at = (const uint8_t *)text, *end = at + length;
    size_t count = 0;
    while (at < end) {
        unsigned step;
        int byte = vocab_char_byte(utf8_decode(at, &step));
        if (byte < 0) return false;
        out[count++] = (uint8_t)byte;
        at += step;
    }
    *out_length = count;
    return true;
}
