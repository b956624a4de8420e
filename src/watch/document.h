// A page of tables and notes, written once and shown as aligned text in a terminal or as one self-contained HTML page.
#pragma once

#include "base/text.h"

typedef struct Document Document;

Document *document_create(const char *title);
void document_free(Document *document);

// A table with one letter per column: 'l' left, 'r' right. header has its cells separated by tabs, "" for none.
void document_section(Document *document, const char *title, const char *align, const char *header);
void document_row(Document *document, const char *cells, ...)
    __attribute__((format(printf, 2, 3))); // tabs between cells
void document_note(Document *document, const char *text, ...) __attribute__((format(printf, 2, 3))); // below the rows
void document_svg(Document *document, const char *svg); // in the HTML page only

void document_text(const Document *document, TextBuffer *out);
void document_parts_html(const Document *document, TextBuffer *out); // its sections, for a page that has the rest
void document_html(const Document *document, TextBuffer *out);
