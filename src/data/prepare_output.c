// Folders are removed only when every name in them is one that prepare itself gives: an output folder may be somebody's
// folder of texts.
#include "data/prepare_output.h"

#include "base/file.h"
#include "base/io.h"
#include "base/text.h"
#include "data/dataset.h"
#include "data/verified.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENIZER_FILE "tokenizer.json"
#define REPLACES_FILE  "replaces" // the mark of output_mark_replaced

enum { SPLITS = 3 };
static const char *const folders[] = {"train", "val", "test", OUTPUT_WORK}; // the splits first

static bool name_is_split(const char *name) {
    for (size_t i = 0; i < SPLITS; i++)
        if (strcmp(name, folders[i]) == 0) return true;
    return false;
}

static bool name_is_own(const char *folder, const char *name) {
    if (strcmp(folder, OUTPUT_WORK) != 0)
        return text_ends_with(name, ".shard") || text_ends_with(name, ".shard.partial") ||
               strcmp(name, VERIFIED_FILE) == 0;
    return strcmp(name, OUTPUT_LOCK) == 0 || text_starts_with(name, REPLACES_FILE) ||
           text_starts_with(name, "plan.json") || text_starts_with(name, "unit-") || text_starts_with(name, "dedup-");
}

static Status folder_check(const char *path, const char *folder) {
    if (!file_exists(path)) return NULL;
    if (!file_is_directory(path))
        return status_hint(status_usage("%s is not a folder", path), "choose another output folder");
    char **names;
    size_t count;
    TRY(dir_list(&names, &count, path));
    Status status = NULL;
    for (size_t i = 0; i < count && !status; i++) {
        char *file = path_join(path, names[i]);
        if (strcmp(folder, OUTPUT_WORK) == 0 && name_is_split(names[i]))
            status = folder_check(file, names[i]);
        else if (!name_is_own(folder, names[i]) || file_is_directory(file))
            status = status_hint(status_usage("%s is no file of a dataset, and its folder would be replaced", file),
                                 "choose another output folder");
        free(file);
    }
    names_free(names, count);
    return status;
}

// Whatever its name: a folder that is read from is never one to write to.
static Status inputs_check(const char *path, const Reader *reader) {
    char *folder = realpath(path, NULL);
    if (!folder) return NULL; // not there: nothing can lie in it
    size_t length = strlen(folder);
    Status status = NULL;
    for (size_t i = 0; i < reader_file_count(reader) && !status; i++) {
        char *file = realpath(reader_file(reader, i), NULL);
        if (file && strncmp(file, folder, length) == 0 && file[length] == '/')
            status = status_hint(status_usage("the input %s lies in %s, where the dataset is to be written",
                                              reader_file(reader, i), path),
                                 "choose another --output");
        free(file);
    }
    free(folder);
    return status;
}

// Whether the tokenizer.json beside the dataset is of the given hash; false when it is none at all.
static bool kept_is(const char *path, uint64_t hash) {
    Tokenizer *kept = NULL;
    Status status = tokenizer_load(&kept, path);
    bool same = !status && tokenizer_hash(kept) == hash;
    tokenizer_free(kept);
    status_free(status);
    return same;
}

static bool kept_is_of_dataset(const char *path, const char *output) {
    json_t *root = NULL;
    Status status = dataset_read_json(&root, output);
    const char *hash = status ? NULL : json_string_value(json_object_get(json_object_get(root, "tokenizer"), "hash"));
    bool same = hash && kept_is(path, strtoull(hash, NULL, 16));
    json_decref(root);
    status_free(status);
    return same;
}

static Status tokenizer_check(const PrepareOptions *options, const Tokenizer *tokenizer) {
    char *path = path_join(options->output, TOKENIZER_FILE);
    Status status = NULL;
    if (file_exists(path) && !kept_is(path, tokenizer_hash(tokenizer)) &&
        !((options->overwrite || output_is_replaced(options->output)) && kept_is_of_dataset(path, options->output)))
        status = status_hint(status_usage("%s is another tokenizer than %s", path, tokenizer_name(tokenizer)),
                             "choose another --output, or move it away");
    free(path);
    return status;
}

Status output_check(const PrepareOptions *options, const Reader *reader, const Tokenizer *tokenizer) {
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char *path = path_join(options->output, folders[i]);
        Status status = inputs_check(path, reader);
        if (!status) status = folder_check(path, folders[i]);
        free(path);
        TRY(status);
    }
    return tokenizer_check(options, tokenizer);
}

