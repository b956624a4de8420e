#include "data/reader_jsonl.h"

#include "base/text.h"
#include "base/utf8.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_LIMIT  200
#define NUMBER_LIMIT 400
#define NAMES_LIMIT  40

typedef struct Scan {
    const char *at, *end;
    const char *reason;
    int depth;
} Scan;

static bool scan_fail(Scan *scan, const char *reason) {
    if (!scan->reason) scan->reason = reason;
    return false;
}

static void skip_space(Scan *scan) {
    while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\r' || *scan->at == '\n'))
        scan->at++;
}

static bool scan_expect(Scan *scan, char wanted, const char *reason) {
    skip_space(scan);
    if (scan->at >= scan->end || *scan->at != wanted) return scan_fail(scan, reason);
    scan->at++;
    return true;
}

// Eight bytes at a time to the next quote, backslash or control character: a bit trick marks bytes below 0x20 and bytes
// equal to the two others. It may mark too early (never too late), the loop behind it looks exactly.
static const char *plain_end(const char *at, const char *end) {
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    while (at + 8 <= end) {
        uint64_t word;
        memcpy(&word, at, 8);
        uint64_t quote = word ^ (ones * '"'), slash = word ^ (ones * '\\');
        uint64_t hit = ((word - ones * 0x20) & ~word) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash);
        if (hit & tops) break;
        at += 8;
    }
    while (at < end && *at != '"' && *at != '\\' && (unsigned char)*at >= 0x20)
        at++;
    return at;
}

static bool scan_hex4(Scan *scan, unsigned *value) {
    *value = 0;
    if (scan->end - scan->at < 4) return scan_fail(scan, "\\u needs four hexadecimal digits");
    for (int i = 0; i < 4; i++) {
        int digit = text_hex_digit(*scan->at);
        if (digit < 0) return scan_fail(scan, "\\u needs four hexadecimal digits");
        *value = *value << 4 | (unsigned)digit;
        scan->at++;
    }
    return true;
}

// Behind the backslash. Adds the character to *out.
static bool scan_escape(Scan *scan, char **out) {
    if (scan->at >= scan->end) return scan_fail(scan, "the string does not end");
    char c = *scan->at++;
    switch (c) {
    case '"':
    case '\\':
    case '/': *(*out)++ = c; return true;
    case 'b': *(*out)++ = '\b'; return true;
    case 'f': *(*out)++ = '\f'; return true;
    case 'n': *(*out)++ = '\n'; return true;
    case 'r': *(*out)++ = '\r'; return true;
    case 't': *(*out)++ = '\t'; return true;
    case 'u': break;
    default: scan->at--; return scan_fail(scan, "unknown escape in a string");
    }
    unsigned code, low;
    if (!scan_hex4(scan, &code)) return false;
    if (code >= 0xdc00 && code <= 0xdfff) return scan_fail(scan, "a low surrogate without its high one");
    if (code >= 0xd800 && code <= 0xdbff) {
        if (scan->end - scan->at < 2 || scan->at[0] != '\\' || scan->at[1] != 'u')
            return scan_fail(scan, "a high surrogate without its low one");
        scan->at += 2;
        if (!scan_hex4(scan, &low)) return false;
        if (low < 0xdc00 || low > 0xdfff) return scan_fail(scan, "a high surrogate without its low one");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *out += utf8_put(code, *out);
    return true;
}

// Behind the opening quote, to behind the closing one. out may be NULL to check only; it has room, since no escape is
// shorter than what it stands for.
static bool scan_string(Scan *scan, char *out, size_t *length) {
    char *start = out;
    for (;;) {
        const char *stop = plain_end(scan->at, scan->end);
        size_t plain = (size_t)(stop - scan->at);
        if (out) {
            memcpy(out, scan->at, plain);
            out += plain;
        }
        scan->at = stop;
        if (stop >= scan->end) return scan_fail(scan, "the string does not end");
        if (*stop == '"') break;
        if (*stop != '\\') return scan_fail(scan, "a control character in a string must be escaped");
        scan->at++;
        char ignored[8], *into = out ? out : ignored;
        if (!scan_escape(scan, &into)) return false;
        if (out) out = into;
    }
    scan->at++;
    if (length) *length = (size_t)(out - start);
    return true;
}

static bool scan_digits(Scan *scan) {
    const char *start = scan->at;
    while (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
        scan->at++;
    return scan->at > start || scan_fail(scan, "a digit was expected");
}

static bool scan_number(Scan *scan) {
    if (*scan->at == '-') scan->at++;
    if (scan->at < scan->end && *scan->at == '0') {
        scan->at++;
    } else if (!scan_digits(scan)) {
        return false;
    }
    if (scan->at < scan->end && *scan->at == '.') {
        scan->at++;
        if (!scan_digits(scan)) return false;
    }
    if (scan->at < scan->end && (*scan->at == 'e' || *scan->at == 'E')) {
        scan->at++;
        if (scan->at < scan->end && (*scan->at == '+' || *scan->at == '-')) scan->at++;
        if (!scan_digits(scan)) return false;
    }
    return true;
}

static bool scan_word(Scan *scan, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, word, length) != 0)
        return scan_fail(scan, "a value was expected");
    scan->at += length;
    return true;
}

