// The character questions that the class tables alone do not answer.
#include "data/unicode.h"

#ifdef HEARTH_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

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
