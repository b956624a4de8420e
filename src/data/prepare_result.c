// What came out: dataset.json, tokens that are still missing, and why nothing was kept.
#include "base/text.h"
#include "data/dataset.h"
#include "data/prepare_internal.h"

Status prepare_dataset_write(const Prepare *prepare, json_t *splits) {
    const PrepareCounts *counts = &prepare->counts;
    char hash[24];
    prepare_plan_hash(prepare, hash);
    json_t *root = json_object();
    json_object_set_new(root, "format", json_string("")); // filled in by dataset_write_json; kept first
    json_object_set_new(root, "version", json_integer(1));
    json_object_set_new(root, "hearth", json_string(HEARTH_VERSION));
    json_object_set(root, "tokenizer", json_object_get(prepare->plan, "tokenizer"));
    json_object_set(root, "splits", splits);
    json_object_set_new(
        root, "counts",
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "read", (json_int_t)counts->read,
                  "read_bytes", (json_int_t)counts->read_bytes, "null", (json_int_t)counts->nulls, "bad",
                  (json_int_t)counts->bad, "damaged_files", (json_int_t)counts->damaged, "empty",
                  (json_int_t)counts->empty, "below_min_score", (json_int_t)counts->low_score, "outside_length",
                  (json_int_t)counts->length, "duplicates", (json_int_t)counts->duplicates, "documents",
                  (json_int_t)counts->documents, "tokens", (json_int_t)counts->tokens, "text_bytes",
                  (json_int_t)counts->text_bytes, "longest_document_tokens", (json_int_t)counts->longest));
    json_object_set_new(root, "read_up_to",
                        json_pack("{s:I, s:I}", "file", (json_int_t)prepare->position.file, "record",
                                  (json_int_t)prepare->position.record));
    json_object_set(root, "options", json_object_get(prepare->plan, "options"));
    json_object_set(root, "sources", json_object_get(prepare->plan, "sources"));
    json_object_set_new(root, "plan_hash", json_string(hash));
    Status status = dataset_write_json(root, prepare->options->output);
    json_decref(root);
    return status;
}

uint64_t prepare_tokens_missing(json_t *splits) {
    const char *name;
    json_t *split;
    uint64_t missing = 0;
    json_object_foreach(splits, name, split) {
        int64_t asked = json_integer_value(json_object_get(split, "asked_tokens"));
        int64_t got = json_integer_value(json_object_get(split, "tokens"));
        if (asked > got) missing += (uint64_t)(asked - got);
    }
    return missing;
}

Status prepare_nothing_kept(const PrepareCounts *counts) {
    const struct {
        const char *what;
        uint64_t count;
    } left_out[] = {{"null", counts->nulls},
                    {"bad", counts->bad},
                    {"damaged files", counts->damaged},
                    {"empty", counts->empty},
                    {"below the minimum score", counts->low_score},
                    {"outside the length limits", counts->length}};
    TextBuffer why = {0};
    for (size_t i = 0; i < sizeof left_out / sizeof left_out[0]; i++) {
        if (left_out[i].count)
            text_buffer_format(&why, "%s%s %llu", why.length ? ", " : "", left_out[i].what,
                               (unsigned long long)left_out[i].count);
    }
    Status status = status_usage("no document was kept: %s", why.length ? why.data : "the input holds none");
    text_buffer_free(&why);
    if (counts->bad || counts->damaged) return status_hint(status, "the warnings above name what was skipped, and why");
    return status_hint(status, "check the input files, --column and the filters");
}
