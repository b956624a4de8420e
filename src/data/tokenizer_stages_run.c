// Runs the stages: text goes down the list piece by piece, and what falls out at the end is a word for the model.
// Nothing is collected on the way, so splitting costs no memory.
#include "data/tokenizer_internal.h"

#include "base/text.h"
#include "data/split_scan.h"

#include <stdlib.h>

// --- the last stage: one loop per known pattern, with scanner and cache lookup inlined ------------------------------

static inline __attribute__((always_inline)) void encode_words(TokenizerState *state, SplitKind kind, const uint8_t *at,
                                                               const uint8_t *end) {
    const uint8_t *limit = state->limit;
    TokenIds *out = state->out;
    while (at < end) {
        const uint8_t *stop = split_next_inline(kind, at, end);
        bpe_encode(&state->bpe, at, (size_t)(stop - at), limit, out);
        at = stop;
    }
}

static void encode_scanned(TokenizerState *state, SplitKind kind, const uint8_t *begin, const uint8_t *end) {
    switch (kind) {
    case SPLIT_GPT2: encode_words(state, SPLIT_GPT2, begin, end); break;
    case SPLIT_LLAMA3: encode_words(state, SPLIT_LLAMA3, begin, end); break;
    case SPLIT_QWEN: encode_words(state, SPLIT_QWEN, begin, end); break;
    case SPLIT_QWEN_MARKS: encode_words(state, SPLIT_QWEN_MARKS, begin, end); break;
    case SPLIT_O200K: encode_words(state, SPLIT_O200K, begin, end); break;
    case SPLIT_TEKKEN: encode_words(state, SPLIT_TEKKEN, begin, end); break;
    case SPLIT_KINDS: __builtin_unreachable();
    }
}

// A finished piece. Where a stage turned it into characters of the byte alphabet, these are turned back.
static void encode_piece(TokenizerState *state, const uint8_t *begin, const uint8_t *end) {
    if (!state->tokenizer->byte_chars) {
        bpe_encode(&state->bpe, begin, (size_t)(end - begin), state->limit, state->out);
        return;
    }
    state->unmapped.length = 0;
    while (begin < end) {
        unsigned length;
        char byte = (char)vocab_char_byte(utf8_decode(begin, &length));
        text_buffer_add(&state->unmapped, &byte, 1);
        begin += length;
    }
    const uint8_t *word = (const uint8_t *)state->unmapped.data;
    size_t length = state->unmapped.length;
    bpe_encode(&state->bpe, word, length, word + length, state->out);
}

// --- stages that cut by matches -------------------------------------------------------------------------------------

typedef struct Cutter { // puts matches and what lies between them together as the behavior says
    TokenizerState *state;
    int next_stage;
    SplitBehavior behavior;
    bool invert;
    const uint8_t *begin, *end; // the piece that may still grow; begin == NULL: none
    bool is_match;              // what it was started with
    bool previous_match;
} Cutter;

static Status cutter_flush(Cutter *cutter) {
    const uint8_t *begin = cutter->begin, *end = cutter->end;
    cutter->begin = NULL;
    return begin && begin < end ? tokenizer_run_stages(cutter->state, cutter->next_stage, begin, end) : NULL;
}

static Status cutter_start(Cutter *cutter, const uint8_t *begin, const uint8_t *end, bool is_match) {
    TRY(cutter_flush(cutter));
    cutter->begin = begin;
    cutter->end = end;
    cutter->is_match = is_match;
    return NULL;
}

static Status cutter_add(Cutter *cutter, const uint8_t *begin, const uint8_t *end, bool matched) {
    bool is_match = matched != cutter->invert, previous = cutter->previous_match, joins = false;
    cutter->previous_match = is_match;
    switch (cutter->behavior) {
    case SPLIT_ISOLATED: break;
    case SPLIT_REMOVED:
        if (is_match) return NULL;
        break;
    case SPLIT_CONTIGUOUS: joins = is_match == cutter->is_match; break;
    case SPLIT_MERGED_WITH_PREVIOUS: joins = is_match && !previous; break;
    case SPLIT_MERGED_WITH_NEXT: joins = !is_match && cutter->is_match; break;
    }
    if (!cutter->begin || !joins) return cutter_start(cutter, begin, end, is_match);
    cutter->end = end;
    if (cutter->behavior == SPLIT_MERGED_WITH_NEXT) cutter->is_match = false; // complete
    return NULL;
}

static Status cut_by_regex(Cutter *cutter, const Stage *stage, const uint8_t *begin, const uint8_t *end) {
    TokenizerState *state = cutter->state;
    size_t length = (size_t)(end - begin), done = 0, last_end = SIZE_MAX;
    for (;;) {
        bool found;
        size_t from, to;
        TRY(split_regex_find(stage->regex, state->matcher, begin, length, done, last_end, &found, &from, &to));
        if (!found) break;
        if (done != from) TRY(cutter_add(cutter, begin + done, begin + from, false));
        TRY(cutter_add(cutter, begin + from, begin + to, true));
        done = last_end = to;
    }
    return done < length ? cutter_add(cutter, begin + done, end, false) : NULL;
}

