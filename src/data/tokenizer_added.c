// Added tokens: strings that are found in the text before it is split, such as <|endoftext|>.
#include "data/tokenizer_internal.h"

#include "base/text.h"

#include <stdlib.h>

static uint32_t trie_node_new(AddedMatcher *matcher, uint8_t byte) {
    if (matcher->count == matcher->capacity) {
        matcher->capacity = 2 * matcher->capacity + 64;
        matcher->nodes = xrealloc(matcher->nodes, matcher->capacity * sizeof *matcher->nodes);
    }
    matcher->nodes[matcher->count] = (AddedNode){.token = -1, .byte = byte};
    return (uint32_t)matcher->count++;
}

static uint32_t trie_node_child(const AddedMatcher *matcher, uint32_t node, uint8_t byte) {
    uint32_t child = matcher->nodes[node].child;
    while (child && matcher->nodes[child].byte != byte)
        child = matcher->nodes[child].sibling;
    return child;
}

void added_matcher_add(AddedMatcher *matcher, const uint8_t *text, size_t length, int32_t token) {
    if (length == 0) return;
    if (!matcher->count) trie_node_new(matcher, 0);
    uint32_t node = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t child = trie_node_child(matcher, node, text[i]);
        if (!child) {
            child = trie_node_new(matcher, text[i]);
            matcher->nodes[child].sibling = matcher->nodes[node].child;
            matcher->nodes[node].child = child;
        }
        node = child;
    }
    matcher->nodes[node].token = token;
    if (!matcher->first[text[0]]) {
        matcher->first[text[0]] = true;
        matcher->first_bytes++;
        matcher->only_first = text[0];
    }
}

void added_matcher_free(AddedMatcher *matcher) {
    free(matcher->nodes);
    *matcher = (AddedMatcher){0};
}

static const uint8_t *next_candidate(const AddedMatcher *matcher, const uint8_t *at, const uint8_t *end) {
    if (matcher->first_bytes == 1) {
        const uint8_t *found = memchr(at, matcher->only_first, (size_t)(end - at));
        return found ? found : end;
    }
    while (at < end && !matcher->first[*at])
        at++;
    return at;
}

bool added_matcher_find(const AddedMatcher *matcher, const uint8_t *at, const uint8_t *end, const uint8_t **begin,
                        const uint8_t **stop, int32_t *token) {
    if (!matcher->count) return false;
    for (; at < end && (at = next_candidate(matcher, at, end)) < end; at++) {
        *token = -1;
        uint32_t node = 0;
        for (const uint8_t *to = at; to < end && (node = trie_node_child(matcher, node, *to)); to++) {
            if (matcher->nodes[node].token < 0) continue;
            *token = matcher->nodes[node].token;
            *begin = at;
            *stop = to + 1;
        }
        if (*token >= 0) return true;
    }
    return false;
}
