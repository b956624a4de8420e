// A growing list of token ids.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct TokenIds {
    uint32_t *ids;
    size_t count, capacity;
} TokenIds;

void token_ids_reserve(TokenIds *list, size_t more); // room for `more` behind what is there
void token_ids_add(TokenIds *list, const uint32_t *ids, size_t count);
