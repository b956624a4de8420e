// Opening the shards of a split as one run of tokens; dataset.json with a hash over all it says.
#include "data/dataset.h"

#include "base/json.h"
#include "base/text.h"
#include "base/threads.h"
#include "data/verified.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define DATASET_FORMAT "hearth-dataset"

// --- dataset.json ---------------------------------------------------------------------------------------------------

// The hash covers the text of the document without its "hash" member, keys in order of writing.
static uint64_t json_hash(const json_t *root) {
    json_t *bare = json_copy((json_t *)root);
    json_object_del(bare, "hash");
    char *text = json_dumps(bare, JSON_COMPACT);
    uint64_t hash = XXH64(text, strlen(text), 0);
    free(text);
    json_decref(bare);
    return hash;
}

Status dataset_write_json(json_t *root, const char *directory) {
    json_object_set_new(root, "format", json_string(DATASET_FORMAT));
    char text[24];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)json_hash(root));
    json_object_set_new(root, "hash", json_string(text));
    char *path = path_join(directory, DATASET_FILE);
    Status status = json_write_file(root, path);
    free(path);
    return status;
}

static Status json_check(const json_t *root, const char *path) {
    const char *format = "", *stated = "";
    TRY(json_get_text(root, "format", &format, path));
    TRY(json_get_text(root, "hash", &stated, path));
    if (strcmp(format, DATASET_FORMAT) != 0) return status_usage("not a hearth dataset");
    char expected[24];
    snprintf(expected, sizeof expected, "%016llx", (unsigned long long)json_hash(root));
    if (strcmp(stated, expected) != 0) {
        return status_hint(status_usage("the file was changed: its hash is %s, its content gives %s", stated, expected),
                           "prepare the dataset again, or copy it again");
    }
    return NULL;
}

Status dataset_read_json(json_t **root, const char *directory) {
    char *path = path_join(directory, DATASET_FILE);
    Status status = json_read_file(root, path);
    if (!status) {
        status = status_at(json_check(*root, path), path, 0, 0);
        if (status) {
            json_decref(*root);
            *root = NULL;
        }
    }
    free(path);
    return status;
}

// --- opening --------------------------------------------------------------------------------------------------------

static Status shard_append(Dataset *dataset, const char *path) {
    dataset->shards = xrealloc(dataset->shards, (dataset->shard_count + 1) * sizeof *dataset->shards);
    dataset->first_token = xrealloc(dataset->first_token, (dataset->shard_count + 2) * sizeof *dataset->first_token);
    Shard *shard = &dataset->shards[dataset->shard_count];
    TRY(shard_open(shard, path, false));
    dataset->shard_count++;
    const ShardHeader *header = shard->header;
    if (dataset->shard_count == 1) {
        dataset->vocab_size = header->vocab_size;
        dataset->tokenizer_hash = header->tokenizer_hash;
    } else if (header->vocab_size != dataset->vocab_size || header->tokenizer_hash != dataset->tokenizer_hash) {
        return status_at(status_hint(status_usage("the shard was made with another tokenizer than %s", dataset->path),
                                     "the shards of a split must come from one `hearth data prepare`"),
                         path, 0, 0);
    }
    dataset->token_count += header->token_count;
    dataset->document_count += header->document_count;
    dataset->text_bytes += header->text_bytes;
    dataset->first_token[dataset->shard_count] = dataset->token_count;
    return NULL;
}

static Status directory_open(Dataset *dataset, const char *path) {
    char **names;
    size_t count, shards = 0;
    TRY(dir_list(&names, &count, path));
    Status status = NULL;
    for (size_t i = 0; i < count && !status; i++) {
        if (!text_ends_with(names[i], ".shard")) continue;
        char *file = path_join(path, names[i]);
        status = shard_append(dataset, file);
        free(file);
        shards++;
    }
    names_free(names, count);
    if (!status && shards == 0) {
        status = status_hint(status_usage("%s holds neither " DATASET_FILE " nor *.shard files", path),
                             "make a dataset with `hearth data prepare`");
    }
    return status;
}