static bool scan_value(Scan *scan);

// The elements of an array or object whose opening bracket is behind, up to `close`; `item` reads one.
static bool scan_items(Scan *scan, char close, bool (*item)(Scan *)) {
    if (++scan->depth > DEPTH_LIMIT) return scan_fail(scan, "values are nested too deeply");
    skip_space(scan);
    if (scan->at < scan->end && *scan->at == close) {
        scan->at++;
        scan->depth--;
        return true;
    }
    for (;;) {
        if (!item(scan)) return false;
        skip_space(scan);
        if (scan->at >= scan->end) return scan_fail(scan, "the line ends inside a value");
        char c = *scan->at++;
        if (c == close) break;
        if (c != ',') {
            scan->at--;
            return scan_fail(scan, "a comma or a closing bracket was expected");
        }
    }
    scan->depth--;
    return true;
}

static bool scan_member(Scan *scan) {
    if (!scan_expect(scan, '"', "a key in quotes was expected") || !scan_string(scan, NULL, NULL)) return false;
    return scan_expect(scan, ':', "a colon was expected") && scan_value(scan);
}

static bool scan_value(Scan *scan) {
    skip_space(scan);
    if (scan->at >= scan->end) return scan_fail(scan, "the line ends where a value was expected");
    switch (*scan->at) {
    case '"': scan->at++; return scan_string(scan, NULL, NULL);
    case '{': scan->at++; return scan_items(scan, '}', scan_member);
    case '[': scan->at++; return scan_items(scan, ']', scan_value);
    case 't': return scan_word(scan, "true");
    case 'f': return scan_word(scan, "false");
    case 'n': return scan_word(scan, "null");
    case 'N': return scan_word(scan, "NaN"); // these three are no JSON, but what Python writes
    case 'I': return scan_word(scan, "Infinity");
    case '-':
        if (scan->end - scan->at > 1 && scan->at[1] == 'I') return scan_word(scan, "-Infinity");
        return scan_number(scan);
    case '0' ... '9': return scan_number(scan);
    default: return scan_fail(scan, "a value was expected");
    }
}

// A key, behind its opening quote, compared with the two names; only a key with escapes is decoded.
static bool scan_key(Scan *scan, const JsonlFields *fields, bool *is_text, bool *is_score) {
    const char *start = scan->at;
    if (!scan_string(scan, NULL, NULL)) return false;
    size_t length = (size_t)(scan->at - 1 - start);
    const char *key = start;
    char *decoded = NULL;
    if (memchr(start, '\\', length)) {
        decoded = xmalloc(length + 8);
        Scan again = {.at = start, .end = scan->end};
        scan_string(&again, decoded, &length);
        key = decoded;
    }
    *is_text = length == strlen(fields->text) && memcmp(key, fields->text, length) == 0;
    *is_score = fields->score && length == strlen(fields->score) && memcmp(key, fields->score, length) == 0;
    free(decoded);
    return true;
}

