// Log lines on stderr: "12:34:56 warn [rank 3] text". Rank 0 speaks at every level, other ranks only from LOG_WARN up;
// a file of its own has all lines of a rank.
#pragma once

#include "base/status.h"

typedef enum LogLevel { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } LogLevel;

void log_set_level(LogLevel level); // default LOG_INFO, or HEARTH_LOG=debug|info|warn|error
void log_set_rank(int rank, int world_size);
int log_rank(void);
// From now on the lines go to this file too, behind what it has; NULL: no longer.
Status log_set_file(const char *path);
void log_write(LogLevel level, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Into the file alone, where there is one.
void log_file(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
