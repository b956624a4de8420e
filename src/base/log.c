// Log lines: filtered by level and rank, made whole before they are written.
#include "base/log.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const level_name[] = {"debug", "info", "warn", "error"};
static atomic_int log_level = -1; // -1: not set yet, read HEARTH_LOG at the first line
static int log_own_rank, log_world_size = 1;
static FILE *log_own_file;

void log_set_level(LogLevel level) {
    log_level = (int)level;
}

void log_set_rank(int rank, int world_size) {
    log_own_rank = rank;
    log_world_size = world_size;
}

int log_rank(void) {
    return log_own_rank;
}

static int level_from_environment(void) {
    const char *wanted = getenv("HEARTH_LOG");
    for (int i = LOG_DEBUG; wanted && i <= LOG_ERROR; i++)
        if (strcmp(wanted, level_name[i]) == 0) return i;
    return LOG_INFO;
}

Status log_set_file(const char *path) {
    if (log_own_file) fclose(log_own_file);
    log_own_file = path ? fopen(path, "ae") : NULL;
    if (!path) return NULL;
    if (!log_own_file) return status_errno("cannot write %s", path);
    setvbuf(log_own_file, NULL, _IOLBF, 0);
    return NULL;
}

// One call for each place, so that lines of several threads do not mix.
static void put_line(LogLevel level, bool terminal, const char *format, va_list args) {
    char line[2048], rank[32] = "";
    if (log_world_size > 1) snprintf(rank, sizeof rank, " [rank %d]", log_own_rank);
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    int n = snprintf(line, sizeof line, "%02d:%02d:%02d %s%s ", local.tm_hour, local.tm_min, local.tm_sec,
                     level_name[level], rank);
    vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    text_mask_controls(line);
    if (terminal) fprintf(stderr, "%s\n", line);
    if (log_own_file) fprintf(log_own_file, "%s\n", line);
}

void log_write(LogLevel level, const char *format, ...) {
    if (log_level < 0) log_level = level_from_environment();
    bool terminal = log_own_rank == 0 || level >= LOG_WARN;
    if ((int)level < log_level || (!terminal && !log_own_file)) return;
    va_list args;
    va_start(args, format);
    put_line(level, terminal, format, args);
    va_end(args);
}

void log_file(const char *format, ...) {
    if (!log_own_file) return;
    va_list args;
    va_start(args, format);
    put_line(LOG_INFO, false, format, args);
    va_end(args);
}
