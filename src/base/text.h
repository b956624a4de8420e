// Strings: formatted copies, growing buffers, numbers for people, and the nearest known name for a typing error.
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// malloc, calloc and realloc that end the program when the system has no memory left: for host-side bookkeeping only.
// Anything whose size comes from a file or a config is checked before it is asked for.
void *memory_or_exit(void *memory, size_t bytes); // what a library gave, of about so many bytes
void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t bytes);
void *xrealloc(void *old, size_t bytes);

// All return malloc'd strings.
char *text_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *text_vformat(const char *format, va_list args);
char *text_copy(const char *text);
char *text_copy_n(const char *text, size_t length);

char *text_join(const char *const *texts, size_t count); // with commas between; "none" of none
// As a terminal may show it: control characters as \\xNN, whatever a file's or somebody else's name holds.
char *text_printable(const char *text);
void text_mask_controls(char *text); // in place, as '?'; line ends and tabs stay

bool text_starts_with(const char *text, const char *prefix);
bool text_ends_with(const char *text, const char *suffix);

typedef struct TextBuffer { // grows as needed; data is always NUL-terminated once anything was added
    char *data;
    size_t length, capacity;
} TextBuffer;

void text_buffer_add(TextBuffer *buffer, const char *data, size_t length);
void text_buffer_format(TextBuffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_buffer_free(TextBuffer *buffer);

// Whole-string number parsing; underscores between digits are allowed ("1_000_000"). False when anything is left over.
bool text_to_int64(const char *text, int64_t *value);
bool text_to_double(const char *text, double *value);
bool text_to_count(const char *text, double *value); // also with K, M, B (or G) or T behind it, in either case: "1.5B"
int text_hex_digit(char c);                          // 0 to 15, or -1

// Numbers for people, into a caller's buffer of at least 32 bytes, which is returned.
char *text_count(char *out, double count);      // 1,235,814,400 -> "1.24B"
char *text_grouped(char *out, int64_t value);   // 1235814400 -> "1,235,814,400"
char *text_gib(char *out, double bytes);        // "36.3 GiB", "12.0 MiB"
char *text_duration(char *out, double seconds); // "29h 30m", "4m 05s", "12.3s"

// Numbers that programs read back. text_number writes the shortest decimal that is the same double; whole numbers below
// 1e15 are written out, so that 10000 does not become 1e+04. text_digits is how many significant digits that takes.
char *text_number(char *out, double value);
int text_digits(double value);
double text_float_value(float value); // of the shortest decimal that is the same float: 1e-5f is 1e-05

// The known name nearest to `name` by edit distance, or NULL when none is near enough to be a typing error.
const char *text_nearest(const char *name, const char *const *known, size_t count);
