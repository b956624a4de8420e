#include "watch/html.h"

#include "base/utf8.h"

#include <string.h>

#define HTML_REPLACEMENT "\xef\xbf\xbd"

static const char *ascii_entity(char c) {
    switch (c) {
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '&': return "&amp;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    case '\t':
    case '\n': return NULL;
    default: return (unsigned char)c < 0x20 || c == 0x7f ? HTML_REPLACEMENT : NULL;
    }
}

// Well-formed UTF-8 that XML has no place for: U+FFFE, U+FFFF, and the controls U+0080 to U+009F.
static bool is_unfit(const char *at, unsigned length) {
    if (length == 2) return (unsigned char)at[0] == 0xc2 && (unsigned char)at[1] < 0xa0;
    return length == 3 && (memcmp(at, "\xef\xbf\xbe", 3) == 0 || memcmp(at, "\xef\xbf\xbf", 3) == 0);
}

void html_add(TextBuffer *out, const char *text, size_t length) {
    for (size_t i = 0; i < length;) {
        unsigned part = 1, good = utf8_check(text + i, length - i, &part);
        const char *instead = !good || is_unfit(text + i, good) ? HTML_REPLACEMENT : ascii_entity(text[i]);
        if (instead)
            text_buffer_add(out, instead, strlen(instead));
        else
            text_buffer_add(out, text + i, good);
        i += good ? good : part;
    }
}

void html_text(TextBuffer *out, const char *text) {
    html_add(out, text, strlen(text));
}
