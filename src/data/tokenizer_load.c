// Reads a Hugging Face tokenizer.json. What it asks for and hearth does not do is refused by name: a tokenizer that is
// nearly right would spoil a corpus without a word.
#include "data/tokenizer_internal.h"

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>

#define ID_LIMIT (((int64_t)1 << BPE_ID_BITS) - 1) // the tables keep id + 1

static Status file_refused(const char *where, Status status) {
    return status_at(status, where, 0, 0);
}

static const char *json_type_of(const json_t *object) {
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "without a type";
}

// --- the model ------------------------------------------------------------------------------------------------------

// The strings as the file spells them, to resolve merges and added tokens by; bpe.vocab has the bytes they stand for.
static Status load_vocab(Tokenizer *tokenizer, Vocab *spelled, const json_t *model, const char *where) {
    json_t *object = json_object_get(model, "vocab"), *value;
    const char *key;
    if (!json_is_object(object)) return file_refused(where, status_usage("the model has no \"vocab\" object"));
    int64_t size = 0;
    json_object_foreach(object, key, value) {
        int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= ID_LIMIT)
            return file_refused(where, status_usage("the id of \"%s\" in the vocabulary is not an integer below %lld",
                                                    key, (long long)ID_LIMIT));
        if (id >= size) size = id + 1;
    }
    vocab_init(spelled, (size_t)size);
    vocab_init(&tokenizer->bpe.vocab, (size_t)size);
    TextBuffer bytes = {0};
    Status status = NULL;
    json_object_foreach(object, key, value) {
        uint32_t id = (uint32_t)json_integer_value(value);
        size_t length = strlen(key), byte_length;
        if (spelled->lengths[id] != VOCAB_NONE) {
            status = file_refused(where, status_usage("two entries of the vocabulary have the id %u", id));
            break;
        }
        vocab_set(spelled, id, key, length);
        vocab_index(spelled, id);
        bytes.length = 0;
        text_buffer_add(&bytes, key, length);
        bool alphabet = vocab_text_to_bytes(key, length, (uint8_t *)bytes.data, &byte_length);
        vocab_set(&tokenizer->bpe.vocab, id, alphabet ? bytes.data : key, alphabet ? byte_length : length);
        if (alphabet) vocab_index(&tokenizer->bpe.vocab, id); // others cannot be met in text
    }
    text_buffer_free(&bytes);
    if (status) return status;
    for (int byte = 0; byte < 256; byte++) {
        uint8_t text = (uint8_t)byte;
        tokenizer->bpe.byte_ids[byte] = vocab_find(&tokenizer->bpe.vocab, &text, 1);
    }
    return NULL;
}

// "left right" or ["left", "right"].
static bool merge_parts(const json_t *item, const char **left, size_t *left_length, const char **right,
                        size_t *right_length) {
    if (json_is_string(item)) {
        const char *text = json_string_value(item), *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' ')) return false;
        *left = text;
        *left_length = (size_t)(space - text);
        *right = space + 1;
        *right_length = strlen(space + 1);
        return true;
    }
    if (!json_is_array(item) || json_array_size(item) != 2) return false;
    const json_t *first = json_array_get(item, 0), *second = json_array_get(item, 1);
    if (!json_is_string(first) || !json_is_string(second)) return false;
    *left = json_string_value(first);
    *left_length = json_string_length(first);
    *right = json_string_value(second);
    *right_length = json_string_length(second);
    return true;
}

static Status load_merges(Tokenizer *tokenizer, const Vocab *spelled, const json_t *model, const char *where) {
    const json_t *list = json_object_get(model, "merges"), *item;
    if (!json_is_array(list)) return file_refused(where, status_usage("the model has no \"merges\" list"));
    size_t count = json_array_size(list), index;
    if (count >= (size_t)1 << 30) return file_refused(where, status_usage("there are too many merges: %zu", count));
    BpeMerge *merges = xmalloc((count + 1) * sizeof *merges);
    TextBuffer whole = {0};
    Status status = NULL;
    json_array_foreach(list, index, item) {
        const char *left, *right;
        size_t left_length, right_length;
        if (!merge_parts(item, &left, &left_length, &right, &right_length)) {
            status = file_refused(where,
                                  status_usage("merge %zu is neither \"left right\" nor [\"left\", \"right\"]", index));
            break;
        }
        whole.length = 0;
        text_buffer_add(&whole, left, left_length);
        text_buffer_add(&whole, right, right_length);
        merges[index] = (BpeMerge){vocab_find(spelled, left, left_length), vocab_find(spelled, right, right_length),
                                   vocab_find(spelled, whole.data, whole.length)};
        if (merges[index].left == VOCAB_NONE || merges[index].right == VOCAB_NONE ||
            merges[index].merged == VOCAB_NONE) {
            status = file_refused(
                where, status_usage("merge %zu makes \"%s\", but it or one of its parts is not in the vocabulary",
                                    index, whole.data));
            break;
        }
    }
    if (!status) bpe_build(&tokenizer->bpe, merges, count);
    text_buffer_free(&whole);
    free(merges);
    return status;
}

