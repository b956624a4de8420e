#include "base/memory_info.h"
#include "testing.h"

#include <unistd.h>

static void the_total_is_what_the_pages_sum_up_to(void **unused) {
    (void)unused;
    assert_int_equal(memory_total_bytes(), (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
}

static void available_memory_is_a_part_of_the_total(void **unused) {
    (void)unused;
    int64_t available = memory_available_bytes();
    assert_true(available > 0);
    assert_true(available < memory_total_bytes()); // this program alone takes some
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_total_is_what_the_pages_sum_up_to),
        cmocka_unit_test(available_memory_is_a_part_of_the_total),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
