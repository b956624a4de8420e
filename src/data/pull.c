#include "data/pull.h"

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "data/estimate.h"
#include "data/pull_file.h"

#include <stdlib.h>
#include <string.h>

#define ESTIMATE_DOCUMENTS 1000
#define TOKENS_EXTRA       1.05 // so that the estimate's error and the filters do not leave the corpus short

PullOptions pull_defaults(void) {
    return (PullOptions){.parallel = 4, .retries = 8, .retry_seconds = 1, .part_bytes = (int64_t)32 << 20};
}

typedef struct Pull {
    const PullOptions *options;
    PullResult *result;
    char *endpoint;
    const char *revision;
    HttpSettings settings;
    RemoteList list;
    double counted_tokens; // of files that were sampled
    double counted_bytes;  // and their size
} Pull;

static Status local_estimate(Pull *pull, const char *local, int64_t size) {
    ReaderOptions reader = {.field = pull->options->column, .skip_bad = true};
    Estimate estimate;
    TRY(estimate_run(&estimate, &reader, &local, 1, pull->options->tokenizer, ESTIMATE_DOCUMENTS));
    pull->counted_tokens += estimate.tokens;
    pull->counted_bytes += (double)size;
    return NULL;
}

static Status file_pull(Pull *pull, const RemoteFile *remote) {
    const PullOptions *options = pull->options;
    char *url = remote_url(pull->endpoint, options->repo, options->model, pull->revision, remote->path);
    char *local = path_join(options->output, remote->path);
    const PullFile file = {.remote = remote,
                           .url = url,
                           .local = local,
                           .settings = &pull->settings,
                           .parallel = options->parallel,
                           .part_bytes = options->part_bytes,
                           .quiet = options->quiet};
    int64_t fetched;
    bool present;
    Status status = pull_file(&file, &fetched, &present);
    pull->result->bytes += fetched;
    if (!status) {
        pull->result->fetched += !present;
        pull->result->present += present;
        char size[32];
        if (!options->quiet) {
            log_info("%s %s (%s)%s", present ? "have" : "got", remote->shown, text_gib(size, (double)remote->size),
                     remote->sha256[0] ? "" : ", size checked, no hash stated");
        }
        if (options->tokens > 0) status = local_estimate(pull, local, remote->size);
    }
    free(url);
    free(local);
    return status;
}

// With a token target: the first file tells how many tokens a byte holds, and so how many files are needed; the count
// is refined with each file that comes.
static Status files_pull(Pull *pull) {
    const PullOptions *options = pull->options;
    double wanted = (double)options->tokens * TOKENS_EXTRA;
    for (size_t i = 0; i < pull->list.count; i++) {
        if (options->tokens > 0 && pull->counted_tokens >= wanted) return NULL;
        TRY(file_pull(pull, &pull->list.files[i]));
        pull->result->wanted = i + 1;
        pull->result->estimated_tokens = pull->counted_tokens;
        if (options->tokens > 0 && i == 0 && !options->quiet) {
            double bytes = 0, needed = wanted / pull->counted_tokens * pull->counted_bytes;
            size_t files = 0;
            while (files < pull->list.count && bytes < needed)
                bytes += (double)pull->list.files[files++].size;
            char tokens[32], size[32];
            log_info("about %s tokens a file: %zu files, %s, will do", text_count(tokens, pull->counted_tokens), files,
                     text_gib(size, bytes));
        }
    }
    if (options->tokens > 0 && pull->counted_tokens < (double)options->tokens) {
        char have[32];
        log_warn("all %zu files together hold only about %s tokens", pull->list.count,
                 text_count(have, pull->counted_tokens));
    }
    return NULL;
}

static void list_print(const Pull *pull) {
    for (size_t i = 0; i < pull->list.count; i++) {
        char size[32];
        printf("%12s  %s\n", text_gib(size, (double)pull->list.files[i].size), pull->list.files[i].shown);
    }
}

static Status pull_all(Pull *pull) {
    const PullOptions *options = pull->options;
    Http *http;
    TRY(http_open(&http, &pull->settings));
    const char *include = options->include ? options->include : options->model ? "tokenizer.json" : "*.parquet";
    Status status = remote_list(&pull->list, http, pull->endpoint, options->repo, options->model, pull->revision,
                                options->path, include);
    http_close(http);
    TRY(status);
    pull->result->listed = pull->list.count;
    if (pull->list.count == 0) {
        return status_hint(status_usage("no file of %s matches %s", options->repo, include),
                           "--include takes another glob, --path another folder");
    }
    if (options->list_only) {
        list_print(pull);
        return NULL;
    }
    return files_pull(pull);
}

Status pull_run(const PullOptions *options, PullResult *result) {
    *result = (PullResult){0};
    const char *token = options->token ? options->token : getenv("HF_TOKEN");
    const char *endpoint = options->endpoint ? options->endpoint : getenv("HF_ENDPOINT");
    Pull pull = {.options = options, .result = result, .revision = options->revision ? options->revision : "main"};
    pull.settings = (HttpSettings){.token = token && *token ? token : NULL,
                                   .retries = options->retries,
                                   .retry_seconds = options->retry_seconds,
                                   .quiet = options->quiet};
    pull.endpoint = text_copy(endpoint && *endpoint ? endpoint : "https://huggingface.co");
    size_t length = strlen(pull.endpoint);
    while (length && pull.endpoint[length - 1] == '/')
        pull.endpoint[--length] = 0;
    Status status = pull_all(&pull);
    remote_list_free(&pull.list);
    free(pull.endpoint);
    return status;
}
