#include "base/leftovers.h"

#include "base/file.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static bool is_abandoned(const char *name, const char *mark) {
    const char *last = NULL;
    for (const char *at = strstr(name, mark); at; at = strstr(at + 1, mark))
        last = at;
    if (!last) return false;
    const char *number = last + strlen(mark);
    size_t digits = strspn(number, "0123456789");
    const char *rest = number + digits; // file_write_atomic counts its files behind it
    if (rest[0] == '-' && rest[1]) rest += 1 + strspn(rest + 1, "0123456789");
    if (digits == 0 || digits > 9 || *rest) return false;
    return kill((pid_t)strtol(number, NULL, 10), 0) != 0 && errno == ESRCH;
}

void leftovers_remove(const char *directory, const char *mark) {
    char **names;
    size_t count;
    Status status = dir_list(&names, &count, directory);
    for (size_t i = 0; !status && i < count; i++) {
        if (!is_abandoned(names[i], mark)) continue;
        char *path = path_join(directory, names[i]);
        status_free(dir_remove(path)); // a file as well as a folder
        free(path);
    }
    if (!status) names_free(names, count);
    status_free(status);
}
