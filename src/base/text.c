// Strings, numbers read from and written for people, and edit distance.
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *memory_or_exit(void *memory, size_t bytes) {
    if (!memory && bytes) {
        char
            line[64]; // at once and with nothing else: handlers of other libraries may need memory, or wait for threads
        int length = snprintf(line, sizeof line, "hearth: error: out of memory (%zu bytes)\n", bytes);
        if (write(STDERR_FILENO, line, (size_t)length) < 0) _exit(1);
        _exit(1);
    }
    return memory;
}

void *xmalloc(size_t bytes) {
    return memory_or_exit(malloc(bytes), bytes);
}

void *xcalloc(size_t count, size_t bytes) {
    return memory_or_exit(calloc(count, bytes), count * bytes);
}

void *xrealloc(void *old, size_t bytes) {
    return memory_or_exit(realloc(old, bytes), bytes);
}

char *text_vformat(const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length < 0) length = 0;
    char *text = xmalloc((size_t)length + 1);
    text[0] = 0;
    vsnprintf(text, (size_t)length + 1, format, args);
    return text;
}

char *text_format(const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = text_vformat(format, args);
    va_end(args);
    return text;
}

char *text_copy_n(const char *text, size_t length) {
    char *copy = xmalloc(length + 1);
    memcpy(copy, text, length);
    copy[length] = 0;
    return copy;
}

char *text_copy(const char *text) {
    return text_copy_n(text, strlen(text));
}

char *text_join(const char *const *texts, size_t count) {
    TextBuffer list = {0};
    for (size_t i = 0; i < count; i++)
        text_buffer_format(&list, "%s%s", i ? ", " : "", texts[i]);
    return list.data ? list.data : text_copy("none");
}

// The control characters of Unicode above ASCII, which terminals also obey.
static bool c1_control(const unsigned char *at) {
    return at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0;
}

char *text_printable(const char *text) {
    TextBuffer shown = {0};
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (c1_control(at)) {
            text_buffer_format(&shown, "\\x%02x\\x%02x", at[0], at[1]);
            at++;
        } else if (*at < 0x20 || *at == 0x7f)
            text_buffer_format(&shown, "\\x%02x", *at);
        else
            text_buffer_add(&shown, (const char *)at, 1);
    }
    return shown.data ? shown.data : text_copy("");
}

void text_mask_controls(char *text) {
    for (; *text; text++)
        if (c1_control((const unsigned char *)text))
            text[0] = text[1] = '?';
        else if (((unsigned char)*text < 0x20 && *text != '\n' && *text != '\t') || *text == 0x7f)
            *text = '?';
}

bool text_starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool text_ends_with(const char *text, const char *suffix) {
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && memcmp(text + n - m, suffix, m) == 0;
}

void text_buffer_add(TextBuffer *buffer, const char *data, size_t length) {
    if (buffer->length + length + 1 > buffer->capacity) {
        size_t capacity = buffer->capacity ? buffer->capacity * 2 : 256;
        while (capacity < buffer->length + length + 1)
            capacity *= 2;
        buffer->data = xrealloc(buffer->data, capacity);
        buffer->capacity = capacity;
    }
    if (length) memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
    buffer->data[buffer->length] = 0;
}

void text_buffer_format(TextBuffer *buffer, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *text = text_vformat(format, args);
    va_end(args);
    text_buffer_add(buffer, text, strlen(text));
    free(text);
}

void text_buffer_free(TextBuffer *buffer) {
    free(buffer->data);
    *buffer = (TextBuffer){0};
}

// Copies text without the underscores that stand between digits; false when one stands elsewhere or it is too long.
static bool strip_underscores(const char *text, char *out, size_t size) {
    size_t n = 0;
    for (size_t i = 0; text[i]; i++) {
        if (text[i] == '_') {
            if (i == 0 || !isxdigit((unsigned char)text[i - 1]) || !isxdigit((unsigned char)text[i + 1])) return false;
            continue;
        }
        if (n + 1 >= size) return false;
        out[n++] = text[i];
    }
    out[n] = 0;
    return n > 0 && !isspace((unsigned char)out[0]);
}

bool text_to_int64(const char *text, int64_t *value) {
    char digits[64], *end;
    if (!strip_underscores(text, digits, sizeof digits)) return false;
    errno = 0;
    long long parsed = strtoll(digits, &end, 10);
    if (errno || *end) return false;
    *value = parsed;
    return true;
}

