// Lines are only ever appended, the last of a key counts, and whatever does not look like such a line is passed over,
// so that a torn or foreign file costs a measurement and nothing else.
#include "ops/tune.h"

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct TuneEntry {
    char *key, *value; // value NULL: asked for in vain
} TuneEntry;

struct TuneFile {
    char *path, *gpu_name;
    TuneEntry *entries;
    size_t count, capacity;
    bool write_failed, held;
};

static void entry_set(TuneFile *tune, const char *key, size_t key_length, const char *value, size_t value_length) {
    for (size_t i = 0; i < tune->count; i++) {
        TuneEntry *entry = &tune->entries[i];
        if (strlen(entry->key) != key_length || memcmp(entry->key, key, key_length) != 0) continue;
        free(entry->value);
        entry->value = value ? text_copy_n(value, value_length) : NULL;
        return;
    }
    if (tune->count == tune->capacity) {
        tune->capacity = tune->capacity ? 2 * tune->capacity : 64;
        tune->entries = xrealloc(tune->entries, tune->capacity * sizeof *tune->entries);
    }
    tune->entries[tune->count++] =
        (TuneEntry){text_copy_n(key, key_length), value ? text_copy_n(value, value_length) : NULL};
}

static void lines_read(TuneFile *tune, const char *data, size_t size) {
    size_t name_length = strlen(tune->gpu_name);
    for (const char *line = data, *end = data + size; line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) break; // no newline: the writer was interrupted
        const char *key = memchr(line, '\t', (size_t)(stop - line));
        const char *value = key ? memchr(key + 1, '\t', (size_t)(stop - key - 1)) : NULL;
        if (value && (size_t)(key - line) == name_length && memcmp(line, tune->gpu_name, name_length) == 0)
            entry_set(tune, key + 1, (size_t)(value - key - 1), value + 1, (size_t)(stop - value - 1));
        line = stop + 1;
    }
}

TuneFile *tune_open(const char *path, const char *gpu_name) {
    TuneFile *tune = xcalloc(1, sizeof *tune);
    tune->gpu_name = text_copy(gpu_name);
    if (!path) return tune;
    tune->path = text_copy(path);
    char *data = NULL;
    size_t size = 0;
    if (!file_exists(path)) return tune;
    Status status = file_read(&data, &size, path);
    if (status) {
        log_warn("the tuning cache is not used: %s", status_message(status));
        status_free(status);
        return tune;
    }
    lines_read(tune, data, size);
    free(data);
    return tune;
}

const char *tune_get(TuneFile *tune, const char *key) {
    for (size_t i = 0; i < tune->count; i++)
        if (strcmp(tune->entries[i].key, key) == 0) return tune->entries[i].value;
    entry_set(tune, key, strlen(key), NULL, 0);
    return NULL;
}

void tune_put(TuneFile *tune, const char *key, const char *value) {
    entry_set(tune, key, strlen(key), value, strlen(value));
    if (!tune->path || tune->write_failed) return;
    FILE *file = fopen(tune->path, "a");
    if (file) {
        fprintf(file, "%s\t%s\t%s\n", tune->gpu_name, key, value); // one buffered line: one write
        if (fclose(file) == 0) return;
    }
    log_warn("the tuning cache %s cannot be written: %s", tune->path, strerror(errno));
    tune->write_failed = true;
}

char *tune_text(const TuneFile *tune) {
    TextBuffer text = {0};
    text_buffer_format(&text, "%s", "");
    for (size_t i = 0; i < tune->count; i++) {
        const TuneEntry *entry = &tune->entries[i];
        if (entry->value) text_buffer_format(&text, "%s\t%s\t%s\n", tune->gpu_name, entry->key, entry->value);
    }
    return text.data;
}

void tune_take(TuneFile *tune, const char *text) {
    lines_read(tune, text, strlen(text));
}

int tune_known(const TuneFile *tune) {
    return (int)tune->count - tune_missing(tune);
}

int tune_missing(const TuneFile *tune) {
    int missing = 0;
    for (size_t i = 0; i < tune->count; i++)
        missing += !tune->entries[i].value;
    return missing;
}

void tune_hold(TuneFile *tune, bool held) {
    tune->held = held;
}

bool tune_held(const TuneFile *tune) {
    return tune->held;
}

void tune_clear(TuneFile *tune) {
    for (size_t i = 0; i < tune->count; i++) {
        free(tune->entries[i].key);
        free(tune->entries[i].value);
    }
    tune->count = 0;
}

void tune_close(TuneFile *tune) {
    if (!tune) return;
    tune_clear(tune);
    free(tune->entries);
    free(tune->gpu_name);
    free(tune->path);
    free(tune);
}
