// Vocabulary: strings by id, and ids by string. Also the GPT-2 alphabet, in which tokenizer.json spells the 256 bytes
// as 256 printable characters.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VOCAB_NONE UINT32_MAX

typedef struct Vocab {
    uint8_t *bytes; // all strings, one after the other
    size_t byte_count, byte_capacity;
    size_t *offsets;   // [size] start of each id's string
    uint32_t *lengths; // [size]; VOCAB_NONE: no such id
    size_t size;       // largest id + 1
    uint32_t *slots;   // [slot_count] id, or VOCAB_NONE; open addressing
    size_t slot_count; // power of two
} Vocab;

void vocab_init(Vocab *vocab, size_t size); // room for ids below size
void vocab_free(Vocab *vocab);
void vocab_grow(Vocab *vocab, size_t size);                                 // more ids, no strings yet
void vocab_set(Vocab *vocab, uint32_t id, const void *text, size_t length); // each id once
void vocab_index(Vocab *vocab, uint32_t id);                                // makes the id's string findable
uint32_t vocab_find(const Vocab *vocab, const void *text, size_t length);   // or VOCAB_NONE

static inline const uint8_t *vocab_get(const Vocab *vocab, uint32_t id, size_t *length) {
    if (id >= vocab->size || vocab->lengths[id] == VOCAB_NONE) return NULL;
    *length = vocab->lengths[id];
    return vocab->bytes + vocab->offsets[id];
}

uint32_t vocab_byte_char(uint8_t byte);  // the character that stands for a byte
int vocab_char_byte(uint32_t character); // and back; -1 when it stands for none
// Appends the bytes that a string of the alphabet stands for; false when it has a character from outside.
bool vocab_text_to_bytes(const char *text, size_t length, uint8_t *out, size_t *out_length); // out: [length]
