// Normalisation forms through utf8proc. Form C is what tokenizers ask for and what nearly all text is in already, so
// only the few characters around one that could change are handed over; HF tokenizers normalises by Unicode 9.0, and
// marks that are newer than that are kept out of reordering and composition here too.
#include "data/unicode.h"

#include <stdlib.h>
#include <string.h>

#ifdef HEARTH_HAVE_UTF8PROC
#include <utf8proc.h>

bool unicode_can_normalize(void) {
    return true;
}

static bool is_newer_mark(uint32_t code) {
    for (int i = 0; i < unicode_newer_marks_count; i++) {
        if (code < unicode_newer_marks[2 * i]) return false;
        if (code <= unicode_newer_marks[2 * i + 1]) return true;
    }
    return false;
}

static int combining_class(int32_t code) {
    return utf8proc_get_property(code)->combining_class;
}

// Canonical order of one run of marks: by class, equal classes as they were. utf8proc would do this too, but in
// quadratic time, and a page can hold a megabyte of marks.
static void order_marks(int32_t *codes, int32_t *spare, size_t count) {
    if (count <= 16) {
        for (size_t i = 1; i < count; i++) {
            int32_t code = codes[i];
            size_t at = i;
            for (; at > 0 && combining_class(codes[at - 1]) > combining_class(code); at--)
                codes[at] = codes[at - 1];
            codes[at] = code;
        }
        return;
    }
    size_t starts[257] = {0};
    for (size_t i = 0; i < count; i++)
        starts[combining_class(codes[i]) + 1]++;
    for (int class = 0; class < 256; class ++)
        starts[class + 1] += starts[class];
    for (size_t i = 0; i < count; i++)
        spare[starts[combining_class(codes[i])]++] = codes[i];
    memcpy(codes, spare, count * sizeof *codes);
}

static void order_all_marks(int32_t *codes, int32_t *spare, size_t count) {
    for (size_t begin = 0, end; begin < count; begin = end + 1) {
        for (end = begin; end < count && combining_class(codes[end]);)
            end++;
        if (end - begin > 1) order_marks(codes + begin, spare, end - begin);
    }
}

#define DECOMPOSED_MOST 32 // code points that one can become; the longest has 18

static Status normalize_part(UnicodeScratch *scratch, UnicodeForm form, const uint8_t *text, size_t length,
                             TextBuffer *out) {
    utf8proc_option_t options = UTF8PROC_STABLE;
    options |= form == UNICODE_NFC || form == UNICODE_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    options |= form == UNICODE_NFKC || form == UNICODE_NFKD ? UTF8PROC_COMPAT : 0;
    size_t count = 0;
    unsigned step;
    for (const uint8_t *at = text; at < text + length; at += step) {
        if (2 * (count + DECOMPOSED_MOST) > scratch->capacity) { // the second half is for sorting
            scratch->capacity = 3 * (count + length + DECOMPOSED_MOST);
            scratch->codes = xrealloc(scratch->codes, scratch->capacity * sizeof *scratch->codes);
        }
        int boundary = 0;
        utf8proc_ssize_t added = utf8proc_decompose_char((utf8proc_int32_t)utf8_decode(at, &step),
                                                         scratch->codes + count, DECOMPOSED_MOST, options, &boundary);
        if (added < 0 || added > DECOMPOSED_MOST) return status_runtime("cannot normalise text");
        count += (size_t)added;
    }
    order_all_marks(scratch->codes, scratch->codes + count, count);
    utf8proc_ssize_t left = utf8proc_normalize_utf32(scratch->codes, (utf8proc_ssize_t)count, options);
    if (left < 0) return status_runtime("cannot normalise text: %s", utf8proc_errmsg(left));
    for (utf8proc_ssize_t i = 0; i < left; i++) {
        uint8_t bytes[4];
        text_buffer_add(out, (const char *)bytes, utf8_put((uint32_t)scratch->codes[i], bytes));
    }
    return NULL;
}

// A place where form C may differ: [begin, end) starts at the character that what follows could join, and ends before
// the next one that neither combines nor composes. False when there is none.
static bool find_unsettled(const uint8_t **begin, const uint8_t **end, const uint8_t *at, const uint8_t *text_end) {
    const uint8_t *base = at;
    unsigned previous = 0;
    for (;;) {
        if (at >= text_end) return false;
        if (*at < 0x80) {
            at = utf8_skip_ascii(at, text_end);
            base = at - 1; // ASCII letters are bases of compositions too
            previous = 0;
            continue;
        }
        unsigned length, class = unicode_class_of(utf8_decode(at, &length));
        // One mark after its base is in order; two in a row may not be.
        if ((class & UNICODE_COMPOSES) || ((class & UNICODE_COMBINING) && (previous & UNICODE_COMBINING))) break;
        if (!(class & UNICODE_COMBINING)) base = at;
        previous = class;
        at += length;
    }
    *begin = base;
    unsigned length;
    while (at < text_end && *at >= 0x80 &&
           (unicode_class_of(utf8_decode(at, &length)) & (UNICODE_COMPOSES | UNICODE_COMBINING)))
        at += length;
    *end = at;
    if (*begin < *end && is_newer_mark(utf8_decode(*begin, &length))) *begin += length;
    return true;
}

static Status compose_nfc(UnicodeScratch *scratch, const uint8_t *text, size_t length, TextBuffer *out, bool *changed) {
    const uint8_t *done = text, *end = text + length, *begin, *stop;
    const uint8_t *at = text;
    while (find_unsettled(&begin, &stop, at, end)) {
        text_buffer_add(out, (const char *)done, (size_t)(begin - done));
        TRY(normalize_part(scratch, UNICODE_NFC, begin, (size_t)(stop - begin), out));
        done = at = stop;
        *changed = true;
    }
    if (*changed) text_buffer_add(out, (const char *)done, (size_t)(end - done));
    return NULL;
}

// The other forms, for all of the text but the newer marks.
static Status normalize_all(UnicodeScratch *scratch, UnicodeForm form, const uint8_t *at, const uint8_t *end,
                            TextBuffer *out) {
    const uint8_t *begin = at;
    for (unsigned length; at < end; at += length) {
        if (!is_newer_mark(utf8_decode(at, &length))) continue;
        TRY(normalize_part(scratch, form, begin, (size_t)(at - begin), out));
        text_buffer_add(out, (const char *)at, length);
        begin = at + length;
    }
    return normalize_part(scratch, form, begin, (size_t)(end - begin), out);
}

Status unicode_normalize(UnicodeScratch *scratch, UnicodeForm form, const uint8_t *text, size_t length, TextBuffer *out,
                         bool *changed) {
    *changed = false;
    const uint8_t *first = utf8_skip_ascii(text, text + length);
    if (first == text + length) return NULL; // ASCII is in every form
    if (form == UNICODE_NFC) return compose_nfc(scratch, text, length, out, changed);
    *changed = true;
    return normalize_all(scratch, form, text, text + length, out);
}
#else
bool unicode_can_normalize(void) {
    return false;
}

Status unicode_normalize(UnicodeScratch *scratch, UnicodeForm form, const uint8_t *text, size_t length, TextBuffer *out,
                         bool *changed) {
    (void)scratch, (void)form, (void)text, (void)length, (void)out, (void)changed;
    return status_hint(status_usage("this build cannot normalise Unicode text"),
                       "install libutf8proc-dev and build again");
}
#endif

void unicode_scratch_free(UnicodeScratch *scratch) {
    free(scratch->codes);
    *scratch = (UnicodeScratch){0};
}
