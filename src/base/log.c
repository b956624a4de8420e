// Log lines: filtered by level and rank, made whole before they are written.
#include "base/log.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const level_name[] = {"debug", "info", "warn", "error"};
static atomic_int log_level = -1; // -1: not set yet, read HEARTH_LOG at the first line
static int log_own_rank, log_world_size = 1;

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

void log_write(LogLevel level, const char *format, ...) {
    if (log_level < 0) log_level = level_from_environment();
    if ((int)level < log_level || (log_own_rank != 0 && level < LOG_WARN)) return;
    char line[2048], rank[32] = "";
    if (log_world_size > 1) snprintf(rank, sizeof rank, " [rank %d]", log_own_rank);
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    int n = snprintf(line, sizeof line, "%02d:%02d:%02d %s%s ", local.tm_hour, local.tm_min, local.tm_sec,
                     level_name[level], rank);
    va_list args;
    va_start(args, format);
    vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    text_mask_controls(line);
    fprintf(stderr, "%s\n", line); // one call, so that lines of several threads do not mix
}
