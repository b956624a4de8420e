// UTF-8. Well-formed is what Unicode says: no overlong forms, no surrogates, nothing past U+10FFFF.
#pragma once

#include "base/text.h"

#include <stddef.h>
#include <stdint.h>

// Length in bytes of the well-formed character that starts with this byte.
static inline unsigned utf8_length(uint8_t first) {
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

// The code point at `text`, which must be well-formed; *length is its size in bytes.
static inline uint32_t utf8_decode(const uint8_t *text, unsigned *length) {
    uint32_t first = text[0];
    if (first < 0x80) {
        *length = 1;
        return first;
    }
    if (first < 0xe0) {
        *length = 2;
        return (first & 0x1f) << 6 | (text[1] & 0x3f);
    }
    if (first < 0xf0) {
        *length = 3;
        return (first & 0x0f) << 12 | (uint32_t)(text[1] & 0x3f) << 6 | (text[2] & 0x3f);
    }
    *length = 4;
    return (first & 0x07) << 18 | (uint32_t)(text[1] & 0x3f) << 12 | (uint32_t)(text[2] & 0x3f) << 6 | (text[3] & 0x3f);
}

// Where the character that ends at `end` starts.
static inline const uint8_t *utf8_previous(const uint8_t *end) {
    do
        end--;
    while ((*end & 0xc0) == 0x80);
    return end;
}

unsigned utf8_put(uint32_t code, void *out);        // at most 4 bytes; how many (jansson has a utf8_encode)
size_t utf8_count(const char *text, size_t length); // code points of well-formed text
// Bytes of the well-formed character at `text`, of which at least one byte is there; 0 when it is malformed, with *part
// = the length of the maximal part of one (at least 1).
unsigned utf8_check(const void *text, size_t left, unsigned *part);
const uint8_t *utf8_skip_ascii(const uint8_t *at, const uint8_t *end); // first byte that is not ASCII, or end
size_t utf8_first_malformed(const void *text, size_t length);          // its offset; `length` when there is none
// Appends text with each malformed part replaced by U+FFFD, one for each maximal part as Python's errors="replace"
// does.
void utf8_repair(TextBuffer *out, const void *text, size_t length);