static Status load_model(Tokenizer *tokenizer, Vocab *spelled, const json_t *model, const char *where) {
    if (!json_is_object(model)) return file_refused(where, status_usage("there is no \"model\" object"));
    const char *unknown = NULL, *prefix = NULL, *suffix = NULL;
    const json_t *type = json_object_get(model, "type");
    bool byte_fallback = false;
    double dropout = 0;
    Bpe *bpe = &tokenizer->bpe;
    if (type && strcmp(json_type_of(model), "BPE") != 0)
        return file_refused(where, status_hint(status_usage("the model \"%s\" is not supported", json_type_of(model)),
                                               "only byte-level BPE is supported"));
    TRY(json_get_text(model, "unk_token", &unknown, where));
    TRY(json_get_text(model, "continuing_subword_prefix", &prefix, where));
    TRY(json_get_text(model, "end_of_word_suffix", &suffix, where));
    TRY(json_get_bool(model, "byte_fallback", &byte_fallback, where));
    TRY(json_get_bool(model, "fuse_unk", &bpe->fuse_unknown, where));
    TRY(json_get_bool(model, "ignore_merges", &bpe->ignore_merges, where));
    TRY(json_get_double(model, "dropout", &dropout, where));
    if ((prefix && *prefix) || (suffix && *suffix))
        return file_refused(
            where, status_usage("the model has a continuing_subword_prefix or end_of_word_suffix, which is not "
                                "supported"));
    if (dropout != 0)
        return file_refused(where, status_usage("the model has dropout %g, which is not supported", dropout));
    TRY(load_vocab(tokenizer, spelled, model, where));
    int lacking = -1;
    for (int byte = 255; byte >= 0; byte--) {
        if (bpe->byte_ids[byte] == VOCAB_NONE) lacking = byte;
    }
    if (lacking >= 0 && byte_fallback)
        return file_refused(
            where, status_usage("the model has byte_fallback and lacks byte 0x%02x, which is not supported", lacking));
    bpe->unknown = unknown ? vocab_find(spelled, unknown, strlen(unknown)) : VOCAB_NONE;
    if (lacking >= 0 && unknown && bpe->unknown == VOCAB_NONE)
        return file_refused(
            where,
            status_usage("the unk_token \"%s\" is not in the vocabulary, which lacks byte 0x%02x", unknown, lacking));
    return load_merges(tokenizer, spelled, model, where);
}

// --- normaliser, added tokens, template -----------------------------------------------------------------------------

static Status load_normalizer(Tokenizer *tokenizer, const json_t *object, int depth, const char *where) {
    static const char *const names[] = {
        [UNICODE_NFC] = "NFC", [UNICODE_NFD] = "NFD", [UNICODE_NFKC] = "NFKC", [UNICODE_NFKD] = "NFKD"};
    if (!object || json_is_null(object)) return NULL;
    if (strcmp(json_type_of(object), "Sequence") == 0 && depth < 8) {
        const json_t *item;
        size_t index;
        json_array_foreach(json_object_get(object, "normalizers"), index, item)
            TRY(load_normalizer(tokenizer, item, depth + 1, where));
        return NULL;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(json_type_of(object), names[i]) != 0) continue;
        if (!unicode_can_normalize())
            return file_refused(where, status_hint(status_usage("the normalizer \"%s\" needs utf8proc", names[i]),
                                                   "install libutf8proc-dev and build again"));
        if (tokenizer->form_count == FORMS_MOST)
            return file_refused(where, status_usage("there are too many normalizers"));
        tokenizer->forms[tokenizer->form_count++] = (UnicodeForm)i;
        return NULL;
    }
    return file_refused(where, status_hint(status_usage("the normalizer \"%s\" is not supported", json_type_of(object)),
                                           "supported are NFC, NFD, NFKC, NFKD and Sequence"));
}

