#include "data/pull_list.h"

#include "base/json.h"
#include "base/text.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#define PAGES_MAX 10000
#define SIZE_MOST ((int64_t)1 << 50) // of a file: no hub has one of a petabyte

// Percent-encodes everything but letters, digits and a few signs; '/' stays.
static char *url_escape(const char *text) {
    TextBuffer out = {0};
    text_buffer_add(&out, "", 0);
    for (; *text; text++) {
        if (isalnum((unsigned char)*text) || strchr("-._~/", *text)) {
            text_buffer_add(&out, text, 1);
        } else {
            text_buffer_format(&out, "%%%02X", (unsigned char)*text);
        }
    }
    return out.data;
}

// A revision may hold slashes ("refs/convert/parquet"), which the hub wants escaped.
static char *revision_escape(const char *revision) {
    TextBuffer out = {0};
    text_buffer_add(&out, "", 0);
    char *plain = url_escape(revision);
    for (const char *at = plain; *at; at++)
        text_buffer_add(&out, *at == '/' ? "%2F" : at, *at == '/' ? 3 : 1);
    free(plain);
    return out.data;
}

char *remote_url(const char *endpoint, const char *repo, bool model, const char *revision, const char *path) {
    char *escaped = url_escape(path), *escaped_revision = revision_escape(revision);
    char *url =
        text_format("%s/%s%s/resolve/%s/%s", endpoint, model ? "" : "datasets/", repo, escaped_revision, escaped);
    free(escaped);
    free(escaped_revision);
    return url;
}

// The server names the files; a name must not lead out of the output folder.
static bool path_is_safe(const char *path) {
    if (path[0] == '/' || path[0] == 0 || strchr(path, '\\')) return false;
    for (const char *part = path; part;) {
        size_t length = strcspn(part, "/");
        if (length == 0 || (length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        part = part[length] ? part + length + 1 : NULL;
    }
    return true;
}

static bool sha256_is_valid(const char *text) {
    return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

static Status entry_add(RemoteList *list, const json_t *entry, const char *include, const char *url) {
    const char *type = "", *path = NULL, *oid = "";
    int64_t size = -1;
    TRY(json_get_text(entry, "type", &type, url));
    TRY(json_get_text(entry, "path", &path, url));
    TRY(json_get_int(entry, "size", &size, url));
    if (strcmp(type, "file") != 0) return NULL;
    if (!path || size < 0) return status_runtime("%s: an entry of the listing lacks its path or size", url);
    if (fnmatch(include, path, 0) != 0) return NULL;
    if (!path_is_safe(path)) {
        char *shown = text_printable(path);
        Status status = status_runtime("%s: the listing names a file outside the repository: %s", url, shown);
        free(shown);
        return status;
    }
    const json_t *large = json_object_get(entry, "lfs");
    if (json_is_object(large)) {
        TRY(json_get_text(large, "oid", &oid, url));
        TRY(json_get_int(large, "size", &size, url));
    }
    if (size < 0 || size > SIZE_MOST)
        return status_runtime("%s: the listing gives %s %lld bytes", url, path, (long long)size);
    if (text_starts_with(oid, "sha256:")) oid += 7;
    list->files = xrealloc(list->files, (list->count + 1) * sizeof *list->files);
    RemoteFile *file = &list->files[list->count++];
    *file = (RemoteFile){.path = text_copy(path), .shown = text_printable(path), .size = size};
    if (sha256_is_valid(oid)) memcpy(file->sha256, oid, 65);
    return NULL;
}

static Status page_read(RemoteList *list, Http *http, const char *url, const char *include, char **next) {
    char *body;
    size_t length;
    json_t *root = NULL;
    TRY(http_get_text(http, url, &body, &length, next));
    Status status = json_read_text(&root, body, length, url);
    if (!status && !json_is_array(root)) status = status_runtime("%s: the answer is not a list of files", url);
    for (size_t i = 0; !status && i < json_array_size(root); i++) {
        status = entry_add(list, json_array_get(root, i), include, url);
    }
    json_decref(root);
    free(body);
    return status;
}

static int file_order(const void *a, const void *b) {
    return strcmp(((const RemoteFile *)a)->path, ((const RemoteFile *)b)->path);
}

// Of the next page's address only the query is used: a mirror may name the original host there, and the token and the
// requests must stay with the endpoint that was asked for.
static Status pages_read(RemoteList *list, Http *http, const char *base, const char *include) {
    char *url = text_format("%s?recursive=true", base);
    Status status = NULL;
    for (int page = 0; url && !status; page++) {
        char *next = NULL;
        status = page < PAGES_MAX ? page_read(list, http, url, include, &next)
                                  : status_runtime("%s: the listing does not end", base);
        free(url);
        const char *query = next ? strchr(next, '?') : NULL;
        url = query ? text_format("%s%s", base, query) : NULL;
        free(next);
    }
    free(url);
    return status;
}

Status remote_list(RemoteList *list, Http *http, const char *endpoint, const char *repo, bool model,
                   const char *revision, const char *path, const char *include) {
    *list = (RemoteList){0};
    char *escaped = url_escape(path ? path : ""), *escaped_revision = revision_escape(revision);
    char *base = text_format("%s/api/%s/%s/tree/%s%s%s", endpoint, model ? "models" : "datasets", repo,
                             escaped_revision, *escaped ? "/" : "", escaped);
    Status status = pages_read(list, http, base, include);
    free(base);
    free(escaped);
    free(escaped_revision);
    if (status) {
        remote_list_free(list);
    } else if (list->count) {
        qsort(list->files, list->count, sizeof *list->files, file_order);
    }
    return status;
}

void remote_list_free(RemoteList *list) {
    for (size_t i = 0; i < list->count; i++) {
        free(list->files[i].path);
        free(list->files[i].shown);
    }
    free(list->files);
    *list = (RemoteList){0};
}
