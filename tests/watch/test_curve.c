// The loss curve of the terminal, where there are more steps than columns.
#include "testing.h"

#include "watch/progress.h"

// Ten steps in five columns: means of 8, 4, 2, 1 and 1 on four rows that are a factor of two apart.
static void a_column_is_the_mean_of_its_steps(void **state) {
    (void)state;
    const double losses[10] = {9, 7, 5, 3, 2, 2, 1.5, 0.5, 1, 1};
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    progress_curve(file, losses, 10, 5, 4);
    fclose(file);
    assert_string_equal(text, "   8.000 |*    \n"
                              "   4.000 | *   \n"
                              "   2.000 |  *  \n"
                              "   1.000 |   **\n"
                              "         +-----\n"
                              "          1  10 steps\n");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_column_is_the_mean_of_its_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
