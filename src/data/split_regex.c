// Split patterns that no scanner knows, through PCRE2 with its compiler to machine code. tokenizer.json patterns are
// written for Oniguruma, so what PCRE2 reads differently is rewritten first, and what it lacks is refused.
#include "data/split.h"

#include "base/text.h"
#include "data/unicode.h"

#include <stdlib.h>
#include <string.h>

#ifdef HEARTH_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct SplitRegex {
    pcre2_code *code;
};

struct SplitMatcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static Status pattern_refused(const char *pattern, const char *what) {
    return status_usage("the split pattern \"%s\" uses %s, which is not supported", pattern, what);
}

// One escape at *at (a backslash), written to out in PCRE2's spelling.
static void pattern_translate_escape(const char **at, TextBuffer *out) {
    const char *from = *at;
    if (from[1] == 's' || from[1] == 'S') { // PCRE2's \s also has U+180E, which is no white space since Unicode 6.3
        text_buffer_format(out, "\\%c{White_Space}", from[1] == 's' ? 'p' : 'P');
        *at += 2;
    } else if (from[1] == 'h' || from[1] == 'H') { // hexadecimal digit; inside a class the positive form is enough
        text_buffer_format(out, from[1] == 'h' ? "\\p{AHex}" : "\\P{AHex}");
        *at += 2;
    } else if ((from[1] == 'p' || from[1] == 'P') && from[2] == '{' && strchr(from, '}')) {
        const char *name = from + 3, *close = strchr(from, '}');
        bool negated = *name == '^';
        // Categories have one or two letters; a longer name is a script, which PCRE2 reads as script extensions.
        bool script = close - name - negated > 2 && !memchr(name, '_', (size_t)(close - name)) &&
                      !memchr(name, ':', (size_t)(close - name)) && !memchr(name, '=', (size_t)(close - name)) &&
                      strncmp(name + negated, "Any}", 4) != 0 && strncmp(name + negated, "Alphabetic}", 11) != 0;
        text_buffer_format(out, "\\%c{%s%s%.*s}", from[1], negated ? "^" : "", script ? "sc:" : "",
                           (int)(close - name - negated), name + negated);
        *at = close + 1;
    } else {
        text_buffer_add(out, from, from[1] ? 2 : 1);
        *at += from[1] ? 2 : 1;
    }
}

// A bracketed class at *at. Oniguruma reads a class inside a class as a union, so plain inner brackets are dropped.
static Status pattern_translate_class(const char *pattern, const char **at, TextBuffer *out) {
    const char *from = *at;
    int depth = 0;
    do {
        if (*from == '\0') return status_usage("the split pattern \"%s\" has a class without its ']'", pattern);
        if (from[0] == '&' && from[1] == '&') return pattern_refused(pattern, "an intersection of classes (&&)");
        if (*from == '\\') {
            pattern_translate_escape(&from, out);
        } else if (*from == '[' && from[1] == ':' && strstr(from, ":]")) {
            const char *close = strstr(from, ":]") + 2;
            text_buffer_add(out, from, (size_t)(close - from));
            from = close;
        } else if (*from == '[') {
            if (depth > 0 && from[1] == '^') return pattern_refused(pattern, "a negated class inside a class");
            if (depth++ == 0) text_buffer_add(out, from, 1);
            from++;
            if (depth == 1 && *from == '^') text_buffer_add(out, from++, 1);
            if (*from == ']') { // first in a class it stands for itself
                text_buffer_add(out, "\\]", 2);
                from++;
            }
        } else if (*from == ']') {
            if (--depth == 0) text_buffer_add(out, from, 1);
            from++;
        } else {
            text_buffer_add(out, from++, 1);
        }
    } while (depth > 0);
    *at = from;
    return NULL;
}

static Status pattern_translate(const char *pattern, TextBuffer *out) {
    for (const char *at = pattern; *at;) {
        if (*at == '\\') {
            pattern_translate_escape(&at, out);
        } else if (*at == '[') {
            TRY(pattern_translate_class(pattern, &at, out));
        } else {
            text_buffer_add(out, at++, 1);
        }
    }
    return NULL;
}

Status split_regex_new(SplitRegex **regex, const char *pattern) {
    TextBuffer text = {0};
    text_buffer_add(&text, "", 0);
    Status status = pattern_translate(pattern, &text);
    if (status) {
        text_buffer_free(&text);
        return status;
    }
    int error;
    PCRE2_SIZE offset;
    // In Oniguruma ^ and $ also match at line ends.
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text.data, text.length, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                                     &error, &offset, NULL);
    text_buffer_free(&text);
    if (!code) {
        PCRE2_UCHAR message[256];
        pcre2_get_error_message(error, message, sizeof message);
        return status_usage("the split pattern \"%s\" cannot be compiled: %s", pattern, (const char *)message);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); // where it is not available, matching is interpreted
    *regex = xcalloc(1, sizeof **regex);
    (*regex)->code = code;
    return NULL;
}

void split_regex_free(SplitRegex *regex) {
    if (!regex) return;
    pcre2_code_free(regex->code);
    free(regex);
}

SplitMatcher *split_matcher_new(void) {
    SplitMatcher *matcher = xcalloc(1, sizeof *matcher);
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    matcher->stack = pcre2_jit_stack_create(64 << 10, 16 << 20, NULL);
    if (matcher->context && matcher->stack) pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return matcher;
}

void split_matcher_free(SplitMatcher *matcher) {
    if (!matcher) return;
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    free(matcher);
}

Status split_regex_find(const SplitRegex *regex, SplitMatcher *matcher, const uint8_t *text, size_t length, size_t from,
                        size_t last_end, bool *found, size_t *begin, size_t *end) {
    *found = false;
    while (from <= length) {
        int count = pcre2_match(regex->code, text, length, from, PCRE2_NO_UTF_CHECK, matcher->data, matcher->context);
        if (count == PCRE2_ERROR_JIT_STACKLIMIT)
            count = pcre2_match(regex->code, text, length, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, matcher->data,
                                matcher->context);
        if (count == PCRE2_ERROR_NOMATCH) return NULL;
        if (count < 0) {
            PCRE2_UCHAR message[256];
            pcre2_get_error_message(count, message, sizeof message);
            return status_runtime("the split pattern failed on this text: %s", (const char *)message);
        }
        const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(matcher->data);
        if (bounds[0] == bounds[1] && bounds[1] == last_end) {
            from = last_end + (last_end < length ? utf8_length(text[last_end]) : 1);
            continue;
        }
        *found = true;
        *begin = bounds[0];
        *end = bounds[1];
        return NULL;
    }
    return NULL;
}
#else
Status split_regex_new(SplitRegex **regex, const char *pattern) {
    (void)regex;
    return status_hint(status_usage("this build has no scanner for the split pattern \"%s\"", pattern),
                       "install libpcre2-dev and build again");
}

void split_regex_free(SplitRegex *regex) {
    (void)regex;
}

SplitMatcher *split_matcher_new(void) {
    return NULL;
}

void split_matcher_free(SplitMatcher *matcher) {
    (void)matcher;
}

Status split_regex_find(const SplitRegex *regex, SplitMatcher *matcher, const uint8_t *text, size_t length, size_t from,
                        size_t last_end, bool *found, size_t *begin, size_t *end) {
    (void)regex, (void)matcher, (void)text, (void)length, (void)from, (void)last_end, (void)found, (void)begin,
        (void)end;
    return status_usage("this build has no regular expressions");
}
#endif
