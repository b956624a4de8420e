// The leaves of a TOML document: characters, strings, numbers, booleans, dates and times.
#include "base/toml_reader.h"

#include "base/text.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// --- cursor --------------------------------------------------------------------------------------------------------

TomlMark toml_mark(TomlReader *reader) {
    if (!reader->mark_at || reader->mark_at < reader->line_start || reader->mark_at > reader->at) {
        reader->mark_at = reader->line_start;
        reader->mark_column = 1;
    }
    for (; reader->mark_at < reader->at; reader->mark_at++)
        if (((unsigned char)*reader->mark_at & 0xc0) != 0x80) reader->mark_column++;
    return (TomlMark){reader->line, reader->mark_column};
}

Status toml_error(const TomlReader *reader, TomlMark mark, const char *what, ...) {
    va_list args;
    va_start(args, what);
    char *message = text_vformat(what, args);
    va_end(args);
    Status status = status_at(status_usage("%s", message), reader->name, mark.line, mark.column);
    free(message);
    return status;
}

bool toml_skip_newline(TomlReader *reader) {
    if (toml_peek(reader, 0) == '\r' && toml_peek(reader, 1) == '\n')
        reader->at++;
    else if (toml_peek(reader, 0) != '\n')
        return false;
    reader->at++;
    reader->line++;
    reader->line_start = reader->at;
    return true;
}

const char *toml_describe(const TomlReader *reader, char out[32]) {
    char c = toml_peek(reader, 0);
    if (!c) return "the end of the document";
    if (c == '\n' || c == '\r') return "the end of the line";
    if (c == '#') return "a comment";
    unsigned part;
    snprintf(out, 32, "'%.*s'", (int)utf8_check(reader->at, (size_t)(reader->end - reader->at), &part), reader->at);
    return out;
}

Status toml_check_characters(TomlReader *reader) {
    TomlReader scan = *reader;
    while (scan.at < scan.end) {
        if (toml_skip_newline(&scan)) continue;
        unsigned char c = (unsigned char)*scan.at;
        if (c == '\r')
            return toml_error(&scan, toml_mark(&scan), "a carriage return stands without the line feed after it");
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return toml_error(&scan, toml_mark(&scan),
                              "control character U+%04X is not allowed; in a string write \\u%04X", c, c);
        unsigned part, length = utf8_check(scan.at, (size_t)(scan.end - scan.at), &part);
        if (!length) return toml_error(&scan, toml_mark(&scan), "byte 0x%02X is not valid UTF-8", c);
        scan.at += length;
    }
    return NULL;
}

// --- strings -------------------------------------------------------------------------------------------------------

// The first quote of the closing one (or three); NULL when the string does not end (on its line, when it must).
static const char *find_close(const char *p, const char *end, char quote, bool multi) {
    for (; p < end; p++) {
        if (!multi && (*p == '\n' || *p == '\r')) return NULL;
        if (*p == '\\' && quote == '"' && end - p > 1 && p[1] != '\n' && p[1] != '\r') {
            p++;
            continue;
        }
        if (*p != quote) continue;
        if (!multi) return p;
        if (end - p < 3 || p[1] != quote || p[2] != quote) continue;
        for (int inner = 0; inner < 2 && end - p > 3 && p[3] == quote; inner++)
            p++; // one or two quotes may be the last characters of the string
        return p;
    }
    return NULL;
}

