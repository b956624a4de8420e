// Splitting text into pre-tokens. The patterns of the common tokenizers are hand-coded scanners over class tables; any
// other pattern goes through PCRE2. All of it works on well-formed UTF-8.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum SplitKind {
    SPLIT_GPT2,       // GPT-2, and ByteLevel's own
    SPLIT_LLAMA3,     // also the cl100k pattern: digits in groups of three
    SPLIT_QWEN,       // as Llama-3, digits one by one
    SPLIT_QWEN_MARKS, // as Qwen, combining marks belong to words
    SPLIT_O200K,      // GPT-4o: words also end where upper case follows lower case
    SPLIT_TEKKEN,     // Mistral: as GPT-4o, without contractions, digits one by one
    SPLIT_KINDS,
    SPLIT_UNKNOWN = SPLIT_KINDS,
} SplitKind;

SplitKind split_kind_of(const char *pattern); // SPLIT_UNKNOWN: only PCRE2 can do it
const char *split_pattern(SplitKind kind);    // the pattern as tokenizer.json spells it

// End of the pre-token that starts at `at`; at < end. Each kind covers all text: the next one starts where this one
// ends.
const uint8_t *split_next(SplitKind kind, const uint8_t *at, const uint8_t *end);

// --- any pattern -----------------------------------------------------------------------------------------------------

typedef struct SplitRegex SplitRegex;     // compiled; read-only
typedef struct SplitMatcher SplitMatcher; // one thread's match data and stack

Status split_regex_new(SplitRegex **regex, const char *pattern);
void split_regex_free(SplitRegex *regex);
SplitMatcher *split_matcher_new(void);
void split_matcher_free(SplitMatcher *matcher);

// First match in text at or after *from; false when there is none. An empty match directly after the match before it is
// passed over, which `last_end` (SIZE_MAX at first) keeps track of.
Status split_regex_find(const SplitRegex *regex, SplitMatcher *matcher, const uint8_t *text, size_t length, size_t from,
                        size_t last_end, bool *found, size_t *begin, size_t *end);