static Status cut_by_literal(Cutter *cutter, const Stage *stage, const uint8_t *begin, const uint8_t *end) {
    size_t length = strlen(stage->literal);
    const uint8_t *found;
    while (begin < end && (found = memmem(begin, (size_t)(end - begin), stage->literal, length))) {
        if (begin != found) TRY(cutter_add(cutter, begin, found, false));
        TRY(cutter_add(cutter, found, found + length, true));
        begin = found + length;
    }
    return begin < end ? cutter_add(cutter, begin, end, false) : NULL;
}

// Characters of a kind, each a match; behavior Contiguous makes runs of them.
static inline __attribute__((always_inline)) Status cut_by_character(Cutter *cutter, const uint8_t *begin,
                                                                     const uint8_t *end, bool digits) {
    const uint8_t *at = begin;
    while (at < end) {
        unsigned length = 1;
        bool matches;
        if (digits && *at < 0x80) {
            matches = *at >= '0' && *at <= '9';
        } else {
            uint32_t code = utf8_decode(at, &length);
            matches = digits ? unicode_is_numeric(code) : unicode_is_punctuation(code);
        }
        if (matches) {
            if (begin < at) TRY(cutter_add(cutter, begin, at, false));
            TRY(cutter_add(cutter, at, at + length, true));
            begin = at + length;
        }
        at += length;
    }
    return begin < end ? cutter_add(cutter, begin, end, false) : NULL;
}

static Status run_cutting(TokenizerState *state, int index, const uint8_t *begin, const uint8_t *end) {
    const Stage *stage = &state->tokenizer->stages[index];
    Cutter cutter = {.state = state, .next_stage = index + 1, .behavior = stage->behavior, .invert = stage->invert};
    switch (stage->kind) {
    case STAGE_REGEX: TRY(cut_by_regex(&cutter, stage, begin, end)); break;
    case STAGE_LITERAL: TRY(cut_by_literal(&cutter, stage, begin, end)); break;
    case STAGE_PUNCTUATION: TRY(cut_by_character(&cutter, begin, end, false)); break;
    default: TRY(cut_by_character(&cutter, begin, end, true)); break;
    }
    return cutter_flush(&cutter);
}

// --- stages that rewrite --------------------------------------------------------------------------------------------

static Status run_rewritten(TokenizerState *state, int next_stage, const TextBuffer *text) {
    const uint8_t *limit = state->limit, *begin = (const uint8_t *)text->data;
    state->limit = begin + text->length;
    Status status = tokenizer_run_stages(state, next_stage, begin, begin + text->length);
    state->limit = limit;
    return status;
}

static Status run_prefix_space(TokenizerState *state, int index, const uint8_t *begin, const uint8_t *end) {
    if (*begin == ' ') return tokenizer_run_stages(state, index + 1, begin, end);
    state->prefixed.length = 0;
    text_buffer_add(&state->prefixed, " ", 1);
    text_buffer_add(&state->prefixed, (const char *)begin, (size_t)(end - begin));
    return run_rewritten(state, index + 1, &state->prefixed);
}

static Status run_byte_chars(TokenizerState *state, int index, const uint8_t *begin, const uint8_t *end) {
    state->mapped.length = 0;
    for (; begin < end; begin++) {
        uint8_t bytes[4];
        text_buffer_add(&state->mapped, (const char *)bytes, utf8_put(vocab_byte_char(*begin), bytes));
    }
    return run_rewritten(state, index + 1, &state->mapped);
}

Status tokenizer_run_stages(TokenizerState *state, int index, const uint8_t *begin, const uint8_t *end) {
    const Tokenizer *tokenizer = state->tokenizer;
    if (begin == end) return NULL;
    if (index == tokenizer->stage_count) {
        encode_piece(state, begin, end);
        return NULL;
    }
    const Stage *stage = &tokenizer->stages[index];
    switch (stage->kind) {
    case STAGE_SCAN:
        if (index + 1 == tokenizer->stage_count && !tokenizer->byte_chars) {
            encode_scanned(state, stage->scan, begin, end);
            return NULL;
        }
        while (begin < end) {
            const uint8_t *stop = split_next(stage->scan, begin, end);
            TRY(tokenizer_run_stages(state, index + 1, begin, stop));
            begin = stop;
        }
        return NULL;
    case STAGE_PREFIX_SPACE: return run_prefix_space(state, index, begin, end);
    case STAGE_BYTE_CHARS: return run_byte_chars(state, index, begin, end);
    default: return run_cutting(state, index, begin, end);
    }
}
