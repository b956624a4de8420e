#include "data/pull_http.h"

#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#if HEARTH_HAVE_CURL
#include <curl/curl.h>

#define TEXT_LIMIT    ((size_t)64 << 20) // of a listing page
#define DELAY_MAX     60.0
#define RETRY_MAX     300.0 // the longest Retry-After that is waited for
#define STALL_SECONDS 30L

struct Http {
    CURL *curl;
    struct curl_slist *headers;
    HttpSettings settings;
    char error[CURL_ERROR_SIZE];
    // The request under way.
    TextBuffer *text; // listing: the body goes here
    char *next;       // target of a Link header
    HttpSink *sink;   // range: the body goes here
    void *context;
    int64_t asked, at, end; // range: first byte of this try, next byte to take, end
    int64_t total, skip;    // size of the file; bytes of a whole-file answer still to pass over
    bool range_checked, has_content_range;
    int64_t content_start, content_total; // of Content-Range; -1 when absent or "*"
    Status failure;                       // of the sink, or of a check: what the answer did wrong
    bool failure_final;                   // trying again would not help
};

static long response_code(const Http *http) {
    long code = 0;
    curl_easy_getinfo(http->curl, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

// --- headers and bodies ---------------------------------------------------------------------------------------------

static bool header_value(const char *line, size_t length, const char *name, const char **value) {
    size_t name_length = strlen(name);
    if (length <= name_length || strncasecmp(line, name, name_length) != 0) return false;
    *value = line + name_length;
    while (**value == ' ')
        (*value)++;
    return true;
}

static void link_read(Http *http, const char *value) {
    for (const char *open = strchr(value, '<'); open; open = strchr(open + 1, '<')) {
        const char *close = strchr(open, '>');
        if (!close) return;
        const char *comma = strchr(close, ','), *relation = strstr(close, "rel=\"next\"");
        if (relation && (!comma || relation < comma)) {
            free(http->next);
            http->next = text_copy_n(open + 1, (size_t)(close - open - 1));
            return;
        }
    }
}

static size_t on_header(char *data, size_t size, size_t count, void *context) {
    Http *http = context;
    size_t length = size * count;
    char *line = text_copy_n(data, length);
    const char *value;
    if (text_starts_with(line, "HTTP/")) { // a new answer: after a redirect or "100 Continue"
        http->has_content_range = false;
        http->content_start = http->content_total = -1;
    } else if (header_value(line, length, "link:", &value)) {
        link_read(http, value);
    } else if (header_value(line, length, "content-range:", &value)) {
        long long start, end, total;
        int fields = sscanf(value, "bytes %lld-%lld/%lld", &start, &end, &total);
        http->has_content_range = fields >= 2;
        http->content_start = fields >= 2 ? start : -1;
        http->content_total = fields >= 3 ? total : -1;
    }
    free(line);
    return length;
}

static size_t on_text(char *data, size_t size, size_t count, void *context) {
    Http *http = context;
    if (http->text->length + size * count > TEXT_LIMIT) {
        http->failure = status_runtime("the server's answer is longer than 64 MiB");
        http->failure_final = true;
        return 0;
    }
    text_buffer_add(http->text, data, size * count);
    return size * count;
}

static Status range_check(Http *http) {
    long code = response_code(http);
    http->skip = 0;
    if (code == 206) {
        if (!http->has_content_range || http->content_start != http->asked) {
            return status_runtime("the server answered with another range than the one asked for");
        }
        if (http->content_total >= 0 && http->content_total != http->total) {
            return status_runtime("the server has a file of %lld bytes, the listing says %lld",
                                  (long long)http->content_total, (long long)http->total);
        }
        return NULL;
    }
    if (code == 200) { // no ranges here: pass over what is not wanted
        http->skip = http->asked;
        return NULL;
    }
    return status_runtime("unexpected status %ld", code);
}

static size_t on_range(char *data, size_t size, size_t count, void *context) {
    Http *http = context;
    size_t length = size * count, left = length;
    if (response_code(http) >= 300) return length; // the text of an error; the status says enough
    if (!http->range_checked) {
        http->failure = range_check(http);
        if (http->failure) return 0;
        http->range_checked = true;
    }
    if (http->skip > 0) {
        size_t skipped = (uint64_t)http->skip < left ? (size_t)http->skip : left;
        http->skip -= (int64_t)skipped;
        data += skipped;
        left -= skipped;
    }
    if ((int64_t)left > http->end - http->at) left = (size_t)(http->end - http->at);
    if (left > 0) {
        http->failure = http->sink(http->context, http->at, data, left);
        http->failure_final = http->failure != NULL;
        if (http->failure) return 0;
        http->at += (int64_t)left;
    }
    // A whole-file answer goes on beyond the range: enough is enough.
    return http->at == http->end && http->asked >= 0 && response_code(http) == 200 ? 0 : length;
}

// --- tries ----------------------------------------------------------------------------------------------------------

static bool status_is_transient(long code) {
    return code == 408 || code == 425 || code == 429 || code >= 500;
}

static Status status_final(const char *url, long code) {
    if (code == 401 || code == 403) {
        return status_hint(status_usage("%s: access denied (status %ld)", url, code),
                           "set HF_TOKEN to a token that may read it, and accept its terms on the hub");
    }
    if (code == 404)
        return status_hint(status_usage("%s: not found", url), "check the name, the revision and the path");
    return status_runtime("%s: status %ld", url, code);
}

static void retry_wait(double seconds) {
    struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&time, &time) != 0)
        continue;
}

