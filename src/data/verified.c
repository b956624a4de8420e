#include "data/verified.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *verified_path(const Shard *shard) {
    char *directory = path_directory(shard->path), *path = path_join(directory, VERIFIED_FILE);
    free(directory);
    return path;
}

// Between two line ends, so that no line is found inside of another. The time is that of any change, of content or
// name or owner: unlike that of the content alone it cannot be set back.
static char *verified_line(const Shard *shard) {
    struct stat info;
    if (stat(shard->path, &info)) return NULL;
    return text_format("\n%s %lld %llu %lld.%09ld %016llx\n", path_name(shard->path), (long long)info.st_size,
                       (unsigned long long)info.st_ino, (long long)info.st_ctim.tv_sec, info.st_ctim.tv_nsec,
                       (unsigned long long)shard->header->header_checksum);
}

bool verified_find(const Shard *shard) {
    char *path = verified_path(shard), *line = verified_line(shard), *text = NULL;
    size_t size;
    Status status = file_exists(path) ? file_read(&text, &size, path) : NULL;
    bool found = text && line && strstr(text, line);
    status_free(status);
    free(text);
    free(line);
    free(path);
    return found;
}

void verified_add(const Shard *shard) {
    char *path = verified_path(shard), *line = verified_line(shard);
    if (line && !verified_find(shard)) status_free(file_append(path, line, strlen(line)));
    free(line);
    free(path);
}