// \uXXXX and \UXXXXXXXX, the cursor at the backslash.
static Status read_code_point(TomlReader *reader, TomlMark mark, char *out, size_t *length) {
    int digits = reader->at[1] == 'u' ? 4 : 8;
    uint32_t code = 0;
    for (int i = 0; i < digits; i++) {
        int digit = text_hex_digit(toml_peek(reader, (size_t)(2 + i)));
        if (digit < 0)
            return toml_error(reader, mark, "\\%c takes exactly %d hexadecimal digits", reader->at[1], digits);
        code = code << 4 | (uint32_t)digit;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return toml_error(reader, mark, "U+%04X is not a Unicode character", code);
    *length += utf8_put(code, out + *length);
    reader->at += 2 + digits;
    return NULL;
}

// A backslash at the end of a line of a multi-line string swallows everything up to the next character.
static bool skip_line_ending_backslash(TomlReader *reader) {
    TomlReader ahead = *reader;
    ahead.at++;
    while (toml_peek(&ahead, 0) == ' ' || toml_peek(&ahead, 0) == '\t')
        ahead.at++;
    if (!toml_skip_newline(&ahead)) return false;
    while (toml_peek(&ahead, 0) == ' ' || toml_peek(&ahead, 0) == '\t' || toml_skip_newline(&ahead))
        if (toml_peek(&ahead, 0) == ' ' || toml_peek(&ahead, 0) == '\t') ahead.at++;
    *reader = ahead;
    return true;
}

static Status read_escape(TomlReader *reader, bool multi, char *out, size_t *length) {
    static const char names[] = "btnfr\"\\", values[] = "\b\t\n\f\r\"\\";
    TomlMark mark = toml_mark(reader);
    char c = toml_peek(reader, 1);
    const char *simple = c ? strchr(names, c) : NULL;
    if (simple) {
        out[(*length)++] = values[simple - names];
        reader->at += 2;
        return NULL;
    }
    if (c == 'u' || c == 'U') return read_code_point(reader, mark, out, length);
    if (multi && skip_line_ending_backslash(reader)) return NULL;
    return status_hint(
        toml_error(reader, mark, "unknown escape in a string"),
        "the escapes are \\b \\t \\n \\f \\r \\\" \\\\ \\uXXXX \\UXXXXXXXX; 'single quotes' take a backslash "
        "as it is");
}

Status toml_read_string(TomlReader *reader, const char **text, size_t *length, bool key) {
    TomlMark mark = toml_mark(reader);
    char quote = reader->at[0];
    bool multi = toml_peek(reader, 1) == quote && toml_peek(reader, 2) == quote;
    if (multi && key) return toml_error(reader, mark, "a key cannot be a multi-line string");
    reader->at += multi ? 3 : 1;
    const char *close = find_close(reader->at, reader->end, quote, multi);
    if (!close)
        return toml_error(reader, mark,
                          multi ? "the multi-line string that opens here is not closed"
                                : "the string that opens here is not closed on its line");
    if (multi) toml_skip_newline(reader); // the one just after the opening quotes does not count
    char *out = arena_alloc(reader->arena, (size_t)(close - reader->at) + 1); // decoding never makes text longer
    size_t n = 0;
    while (reader->at < close) {
        if (*reader->at == '\\' && quote == '"')
            TRY(read_escape(reader, multi, out, &n));
        else if (toml_skip_newline(reader))
            out[n++] = '\n';
        else
            out[n++] = *reader->at++;
    }
    reader->at = close + (multi ? 3 : 1);
    *text = out;
    *length = n;
    return NULL;
}

// --- numbers, booleans, dates --------------------------------------------------------------------------------------

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_token(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c && strchr("_+-.:", c));
}

// Two digits at p, as a number; -1 when they are not digits. The caller knows that they are inside the text.
static int two_digits(const char *p) {
    return is_digit(p[0]) && is_digit(p[1]) ? (p[0] - '0') * 10 + (p[1] - '0') : -1;
}

static bool looks_like_date(const char *p, size_t length) {
    return length >= 5 && two_digits(p) >= 0 && two_digits(p + 2) >= 0 && p[4] == '-';
}

static bool looks_like_time(const char *p, size_t length) {
    return length >= 3 && two_digits(p) >= 0 && p[2] == ':';
}

