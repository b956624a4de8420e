// File helpers on a temporary folder: contents, replacement, errors, directories, paths.
#include "testing.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/hearth-file-XXXXXX";
static char last_path[4096];

static const char *in_folder(const char *name) {
    snprintf(last_path, sizeof last_path, "%s/%s", folder, name);
    return last_path;
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    assert_ok(dir_remove(folder));
    return file_exists(folder) ? -1 : 0;
}

static void what_is_written_is_read_back(void **state) {
    (void)state;
    const char *path = in_folder("data.bin");
    char content[200000];
    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (char)(i * 31);
    assert_ok(file_write_atomic(path, content, sizeof content));
    char *read;
    size_t size;
    assert_ok(file_read(&read, &size, path));
    assert_int_equal(size, sizeof content);
    assert_memory_equal(read, content, size);
    assert_int_equal(read[size], 0);
    free(read);
    FileMap map;
    assert_ok(file_map(&map, path));
    assert_int_equal(map.size, sizeof content);
    assert_memory_equal(map.data, content, map.size);
    file_unmap(&map);
    assert_null(map.data);
    int64_t bytes;
    assert_ok(file_size(&bytes, path));
    assert_int_equal(bytes, sizeof content);
}

static void an_empty_file_reads_as_nothing(void **state) {
    (void)state;
    const char *path = in_folder("empty");
    assert_ok(file_write_atomic(path, "", 0));
    char *read;
    size_t size;
    assert_ok(file_read(&read, &size, path));
    assert_int_equal(size, 0);
    assert_string_equal(read, "");
    free(read);
    FileMap map;
    assert_ok(file_map(&map, path));
    assert_null(map.data);
    assert_int_equal(map.size, 0);
    file_unmap(&map);
}

static void replacing_leaves_old_readers_the_old_file(void **state) {
    (void)state;
    const char *path = in_folder("replaced");
    assert_ok(file_write_atomic(path, "old", 3));
    FileMap map;
    assert_ok(file_map(&map, path));
    assert_ok(file_write_atomic(path, "new content", 11));
    assert_memory_equal(map.data, "old", 3);
    file_unmap(&map);
    char *read;
    size_t size;
    assert_ok(file_read(&read, &size, path));
    assert_string_equal(read, "new content");
    free(read);
}

static void a_failed_replacement_leaves_the_target_and_no_litter(void **state) {
    (void)state;
    assert_ok(dir_make(in_folder("target/inner"))); // a directory that is not empty cannot be renamed over
    char **names;
    size_t before, after;
    assert_ok(dir_list(&names, &before, folder));
    names_free(names, before);
    assert_error(file_write_atomic(in_folder("target"), "x", 1), "cannot rename");
    assert_true(file_is_directory(in_folder("target/inner")));
    assert_ok(dir_list(&names, &after, folder));
    names_free(names, after);
    assert_int_equal(before, after);
}

static void a_full_disk_is_told(void **state) {
    (void)state;
    int fd = open("/dev/full", O_WRONLY);
    if (fd < 0) {
        printf("SKIPPED: no /dev/full here\n");
        skip();
    }
    assert_error(file_write_all(fd, "x", 1, "/dev/full"), "cannot write /dev/full: No space left on device");
    close(fd);
}

static void what_is_missing_is_named_and_a_usage_error(void **state) {
    (void)state;
    char *read;
    size_t size;
    FileMap map;
    int64_t bytes;
    char **names;
    Status status = file_read(&read, &size, "/no/such/file");
    assert_string_equal(status_text(status), "no such file or directory: /no/such/file");
    assert_int_equal(status_code(status), STATUS_USAGE);
    status_free(status);
    assert_null(read);
    assert_error(file_map(&map, "/no/such/file"), "no such file or directory: /no/such/file");
    assert_error(file_size(&bytes, "/no/such/file"), "no such file or directory: /no/such/file");
    assert_error(dir_list(&names, &size, "/no/such/dir"), "no such file or directory: /no/such/dir");
    assert_error(file_write_atomic("/no/such/dir/file", "x", 1), "cannot create /no/such/dir/file");
    assert_error(file_sync("/no/such/file"), "no such file");
    assert_error(disk_free_bytes(&bytes, "/no/such/dir"), "/no/such/dir: No such file");
}

static void a_directory_is_not_a_file(void **state) {
    (void)state;
    char *read;
    size_t size;
    FileMap map;
    assert_error(file_map(&map, folder), "not a regular file");
    assert_error(file_read(&read, &size, folder), "Is a directory");
    assert_true(file_is_directory(folder));
    assert_true(file_exists(folder));
    assert_ok(file_write_atomic(in_folder("plain"), "x", 1));
    assert_false(file_is_directory(in_folder("plain")));
}

static void directories_are_made_with_their_parents(void **state) {
    (void)state;
    assert_ok(dir_make(in_folder("a/b//c/")));
    assert_true(file_is_directory(in_folder("a/b/c")));
    assert_ok(dir_make(in_folder("a/b/c"))); // again is fine
    assert_ok(dir_make("/"));
    assert_ok(dir_make("."));
    assert_error(dir_make(""), "empty");
    assert_ok(file_write_atomic(in_folder("a/file"), "x", 1));
    assert_error(dir_make(in_folder("a/file")), "cannot create directory");
    assert_error(dir_make(in_folder("a/file/below")), "a/file: File exists");
}

