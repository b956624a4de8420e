#include "base/installed.h"

#include "base/file.h"
#include "base/text.h"

#include <stdlib.h>
#include <unistd.h>

char *installed_file(const char *name) {
    static const char *const places[] = {"../share/hearth", "..", ".", "../.."}; // from the program's folder
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return NULL;
    program[length] = '\0';
    char *folder = path_directory(program), *found = NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !found; i++) {
        found = text_format("%s/%s/%s", folder, places[i], name);
        if (file_exists(found)) break;
        free(found);
        found = NULL;
    }
    free(folder);
    return found;
}
