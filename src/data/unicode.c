// UTF-8 checking and repair, and the two character questions that the class tables alone do not answer.
#include "data/unicode.h"

#include <string.h>

#ifdef HEARTH_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

unsigned unicode_encode(uint32_t code, uint8_t out[4]) {
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (uint8_t)(0xc0 | code >> 6);
        out[1] = (uint8_t)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (uint8_t)(0xe0 | code >> 12);
        out[1] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | code >> 18);
    out[1] = (uint8_t)(0x80 | (code >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (code & 0x3f));
    return 4;
}

const uint8_t *utf8_skip_ascii(const uint8_t *at, const uint8_t *end) {
    while (end - at >= 32) {
        uint64_t words[4];
        memcpy(words, at, sizeof words);
        if ((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080u) break;
        at += 32;
    }
    while (at < end && *at < 0x80)
        at++;
    return at;
}

// Bytes of the well-formed character at `at`, or 0 with *bad = the length of the maximal part of one (at least 1).
static unsigned sequence_length(const uint8_t *at, const uint8_t *end, unsigned *bad) {
    uint8_t first = at[0];
    if (first < 0x80) return 1;
    *bad = 1;
    if (first < 0xc2 || first > 0xf4) return 0;
    unsigned length = utf8_length(first);
    // The second byte of E0, ED, F0 and F4 has a narrower range: no overlong forms, no surrogates, nothing past 10FFFF.
    uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    for (unsigned i = 1; i < length; i++) {
        if (at + i >= end || at[i] < low || at[i] > high) return 0;
        *bad = i + 1;
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

const uint8_t *utf8_find_malformed(const uint8_t *at, const uint8_t *end) {
    while ((at = utf8_skip_ascii(at, end)) < end) {
        // Text in other scripts stays outside ASCII for a while: go on without asking for a long ASCII run each time.
        while (at < end && *at >= 0x80) {
            unsigned bad, length = sequence_length(at, end, &bad);
            if (!length) return at;
            at += length;
            if (at < end && *at < 0x80) at++;
        }
    }
    return NULL;
}

void utf8_repair(TextBuffer *out, const uint8_t *text, size_t length) {
    const uint8_t *at = text, *end = text + length;
    while (at < end) {
        const uint8_t *malformed = utf8_find_malformed(at, end);
        const uint8_t *good_end = malformed ? malformed : end;
        text_buffer_add(out, (const char *)at, (size_t)(good_end - at));
        if (!malformed) return;
        unsigned bad = 1;
        sequence_length(malformed, end, &bad);
        text_buffer_add(out, "\xef\xbf\xbd", 3);
        at = malformed + bad;
    }
}

bool unicode_is_numeric(uint32_t code) {
    if (unicode_class_of(code) & UNICODE_NUMBER) return true;
    return (code >= 0x11de0 && code <= 0x11de9) || (code >= 0x16ff4 && code <= 0x16ff6); // new in Unicode 17
}

bool unicode_is_punctuation(uint32_t code) {
    int low = 0, high = unicode_punctuation_count;
    while (low < high) { // the first range that does not end before it
        int middle = (low + high) / 2;
        if (unicode_punctuation[2 * middle + 1] < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < unicode_punctuation_count && unicode_punctuation[2 * low] <= code;
}

bool unicode_is_word(uint32_t code) {
    unsigned class = unicode_class_of(code);
    if (class & (UNICODE_LETTER | UNICODE_MARK)) return true;
    if (code == '_' || code == 0x200c || code == 0x200d) return true;
    if ((code >= 0x24b6 && code <= 0x24e9) || (code >= 0x1f130 && code <= 0x1f149) ||
        (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189))
        return true; // circled and squared letters are Alphabetic symbols
    if (code == 0x203f || code == 0x2040 || code == 0x2054 || code == 0xfe33 || code == 0xfe34 ||
        (code >= 0xfe4d && code <= 0xfe4f) || code == 0xff3f)
        return true; // connector punctuation
    if (!(class & UNICODE_NUMBER)) return false;
#ifdef HEARTH_HAVE_UTF8PROC
    return utf8proc_category((utf8proc_int32_t)code) != UTF8PROC_CATEGORY_NO;
#else
    return code < 0x80;
#endif
}