static Status match_added(Tokenizer *tokenizer, int32_t index) {
    AddedToken *token = &tokenizer->added[index];
    if (!token->normalized) {
        added_matcher_add(&tokenizer->raw, (const uint8_t *)token->content, token->length, index);
        return NULL;
    }
    TextBuffer text = {0}, changed_text = {0};
    UnicodeScratch scratch = {0};
    Status status = NULL;
    text_buffer_add(&text, token->content, token->length);
    for (int i = 0; i < tokenizer->form_count && !status; i++) {
        bool changed;
        changed_text.length = 0;
        status = unicode_normalize(&scratch, tokenizer->forms[i], (const uint8_t *)text.data, text.length,
                                   &changed_text, &changed);
        if (!status && changed) {
            text.length = 0;
            text_buffer_add(&text, changed_text.data, changed_text.length);
        }
    }
    if (!status) added_matcher_add(&tokenizer->normalized, (const uint8_t *)text.data, text.length, index);
    text_buffer_free(&text);
    text_buffer_free(&changed_text);
    unicode_scratch_free(&scratch);
    return status;
}

// HF tokenizers numbers added tokens itself: one that is in the vocabulary keeps its id, others follow each other from
// the size of the vocabulary on, whatever "id" says. Files written by it agree with that.
static Status load_added(Tokenizer *tokenizer, const Vocab *spelled, const json_t *list, const char *where) {
    if (!list || json_is_null(list)) return NULL;
    if (!json_is_array(list)) return file_refused(where, status_usage("\"added_tokens\" is not a list"));
    size_t index, count = json_array_size(list), vocab_entries = 0;
    const json_t *item;
    for (size_t id = 0; id < spelled->size; id++)
        vocab_entries += spelled->lengths[id] != VOCAB_NONE;
    tokenizer->added = xcalloc(count + 1, sizeof *tokenizer->added);
    int64_t next = (int64_t)vocab_entries;
    json_array_foreach(list, index, item) {
        const json_t *content = json_object_get(item, "content");
        if (!json_is_string(content))
            return file_refused(where, status_usage("added token %zu has no \"content\"", index));
        if (json_string_length(content) == 0) continue;
        AddedToken token = {.length = json_string_length(content)};
        int64_t told = -1;
        token.normalized = true;
        TRY(json_get_int(item, "id", &told, where));
        TRY(json_get_bool(item, "special", &token.special, where));
        token.normalized = !token.special;
        TRY(json_get_bool(item, "normalized", &token.normalized, where));
        TRY(json_get_bool(item, "single_word", &token.single_word, where));
        TRY(json_get_bool(item, "lstrip", &token.strip_left, where));
        TRY(json_get_bool(item, "rstrip", &token.strip_right, where));
        AddedToken *same = NULL;
        for (size_t i = 0; i < tokenizer->added_count && !same; i++) {
            AddedToken *earlier = &tokenizer->added[i];
            if (earlier->length == token.length && !memcmp(earlier->content, json_string_value(content), token.length))
                same = earlier;
        }
        uint32_t known = vocab_find(spelled, json_string_value(content), token.length);
        token.id = same ? same->id : known != VOCAB_NONE ? known : (uint32_t)next;
        if (token.id >= ID_LIMIT) return file_refused(where, status_usage("there are too many added tokens"));
        if (!same && known == VOCAB_NONE) next = token.id + 1;
        if (!same && known != VOCAB_NONE && token.id >= (uint32_t)next) next = token.id + 1;
        if (told != (int64_t)token.id)
            log_warn("%s: the added token \"%s\" says id %lld, but HF tokenizers gives it %u", where,
                     json_string_value(content), (long long)told, token.id);
        token.content = same ? same->content : text_copy_n(json_string_value(content), token.length);
        *(same ? same : &tokenizer->added[tokenizer->added_count++]) = token;
    }
    for (size_t i = 0; i < tokenizer->added_count; i++) {
        AddedToken *token = &tokenizer->added[i];
        vocab_grow(&tokenizer->bpe.vocab, (size_t)token->id + 1);
        if (tokenizer->bpe.vocab.lengths[token->id] == VOCAB_NONE)
            vocab_set(&tokenizer->bpe.vocab, token->id, token->content, token->length);
        TRY(match_added(tokenizer, (int32_t)i));
    }
    return NULL;
}

