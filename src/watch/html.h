// Text from outside on a page that is both HTML and XML.
#pragma once

#include "base/text.h"

// Appends text so that it means itself in an element or in a quoted attribute. What no page may hold (malformed UTF-8,
// control characters) becomes U+FFFD.
void html_add(TextBuffer *out, const char *text, size_t length);
void html_text(TextBuffer *out, const char *text);
