// {"metrics": [...], "alarms": [...], "samples": [...], "plan": ..., "environment": ..., "profile": ..., "config":
// "..."} as the files of a run directory: read, summed up, and drawn as a page alone and beside another run. Whatever
// the files say, every element of the page is closed where it must be, and no script, no link and no number that is
// none gets into it.
#include "fuzz_json.h"

#include "watch/report.h"
#include "watch/run_summary.h"

#include <ctype.h>
#include <stdbool.h>

#define RUN "/mem/run"

const char *const fuzz_words[] = {"metrics",
                                  "alarms",
                                  "samples",
                                  "plan",
                                  "environment",
                                  "config",
                                  "step",
                                  "loss",
                                  "tokens",
                                  "lr",
                                  "grad_norm",
                                  "tok_s",
                                  "tflops",
                                  "mfu",
                                  "memory_bytes",
                                  "memory_fraction",
                                  "data_wait",
                                  "comm_wait",
                                  "seconds",
                                  "time",
                                  "eval",
                                  "full",
                                  "subset",
                                  "val_loss",
                                  "perplexity",
                                  "bits_per_byte",
                                  "split_ms",
                                  "gemm",
                                  "attention",
                                  "expert_load",
                                  "most",
                                  "dead",
                                  "skipped",
                                  "prompt",
                                  "text",
                                  "message",
                                  "advice",
                                  "prediction",
                                  "step_parts",
                                  "step_seconds",
                                  "devices",
                                  "device",
                                  "commit",
                                  "clean",
                                  "libraries",
                                  "first_step",
                                  "profile",
                                  "parts",
                                  "floors",
                                  "ops",
                                  "category",
                                  "pass",
                                  "recompute",
                                  "floor_seconds",
                                  "why_no_graph",
                                  "<script>alert(1)</script>",
                                  "\"><svg onload=x>",
                                  "&amp;",
                                  "]]>",
                                  "train.seq = 3",
                                  NULL};

static void put_lines(const char *path, const json_t *list) {
    static char text[1 << 16];
    size_t used = 0, index;
    json_t *line;
    json_array_foreach(list, index, line) {
        size_t length = json_dumpb(line, text + used, sizeof text - used - 1, JSON_COMPACT | JSON_ENCODE_ANY);
        if (length > sizeof text - used - 1) break;
        used += length;
        text[used++] = '\n';
    }
    fuzz_file_put(path, text, used);
}

// Elements opened and closed in order: what a name, a message or a sample says must not change them.
static void check_page(const char *page) {
    enum { DEPTH_MAX = 64, NAME_MAX_LENGTH = 24 };
    char open[DEPTH_MAX][NAME_MAX_LENGTH];
    int depth = 0;
    const char *at = page;
    if (strncmp(at, "<!DOCTYPE", 9) == 0) at = strchr(at, '>') + 1;
    for (; (at = strchr(at, '<')); at++) {
        bool closing = at[1] == '/';
        const char *name = at + 1 + closing, *end = strchr(at, '>');
        size_t length = 0;
        if (strncmp(at, "<!--", 4) == 0) continue;
        while (isalnum((unsigned char)name[length]))
            length++;
        if (!end || !length || length >= NAME_MAX_LENGTH || strncasecmp(name, "script", 6) == 0) abort();
        for (const char *c = at + 1; c < end; c++)
            if (*c == '<') abort();
        for (const char *c = at; (c = memmem(c, (size_t)(end - c), "=\"nan", 5)); c++)
            abort();
        if (closing) {
            if (!depth || strlen(open[depth - 1]) != length || strncmp(open[--depth], name, length) != 0) abort();
        } else if (end[-1] != '/') {
            if (depth == DEPTH_MAX) abort();
            snprintf(open[depth++], NAME_MAX_LENGTH, "%.*s", (int)length, name);
        }
    }
    if (depth) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *root = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    const char *config = json_string_value(json_object_get(root, "config"));
    put_lines(RUN "/metrics.jsonl", json_object_get(root, "metrics"));
    put_lines(RUN "/alarms.jsonl", json_object_get(root, "alarms"));
    put_lines(RUN "/samples.jsonl", json_object_get(root, "samples"));
    fuzz_file_put_json(RUN "/plan.json", json_object_get(root, "plan"));
    fuzz_file_put_json(RUN "/profile/summary.json", json_object_get(root, "profile"));
    fuzz_file_put_json(RUN "/environment.json", json_object_get(root, "environment"));
    fuzz_file_put(RUN "/config.toml", config ? config : "", config ? strlen(config) : 0);
    ReportRun runs[2] = {{.usd_per_hour = 2, .watts = 700, .pue = 1.2}, {.usd_per_hour = 0}};
    Status status = NULL;
    for (int i = 0; i < 2 && !status; i++)
        status = run_read(&runs[i].record, RUN);
    for (int count = 1; count <= 2 && !status; count++) {
        TextBuffer page = {0};
        report_write(runs, count, &page);
        check_page(page.data);
        text_buffer_free(&page);
    }
    status_free(status);
    for (int i = 0; i < 2; i++)
        run_record_free(&runs[i].record);
    RunSummary summary;
    status_free(run_summary_read(&summary, RUN));
    run_summary_free(&summary);
    json_decref(root);
    fuzz_files_clear();
    return 0;
}
