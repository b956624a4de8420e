// Arenas: zeroed, aligned, separate, reusable.
#include "testing.h"

#include "base/arena.h"

static void memory_is_zeroed_and_aligned(void **state) {
    (void)state;
    Arena arena = {0};
    for (size_t bytes = 0; bytes < 300; bytes += 7) {
        char *memory = arena_alloc(&arena, bytes);
        assert_int_equal((uintptr_t)memory % 16, 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(memory[i], 0);
        memset(memory, 0xff, bytes); // must not show in what comes next
    }
    arena_free(&arena);
}

static void allocations_do_not_overlap(void **state) {
    (void)state;
    enum { COUNT = 20000 };
    Arena arena = {0};
    uint32_t **item = xmalloc(COUNT * sizeof *item);
    for (uint32_t i = 0; i < COUNT; i++) {
        item[i] = arena_alloc(&arena, sizeof **item * (1 + i % 9));
        for (uint32_t k = 0; k <= i % 9; k++)
            item[i][k] = i;
    }
    for (uint32_t i = 0; i < COUNT; i++)
        for (uint32_t k = 0; k <= i % 9; k++)
            assert_int_equal(item[i][k], i);
    free(item);
    arena_free(&arena);
}

static void one_allocation_may_exceed_a_block(void **state) {
    (void)state;
    Arena arena = {0};
    char *small = arena_alloc(&arena, 8), *large = arena_alloc(&arena, 3 << 20), *after = arena_alloc(&arena, 8);
    memset(large, 1, 3 << 20);
    assert_int_equal(small[0], 0);
    assert_int_equal(after[0], 0);
    arena_free(&arena);
}

static void copies_are_terminated(void **state) {
    (void)state;
    Arena arena = {0};
    assert_string_equal(arena_copy(&arena, "hearth and home", 6), "hearth");
    assert_string_equal(arena_copy(&arena, "", 0), "");
    arena_free(&arena);
}

static void a_freed_arena_can_be_used_again(void **state) {
    (void)state;
    Arena arena = {0};
    arena_free(&arena);
    arena_alloc(&arena, 100);
    arena_free(&arena);
    assert_null(arena.blocks);
    assert_non_null(arena_alloc(&arena, 100));
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed_and_aligned),      cmocka_unit_test(allocations_do_not_overlap),
        cmocka_unit_test(one_allocation_may_exceed_a_block), cmocka_unit_test(copies_are_terminated),
        cmocka_unit_test(a_freed_arena_can_be_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
