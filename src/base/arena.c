// Arenas: a chain of zeroed blocks, the newest in front; an allocation larger than a block gets one of its own.
#include "base/arena.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

struct ArenaBlock {
    ArenaBlock *next;
    size_t used, size;
    _Alignas(16) char data[];
};

enum { ARENA_BLOCK_BYTES = 64 * 1024 };

void *arena_alloc(Arena *arena, size_t bytes) {
    bytes = (bytes + 15) & ~(size_t)15;
    ArenaBlock *block = arena->blocks;
    if (!block || block->size - block->used < bytes) {
        size_t size = bytes > ARENA_BLOCK_BYTES ? bytes : ARENA_BLOCK_BYTES;
        block = xcalloc(1, sizeof *block + size);
        block->size = size;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    void *memory = block->data + block->used;
    block->used += bytes;
    return memory;
}

char *arena_copy(Arena *arena, const char *text, size_t length) {
    char *copy = arena_alloc(arena, length + 1);
    memcpy(copy, text, length);
    return copy;
}

void arena_free(Arena *arena) {
    for (ArenaBlock *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    arena->blocks = NULL;
}