// Each check_* looks at the start of [p, p + length), sets *used, and returns what is wrong or NULL.
static const char *check_date(const char *p, size_t length, size_t *used) {
    static const char days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (length < 10 || p[7] != '-' || two_digits(p + 5) < 0 || two_digits(p + 8) < 0)
        return "a date is written YYYY-MM-DD";
    int year = two_digits(p) * 100 + two_digits(p + 2), month = two_digits(p + 5), day = two_digits(p + 8);
    if (month < 1 || month > 12) return "the month of a date is 01 to 12";
    bool leap = month == 2 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (day < 1 || day > days[month - 1] + leap) return "this month has no such day";
    *used = 10;
    return NULL;
}

static const char *check_time(const char *p, size_t length, size_t *used) {
    if (length < 8 || p[2] != ':' || p[5] != ':' || two_digits(p) < 0 || two_digits(p + 3) < 0 || two_digits(p + 6) < 0)
        return "a time is written HH:MM:SS";
    if (two_digits(p) > 23) return "the hour of a time is 00 to 23";
    if (two_digits(p + 3) > 59) return "the minute of a time is 00 to 59";
    if (two_digits(p + 6) > 60) return "the second of a time is 00 to 60"; // 60 is a leap second
    *used = 8;
    if (length == 8 || p[8] != '.') return NULL;
    size_t n = 9;
    while (n < length && is_digit(p[n]))
        n++;
    if (n == 9) return "a fraction of a second needs a digit after the point";
    *used = n;
    return NULL;
}

static const char *check_offset(const char *p, size_t length) {
    if (length == 1 && (*p == 'Z' || *p == 'z')) return NULL;
    if (length != 6 || (*p != '+' && *p != '-') || p[3] != ':' || two_digits(p + 1) < 0 || two_digits(p + 4) < 0)
        return "a time zone is written Z or +HH:MM or -HH:MM";
    if (two_digits(p + 1) > 23 || two_digits(p + 4) > 59) return "a time zone is at most 23:59 away";
    return NULL;
}

static const char *check_datetime(const char *p, size_t length) {
    size_t used;
    const char *wrong;
    if (looks_like_date(p, length)) {
        if ((wrong = check_date(p, length, &used)) || length == used) return wrong;
        if (p[used] != 'T' && p[used] != 't' && p[used] != ' ')
            return "a date is followed by T or a space and the time";
        p += used + 1;
        length -= used + 1;
        if ((wrong = check_time(p, length, &used)) || length == used) return wrong;
        return check_offset(p + used, length - used);
    }
    if ((wrong = check_time(p, length, &used))) return wrong;
    return length == used ? NULL : "only a date with a time takes a time zone";
}

// Copies the digits of `base` without the underscores between them. False when there is none, or an underscore or
// anything else stands where a digit must.
static bool copy_digits(const char **p, const char *end, int base, char **out) {
    const char *begin = *p;
    for (; *p < end; (*p)++) {
        int digit = text_hex_digit(**p);
        if (**p == '_') {
            if (*p == begin || end - *p < 2 || text_hex_digit((*p)[1]) < 0) return false;
        } else if (digit >= 0 && digit < base) {
            *(*out)++ = **p;
        } else {
            break;
        }
    }
    return *p > begin && (*p)[-1] != '_';
}

// Decides between integer and float and checks the grammar; *digits gets the number without underscores and prefix.
// Returns what is wrong, or NULL.
static const char *check_number(const char *p, const char *end, char *digits, int *base, bool *is_float) {
    char *out = digits;
    *base = 10;
    *is_float = false;
    if (end - p > 2 && p[0] == '0' && strchr("xob", p[1])) {
        *base = p[1] == 'x' ? 16 : p[1] == 'o' ? 8 : 2;
        p += 2;
        if (!copy_digits(&p, end, *base, &out) || p < end)
            return "after 0x, 0o or 0b come only digits of that base, with single underscores between them";
        return NULL;
    }
    if (*p == '+' || *p == '-') *out++ = *p++;
    if (end - p == 3 && (memcmp(p, "inf", 3) == 0 || memcmp(p, "nan", 3) == 0)) {
        memcpy(out, p, 3);
        *is_float = true;
        return NULL;
    }
    const char *whole = p;
    if (!copy_digits(&p, end, 10, &out)) return "not a number";
    if (*whole == '0' && p - whole > 1) return "a number does not start with 0 (octal numbers start with 0o)";
    if (p < end && *p == '.') {
        *out++ = *p++;
        if (!copy_digits(&p, end, 10, &out)) return "a decimal point has digits on both sides";
        *is_float = true;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        *out++ = *p++;
        if (p < end && (*p == '+' || *p == '-')) *out++ = *p++;
        if (!copy_digits(&p, end, 10, &out)) return "an exponent needs digits";
        *is_float = true;
    }
    return p == end ? NULL : "not a number";
}