static bool scan_text(Scan *scan, JsonlRecord *record, JsonlResult *found) {
    skip_space(scan);
    if (scan->at < scan->end && *scan->at == '"') {
        scan->at++;
        *found = JSONL_TEXT;
        return scan_string(scan, record->text, &record->length);
    }
    if (scan->at < scan->end && (*scan->at == 'n' || *scan->at == 'N')) { // pandas: NaN is a text that is missing
        *found = JSONL_NULL;
        return scan_word(scan, *scan->at == 'n' ? "null" : "NaN");
    }
    return scan_fail(scan, "the field is not a string");
}

static bool scan_score(Scan *scan, JsonlRecord *record) {
    skip_space(scan);
    record->has_score = false; // null, or an earlier member of the same name
    if (scan->at < scan->end && *scan->at == 'n') return scan_word(scan, "null");
    if (scan->at < scan->end && *scan->at == 'N') return scan_word(scan, "NaN");
    bool negative = scan->end - scan->at > 1 && scan->at[0] == '-' && scan->at[1] == 'I';
    if (negative || (scan->at < scan->end && *scan->at == 'I')) {
        record->score = negative ? -INFINITY : INFINITY;
        record->has_score = scan_word(scan, negative ? "-Infinity" : "Infinity");
        return record->has_score;
    }
    if (scan->at >= scan->end || (*scan->at != '-' && (*scan->at < '0' || *scan->at > '9')))
        return scan_fail(scan, "the score field is not a number");
    const char *start = scan->at;
    if (!scan_number(scan)) return false;
    char number[NUMBER_LIMIT];
    size_t length = (size_t)(scan->at - start);
    if (length >= sizeof number) return scan_fail(scan, "the score has too many digits");
    memcpy(number, start, length);
    number[length] = 0;
    record->score = strtod(number, NULL);
    record->has_score = true;
    return true;
}

static bool scan_line(Scan *scan, const JsonlFields *fields, JsonlRecord *record, JsonlResult *found) {
    if (!scan_expect(scan, '{', "the line is not a JSON object")) return false;
    skip_space(scan);
    bool first = true;
    while (scan->at < scan->end && *scan->at != '}') {
        bool is_text, is_score;
        if (!first && !scan_expect(scan, ',', "a comma or a closing bracket was expected")) return false;
        if (!scan_expect(scan, '"', "a key in quotes was expected")) return false;
        if (!scan_key(scan, fields, &is_text, &is_score)) return false;
        if (!scan_expect(scan, ':', "a colon was expected")) return false;
        if (is_text ? !scan_text(scan, record, found) : is_score ? !scan_score(scan, record) : !scan_value(scan))
            return false;
        skip_space(scan);
        first = false;
    }
    if (!scan_expect(scan, '}', "the line ends inside its object")) return false;
    skip_space(scan);
    return scan->at == scan->end || scan_fail(scan, "more text after the object");
}

char *jsonl_field_names(const char *line, size_t length) {
    TextBuffer names = {0};
    Scan scan = {.at = line, .end = line + length};
    bool more = scan_expect(&scan, '{', "");
    for (int count = 0; more && scan_expect(&scan, '"', ""); count++) {
        const char *name = scan.at;
        if (!scan_string(&scan, NULL, NULL)) break;
        if (count == NAMES_LIMIT) {
            text_buffer_format(&names, ", ...");
            break;
        }
        text_buffer_format(&names, "%s%.*s", count ? ", " : "", (int)(scan.at - 1 - name), name);
        more = scan_expect(&scan, ':', "") && scan_value(&scan) && scan_expect(&scan, ',', "");
    }
    return names.data ? names.data : text_copy("none");
}

JsonlResult jsonl_scan(const char *line, size_t length, const JsonlFields *fields, JsonlRecord *record) {
    if (record->capacity < length + 8) {
        record->capacity = length + length / 2 + 64;
        free(record->text);
        record->text = xmalloc(record->capacity);
    }
    record->length = 0;
    record->has_score = false;
    record->score = 0;
    JsonlResult found = JSONL_MISSING;
    Scan scan = {.at = line, .end = line + length};
    size_t malformed = utf8_first_malformed(line, length);
    if (malformed < length) {
        record->reason = "malformed UTF-8";
        record->offset = malformed;
        return JSONL_BAD;
    }
    if (!scan_line(&scan, fields, record, &found)) {
        record->reason = scan.reason;
        record->offset = (size_t)(scan.at - line);
        return JSONL_BAD;
    }
    return found;
}
