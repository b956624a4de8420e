// The hand-coded scanners, inline so that the encoder's loop has them without a call per pre-token.
#pragma once

#include "data/split.h"
#include "data/unicode.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define SPLIT_INLINE static inline __attribute__((always_inline))

SPLIT_INLINE unsigned split_class_at(const uint8_t *at, unsigned *length) {
    if (*at < 0x80) {
        *length = 1;
        return unicode_class[*at]; // ASCII is block 0
    }
    return unicode_class_of(utf8_decode(at, length));
}

SPLIT_INLINE bool split_is_newline(uint8_t byte) {
    return byte == '\n' || byte == '\r';
}

SPLIT_INLINE const uint8_t *split_skip_ascii_letters(const uint8_t *at, const uint8_t *end) {
#ifdef __SSE2__
    while (end - at >= 16) {
        __m128i text = _mm_loadu_si128((const __m128i *)at);
        // (byte | 0x20) - 'a' is below 26 for letters only; moved to the bottom of the signed range to compare.
        __m128i moved = _mm_add_epi8(_mm_or_si128(text, _mm_set1_epi8(0x20)), _mm_set1_epi8((char)(0x80 - 'a')));
        unsigned mask = (unsigned)_mm_movemask_epi8(_mm_cmplt_epi8(moved, _mm_set1_epi8((char)(0x80 + 26))));
        if (mask != 0xffff) return at + __builtin_ctz(~mask);
        at += 16;
    }
#endif
    while (at < end && *at < 0x80 && (unicode_class[*at] & UNICODE_LETTER))
        at++;
    return at;
}

// Characters of a class in `mask`, which holds ASCII letters.
SPLIT_INLINE const uint8_t *split_skip_letters(const uint8_t *at, const uint8_t *end, unsigned mask) {
    for (;;) {
        at = split_skip_ascii_letters(at, end);
        if (at >= end || *at < 0x80) return at;
        do {
            unsigned length;
            if (!(unicode_class_of(utf8_decode(at, &length)) & mask)) return at;
            at += length;
        } while (at < end && *at >= 0x80);
    }
}

// Characters of no class in `mask`.
SPLIT_INLINE const uint8_t *split_skip_others(const uint8_t *at, const uint8_t *end, unsigned mask) {
    unsigned length;
    while (at < end && !(split_class_at(at, &length) & mask))
        at += length;
    return at;
}

SPLIT_INLINE const uint8_t *split_skip_digits(const uint8_t *at, const uint8_t *end, int most) {
    unsigned length;
    while (most-- > 0 && at < end && (split_class_at(at, &length) & UNICODE_NUMBER))
        at += length;
    return at;
}

// Length of 's 't 're 've 'm 'll 'd at an apostrophe, or 0.
SPLIT_INLINE unsigned split_contraction(const uint8_t *at, const uint8_t *end, bool any_case) {
    if (end - at < 2) return 0;
    uint8_t fold = any_case ? 0x20 : 0;
    uint8_t first = at[1] | fold, second = end - at > 2 ? at[2] | fold : 0;
    switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd': return 2;
    case 'l': return second == 'l' ? 3 : 0;
    case 'r':
    case 'v': return second == 'e' ? 3 : 0;
    default: return any_case && at[1] == 0xc5 && end - at > 2 && at[2] == 0xbf ? 3 : 0; // long s folds to s
    }
}

