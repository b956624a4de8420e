// Who may ask.
#pragma once

#include <stdbool.h>

enum { ACCESS_TOKEN_CHARACTERS = 32 };

void access_token_make(char token[ACCESS_TOKEN_CHARACTERS + 1]);
// Takes as long for any token of the same length.
bool access_token_same(const char *given, const char *token);
// A Host header that names this machine: a browser that was led here under another name (DNS rebinding) has that one.
// `bound`: the address that the server was given, as it was written.
bool access_host_is_local(const char *host, const char *bound);
// An Origin header that is the page's own: "http://" or "https://" and the Host.
bool access_origin_same(const char *origin, const char *host);
// The target without its token, for a client that has it as a cookie from now on: malloc'd, and a path of this server.
char *access_target_without_token(const char *target);