static double retry_delay(const Http *http, int attempt) {
    curl_off_t asked = 0;
    curl_easy_getinfo(http->curl, CURLINFO_RETRY_AFTER, &asked);
    if (asked > 0) return (double)asked < RETRY_MAX ? (double)asked : RETRY_MAX;
    double seconds = http->settings.retry_seconds;
    for (int i = 0; i < attempt && seconds < DELAY_MAX; i++)
        seconds *= 2;
    return seconds < DELAY_MAX ? seconds : DELAY_MAX;
}

// One try. NULL and *again = false: done; NULL and *again: worth another, *why says why; else a final failure.
static Status http_try(Http *http, const char *url, bool *again, char **why) {
    *again = false;
    http->failure = NULL;
    http->failure_final = http->range_checked = false;
    http->error[0] = 0;
    curl_easy_setopt(http->curl, CURLOPT_URL, url);
    CURLcode result = curl_easy_perform(http->curl);
    long code = response_code(http);
    if (http->failure) {
        if (http->failure_final) return http->failure;
        *why = text_copy(status_message(http->failure));
        status_free(http->failure);
        *again = true;
        return NULL;
    }
    if (code >= 300 && !status_is_transient(code)) return status_final(url, code);
    bool complete = http->sink ? http->at == http->end : result == CURLE_OK;
    if (code >= 200 && code < 300 && complete) return NULL;
    *again = true;
    *why = code >= 300          ? text_format("status %ld", code)
           : result != CURLE_OK ? text_copy(http->error[0] ? http->error : curl_easy_strerror(result))
                                : text_copy("the answer ended too early");
    return NULL;
}

static Status http_request(Http *http, const char *url) {
    int failures = 0;
    for (;;) {
        int64_t before = http->at;
        if (http->sink) {
            char range[64];
            snprintf(range, sizeof range, "%lld-%lld", (long long)http->at, (long long)http->end - 1);
            curl_easy_setopt(http->curl, CURLOPT_RANGE, range);
            http->asked = http->at;
        } else {
            curl_easy_setopt(http->curl, CURLOPT_RANGE, NULL);
            http->text->length = 0;
        }
        bool again;
        char *why = NULL;
        TRY(http_try(http, url, &again, &why));
        if (!again) return NULL;
        failures = http->at > before ? 0 : failures + 1; // what brings bytes may go on for ever
        if (failures > http->settings.retries) {
            Status status = status_runtime("%s: %s, after %d tries", url, why, failures);
            free(why);
            return status_hint(status, http->sink ? "the same command goes on where this one stopped"
                                                  : "check the network, or name a mirror with --endpoint");
        }
        double seconds = retry_delay(http, failures ? failures - 1 : 0);
        log_write(http->settings.quiet ? LOG_DEBUG : LOG_WARN, "%s: %s; try %d of %d, the next in %.1f s", url, why,
                  failures ? failures : 1, http->settings.retries + 1, seconds);
        free(why);
        retry_wait(seconds);
    }
}

Status http_get_text(Http *http, const char *url, char **body, size_t *length, char **next) {
    TextBuffer text = {0};
    free(http->next);
    http->next = NULL;
    http->text = &text;
    http->sink = NULL;
    curl_easy_setopt(http->curl, CURLOPT_WRITEFUNCTION, on_text);
    Status status = http_request(http, url);
    *body = NULL;
    *next = NULL;
    if (status) {
        text_buffer_free(&text);
        return status;
    }
    text_buffer_add(&text, "", 0);
    *body = text.data;
    *length = text.length;
    *next = http->next;
    http->next = NULL;
    return NULL;
}

Status http_get_range(Http *http, const char *url, int64_t start, int64_t end, int64_t total, HttpSink *sink,
                      void *context) {
    if (start >= end) return NULL;
    http->sink = sink;
    http->context = context;
    http->at = start;
    http->end = end;
    http->total = total;
    curl_easy_setopt(http->curl, CURLOPT_WRITEFUNCTION, on_range);
    return http_request(http, url);
}

Status http_open(Http **out, const HttpSettings *settings) {
    Http *http = xcalloc(1, sizeof *http);
    http->settings = *settings;
    http->curl = curl_easy_init();
    if (!http->curl) {
        free(http);
        return status_runtime("libcurl could not start");
    }
    if (settings->token) {
        char *header = text_format("Authorization: Bearer %s", settings->token);
        http->headers = curl_slist_append(NULL, header);
        free(header);
    }
    CURL *curl = http->curl;
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, http->headers);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "hearth/" HEARTH_VERSION);
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L); // libcurl keeps the token from other hosts
    curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 8L);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 20L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, STALL_SECONDS);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, http->error);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, http);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, http);
    *out = http;
    return NULL;
}

void http_close(Http *http) {
    if (!http) return;
    curl_easy_cleanup(http->curl);
    curl_slist_free_all(http->headers);
    free(http->next);
    free(http);
}

#else // without libcurl

Status http_open(Http **http, const HttpSettings *settings) {
    (void)settings;
    *http = NULL;
    return status_usage("this hearth was built without libcurl, so it cannot fetch files");
}

void http_close(Http *http) {
    (void)http;
}

Status http_get_text(Http *http, const char *url, char **body, size_t *length, char **next) {
    (void)http, (void)url, (void)body, (void)length, (void)next;
    return status_usage("this hearth was built without libcurl");
}

Status http_get_range(Http *http, const char *url, int64_t start, int64_t end, int64_t total, HttpSink *sink,
                      void *context) {
    (void)http, (void)url, (void)start, (void)end, (void)total, (void)sink, (void)context;
    return status_usage("this hearth was built without libcurl");
}

#endif