static Status read_number(TomlReader *reader, TomlMark mark, TomlValue *value, const char *token, size_t size) {
    char *digits = arena_alloc(reader->arena, size + 1); // zeroed, so always terminated
    int base, length = size < 80 ? (int)size : 80;       // the length is for messages
    bool is_float;
    const char *wrong = check_number(token, token + size, digits, &base, &is_float);
    if (wrong) return toml_error(reader, mark, "%s: %.*s", wrong, length, token);
    if (is_float) {
        value->type = TOML_FLOAT;
        value->number = strtod(digits, NULL);
        if (isinf(value->number) && !strstr(digits, "inf"))
            return toml_error(reader, mark, "%.*s is too large for a double", length, token);
        return NULL;
    }
    value->type = TOML_INTEGER;
    errno = 0;
    value->integer = strtoll(digits, NULL, base);
    if (errno) return toml_error(reader, mark, "%.*s does not fit a 64-bit integer", length, token);
    return NULL;
}

// A bare word where a value must stand: nearly always a forgotten quote.
static Status bare_word(const TomlReader *reader, TomlMark mark, const char *token, int length) {
    Status status = toml_error(reader, mark, "%.*s is not a value", length, token);
    if ((length == 4 && strncasecmp(token, "true", 4) == 0) || (length == 5 && strncasecmp(token, "false", 5) == 0))
        return status_hint(status, "booleans are written true and false");
    return status_hint(status, "a string is written in quotes: \"%.*s\"", length, token);
}

Status toml_read_scalar(TomlReader *reader, TomlValue *value) {
    TomlMark mark = toml_mark(reader);
    const char *token = reader->at;
    while (is_token(toml_peek(reader, 0)))
        reader->at++;
    size_t length = (size_t)(reader->at - token);
    if (!length) {
        char seen[32];
        return toml_error(reader, mark, "expected a value, found %s", toml_describe(reader, seen));
    }
    bool date = looks_like_date(token, length);
    if (date && length == 10 && toml_peek(reader, 0) == ' ' &&
        looks_like_time(reader->at + 1, (size_t)(reader->end - reader->at) - 1)) {
        reader->at++;
        while (is_token(toml_peek(reader, 0)))
            reader->at++;
        length = (size_t)(reader->at - token);
    }
    int shown = length < 80 ? (int)length : 80; // of a token in a message
    if (length == 4 && memcmp(token, "true", 4) == 0) {
        value->type = TOML_BOOLEAN;
        value->boolean = true;
        return NULL;
    }
    if (length == 5 && memcmp(token, "false", 5) == 0) {
        value->type = TOML_BOOLEAN;
        return NULL;
    }
    if (date || looks_like_time(token, length)) {
        const char *wrong = check_datetime(token, length);
        if (wrong) return toml_error(reader, mark, "%s: %.*s", wrong, shown, token);
        value->type = TOML_DATETIME;
        value->text = arena_copy(reader->arena, token, length);
        value->length = length;
        return NULL;
    }
    bool number = is_digit(*token) || strchr("+-.", *token) ||
                  (length == 3 && (memcmp(token, "inf", 3) == 0 || memcmp(token, "nan", 3) == 0));
    if (!number) return bare_word(reader, mark, token, shown);
    return read_number(reader, mark, value, token, length);
}