static Status name_check(const char *output, const char *name) {
    static const char *const files[] = {DATASET_FILE, TOKENIZER_FILE};
    char *path = path_join(output, name);
    Status status = NULL;
    bool own = false;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        own |= strcmp(name, files[i]) == 0 && !file_is_directory(path);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0] && !own && !status; i++) {
        own = strcmp(name, folders[i]) == 0 && strcmp(name, OUTPUT_WORK) != 0; // its process may still be at work
        if (own) status = folder_check(path, name);
    }
    if (!own)
        status = status_hint(status_usage("%s is no part of a finished dataset, and only one is replaced", path),
                             "choose another output folder, or empty this one yourself");
    free(path);
    return status;
}

Status output_check_new(const char *output, bool overwrite) {
    if (!file_exists(output)) return NULL;
    char **names;
    size_t count;
    TRY(dir_list(&names, &count, output));
    Status status = NULL;
    if (count && !overwrite)
        status = status_hint(status_usage("%s is not empty", output),
                             "choose another output folder, or pass --overwrite to replace the dataset in it");
    for (size_t i = 0; i < count && !status; i++)
        status = name_check(output, names[i]);
    names_free(names, count);
    return status;
}

Status output_clear_work(const char *output) {
    char *work = path_join(output, OUTPUT_WORK), **names = NULL;
    size_t count = 0;
    Status status = dir_list(&names, &count, work);
    for (size_t i = 0; i < count && !status; i++) {
        if (strcmp(names[i], OUTPUT_LOCK) == 0) continue;
        char *path = path_join(work, names[i]);
        status = dir_remove(path);
        free(path);
    }
    names_free(names, count);
    free(work);
    return status;
}

// The tokenizer goes before dataset.json, which says whose it is; the shards after it, so that no dataset.json names
// shards that are gone.
Status output_clear(const char *output, const Tokenizer *tokenizer) {
    char *kept = path_join(output, TOKENIZER_FILE);
    bool stale = file_exists(kept) && !(tokenizer && kept_is(kept, tokenizer_hash(tokenizer)));
    Status status = stale ? dir_remove(kept) : NULL;
    free(kept);
    TRY(status);
    static const char *const names[] = {DATASET_FILE, "train", "val", "test"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *path = path_join(output, names[i]);
        status = dir_remove(path);
        free(path);
        TRY(status);
    }
    return NULL;
}

static char *replaces_path(const char *output) {
    return text_format("%s/%s/%s", output, OUTPUT_WORK, REPLACES_FILE);
}

Status output_mark_replaced(const char *output) {
    char *path = replaces_path(output);
    Status status = file_write_atomic(path, "", 0);
    free(path);
    return status;
}

bool output_is_replaced(const char *output) {
    char *path = replaces_path(output);
    bool replaced = file_exists(path);
    free(path);
    return replaced;
}

static Status shards_move(const char *output, const char *split) {
    char *from = text_format("%s/%s/%s", output, OUTPUT_WORK, split), *to = path_join(output, split);
    Status status = NULL;
    if (file_exists(from)) {
        status = dir_remove(to); // of a kill between here and dataset.json
        if (!status && io_rename(from, to) != 0) status = status_errno("cannot rename %s to %s", from, to);
    }
    free(from);
    free(to);
    return status;
}

static Status tokenizer_keep(const char *output, const Tokenizer *tokenizer) {
    char *kept = path_join(output, TOKENIZER_FILE);
    bool there = file_exists(kept); // the same one: output_check
    free(kept);
    return there ? NULL : tokenizer_copy_file(tokenizer_name(tokenizer), output);
}

Status output_publish(const PrepareOptions *options, const Tokenizer *tokenizer) {
    const char *output = options->output;
    if (output_is_replaced(output)) TRY(output_clear(output, tokenizer));
    for (size_t i = 0; i < SPLITS; i++)
        TRY(shards_move(output, folders[i]));
    TRY(tokenizer_keep(output, tokenizer));
    TRY(file_sync(output)); // a crash must not keep the dataset.json that follows and undo what it stands on
    char *mark = replaces_path(output);
    Status status = dir_remove(mark); // the dataset.json that follows is the new one
    free(mark);
    return status;
}
