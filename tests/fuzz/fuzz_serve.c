// Any bytes as the target of a request to `hearth serve`, without sockets: a whole reply, never a word of a file
// outside of the runs, and JSON that is JSON. The same bytes as Host, Origin, token and as an address to lead a client
// back to.
#include "fuzz_files.h"

#include "serve/access.h"
#include "serve/pages.h"
#include "serve/routes.h"
#include "serve/site.h"

#include <sys/stat.h>
#include <unistd.h>

#define SECRET "SECRET-4242"

static const unsigned char page[] = "<!DOCTYPE html>";
const ServePage serve_pages[] = {{"index.html", page, sizeof page - 1}, {"run.js", page, sizeof page - 1}};
const int serve_page_count = 2;

static ServeSite *site;

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file)) abort();
}

static void make_run(const char *name, const char *config, const char *metrics) {
    char path[256];
    mkdir(name, 0777);
    snprintf(path, sizeof path, "%s/config.toml", name);
    write_file(path, config);
    snprintf(path, sizeof path, "%s/metrics.jsonl", name);
    write_file(path, metrics);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    mkdir("serve-fuzz", 0777);
    mkdir("serve-fuzz/runs", 0777);
    make_run("serve-fuzz/runs/one", "[train]\nseq = 32\n",
             "{\"step\":1,\"tokens\":128,\"loss\":5.5,\"tok_s\":100,\"elapsed\":1}\n"
             "{\"step\":1,\"tokens\":128,\"eval\":\"full\",\"val_loss\":5}\n{\"step\":2,\"lo");
    make_run("serve-fuzz/runs/two", "[train]\nseq = 64\n", "");
    make_run("serve-fuzz/outside", "[train]\nname = \"" SECRET "\"\n", "{\"step\":1,\"loss\":4242}\n");
    if (symlink("../outside", "serve-fuzz/runs/linked") && access("serve-fuzz/runs/linked", F_OK)) abort();
    if (serve_site_open(&site, "serve-fuzz/runs", NULL, NULL)) abort();
    return 0;
}

static void check_reply(const char *target, const ServeReply *reply) {
    if (reply->status != 200 && reply->status != 400 && reply->status != 404 && reply->status != 500) abort();
    if (!reply->type) abort();
    if (reply->page || reply->stream) return;
    bool told = memmem(reply->body.data, reply->body.length, SECRET, strlen(SECRET));
    if (told && !strstr(target, SECRET)) abort(); // an error may say what was asked for
    if (strcmp(reply->type, "application/json") != 0) return;
    json_t *root = json_loadb(reply->body.data, reply->body.length, 0, NULL);
    if (!root || (reply->status != 200 && !json_object_get(root, "error"))) abort();
    json_decref(root);
}

static void check_access(const char *text) {
    const char token[] = "0123456789abcdef";
    if (access_token_same(text, token) != (strcmp(text, token) == 0)) abort();
    if (access_host_is_local(text, "127.0.0.1") && strspn(text, "localhstLOCALHST0127.[]:3456789") != strlen(text))
        abort();
    if (access_origin_same(text, "localhost:8420") && !strstr(text, "://")) abort();
    char *target = access_target_without_token(text);
    if (target[0] != '/' || target[1] == '/' || target[1] == '\\') abort();
    for (const char *at = target; *at; at++)
        if ((unsigned char)*at <= ' ') abort();
    free(target);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *target = malloc(size + 1);
    memcpy(target, data, size);
    target[size] = 0;
    ServeReply reply;
    serve_answer(site, target, &reply);
    check_reply(target, &reply);
    if (reply.stream && !strstr(reply.stream, "serve-fuzz/runs/")) abort();
    serve_reply_free(&reply);
    check_access(target);
    free(target);
    fuzz_files_clear();
    return 0;
}
