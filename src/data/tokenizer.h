// Tokenizer: text to token ids and back. Byte-level BPE as in a Hugging Face tokenizer.json, id for id like HF
// tokenizers; and a built-in tokenizer of plain bytes (ids 0..255, 256 = end of text) that needs no file.
#pragma once

#include "base/status.h"
#include "data/token_ids.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKENIZER_END_OF_TEXT "<|endoftext|>" // of the tokenizers that hearth makes itself

typedef struct Tokenizer Tokenizer; // read-only after loading: any number of threads may encode with their own state
typedef struct TokenizerState TokenizerState; // one thread's cache and scratch

enum {
    TOKENIZER_ADD_SPECIAL = 1,   // apply the template (BOS/EOS) of the tokenizer.json
    TOKENIZER_MATCH_SPECIAL = 2, // added/special tokens written inside the text become their ids (HF's default)
};

// path: a tokenizer.json, a directory that holds one, or "bytes" for the built-in byte tokenizer.
Status tokenizer_load(Tokenizer **tokenizer, const char *path);
Status tokenizer_load_text(Tokenizer **tokenizer, const char *json, size_t length, const char *name);
void tokenizer_free(Tokenizer *tokenizer);
// Copies the file of `path` (as for tokenizer_load) into a directory as tokenizer.json; "bytes" has none.
Status tokenizer_copy_file(const char *path, const char *directory);

int64_t tokenizer_vocab_size(const Tokenizer *tokenizer);  // largest id + 1, added tokens included
int64_t tokenizer_end_of_text(const Tokenizer *tokenizer); // id that ends a document, or -1
uint64_t tokenizer_hash(const Tokenizer *tokenizer);       // of the file's bytes; of its name for "bytes"
const char *tokenizer_name(const Tokenizer *tokenizer);    // the path it was loaded from, or "bytes"

TokenizerState *tokenizer_state_new(const Tokenizer *tokenizer);
void tokenizer_state_free(TokenizerState *state);

// Appends the ids of text to out (grown with realloc; free(out->ids)). HF tokenizers takes text that is Unicode
// already; bytes that are not UTF-8 count as U+FFFD here, one for each broken part, as Python's errors="replace" has
// it. The built-in byte tokenizer takes any bytes as they are.
Status tokenizer_encode(TokenizerState *state, const char *text, size_t length, unsigned flags, TokenIds *out);
// Bytes of the ids, malloc'd and NUL-terminated beyond *length; they need not be whole characters, and text that was
// normalised comes back normalised. An id outside the vocabulary is an error.
Status tokenizer_decode(const Tokenizer *tokenizer, const uint32_t *ids, size_t count, bool skip_special, char **text,
                        size_t *length);
// The raw bytes of one token (not NUL-terminated), for streaming output; NULL for an unknown id.
const char *tokenizer_token_bytes(const Tokenizer *tokenizer, uint32_t id, size_t *length);