static Status split_open(Dataset *dataset, const json_t *root, const char *split) {
    const json_t *entry = json_object_get(json_object_get(root, "splits"), split);
    if (!entry) {
        TextBuffer list = {0};
        const char *name;
        json_t *value;
        json_object_foreach(json_object_get(root, "splits"), name, value)
            text_buffer_format(&list, "%s%s", list.length ? ", " : "", name);
        Status status = status_hint(status_usage("the dataset %s has no split \"%s\"", dataset->path, split),
                                    "it has: %s", list.length ? list.data : "none");
        text_buffer_free(&list);
        return status;
    }
    const json_t *shards = json_object_get(entry, "shards");
    for (size_t i = 0; i < json_array_size(shards); i++) {
        const char *name = NULL, *stated = "";
        TRY(json_get_text(json_array_get(shards, i), "file", &name, dataset->path));
        TRY(json_get_text(json_array_get(shards, i), "checksum", &stated, dataset->path));
        if (!name) return status_usage("%s/" DATASET_FILE ": shard %zu of %s names no file", dataset->path, i, split);
        char *file = path_join(dataset->path, name);
        Status status = shard_append(dataset, file);
        char actual[24] = "";
        if (!status) {
            const ShardHeader *header = dataset->shards[dataset->shard_count - 1].header;
            snprintf(actual, sizeof actual, "%016llx", (unsigned long long)header->header_checksum);
            if (strcmp(actual, stated) != 0) {
                status =
                    status_at(status_usage("the shard is not the one that " DATASET_FILE " describes"), file, 0, 0);
            }
        }
        free(file);
        TRY(status);
    }
    return NULL;
}

static Status dataset_fill(Dataset *dataset, const char *split) {
    if (!file_is_directory(dataset->path)) return shard_append(dataset, dataset->path);
    char *index = path_join(dataset->path, DATASET_FILE);
    bool described = file_exists(index);
    free(index);
    if (!described) return directory_open(dataset, dataset->path);
    json_t *root;
    TRY(dataset_read_json(&root, dataset->path));
    Status status = split_open(dataset, root, split);
    json_decref(root);
    return status;
}

typedef struct VerifyLoop {
    const Dataset *dataset;
    DatasetVerify verify;
    Status *statuses; // [shard_count]
} VerifyLoop;

static void shards_verify(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const VerifyLoop *loop = context;
    for (int64_t i = begin; i < end; i++) {
        const Shard *shard = &loop->dataset->shards[i];
        if (loop->verify == VERIFY_ONCE && verified_find(shard)) continue;
        loop->statuses[i] = shard_check_content(shard);
        if (!loop->statuses[i] && loop->verify == VERIFY_ONCE) verified_add(shard);
    }
}

static Status dataset_verify(const Dataset *dataset, DatasetVerify verify) {
    if (verify == VERIFY_NEVER) return NULL;
    VerifyLoop loop = {dataset, verify, xcalloc(dataset->shard_count + 1, sizeof *loop.statuses)};
    threads_for((int64_t)dataset->shard_count, 1, shards_verify, &loop);
    Status first = NULL;
    for (size_t i = 0; i < dataset->shard_count; i++) {
        if (first)
            status_free(loop.statuses[i]);
        else
            first = loop.statuses[i];
    }
    free(loop.statuses);
    return first;
}

Status dataset_open(Dataset *dataset, const char *path, const char *split, DatasetVerify verify) {
    *dataset = (Dataset){.path = text_copy(path), .first_token = xcalloc(1, sizeof(uint64_t))};
    Status status = dataset_fill(dataset, split);
    if (!status) status = dataset_verify(dataset, verify);
    if (status) dataset_close(dataset);
    return status;
}

void dataset_close(Dataset *dataset) {
    for (size_t i = 0; i < dataset->shard_count; i++)
        shard_close(&dataset->shards[i]);
    free(dataset->shards);
    free(dataset->first_token);
    free(dataset->path);
    *dataset = (Dataset){0};
}

void dataset_read(const Dataset *dataset, uint64_t first, uint64_t count, uint32_t *ids) {
    assert(first <= dataset->token_count && count <= dataset->token_count - first);
    size_t low = 0, high = dataset->shard_count; // the shard that holds token `first`
    while (low + 1 < high) {
        size_t middle = (low + high) / 2;
        if (dataset->first_token[middle] <= first) {
            low = middle;
        } else {
            high = middle;
        }
    }
    for (size_t i = low; count > 0; i++) {
        const Shard *shard = &dataset->shards[i];
        uint64_t offset = first - dataset->first_token[i];
        uint64_t left = dataset->first_token[i + 1] - first;
        uint64_t now = count < left ? count : left;
        if (shard->header->token_bytes == 4) {
            memcpy(ids, (const uint32_t *)shard->tokens + offset, now * 4);
        } else {
            const uint16_t *narrow = (const uint16_t *)shard->tokens + offset;
            for (uint64_t k = 0; k < now; k++)
                ids[k] = narrow[k];
        }
        ids += now;
        first += now;
        count -= now;
    }
}