// \s+(?!\S)|\s+ where the run [at, run_end) of white space ends with the character at `last`: the last one is left to
// the word that follows, unless it is the only one.
SPLIT_INLINE const uint8_t *split_space_end(const uint8_t *at, const uint8_t *last, const uint8_t *run_end,
                                            const uint8_t *end) {
    return run_end == end || last == at ? run_end : last;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
SPLIT_INLINE const uint8_t *split_gpt2(const uint8_t *at, const uint8_t *end) {
    unsigned length, class;
    if (*at == '\'' && (length = split_contraction(at, end, false))) return at + length;
    const uint8_t *word = at + (*at == ' ');
    if (word == end) return end;
    class = split_class_at(word, &length);
    if (class & UNICODE_LETTER) return split_skip_letters(word + length, end, UNICODE_LETTER);
    if (class & UNICODE_NUMBER) return split_skip_digits(word + length, end, INT32_MAX);
    if (!(class & UNICODE_SPACE))
        return split_skip_others(word + length, end, UNICODE_SPACE | UNICODE_LETTER | UNICODE_NUMBER);
    const uint8_t *last = at, *run = at;
    while (run < end && (split_class_at(run, &length) & UNICODE_SPACE)) {
        last = run;
        run += length;
    }
    return split_space_end(at, last, run, end);
}

// What the later patterns share: \s*[\r\n]+|\s+(?!\S)|\s+ at white space.
SPLIT_INLINE const uint8_t *split_space(const uint8_t *at, const uint8_t *end) {
    const uint8_t *last = at, *run = at, *newline = NULL;
    unsigned length;
    while (run < end && (split_class_at(run, &length) & UNICODE_SPACE)) {
        last = run;
        run += length;
        if (split_is_newline(*last)) newline = run;
    }
    return newline ? newline : split_space_end(at, last, run, end);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// with `letters` for \p{L} in words and `digits` for 3.
SPLIT_INLINE const uint8_t *split_words(const uint8_t *at, const uint8_t *end, unsigned letters, int digits) {
    unsigned length, next_length, class;
    if (*at == '\'' && (length = split_contraction(at, end, true))) return at + length;
    class = split_class_at(at, &length);
    if (class & letters) return split_skip_letters(at + length, end, letters);
    if (class & UNICODE_NUMBER) return split_skip_digits(at + length, end, digits - 1);
    const uint8_t *next = at + length;
    unsigned next_class = next < end ? split_class_at(next, &next_length) : (unsigned)UNICODE_SPACE;
    if ((next_class & letters) && !split_is_newline(*at)) return split_skip_letters(next + next_length, end, letters);
    unsigned taken = UNICODE_SPACE | UNICODE_NUMBER | letters;
    if (*at == ' ' ? !(next_class & taken) : !(class & UNICODE_SPACE)) {
        const uint8_t *stop = split_skip_others(next, end, taken);
        while (stop < end && split_is_newline(*stop))
            stop++;
        return stop;
    }
    return split_space(at, end);
}

// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at `at`, or with `upper_only`
// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]* where the first did not match; then perhaps a contraction.
// NULL when it does not match.
SPLIT_INLINE const uint8_t *split_cased_word(const uint8_t *at, const uint8_t *end, bool upper_only,
                                             bool contractions) {
    const unsigned word = UNICODE_LETTER | UNICODE_MARK;
    const uint8_t *run = at, *stop = NULL;
    unsigned length, class = 0;
    while (run < end && ((class = split_class_at(run, &length)) & word) && !(class & UNICODE_LOWER)) {
        run += length;
        if (!(class & UNICODE_UPPER)) stop = run; // caseless: may also end the lower part
    }
    if (run < end && (class & UNICODE_LOWER)) {
        stop = run;
        while (stop < end && ((class = split_class_at(stop, &length)) & word) && !(class & UNICODE_UPPER))
            stop += length;
    } else if (upper_only && run > at) {
        stop = run;
    }
    if (contractions && stop && stop < end && *stop == '\'') stop += split_contraction(stop, end, true);
    return stop;
}

SPLIT_INLINE const uint8_t *split_cased(const uint8_t *at, const uint8_t *end, bool contractions, int digits) {
    unsigned length, next_length, class = split_class_at(at, &length);
    const uint8_t *next = at + length, *stop;
    bool prefix = !(class & (UNICODE_LETTER | UNICODE_NUMBER)) && !split_is_newline(*at);
    for (int upper_only = 0; upper_only < 2; upper_only++) {
        if (prefix && next < end && (stop = split_cased_word(next, end, upper_only, contractions))) return stop;
        if (!(class & (UNICODE_LETTER | UNICODE_MARK))) continue;
        if ((stop = split_cased_word(at, end, upper_only, contractions))) return stop;
    }
    if (class & UNICODE_NUMBER) return split_skip_digits(next, end, digits - 1);
    const unsigned taken = UNICODE_SPACE | UNICODE_NUMBER | UNICODE_LETTER;
    unsigned next_class = next < end ? split_class_at(next, &next_length) : (unsigned)UNICODE_SPACE;
    if (*at == ' ' ? !(next_class & taken) : !(class & UNICODE_SPACE)) {
        stop = split_skip_others(next, end, taken);
        while (stop < end && (split_is_newline(*stop) || *stop == '/'))
            stop++;
        return stop;
    }
    return split_space(at, end);
}

SPLIT_INLINE const uint8_t *split_next_inline(SplitKind kind, const uint8_t *at, const uint8_t *end) {
    switch (kind) {
    case SPLIT_GPT2: return split_gpt2(at, end);
    case SPLIT_LLAMA3: return split_words(at, end, UNICODE_LETTER, 3);
    case SPLIT_QWEN: return split_words(at, end, UNICODE_LETTER, 1);
    case SPLIT_QWEN_MARKS: return split_words(at, end, UNICODE_LETTER | UNICODE_MARK, 1);
    case SPLIT_O200K: return split_cased(at, end, true, 3);
    case SPLIT_TEKKEN: return split_cased(at, end, false, 1);
    default: __builtin_unreachable();
    }
}
