// A hub that answers anything: the input is its listing, in pages, and what lies in the folder of an earlier try. The
// first file is fetched; nothing is written outside of the folder that was asked for.
#define HASH_BYTES ((size_t)64)
#include "data/pull_file.c"
#include "fuzz_json.h"

const char *const fuzz_words[] = {"type",
                                  "file",
                                  "path",
                                  "size",
                                  "lfs",
                                  "oid",
                                  "directory",
                                  "a.parquet",
                                  "b/c.parquet",
                                  "../up",
                                  "/mem/elsewhere",
                                  "a\\b",
                                  "sha256:",
                                  "pages",
                                  "next",
                                  "parts",
                                  "done",
                                  "http://other/x?cursor=2",
                                  "?cursor=1",
                                  "no query",
                                  "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
                                  NULL};

// ---- in the place of data/pull_http.c -------------------------------------------------------------------------------

struct Http {
    int unused;
};
static json_t *hub; // the input
static int hub_page;
static int64_t hub_sent;

Status http_open(Http **http, const HttpSettings *settings) {
    (void)settings;
    *http = xcalloc(1, sizeof **http);
    return NULL;
}

void http_close(Http *http) {
    free(http);
}

Status http_get_text(Http *http, const char *url, char **body, size_t *length, char **next) {
    (void)http, (void)url;
    const json_t *page = json_array_get(json_object_get(hub, "pages"), (size_t)hub_page);
    const char *link = json_string_value(json_array_get(json_object_get(hub, "next"), (size_t)hub_page));
    *body = json_dumps(page, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!*body) *body = text_copy("");
    *length = strlen(*body);
    *next = link && ++hub_page < 8 ? text_copy(link) : NULL;
    return NULL;
}

Status http_get_range(Http *http, const char *url, int64_t start, int64_t end, int64_t total, HttpSink *sink,
                      void *context) {
    (void)http, (void)url;
    if (start < 0 || end <= start || end > total) abort();
    static const char bytes[256];
    for (int64_t at = start; at < end; at += (int64_t)sizeof bytes) {
        int64_t now = end - at < (int64_t)sizeof bytes ? end - at : (int64_t)sizeof bytes;
        if ((hub_sent += now) > 2048) return status_runtime("the connection broke");
        TRY(sink(context, at, bytes, (size_t)now));
    }
    return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------

static void parts_put(const RemoteFile *remote) { // as an earlier try may have left it
    const json_t *parts = json_object_get(hub, "parts");
    struct {
        PartsHeader header;
        uint8_t done[32];
    } before = {{"HEARTHPT", remote->size, 64 + remote->size / 16, "", ""}, {0}};
    memcpy(before.header.sha256, remote->sha256, sizeof before.header.sha256);
    if (!json_is_array(parts)) return;
    for (size_t i = 0; i < json_array_size(parts) && i < sizeof before.done; i++)
        before.done[i] = (uint8_t)json_integer_value(json_array_get(parts, i));
    fuzz_file_put("/mem/out/file.parts", &before, sizeof before - 32 + json_array_size(parts) % 33);
    fuzz_file_put("/mem/out/file.partial", before.done, sizeof before.done);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    RemoteList list;
    fuzz_threads = FUZZ_THREADS_INLINE;
    hub = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    hub_page = 0;
    hub_sent = 0;
    Status status = remote_list(&list, NULL, "http://hub", "user/set", false, "refs/convert/parquet", NULL, "*");
    if (!status) {
        for (size_t i = 0; i < list.count; i++) {
            const RemoteFile *remote = &list.files[i];
            if (remote->size < 0 || remote->path[0] == '/' || strstr(remote->path, "/../") ||
                strncmp(remote->path, "../", 3) == 0)
                abort();
            char *url = remote_url("http://hub", "user/set", i % 2, "main", remote->path);
            free(url);
        }
        if (list.count) {
            const HttpSettings settings = {.quiet = true};
            int64_t part_bytes = 64 + list.files[0].size / 16; // a byte a part is kept: never very many
            PullFile file = {&list.files[0], "http://hub/file", "/mem/out/file", &settings, 2, part_bytes, true};
            int64_t fetched;
            bool present;
            parts_put(&list.files[0]);
            status = pull_file(&file, &fetched, &present);
        }
        remote_list_free(&list);
    }
    status_free(status);
    json_decref(hub);
    fuzz_files_clear();
    return 0;
}
