// The plan: everything that decides the result, as JSON. Its hash stands in dataset.json and its text beside the units,
// so that a finished dataset is not made again and unfinished work goes on only under the same plan.
#include "base/file.h"
#include "base/json.h"
#include "data/dataset.h"
#include "data/prepare_internal.h"
#include "data/prepare_output.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

static json_t *number_or_null(int64_t value, bool present) {
    return present ? json_integer(value) : json_null();
}

static json_t *plan_options_json(const PrepareOptions *options) {
    json_t *json = json_object();
    json_object_set_new(json, "field", json_string(options->reader.field ? options->reader.field : "text"));
    json_object_set_new(json, "lines", json_boolean(options->reader.lines));
    json_object_set_new(json, "score", options->has_min_score ? json_string(options->reader.score) : json_null());
    json_object_set_new(json, "min_score", options->has_min_score ? json_real(options->min_score) : json_null());
    json_object_set_new(json, "min_chars", number_or_null(options->min_chars, options->min_chars > 0));
    json_object_set_new(json, "max_chars", number_or_null(options->max_chars, options->max_chars > 0));
    json_object_set_new(json, "dedup", json_boolean(options->dedup));
    json_object_set_new(json, "match_special", json_boolean(options->match_special));
    json_object_set_new(json, "train_tokens", number_or_null(options->train_tokens, options->train_tokens >= 0));
    json_object_set_new(json, "val_tokens", json_integer(options->val_tokens));
    json_object_set_new(json, "test_tokens", json_integer(options->test_tokens));
    json_object_set_new(json, "shard_tokens", json_integer(options->shard_tokens));
    json_object_set_new(json, "seed", json_integer((json_int_t)options->seed));
    return json;
}

static json_t *plan_tokenizer_json(const Prepare *prepare) {
    const PrepareOptions *options = prepare->options;
    const Tokenizer *tokenizer = prepare->tokenizer;
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)tokenizer_hash(tokenizer));
    int64_t end = prepare_end_of_text(options, tokenizer);
    return json_pack("{s:s, s:s, s:I, s:I}", "name", tokenizer_name(tokenizer), "hash", hash, "vocab_size",
                     (json_int_t)tokenizer_vocab_size(tokenizer), "end_of_text", (json_int_t)end);
}

void prepare_plan_make(Prepare *prepare) {
    json_t *sources = json_array(), *changed = json_array();
    for (size_t i = 0; i < reader_file_count(prepare->reader); i++) {
        struct stat info = {0};
        stat(reader_file(prepare->reader, i), &info);
        json_array_append_new(sources, json_pack("{s:s, s:I}", "path", reader_file(prepare->reader, i), "bytes",
                                                 (json_int_t)reader_file_bytes(prepare->reader, i)));
        json_array_append_new(changed,
                              json_integer((json_int_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec));
    }
    prepare->plan = json_object();
    json_object_set_new(prepare->plan, "sources", sources);
    json_object_set_new(prepare->plan, "options", plan_options_json(prepare->options));
    json_object_set_new(prepare->plan, "tokenizer", plan_tokenizer_json(prepare));
    prepare->work_plan = json_copy(prepare->plan);
    json_object_set_new(prepare->work_plan, "changed", changed);
}

void prepare_plan_hash(const Prepare *prepare, char out[24]) {
    char *text = json_dumps(prepare->plan, JSON_COMPACT);
    snprintf(out, 24, "%016llx", (unsigned long long)XXH64(text, strlen(text), 0));
    free(text);
}

Status prepare_is_finished(const Prepare *prepare, bool *done) {
    *done = false;
    if (prepare->options->overwrite || output_is_replaced(prepare->options->output)) return NULL;
    char *path = path_join(prepare->options->output, DATASET_FILE), hash[24];
    bool exists = file_exists(path);
    free(path);
    if (!exists) return NULL;
    json_t *root;
    const char *made = "";
    TRY(dataset_read_json(&root, prepare->options->output));
    Status status = json_get_text(root, "plan_hash", &made, DATASET_FILE);
    prepare_plan_hash(prepare, hash);
    *done = !status && strcmp(made, hash) == 0;
    json_decref(root);
    if (!status && !*done) {
        status = status_hint(status_usage("%s already holds a dataset made otherwise", prepare->options->output),
                             "choose another --output, or pass --overwrite");
    }
    return status;
}

Status prepare_plan_compare(Prepare *prepare) {
    const char *output = prepare->options->output;
    char *path = path_join(prepare->work, "plan.json");
    Status status = NULL;
    char *unit = unit_path(prepare->work, 0);
    bool begun =
        file_exists(path) && (file_exists(unit) || output_is_replaced(output)); // the mark is for its plan only
    free(unit);
    if (!begun) { // units without a plan: of a killed --overwrite; a plan without units: nothing that could go on
        status = output_clear_work(output);
        if (!status) status = json_write_file(prepare->work_plan, path);
        if (!status && prepare->options->overwrite) status = output_mark_replaced(output);
    } else {
        json_t *before = NULL;
        status = json_read_file(&before, path);
        if (!status && !json_equal(before, prepare->work_plan)) {
            status =
                status_hint(status_usage("%s holds unfinished work with other options or changed input files", output),
                            "give the same options to resume it, or --overwrite to start again");
        }
        json_decref(before);
    }
    free(path);
    return status;
}
