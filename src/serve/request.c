// Taking a target apart.
#include "serve/request.h"

#include "base/text.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

// In place; '+' is a space in a query.
static Status decode(char *text, bool query) {
    char *out = text;
    for (const char *in = text; *in; in++) {
        if (*in != '%') {
            *out++ = query && *in == '+' ? ' ' : *in;
            continue;
        }
        int high = text_hex_digit(in[1]), low = high < 0 ? -1 : text_hex_digit(in[2]);
        if (low < 0 || high + low == 0) return status_usage("the address has an escape that is none");
        *out++ = (char)(16 * high + low);
        in += 2;
    }
    *out = 0;
    size_t length = (size_t)(out - text);
    if (utf8_first_malformed(text, length) != length) return status_usage("the address is not UTF-8");
    return NULL;
}

static Status add_parameter(ServeRequest *request, char *pair) {
    char *value = strchr(pair, '=');
    if (value) *value++ = 0;
    TRY(decode(pair, true));
    if (value) TRY(decode(value, true));
    if (request->parameter_count == SERVE_PARAMETERS_MOST)
        return status_usage("a request has at most %d parameters", SERVE_PARAMETERS_MOST);
    request->parameters[request->parameter_count++] = (ServeParameter){pair, value ? value : ""};
    return NULL;
}

Status serve_request_parse(ServeRequest *request, ServeSite *site, const char *target) {
    request->site = site;
    request->parameter_count = 0;
    request->path = request->text = NULL;
    if (strlen(target) > SERVE_TARGET_MOST)
        return status_usage("an address has at most %d characters", SERVE_TARGET_MOST);
    request->text = text_copy(target);
    request->path = request->text;
    char *query = strchr(request->text, '?');
    if (query) *query++ = 0;
    TRY(decode(request->text, false));
    for (char *rest = NULL, *pair = query ? strtok_r(query, "&", &rest) : NULL; pair; pair = strtok_r(NULL, "&", &rest))
        TRY(add_parameter(request, pair));
    return NULL;
}

void serve_request_free(ServeRequest *request) {
    free(request->text);
    request->path = request->text = NULL;
    request->parameter_count = 0;
}

const char *serve_parameter(const ServeRequest *request, const char *name) {
    for (int i = 0; i < request->parameter_count; i++)
        if (strcmp(request->parameters[i].name, name) == 0) return request->parameters[i].value;
    return NULL;
}