// One "SpecialToken" of a template: its ids as the template's own table gives them.
static Status template_ids(TokenIds *ids, const json_t *object, const char *name, const char *where) {
    const json_t *token = json_object_get(json_object_get(object, "special_tokens"), name ? name : "");
    const json_t *list = json_object_get(token, "ids"), *item;
    size_t index;
    if (!json_is_array(list))
        return file_refused(where,
                            status_usage("the template's token \"%s\" is not in its special_tokens", name ? name : ""));
    json_array_foreach(list, index, item) {
        int64_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id >= ID_LIMIT)
            return file_refused(where, status_usage("the template's token \"%s\" has a bad id", name));
        token_ids_add(ids, &(uint32_t){(uint32_t)id}, 1);
    }
    return NULL;
}

static Status load_template(TokenIds *before, TokenIds *after, const json_t *object, const char *where) {
    const json_t *list = json_object_get(object, "single"), *item;
    size_t index;
    int texts = 0;
    json_array_foreach(list, index, item) {
        const json_t *special = json_object_get(item, "SpecialToken"), *sequence = json_object_get(item, "Sequence");
        if (sequence) texts++;
        if (!special) continue;
        const char *name = json_string_value(json_object_get(special, "id"));
        TRY(template_ids(texts ? after : before, object, name, where));
    }
    return texts == 1 ? NULL
                      : file_refused(where, status_usage("the template for single texts does not hold the text once"));
}

// Roberta- and BertProcessing: ["</s>", 2] after the text, ["<s>", 0] before it.
static Status load_pair_end(TokenIds *ids, const json_t *object, const char *key, const char *where) {
    const json_t *id = json_array_get(json_object_get(object, key), 1);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= ID_LIMIT)
        return file_refused(where, status_usage("the post-processor has no \"%s\" token", key));
    token_ids_add(ids, &(uint32_t){(uint32_t)json_integer_value(id)}, 1);
    return NULL;
}

static Status load_post_processor(Tokenizer *tokenizer, const json_t *object, int depth, const char *where) {
    if (!object || json_is_null(object)) return NULL;
    const char *type = json_type_of(object);
    if (strcmp(type, "ByteLevel") == 0) return NULL; // offsets only
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        const json_t *item;
        size_t index;
        json_array_foreach(json_object_get(object, "processors"), index, item)
            TRY(load_post_processor(tokenizer, item, depth + 1, where));
        return NULL;
    }
    TokenIds before = {0}, after = {0};
    Status status;
    if (strcmp(type, "TemplateProcessing") == 0) {
        status = load_template(&before, &after, object, where);
    } else if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        status = load_pair_end(&before, object, "cls", where);
        if (!status) status = load_pair_end(&after, object, "sep", where);
    } else {
        status = file_refused(
            where, status_hint(status_usage("the post-processor \"%s\" is not supported", type),
                               "supported are ByteLevel, TemplateProcessing, Roberta- and BertProcessing and "
                               "Sequence"));
    }
    // A later one of a sequence goes around what the earlier ones made.
    token_ids_add(&before, tokenizer->before.ids, tokenizer->before.count);
    token_ids_add(&tokenizer->after, after.ids, after.count);
    free(after.ids);
    if (status) {
        free(before.ids);
        return status;
    }
    free(tokenizer->before.ids);
    tokenizer->before = before;
    return NULL;
}

static Status check_decoder(const json_t *object, int depth, const char *where) {
    if (!object || json_is_null(object)) return NULL;
    const char *type = json_type_of(object);
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        const json_t *item;
        size_t index;
        json_array_foreach(json_object_get(object, "decoders"), index, item) TRY(check_decoder(item, depth + 1, where));
        return NULL;
    }
    if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "Fuse") == 0) return NULL;
    return file_refused(
        where, status_hint(status_usage("the decoder \"%s\" is not supported", type), "supported is ByteLevel"));
}

// --- the whole file -------------------------------------------------------------------------------------------------

static int64_t find_end_of_text(const Tokenizer *tokenizer) {
    static const char *const names[] = {TOKENIZER_END_OF_TEXT,   "<|end_of_text|>", "</s>",      "<eos>", "<|eos|>",
                                        "<｜end▁of▁sentence｜>", "[EOS]",           "<|im_end|>"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (size_t j = 0; j < tokenizer->added_count; j++) {
            if (strcmp(tokenizer->added[j].content, names[i]) == 0) return tokenizer->added[j].id;
        }
    }
    return tokenizer->after.count ? (int64_t)tokenizer->after.ids[tokenizer->after.count - 1] : -1;
}

static uint64_t hash_text(const char *text, size_t length) { // FNV-1a
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3u;
    return hash;
}

