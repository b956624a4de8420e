// Encoding and decoding with a loaded tokenizer.
#include "data/tokenizer.h"

#include "base/text.h"
#include "data/tokenizer_internal.h"

#include <stdlib.h>

int64_t tokenizer_vocab_size(const Tokenizer *tokenizer) {
    return (int64_t)tokenizer->bpe.vocab.size;
}

int64_t tokenizer_end_of_text(const Tokenizer *tokenizer) {
    return tokenizer->end_of_text;
}

uint64_t tokenizer_hash(const Tokenizer *tokenizer) {
    return tokenizer->hash;
}

const char *tokenizer_name(const Tokenizer *tokenizer) {
    return tokenizer->name;
}

TokenizerState *tokenizer_state_new(const Tokenizer *tokenizer) {
    TokenizerState *state = xcalloc(1, sizeof *state);
    state->tokenizer = tokenizer;
    if (tokenizer->raw_bytes) return state;
    bpe_state_init(&state->bpe, &tokenizer->bpe);
    for (int i = 0; i < tokenizer->stage_count && !state->matcher; i++) {
        if (tokenizer->stages[i].kind == STAGE_REGEX) state->matcher = split_matcher_new();
    }
    return state;
}

void tokenizer_state_free(TokenizerState *state) {
    if (!state) return;
    bpe_state_free(&state->bpe);
    split_matcher_free(state->matcher);
    unicode_scratch_free(&state->scratch);
    text_buffer_free(&state->repaired);
    text_buffer_free(&state->forms[0]);
    text_buffer_free(&state->forms[1]);
    text_buffer_free(&state->prefixed);
    text_buffer_free(&state->mapped);
    text_buffer_free(&state->unmapped);
    free(state);
}

// --- added tokens inside the text -----------------------------------------------------------------------------------

typedef Status EncodePart(TokenizerState *state, const uint8_t *begin, const uint8_t *end, unsigned flags);

static bool stands_alone(const uint8_t *text, const uint8_t *begin, const uint8_t *stop, const uint8_t *end) {
    unsigned length;
    if (begin > text && unicode_is_word(utf8_decode(utf8_previous(begin), &length))) return false;
    return stop == end || !unicode_is_word(utf8_decode(stop, &length));
}

static const uint8_t *skip_space_left(const uint8_t *at, const uint8_t *from) {
    unsigned length;
    while (at > from) {
        const uint8_t *previous = utf8_previous(at);
        if (!(unicode_class_of(utf8_decode(previous, &length)) & UNICODE_SPACE)) break;
        at = previous;
    }
    return at;
}

static const uint8_t *skip_space_right(const uint8_t *at, const uint8_t *end) {
    unsigned length;
    while (at < end && (unicode_class_of(utf8_decode(at, &length)) & UNICODE_SPACE))
        at += length;
    return at;
}

// Adds the ids of the matcher's tokens, and encodes what lies between them with `part`.
static Status encode_around(TokenizerState *state, const AddedMatcher *matcher, const uint8_t *text, const uint8_t *end,
                            unsigned flags, EncodePart *part) {
    const uint8_t *done = text, *at = text, *begin, *stop;
    int32_t index;
    while (added_matcher_find(matcher, at, end, &begin, &stop, &index)) {
        const AddedToken *token = &state->tokenizer->added[index];
        at = stop; // what strips or is refused still ends the search here
        if (token->single_word && !stands_alone(text, begin, stop, end)) continue;
        if (token->strip_left) begin = begin > done ? skip_space_left(begin, done) : done;
        if (token->strip_right) stop = skip_space_right(stop, end);
        if (begin >= stop) continue; // white space that the token before has taken
        if (done < begin) TRY(part(state, done, begin, flags));
        token_ids_reserve(state->out, 1);
        state->out->ids[state->out->count++] = token->id;
        done = stop;
    }
    return done < end ? part(state, done, end, flags) : NULL;
}

// --- encoding -------------------------------------------------------------------------------------------------------