static void a_listing_is_sorted_and_complete(void **state) {
    (void)state;
    assert_ok(dir_make(in_folder("list/sub")));
    assert_ok(file_write_atomic(in_folder("list/b"), "", 0));
    assert_ok(file_write_atomic(in_folder("list/.hidden"), "", 0));
    assert_ok(file_write_atomic(in_folder("list/a"), "", 0));
    char **names;
    size_t count;
    assert_ok(dir_list(&names, &count, in_folder("list")));
    assert_int_equal(count, 4);
    assert_string_equal(names[0], ".hidden");
    assert_string_equal(names[1], "a");
    assert_string_equal(names[2], "b");
    assert_string_equal(names[3], "sub");
    names_free(names, count);
}

static void removal_takes_the_tree_but_not_what_links_point_at(void **state) {
    (void)state;
    assert_ok(dir_make(in_folder("kept")));
    assert_ok(file_write_atomic(in_folder("kept/file"), "x", 1));
    assert_ok(dir_make(in_folder("gone/deep/deeper")));
    assert_ok(file_write_atomic(in_folder("gone/deep/file"), "x", 1));
    char *target = text_copy(in_folder("kept"));
    assert_int_equal(symlink(target, in_folder("gone/link")), 0);
    free(target);
    assert_ok(dir_remove(in_folder("gone")));
    assert_false(file_exists(in_folder("gone")));
    assert_true(file_exists(in_folder("kept/file")));
    assert_ok(dir_remove(in_folder("gone"))); // a missing one is fine
}

static void paths_are_joined_and_split(void **state) {
    (void)state;
    static const struct {
        const char *directory, *name, *joined;
    } joins[] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}, {"a", "/b", "/b"}, {"a", "", "a/"},
    };
    for (size_t i = 0; i < sizeof joins / sizeof joins[0]; i++) {
        char *joined = path_join(joins[i].directory, joins[i].name);
        assert_string_equal(joined, joins[i].joined);
        free(joined);
    }
    static const struct {
        const char *path, *directory, *name;
    } splits[] = {{"a/b/c", "a/b", "c"}, {"c", ".", "c"}, {"/c", "/", "c"},
                  {"", ".", ""},         {"a/", "a", ""}, {"/", "/", ""}};
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        char *directory = path_directory(splits[i].path);
        assert_string_equal(directory, splits[i].directory);
        assert_string_equal(path_name(splits[i].path), splits[i].name);
        free(directory);
    }
}

static void what_lies_within_a_folder_is_told_by_whole_names(void **state) {
    (void)state;
    assert_true(path_is_within("/a/b", "/a") && path_is_within("/a", "/a") && path_is_within("/a/b/c", "/a"));
    assert_false(path_is_within("/ab", "/a") || path_is_within("/b/a", "/a") || path_is_within("/", "/a"));
    assert_true(path_is_within("/", "/") && path_is_within("/a", "/") && path_is_within("/a/b", "/"));
}

static void free_space_is_a_positive_number(void **state) {
    (void)state;
    int64_t bytes = -1;
    assert_ok(disk_free_bytes(&bytes, folder));
    assert_true(bytes > 0);
}

static void test_leftovers_of_a_killed_writer_go(void **state) {
    (void)state;
    char directory[] = "/tmp/hearth-leftovers-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char *path = path_join(directory, "a.json"), *leftover = path_join(directory, "a.json.tmp-123-0");
    char *other = path_join(directory, "b.json.tmp-123-0");
    assert_ok(file_write_atomic(path, "x", 1));
    assert_ok(file_write_atomic(leftover, "x", 1));
    assert_ok(file_write_atomic(other, "x", 1));
    file_remove_leftovers(path);
    assert_true(file_exists(path) && file_exists(other));
    assert_false(file_exists(leftover));
    assert_ok(dir_remove(directory));
    free(path);
    free(leftover);
    free(other);
}

static void test_a_lock_has_one_holder(void **state) {
    (void)state;
    char path[] = "/tmp/hearth-lock-XXXXXX";
    int made = mkstemp(path), first, second;
    assert_true(made >= 0);
    assert_ok(file_lock(&first, path, "the run"));
    assert_error(file_lock(&second, path, "the run"), "the run is in use by another process");
    assert_int_equal(second, -1);
    file_unlock(&first);
    assert_ok(file_lock(&second, path, "the run"));
    file_unlock(&second);
    close(made);
    assert_int_equal(remove(path), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leftovers_of_a_killed_writer_go),
        cmocka_unit_test(test_a_lock_has_one_holder),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(an_empty_file_reads_as_nothing),
        cmocka_unit_test(replacing_leaves_old_readers_the_old_file),
        cmocka_unit_test(a_failed_replacement_leaves_the_target_and_no_litter),
        cmocka_unit_test(a_full_disk_is_told),
        cmocka_unit_test(what_is_missing_is_named_and_a_usage_error),
        cmocka_unit_test(a_directory_is_not_a_file),
        cmocka_unit_test(directories_are_made_with_their_parents),
        cmocka_unit_test(a_listing_is_sorted_and_complete),
        cmocka_unit_test(removal_takes_the_tree_but_not_what_links_point_at),
        cmocka_unit_test(paths_are_joined_and_split),
        cmocka_unit_test(what_lies_within_a_folder_is_told_by_whole_names),
        cmocka_unit_test(free_space_is_a_positive_number),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