bool text_to_double(const char *text, double *value) {
    char digits[128], *end;
    if (!strip_underscores(text, digits, sizeof digits)) return false;
    double parsed = strtod(digits, &end);
    if (*end) return false;
    *value = parsed;
    return true;
}

int text_hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool text_to_count(const char *text, double *value) {
    static const struct {
        const char *letters;
        double factor;
    } units[] = {{"Kk", 1e3}, {"Mm", 1e6}, {"BbGg", 1e9}, {"Tt", 1e12}};
    size_t length = strlen(text);
    double factor = 1;
    for (size_t i = 0; length && i < sizeof units / sizeof units[0]; i++)
        if (strchr(units[i].letters, text[length - 1])) factor = units[i].factor;
    char *digits = text_copy_n(text, factor > 1 ? length - 1 : length);
    bool read = text_to_double(digits, value);
    free(digits);
    if (read) *value *= factor;
    return read;
}

char *text_count(char *out, double count) {
    static const char *const unit[] = {"", "K", "M", "B", "T", "Q"};
    int u = 0;
    while (fabs(count) >= 999.5 && u < 5)
        count /= 1000, u++;
    snprintf(out, 32,
             u == 0                ? "%.0f%s"
             : fabs(count) < 9.995 ? "%.2f%s"
             : fabs(count) < 99.95 ? "%.1f%s"
                                   : "%.0f%s",
             count, unit[u]);
    return out;
}

char *text_grouped(char *out, int64_t value) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)value), o = 0;
    for (int i = 0; i < n; i++) {
        out[o++] = digits[i];
        int left = n - 1 - i;
        if (left && left % 3 == 0 && digits[i] != '-') out[o++] = ',';
    }
    out[o] = 0;
    return out;
}

char *text_gib(char *out, double bytes) {
    if (bytes >= 1024.0 * 1024 * 1024)
        snprintf(out, 32, "%.2f GiB", bytes / (1024.0 * 1024 * 1024));
    else if (bytes >= 1024.0 * 1024)
        snprintf(out, 32, "%.1f MiB", bytes / (1024.0 * 1024));
    else if (bytes >= 1024.0)
        snprintf(out, 32, "%.1f KiB", bytes / 1024.0);
    else
        snprintf(out, 32, "%.0f B", bytes);
    return out;
}

char *text_duration(char *out, double seconds) {
    if (!(seconds >= 0) || seconds > 1e12) {
        snprintf(out, 32, "?");
        return out;
    }
    long long s = (long long)(seconds + 0.5);
    if (seconds < 59.95)
        snprintf(out, 32, "%.1fs", seconds);
    else if (s < 3600)
        snprintf(out, 32, "%lldm %02llds", s / 60, s % 60);
    else if (s < 48 * 3600)
        snprintf(out, 32, "%lldh %02lldm", s / 3600, s / 60 % 60);
    else
        snprintf(out, 32, "%lldd %02lldh", s / 86400, s / 3600 % 24);
    return out;
}

int text_digits(double value) {
    char digits[32];
    for (int count = 1; count < 17; count++) {
        snprintf(digits, sizeof digits, "%.*g", count, value);
        if (strtod(digits, NULL) == value) return count;
    }
    return 17;
}

char *text_number(char *out, double value) {
    if (value == floor(value) && fabs(value) < 1e15)
        snprintf(out, 32, "%.0f", value);
    else
        snprintf(out, 32, "%.*g", text_digits(value), value);
    return out;
}

double text_float_value(float value) {
    char digits[32];
    for (int count = 1; count <= 9; count++) {
        snprintf(digits, sizeof digits, "%.*g", count, (double)value);
        if (strtof(digits, NULL) == value) break;
    }
    return strtod(digits, NULL);
}

static int edit_distance(const char *a, const char *b) {
    enum { LIMIT = 64 };
    int n = (int)strlen(a), m = (int)strlen(b), row[LIMIT + 1];
    if (n > LIMIT || m > LIMIT) return INT_MAX; // no known name is that long: not a slip
    for (int j = 0; j <= m; j++)
        row[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int keep = diagonal + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
            diagonal = row[j];
            int step = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = keep < step ? keep : step;
        }
    }
    return row[m];
}

const char *text_nearest(const char *name, const char *const *known, size_t count) {
    const char *best = NULL;
    int least = (int)strlen(name) / 3 + 2; // farther than this reads as another word, not as a slip
    for (size_t i = 0; i < count; i++) {
        int distance = edit_distance(name, known[i]);
        if (distance < least) least = distance, best = known[i];
    }
    return best;
}
