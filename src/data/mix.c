// Weighted mixes. Dataset 0 takes its share s of all samples by the even spread floor((n + 1) s) - floor(n s); what is
// left is dealt the same way to the next ones. All in integers: the same answer on every machine.
#include "data/mix.h"

#include "base/json.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIX_FORMAT "hearth-mix"
#define SHARE_ONE  ((uint64_t)1 << 32)

size_t mix_locate(const Mix *mix, uint64_t sample, uint64_t *index) {
    for (size_t i = 0; i + 1 < mix->count; i++) {
        uint64_t before = (uint64_t)(((unsigned __int128)sample * mix->shares[i]) >> 32);
        uint64_t after = (uint64_t)((((unsigned __int128)sample + 1) * mix->shares[i]) >> 32);
        if (after > before) {
            *index = before;
            return i;
        }
        sample -= before;
    }
    *index = sample;
    return mix->count - 1;
}

void mix_set_shares(Mix *mix) {
    mix->shares = xrealloc(mix->shares, mix->count * sizeof *mix->shares);
    double left = 0;
    for (size_t i = mix->count; i-- > 0;) {
        left += mix->weights[i];
        double share = i + 1 == mix->count ? 1 : mix->weights[i] / left;
        mix->shares[i] = (uint64_t)llround(share * (double)SHARE_ONE);
    }
}

static Status mix_append(Mix *mix, const char *path, const char *split, double weight, DatasetVerify verify) {
    mix->datasets = xrealloc(mix->datasets, (mix->count + 1) * sizeof *mix->datasets);
    mix->weights = xrealloc(mix->weights, (mix->count + 1) * sizeof *mix->weights);
    Dataset *dataset = &mix->datasets[mix->count];
    TRY(dataset_open(dataset, path, split, verify));
    mix->weights[mix->count++] = weight;
    const Dataset *first = &mix->datasets[0];
    if (dataset->shard_count && first->shard_count && dataset->tokenizer_hash != first->tokenizer_hash) {
        return status_hint(status_usage("%s and %s were made with different tokenizers", first->path, dataset->path),
                           "prepare both with the same --tokenizer");
    }
    return NULL;
}

// From weights as they were given to weights of sum 1 and their shares.
static Status weights_finish(Mix *mix) {
    double sum = 0;
    for (size_t i = 0; i < mix->count; i++)
        sum += mix->weights[i];
    if (!isfinite(sum)) return status_usage("the weights of the mix are too large to add up");
    for (size_t i = 0; i < mix->count; i++)
        mix->weights[i] /= sum;
    mix_set_shares(mix);
    return NULL;
}

static Status entries_open(Mix *mix, const json_t *root, const char *path, const char *split, DatasetVerify verify) {
    const json_t *entries = json_object_get(root, "datasets");
    if (json_array_size(entries) == 0) return status_usage("the mix names no \"datasets\"");
    char *directory = path_directory(path);
    Status status = NULL;
    for (size_t i = 0; i < json_array_size(entries) && !status; i++) {
        const char *name = NULL;
        double weight = NAN;
        TRY_GOTO(json_get_text(json_array_get(entries, i), "path", &name, path), done);
        TRY_GOTO(json_get_double(json_array_get(entries, i), "weight", &weight, path), done);
        if (!name || !(weight > 0) || !isfinite(weight)) {
            status = status_usage("dataset %zu of the mix needs a \"path\" and a \"weight\" above zero", i + 1);
            break;
        }
        char *full = path_join(directory, name);
        status = mix_append(mix, full, split, weight, verify);
        free(full);
    }
    if (!status) status = weights_finish(mix);
done:
    free(directory);
    return status;
}

bool mix_is_file(const char *path) {
    if (!text_ends_with(path, ".json") || file_is_directory(path)) return false;
    json_t *root = NULL;
    Status status = json_read_file(&root, path);
    const char *format = "";
    if (!status) status = json_get_text(root, "format", &format, path);
    bool is_mix = !status && strcmp(format, MIX_FORMAT) == 0;
    status_free(status);
    json_decref(root);
    return is_mix;
}

static Status mix_fill(Mix *mix, const char *path, const char *split, DatasetVerify verify) {
    if (!mix_is_file(path)) {
        TRY(mix_append(mix, path, split, 1, verify));
        return weights_finish(mix);
    }
    json_t *root;
    TRY(json_read_file(&root, path));
    Status status = status_at(entries_open(mix, root, path, split, verify), path, 0, 0);
    json_decref(root);
    return status;
}

Status mix_open(Mix *mix, const char *path, const char *split, DatasetVerify verify) {
    *mix = (Mix){0};
    Status status = mix_fill(mix, path, split, verify);
    if (status) mix_close(mix);
    return status;
}

Status mix_join(Mix *mix, const char *const *datasets, const double *weights, size_t count, const char *split) {
    *mix = (Mix){0};
    Status status = NULL;
    for (size_t i = 0; i < count && !status; i++)
        status = mix_append(mix, datasets[i], split, weights[i], VERIFY_NEVER);
    if (!status) status = weights_finish(mix);
    if (status) mix_close(mix);
    return status;
}

void mix_close(Mix *mix) {
    for (size_t i = 0; i < mix->count; i++)
        dataset_close(&mix->datasets[i]);
    free(mix->datasets);
    free(mix->weights);
    free(mix->shares);
    *mix = (Mix){0};
}

Status mix_write(const char *path, const char *const *datasets, const double *weights, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += weights[i];
        if (!(weights[i] > 0) || !isfinite(sum))
            return status_usage("the weight %g of %s is not a finite number above zero", weights[i], datasets[i]);
    }
    json_t *entries = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(entries, json_pack("{s:s, s:f}", "path", datasets[i], "weight", weights[i]));
    }
    json_t *root = json_pack("{s:s, s:o}", "format", MIX_FORMAT, "datasets", entries);
    Status status = json_write_file(root, path);
    json_decref(root);
    return status;
}
