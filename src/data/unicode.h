// Unicode for the tokenizer: UTF-8 steps, classes of code points from generated tables, repair of malformed text, and
// normalisation forms with a fast path for text that is already in form C.
#pragma once

#include "base/status.h"
#include "base/text.h"
#include "base/utf8.h"

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
