// What a loaded tokenizer is made of, for the files that load it and encode with it.
#pragma once

#include "base/json.h"
#include "data/bpe.h"
#include "data/split.h"
#include "data/tokenizer.h"
#include "data/unicode.h"

// --- pre-tokenizers: each stage cuts or rewrites the pieces of the one before ---------------------------------------

typedef enum SplitBehavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
} SplitBehavior;

typedef enum StageKind {
    STAGE_SCAN,         // a known pattern, each match a piece
    STAGE_REGEX,        // any other pattern or behavior
    STAGE_LITERAL,      // a fixed string
    STAGE_DIGITS,       // numeric characters, one by one or in runs
    STAGE_PUNCTUATION,  // punctuation, as the behavior says
    STAGE_PREFIX_SPACE, // a space before a piece that does not start with one
    STAGE_BYTE_CHARS,   // bytes become the characters of the byte alphabet: only kept when other stages follow
} StageKind;

typedef struct Stage {
    StageKind kind;
    SplitKind scan;
    SplitRegex *regex;
    char *literal;
    SplitBehavior behavior; // of the stages that cut by matches
    bool invert;
} Stage;

#define STAGES_MOST 32

// --- added tokens ---------------------------------------------------------------------------------------------------

typedef struct AddedToken {
    char *content;
    size_t length;
    uint32_t id;
    bool single_word, strip_left, strip_right, normalized, special;
} AddedToken;

typedef struct AddedNode {   // of a trie, children as a linked list
    uint32_t child, sibling; // 0: none
    int32_t token;           // that ends here, or -1
    uint8_t byte;
} AddedNode;

typedef struct AddedMatcher { // finds the leftmost token, and the longest of those
    AddedNode *nodes;         // nodes[0] is the root
    size_t count, capacity;
    int first_bytes; // number of bytes that a token can start with
    uint8_t only_first;
    bool first[256];
} AddedMatcher;

void added_matcher_add(AddedMatcher *matcher, const uint8_t *text, size_t length, int32_t token);
void added_matcher_free(AddedMatcher *matcher);
// The next token at or after `at`; false when there is none.
bool added_matcher_find(const AddedMatcher *matcher, const uint8_t *at, const uint8_t *end, const uint8_t **begin,
                        const uint8_t **stop, int32_t *token);

// --- the tokenizer --------------------------------------------------------------------------------------------------

#define FORMS_MOST 8

struct Tokenizer {
    char *name;
    uint64_t hash;
    bool raw_bytes; // the built-in tokenizer of plain bytes
    Bpe bpe;
    UnicodeForm forms[FORMS_MOST]; // normalisers, in order
    int form_count;
    Stage stages[STAGES_MOST];
    int stage_count;
    bool has_byte_level; // one of the pre-tokenizers was ByteLevel
    bool byte_chars;     // a stage turns bytes into characters, and the model's pieces must be turned back
    AddedToken *added;
    size_t added_count;
    AddedMatcher raw, normalized; // tokens looked for before and after normalisation
    TokenIds before, after;       // ids of the template around the text
    int64_t end_of_text;
};

struct TokenizerState {
    const Tokenizer *tokenizer;
    BpeState bpe;
    SplitMatcher *matcher;
    UnicodeScratch scratch;
    TextBuffer repaired, forms[2], prefixed, mapped, unmapped;
    const uint8_t *limit; // end of the memory that the pieces at hand lie in
    TokenIds *out;
};

// Reads the "pre_tokenizer" (tokenizer_stages.c).
Status tokenizer_load_stages(Tokenizer *tokenizer, const json_t *pre_tokenizer, const char *where);
void tokenizer_free_stages(Tokenizer *tokenizer);
// Cuts [begin, end) by the stages from `stage` on and encodes the pieces (tokenizer_stages_run.c).
Status tokenizer_run_stages(TokenizerState *state, int stage, const uint8_t *begin, const uint8_t *end);
