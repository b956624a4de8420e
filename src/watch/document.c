#include "watch/document.h"

#include "watch/html.h"

#include <stdlib.h>
#include <string.h>

typedef enum LineKind { LINE_HEADER, LINE_ROW, LINE_NOTE, LINE_SVG } LineKind;

typedef struct Line {
    LineKind kind;
    char *text; // cells separated by tabs
} Line;

typedef struct Section {
    char *title, *align;
    Line *lines;
    int count;
} Section;

struct Document {
    char *title;
    Section *sections;
    int count;
};

Document *document_create(const char *title) {
    Document *document = xcalloc(1, sizeof *document);
    document->title = text_copy(title);
    return document;
}

void document_free(Document *document) {
    if (!document) return;
    for (int i = 0; i < document->count; i++) {
        Section *section = &document->sections[i];
        for (int k = 0; k < section->count; k++)
            free(section->lines[k].text);
        free(section->lines);
        free(section->title);
        free(section->align);
    }
    free(document->sections);
    free(document->title);
    free(document);
}

static void add_line(Document *document, LineKind kind, char *text) {
    Section *section = &document->sections[document->count - 1];
    section->lines = xrealloc(section->lines, (size_t)(section->count + 1) * sizeof *section->lines);
    section->lines[section->count++] = (Line){kind, text};
}

void document_section(Document *document, const char *title, const char *align, const char *header) {
    document->sections = xrealloc(document->sections, (size_t)(document->count + 1) * sizeof *document->sections);
    document->sections[document->count++] = (Section){.title = text_copy(title), .align = text_copy(align)};
    if (header[0]) add_line(document, LINE_HEADER, text_copy(header));
}

void document_row(Document *document, const char *cells, ...) {
    va_list args;
    va_start(args, cells);
    add_line(document, LINE_ROW, text_vformat(cells, args));
    va_end(args);
}

void document_note(Document *document, const char *text, ...) {
    va_list args;
    va_start(args, text);
    add_line(document, LINE_NOTE, text_vformat(text, args));
    va_end(args);
}

void document_svg(Document *document, const char *svg) {
    add_line(document, LINE_SVG, text_copy(svg));
}

// ---- cells ----------------------------------------------------------------------------------------------------------

typedef struct Cell {
    const char *text;
    size_t length;
} Cell;

// The cell at *at, which moves on to the next one; false: there is none before `end`.
static bool cell_next(const char **at, const char *end, Cell *cell) {
    if (*at > end) return false;
    const char *tab = memchr(*at, '\t', (size_t)(end - *at)), *behind = tab ? tab : end;
    *cell = (Cell){*at, (size_t)(behind - *at)};
    *at = behind + 1;
    return true;
}

static size_t cell_width(Cell cell) { // characters, not bytes of UTF-8
    size_t count = 0;
    for (size_t i = 0; i < cell.length; i++)
        count += ((unsigned char)cell.text[i] & 0xc0) != 0x80;
    return count;
}

static void add_blanks(TextBuffer *out, size_t count) {
    while (count-- > 0)
        text_buffer_add(out, " ", 1);
}

// ---- text -----------------------------------------------------------------------------------------------------------

static void row_text(const char *align, const size_t *width, const char *text, TextBuffer *out) {
    const char *at = text, *end = text + strlen(text);
    while (end > text && end[-1] == '\t')
        end--; // no blanks at the end of a line
    Cell cell;
    for (int c = 0; align[c] && cell_next(&at, end, &cell); c++) {
        size_t gap = width[c] - cell_width(cell);
        bool last = at > end;
        add_blanks(out, align[c] == 'r' ? 2 + gap : 2);
        text_buffer_add(out, cell.text, cell.length);
        if (align[c] != 'r' && !last) add_blanks(out, gap);
    }
    text_buffer_add(out, "\n", 1);
}

static void section_text(const Section *section, TextBuffer *out) {
    size_t *width = xcalloc(strlen(section->align) + 1, sizeof *width);
    Cell cell;
    for (int i = 0; i < section->count; i++) {
        const char *at = section->lines[i].text, *end = at + strlen(at);
        for (int c = 0; section->lines[i].kind <= LINE_ROW && section->align[c] && cell_next(&at, end, &cell); c++)
            if (cell_width(cell) > width[c]) width[c] = cell_width(cell);
    }
    text_buffer_format(out, "\n%s\n", section->title);
    for (int i = 0; i < section->count; i++) {
        const Line *line = &section->lines[i];
        if (line->kind == LINE_NOTE) text_buffer_format(out, "  %s\n", line->text);
        if (line->kind <= LINE_ROW) row_text(section->align, width, line->text, out);
    }
    free(width);
}

void document_text(const Document *document, TextBuffer *out) {
    text_buffer_format(out, "%s\n", document->title);
    for (int i = 0; i < document->count; i++)
        section_text(&document->sections[i], out);
}

// ---- HTML -----------------------------------------------------------------------------------------------------------

static void row_html(const Section *section, const Line *line, TextBuffer *out) {
    const char *tag = line->kind == LINE_HEADER ? "th" : "td";
    const char *at = line->text, *end = at + strlen(at);
    Cell cell;
    text_buffer_format(out, "<tr>");
    for (int c = 0; section->align[c] && cell_next(&at, end, &cell); c++) {
        text_buffer_format(out, "<%s class=\"%c\">", tag, section->align[c]);
        html_add(out, cell.text, cell.length);
        text_buffer_format(out, "</%s>", tag);
    }
    text_buffer_format(out, "</tr>\n");
}

static void section_html(const Section *section, TextBuffer *out) {
    text_buffer_format(out, "<section><h2>");
    html_add(out, section->title, strlen(section->title));
    text_buffer_format(out, "</h2>\n");
    bool table = false;
    for (int i = 0; i < section->count; i++) {
        const Line *line = &section->lines[i];
        bool row = line->kind <= LINE_ROW;
        if (row != table) text_buffer_format(out, row ? "<table>\n" : "</table>\n");
        table = row;
        if (row) {
            row_html(section, line, out);
        } else if (line->kind == LINE_SVG) {
            text_buffer_add(out, line->text, strlen(line->text));
        } else {
            text_buffer_format(out, "<p>");
            html_add(out, line->text, strlen(line->text));
            text_buffer_format(out, "</p>\n");
        }
    }
    text_buffer_format(out, "%s</section>\n", table ? "</table>\n" : "");
}

void document_parts_html(const Document *document, TextBuffer *out) {
    for (int i = 0; i < document->count; i++)
        section_html(&document->sections[i], out);
}

void document_html(const Document *document, TextBuffer *out) {
    text_buffer_format(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>");
    html_add(out, document->title, strlen(document->title));
    text_buffer_format(
        out,
        "</title>\n<style>\n"
        "body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;"
        "color:#222;background:#fff}\n"
        "h1{font-size:1.5rem}h2{font-size:1.1rem;margin:1.8rem 0 .4rem}\n"
        "table{border-collapse:collapse;font-variant-numeric:tabular-nums}\n"
        "td,th{padding:.15rem .9rem .15rem 0;border-bottom:1px solid #ddd;text-align:left}\n"
        ".r{text-align:right}td.r{white-space:nowrap}p{margin:.3rem 0;color:#444}svg{max-width:100%%;height:auto}\n"
        "</style></head><body>\n<h1>");
    html_add(out, document->title, strlen(document->title));
    text_buffer_format(out, "</h1>\n");
    document_parts_html(document, out);
    text_buffer_format(out, "</body></html>\n");
}
