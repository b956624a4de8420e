// Unicode for the tokenizer: UTF-8 steps, classes of code points from generated tables, repair of malformed text, and
// normalisation forms with a fast path for text that is already in form C.
#pragma once

#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UNICODE_LETTER = 1,     // \p{L}
    UNICODE_NUMBER = 2,     // \p{N}
    UNICODE_SPACE = 4,      // \s: White_Space
    UNICODE_MARK = 8,       // \p{M}
    UNICODE_UPPER = 16,     // \p{Lu} \p{Lt}
    UNICODE_LOWER = 32,     // \p{Ll}
    UNICODE_COMBINING = 64, // canonical combining class other than 0
    UNICODE_COMPOSES = 128, // form C may change it, or join it to what stands before
};

extern const uint8_t unicode_block[0x110000 / 128]; // block number of each 128 code points
extern const uint8_t unicode_class[];               // [blocks * 128]
extern const uint32_t unicode_newer_marks[];        // pairs first, last
extern const int unicode_newer_marks_count;
extern const uint32_t unicode_punctuation[]; // pairs first, last
extern const int unicode_punctuation_count;

static inline unsigned unicode_class_of(uint32_t code) {
    return unicode_class[((size_t)unicode_block[code >> 7] << 7) | (code & 127)];
}

// Length in bytes of the well-formed sequence that starts with this byte.
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

unsigned unicode_encode(uint32_t code, uint8_t out[4]);                    // bytes written
const uint8_t *utf8_skip_ascii(const uint8_t *at, const uint8_t *end);     // first byte that is not ASCII, or end
const uint8_t *utf8_find_malformed(const uint8_t *at, const uint8_t *end); // or NULL
// Appends text with each malformed part replaced by U+FFFD, one for each maximal part as Python's errors="replace"
// does.
void utf8_repair(TextBuffer *out, const uint8_t *text, size_t length);

bool unicode_is_numeric(uint32_t code); // categories Nd, Nl, No of Unicode 17: what the Digits pre-tokenizer splits by
bool unicode_is_punctuation(uint32_t code); // what the Punctuation pre-tokenizer splits by
bool unicode_is_word(uint32_t code);        // \w, for added tokens that must stand alone

typedef enum UnicodeForm { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD } UnicodeForm;

typedef struct UnicodeScratch { // for normalising; reused between calls
    int32_t *codes;
    size_t capacity;
} UnicodeScratch;

bool unicode_can_normalize(void); // whether this build has utf8proc
// Appends the normal form of well-formed text to out and sets *changed, or leaves out alone when the text is in that
// form already.
Status unicode_normalize(UnicodeScratch *scratch, UnicodeForm form, const uint8_t *text, size_t length, TextBuffer *out,
                         bool *changed);
void unicode_scratch_free(UnicodeScratch *scratch);
