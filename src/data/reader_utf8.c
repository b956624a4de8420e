#include "data/reader_utf8.h"

#include <stdint.h>
#include <string.h>

// Bytes of the well-formed sequence at `text`, or 0. Overlong forms, surrogates and values beyond U+10FFFF are
// malformed.
static size_t sequence_length(const unsigned char *text, size_t left) {
    unsigned char first = text[0];
    if (first < 0x80) return 1;
    if (first < 0xc2 || first > 0xf4) return 0;
    size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (left < length) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
    }
    if (first == 0xe0 && text[1] < 0xa0) return 0;
    if (first == 0xed && text[1] > 0x9f) return 0;
    if (first == 0xf0 && text[1] < 0x90) return 0;
    if (first == 0xf4 && text[1] > 0x8f) return 0;
    return length;
}

size_t utf8_first_invalid(const char *text, size_t length) {
    size_t at = 0;
    while (at < length) {
        while (at + 16 <= length) { // most text is ASCII: sixteen bytes at a time
            uint64_t low, high;
            memcpy(&low, text + at, 8);
            memcpy(&high, text + at + 8, 8);
            if ((low | high) & 0x8080808080808080u) break;
            at += 16;
        }
        size_t stop = at + 16 < length ? at + 16 : length;
        while (at < stop) {
            size_t n = sequence_length((const unsigned char *)text + at, length - at);
            if (n == 0) return at;
            at += n;
        }
    }
    return length;
}

size_t utf8_count(const char *text, size_t length) {
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

size_t utf8_write(char *out, unsigned code_point) {
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (char)(0xc0 | code_point >> 6);
        out[1] = (char)(0x80 | (code_point & 0x3f));
        return 2;
    }
    if (code_point < 0x10000) {
        out[0] = (char)(0xe0 | code_point >> 12);
        out[1] = (char)(0x80 | (code_point >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code_point & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code_point >> 18);
    out[1] = (char)(0x80 | (code_point >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code_point >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code_point & 0x3f));
    return 4;
}
