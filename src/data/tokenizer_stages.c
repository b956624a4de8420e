// Reads the pre-tokenizers of a tokenizer.json into the list of stages.
#include "data/tokenizer_internal.h"

#include "base/text.h"

#include <stdlib.h>

static Status add_stage(Tokenizer *tokenizer, Stage stage, const char *where) {
    if (tokenizer->stage_count == STAGES_MOST) {
        split_regex_free(stage.regex);
        free(stage.literal);
        return status_at(status_usage("the pre-tokenizer has more than %d steps", STAGES_MOST), where, 0, 0);
    }
    tokenizer->stages[tokenizer->stage_count++] = stage;
    return NULL;
}

static Status load_byte_level(Tokenizer *tokenizer, const json_t *object, const char *where) {
    bool prefix_space = true, use_regex = true;
    TRY(json_get_bool(object, "add_prefix_space", &prefix_space, where));
    TRY(json_get_bool(object, "use_regex", &use_regex, where));
    if (tokenizer->has_byte_level)
        return status_at(status_usage("the pre-tokenizer has ByteLevel twice, which is not supported"), where, 0, 0);
    tokenizer->has_byte_level = true;
    if (prefix_space) TRY(add_stage(tokenizer, (Stage){.kind = STAGE_PREFIX_SPACE}, where));
    if (use_regex) TRY(add_stage(tokenizer, (Stage){.kind = STAGE_SCAN, .scan = SPLIT_GPT2}, where));
    return add_stage(tokenizer, (Stage){.kind = STAGE_BYTE_CHARS}, where);
}

static Status load_behavior(SplitBehavior *behavior, const char *name, const char *where) {
    static const char *const names[] = {
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    for (size_t i = 0; name && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *behavior = (SplitBehavior)i;
            return NULL;
        }
    }
    return status_at(status_usage("the pre-tokenizer has the unknown behavior \"%s\"", name ? name : ""), where, 0, 0);
}

static Status load_split(Tokenizer *tokenizer, const json_t *object, const char *where) {
    Stage stage = {0};
    const char *behavior = NULL, *regex = NULL, *literal = NULL;
    TRY(json_get_text(object, "behavior", &behavior, where));
    TRY(load_behavior(&stage.behavior, behavior, where));
    TRY(json_get_bool(object, "invert", &stage.invert, where));
    const json_t *pattern = json_object_get(object, "pattern");
    if (json_is_object(pattern)) {
        TRY(json_get_text(pattern, "Regex", &regex, where));
        TRY(json_get_text(pattern, "String", &literal, where));
    }
    if (!regex && !(literal && *literal))
        return status_at(status_usage("the pre-tokenizer Split has no pattern \"Regex\" or \"String\""), where, 0, 0);
    if (!regex) {
        stage.kind = STAGE_LITERAL;
        stage.literal = text_copy(literal);
        return add_stage(tokenizer, stage, where);
    }
    stage.scan = split_kind_of(regex);
    // The known patterns match all text, so that "remove what does not match" leaves the same pieces.
    bool pieces =
        (stage.behavior == SPLIT_ISOLATED && !stage.invert) || (stage.behavior == SPLIT_REMOVED && stage.invert);
    stage.kind = stage.scan != SPLIT_UNKNOWN && pieces ? STAGE_SCAN : STAGE_REGEX;
    if (stage.kind == STAGE_REGEX) TRY(status_at(split_regex_new(&stage.regex, regex), where, 0, 0));
    return add_stage(tokenizer, stage, where);
}

static Status load_digits(Tokenizer *tokenizer, const json_t *object, const char *where) {
    bool individual = false;
    TRY(json_get_bool(object, "individual_digits", &individual, where));
    return add_stage(tokenizer,
                     (Stage){.kind = STAGE_DIGITS, .behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS}, where);
}

static Status load_punctuation(Tokenizer *tokenizer, const json_t *object, const char *where) {
    Stage stage = {.kind = STAGE_PUNCTUATION};
    const char *behavior = "Isolated";
    TRY(json_get_text(object, "behavior", &behavior, where));
    TRY(load_behavior(&stage.behavior, behavior, where));
    return add_stage(tokenizer, stage, where);
}

static Status load_one(Tokenizer *tokenizer, const json_t *object, int depth, const char *where) {
    const char *type = NULL;
    if (!json_is_object(object)) return status_at(status_usage("a pre-tokenizer is not an object"), where, 0, 0);
    TRY(json_get_text(object, "type", &type, where));
    if (!type) return status_at(status_usage("a pre-tokenizer has no \"type\""), where, 0, 0);
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(tokenizer, object, where);
    if (strcmp(type, "Split") == 0) return load_split(tokenizer, object, where);
    if (strcmp(type, "Digits") == 0) return load_digits(tokenizer, object, where);
    if (strcmp(type, "Punctuation") == 0) return load_punctuation(tokenizer, object, where);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(object, "pretokenizers"), *item;
        size_t index;
        if (!json_is_array(list) || depth > 8)
            return status_at(status_usage("the pre-tokenizer Sequence has no list \"pretokenizers\""), where, 0, 0);
        json_array_foreach(list, index, item) TRY(load_one(tokenizer, item, depth + 1, where));
        return NULL;
    }
    return status_at(status_hint(status_usage("the pre-tokenizer \"%s\" is not supported", type),
                                 "supported are ByteLevel, Split, Digits, Punctuation and Sequence"),
                     where, 0, 0);
}

Status tokenizer_load_stages(Tokenizer *tokenizer, const json_t *pre_tokenizer, const char *where) {
    if (pre_tokenizer && !json_is_null(pre_tokenizer)) TRY(load_one(tokenizer, pre_tokenizer, 0, where));
    if (!tokenizer->has_byte_level)
        return status_at(status_hint(status_usage("this is not a byte-level tokenizer: no ByteLevel pre-tokenizer"),
                                     "only byte-level BPE is supported (GPT-2, Llama-3, Qwen, SmolLM and the like)"),
                         where, 0, 0);
    // As the last stage it changes nothing here: the model works on bytes.
    tokenizer->byte_chars = tokenizer->stages[tokenizer->stage_count - 1].kind != STAGE_BYTE_CHARS;
    if (!tokenizer->byte_chars) tokenizer->stage_count--;
    return NULL;
}

void tokenizer_free_stages(Tokenizer *tokenizer) {
    for (int i = 0; i < tokenizer->stage_count; i++) {
        split_regex_free(tokenizer->stages[i].regex);
        free(tokenizer->stages[i].literal);
    }
}
