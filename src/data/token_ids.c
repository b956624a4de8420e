#include "data/token_ids.h"

#include "base/text.h"

#include <string.h>

void token_ids_reserve(TokenIds *list, size_t more) {
    if (list->capacity - list->count >= more) return;
    list->capacity = list->count + more + list->capacity / 2 + 256;
    list->ids = xrealloc(list->ids, list->capacity * sizeof *list->ids);
}

void token_ids_add(TokenIds *list, const uint32_t *ids, size_t count) {
    if (!count) return;
    token_ids_reserve(list, count);
    memcpy(list->ids + list->count, ids, count * sizeof *ids);
    list->count += count;
}
