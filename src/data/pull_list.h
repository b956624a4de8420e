// The files of a hub repository.
#pragma once

#include "data/pull_http.h"

typedef struct RemoteFile {
    char *path;  // inside the repository; relative, without ".."
    char *shown; // the same as a terminal may show it
    int64_t size;
    char sha256[65]; // "" when the hub does not state it
} RemoteFile;

typedef struct RemoteList {
    RemoteFile *files;
    size_t count;
} RemoteList;

// Files below `path` (NULL: all) whose whole path matches the glob `include`, sorted by path.
Status remote_list(RemoteList *list, Http *http, const char *endpoint, const char *repo, bool model,
                   const char *revision, const char *path, const char *include);
void remote_list_free(RemoteList *list);
// Of the file itself. model: the repository is a model's, not a dataset's.
char *remote_url(const char *endpoint, const char *repo, bool model, const char *revision, const char *path);