static Status load_parts(Tokenizer *tokenizer, Vocab *spelled, const json_t *root, const char *where) {
    if (!json_is_object(root)) return file_refused(where, status_usage("a tokenizer.json must hold an object"));
    TRY(tokenizer_load_stages(tokenizer, json_object_get(root, "pre_tokenizer"), where));
    TRY(load_normalizer(tokenizer, json_object_get(root, "normalizer"), 0, where));
    TRY(load_model(tokenizer, spelled, json_object_get(root, "model"), where));
    TRY(load_added(tokenizer, spelled, json_object_get(root, "added_tokens"), where));
    TRY(load_post_processor(tokenizer, json_object_get(root, "post_processor"), 0, where));
    TRY(check_decoder(json_object_get(root, "decoder"), 0, where));
    for (size_t i = 0; i < tokenizer->before.count + tokenizer->after.count; i++) {
        bool first = i < tokenizer->before.count;
        uint32_t id = first ? tokenizer->before.ids[i] : tokenizer->after.ids[i - tokenizer->before.count];
        size_t length;
        if (!vocab_get(&tokenizer->bpe.vocab, id, &length))
            return file_refused(where, status_usage("the post-processor uses id %u, which no token has", id));
    }
    if (json_has(root, "truncation")) log_warn("%s: its truncation is not applied", where);
    tokenizer->end_of_text = find_end_of_text(tokenizer);
    return NULL;
}

Status tokenizer_load_text(Tokenizer **tokenizer, const char *json, size_t length, const char *name) {
    json_t *root;
    TRY(json_read_text(&root, json, length, name));
    Tokenizer *loaded = xcalloc(1, sizeof *loaded);
    Vocab spelled = {0};
    loaded->name = text_copy(name);
    loaded->hash = hash_text(json, length);
    Status status = load_parts(loaded, &spelled, root, name);
    vocab_free(&spelled);
    json_decref(root);
    if (status) {
        tokenizer_free(loaded);
        return status;
    }
    *tokenizer = loaded;
    return NULL;
}

static Tokenizer *load_raw_bytes(void) {
    Tokenizer *tokenizer = xcalloc(1, sizeof *tokenizer);
    tokenizer->name = text_copy("bytes");
    tokenizer->hash = hash_text("bytes", 5);
    tokenizer->raw_bytes = true;
    tokenizer->end_of_text = 256;
    Vocab *vocab = &tokenizer->bpe.vocab;
    vocab_init(vocab, 257);
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint8_t text = (uint8_t)byte;
        vocab_set(vocab, byte, &text, 1);
    }
    AddedToken end = {.content = text_copy(TOKENIZER_END_OF_TEXT),
                      .length = strlen(TOKENIZER_END_OF_TEXT),
                      .id = 256,
                      .special = true};
    tokenizer->added = xcalloc(1, sizeof *tokenizer->added);
    tokenizer->added[tokenizer->added_count++] = end;
    vocab_set(vocab, end.id, end.content, end.length);
    added_matcher_add(&tokenizer->raw, (const uint8_t *)end.content, end.length, 0);
    return tokenizer;
}

static char *tokenizer_file(const char *path) {
    return file_is_directory(path) ? path_join(path, "tokenizer.json") : text_copy(path);
}

Status tokenizer_copy_file(const char *path, const char *directory) {
    if (strcmp(path, "bytes") == 0) return NULL;
    char *from = tokenizer_file(path), *to = path_join(directory, "tokenizer.json"), *text = NULL;
    size_t size;
    Status status = file_read(&text, &size, from);
    if (!status) status = file_write_atomic(to, text, size);
    free(text);
    free(from);
    free(to);
    return status;
}

Status tokenizer_load(Tokenizer **tokenizer, const char *path) {
    if (strcmp(path, "bytes") == 0) {
        *tokenizer = load_raw_bytes();
        return NULL;
    }
    char *file = tokenizer_file(path);
    char *text = NULL;
    size_t length;
    Status status = file_read(&text, &length, file);
    if (!status) status = tokenizer_load_text(tokenizer, text, length, file);
    free(text);
    free(file);
    return status;
}

void tokenizer_free(Tokenizer *tokenizer) {
    if (!tokenizer) return;
    tokenizer_free_stages(tokenizer);
    bpe_free(&tokenizer->bpe);
    for (size_t i = 0; i < tokenizer->added_count; i++)
        free(tokenizer->added[i].content);
    free(tokenizer->added);
    added_matcher_free(&tokenizer->raw);
    added_matcher_free(&tokenizer->normalized);
    free(tokenizer->before.ids);
    free(tokenizer->after.ids);
    free(tokenizer->name);
    free(tokenizer);
}