static Status encode_split(TokenizerState *state, const uint8_t *begin, const uint8_t *end, unsigned flags) {
    (void)flags;
    return tokenizer_run_stages(state, 0, begin, end);
}

static Status encode_normalized(TokenizerState *state, const uint8_t *begin, const uint8_t *end, unsigned flags) {
    const Tokenizer *tokenizer = state->tokenizer;
    const uint8_t *limit = state->limit;
    for (int i = 0; i < tokenizer->form_count; i++) {
        TextBuffer *out = &state->forms[i & 1];
        bool changed;
        out->length = 0;
        TRY(unicode_normalize(&state->scratch, tokenizer->forms[i], begin, (size_t)(end - begin), out, &changed));
        if (!changed) continue;
        begin = (const uint8_t *)out->data;
        state->limit = end = begin + out->length;
    }
    Status status = flags & TOKENIZER_MATCH_SPECIAL
                        ? encode_around(state, &tokenizer->normalized, begin, end, flags, encode_split)
                        : encode_split(state, begin, end, flags);
    state->limit = limit;
    return status;
}

static Status encode_raw_bytes(TokenizerState *state, const uint8_t *begin, const uint8_t *end, unsigned flags) {
    (void)flags;
    TokenIds *out = state->out;
    token_ids_reserve(out, (size_t)(end - begin));
    for (const uint8_t *at = begin; at < end; at++)
        out->ids[out->count++] = *at;
    return NULL;
}

Status tokenizer_encode(TokenizerState *state, const char *text, size_t length, unsigned flags, TokenIds *out) {
    const Tokenizer *tokenizer = state->tokenizer;
    const uint8_t *begin = (const uint8_t *)text;
    if (length >= UINT32_MAX / 2)
        return status_hint(status_usage("a text of %zu bytes is too long to encode at once", length),
                           "cut it into documents of less than 2 GiB");
    if (!tokenizer->raw_bytes && length && utf8_first_malformed(begin, length) < length) {
        state->repaired.length = 0;
        utf8_repair(&state->repaired, begin, length);
        begin = (const uint8_t *)state->repaired.data;
        length = state->repaired.length;
    }
    state->out = out;
    state->limit = begin + length;
    EncodePart *part = tokenizer->raw_bytes ? encode_raw_bytes : encode_normalized;
    if (flags & TOKENIZER_ADD_SPECIAL) token_ids_add(out, tokenizer->before.ids, tokenizer->before.count);
    Status status = NULL;
    if (length)
        status = flags & TOKENIZER_MATCH_SPECIAL
                     ? encode_around(state, &tokenizer->raw, begin, begin + length, flags, part)
                     : part(state, begin, begin + length, flags);
    if (flags & TOKENIZER_ADD_SPECIAL) token_ids_add(out, tokenizer->after.ids, tokenizer->after.count);
    return status;
}

// --- decoding -------------------------------------------------------------------------------------------------------

static bool is_special(const Tokenizer *tokenizer, uint32_t id) {
    for (size_t i = 0; i < tokenizer->added_count; i++) {
        if (tokenizer->added[i].id == id) return tokenizer->added[i].special;
    }
    return false;
}

const char *tokenizer_token_bytes(const Tokenizer *tokenizer, uint32_t id, size_t *length) {
    return (const char *)vocab_get(&tokenizer->bpe.vocab, id, length);
}

Status tokenizer_decode(const Tokenizer *tokenizer, const uint32_t *ids, size_t count, bool skip_special, char **text,
                        size_t *length) {
    TextBuffer out = {0};
    text_buffer_add(&out, "", 0);
    for (size_t i = 0; i < count; i++) {
        size_t token_length;
        const char *token = tokenizer_token_bytes(tokenizer, ids[i], &token_length);
        if (!token) {
            text_buffer_free(&out);
            return status_usage("id %u at position %zu is not in the vocabulary of %s", ids[i], i, tokenizer->name);
        }
        if (skip_special && is_special(tokenizer, ids[i])) continue;
        text_buffer_add(&out, token, token_length);
    }
    *text = out.data;
    *length = out.length;
    return NULL;
}
