#include "base/utf8.h"

#include <string.h>

unsigned utf8_put(uint32_t code, void *out) {
    uint8_t *bytes = out;
    if (code < 0x80) {
        bytes[0] = (uint8_t)code;
        return 1;
    }
    if (code < 0x800) {
        bytes[0] = (uint8_t)(0xc0 | code >> 6);
        bytes[1] = (uint8_t)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        bytes[0] = (uint8_t)(0xe0 | code >> 12);
        bytes[1] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
        bytes[2] = (uint8_t)(0x80 | (code & 0x3f));
        return 3;
    }
    bytes[0] = (uint8_t)(0xf0 | code >> 18);
    bytes[1] = (uint8_t)(0x80 | (code >> 12 & 0x3f));
    bytes[2] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
    bytes[3] = (uint8_t)(0x80 | (code & 0x3f));
    return 4;
}

size_t utf8_count(const char *text, size_t length) {
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

unsigned utf8_check(const void *text, size_t left, unsigned *part) {
    const uint8_t *at = text;
    uint8_t first = at[0];
    if (first < 0x80) return 1;
    *part = 1;
    if (first < 0xc2 || first > 0xf4) return 0;
    unsigned length = utf8_length(first);
    // The second byte of E0, ED, F0 and F4 has a narrower range: no overlong forms, no surrogates, nothing past 10FFFF.
    uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    for (unsigned i = 1; i < length; i++) {
        if (i >= left || at[i] < low || at[i] > high) return 0;
        *part = i + 1;
        low = 0x80;
        high = 0xbf;
    }
    return length;
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

size_t utf8_first_malformed(const void *text, size_t length) {
    const uint8_t *begin = text, *at = begin, *end = begin + length;
    while ((at = utf8_skip_ascii(at, end)) < end) {
        // Text in other scripts stays outside ASCII for a while: go on without asking for a long ASCII run each time.
        while (at < end && *at >= 0x80) {
            unsigned part, bytes = utf8_check(at, (size_t)(end - at), &part);
            if (!bytes) return (size_t)(at - begin);
            at += bytes;
            if (at < end && *at < 0x80) at++;
        }
    }
    return length;
}

void utf8_repair(TextBuffer *out, const void *text, size_t length) {
    const uint8_t *at = text;
    while (length) {
        size_t good = utf8_first_malformed(at, length);
        text_buffer_add(out, (const char *)at, good);
        if (good == length) return;
        unsigned part = 1;
        utf8_check(at + good, length - good, &part);
        text_buffer_add(out, "\xef\xbf\xbd", 3);
        at += good + part;
        length -= good + part;
    }
}
