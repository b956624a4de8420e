#include "serve/access.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

void access_token_make(char token[ACCESS_TOKEN_CHARACTERS + 1]) {
    unsigned char bytes[ACCESS_TOKEN_CHARACTERS / 2];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) abort(); // never fails for so few
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
}

bool access_token_same(const char *given, const char *token) {
    size_t length = strlen(token), given_length = strlen(given);
    volatile unsigned char differs = given_length != length;
    for (size_t i = 0; i < length; i++)
        differs = differs | (unsigned char)(given[i < given_length ? i : 0] ^ token[i]);
    return !differs;
}

bool access_host_is_local(const char *host, const char *bound) {
    const char *const names[] = {"localhost", "127.0.0.1", "[::1]", bound};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t length = strlen(names[i]);
        if (strncasecmp(host, names[i], length) != 0) continue;
        const char *port = host + length;
        if (!*port) return true;
        size_t digits = strspn(port + 1, "0123456789");
        if (*port == ':' && digits && digits <= 5 && !port[1 + digits]) return true;
    }
    return false;
}

bool access_origin_same(const char *origin, const char *host) {
    size_t scheme = text_starts_with(origin, "http://") ? 7 : text_starts_with(origin, "https://") ? 8 : 0;
    return scheme && strcasecmp(origin + scheme, host) == 0;
}

char *access_target_without_token(const char *target) {
    if (target[0] != '/' || target[1] == '/' || target[1] == '\\') return text_copy("/"); // "//x" is another machine
    TextBuffer out = {0};
    size_t path = strcspn(target, "?");
    const char *before = "?";
    text_buffer_add(&out, target, path);
    for (const char *at = target + path; *at;) {
        at++;
        size_t length = strcspn(at, "&");
        if (length && !text_starts_with(at, "token=")) {
            text_buffer_add(&out, before, 1);
            text_buffer_add(&out, at, length);
            before = "&";
        }
        at += length;
    }
    for (size_t i = 0; i < out.length; i++) // nothing that ends a header
        if ((unsigned char)out.data[i] <= ' ' || out.data[i] == 0x7f) out.data[i] = '+';
    return out.data;
}
