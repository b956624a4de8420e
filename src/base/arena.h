// Arena: many small host objects with one lifetime. Memory is zeroed and aligned to 16 bytes.
#pragma once

#include <stddef.h>

typedef struct ArenaBlock ArenaBlock;
typedef struct Arena {
    ArenaBlock *blocks;
} Arena; // {0} is an empty arena

void *arena_alloc(Arena *arena, size_t bytes);
char *arena_copy(Arena *arena, const char *text, size_t length); // NUL-terminated copy
void arena_free(Arena *arena);                                   // frees everything; the arena can be used again
