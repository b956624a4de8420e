// What is written to runs while clients watch them, as a stream of server-sent events. One thread looks at the files,
// however many clients there are, and only at those of runs that somebody watches.
//
//   event: lines   id: where it ends in metrics.jsonl; data: a list of its lines, figures that have a curve. Of a run
//                  that writes faster than anybody could see, some steps are left out.
//   event: alarm   data: a line of alarms.jsonl, and "at": where it ends
//   event: log     data: {"at": where it ends in log.txt, "text": lines}
//   event: state   data: {"state": "running"}
//   event: reset   what the client has does not go on: it reads the whole again
//   event: gone    the run is no longer there
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct Live Live;
typedef struct LiveReader LiveReader;

// Both are called under the lock of the streams: `sleep` from within live_read, `wake` from the thread that looks.
typedef struct LiveClients {
    void (*sleep)(void *client);
    void (*wake)(void *client);
} LiveClients;

enum { LIVE_LINES_AT_ONCE = 32 };

Live *live_start(const LiveClients *clients);
void live_end(Live *live);   // every reader comes to its end; sleeping ones are woken
void live_close(Live *live); // when no reader is left

// Of the run in `path`, from this offset of metrics.jsonl on.
LiveReader *live_open(Live *live, const char *path, int64_t from, void *client);
// Bytes of the stream; 0: none yet, and the client was put to sleep; -1: there will be none.
ssize_t live_read(LiveReader *reader, char *out, size_t room);
void live_reader_close(LiveReader *reader);

// The last lines of a file, at most so many bytes (malloc'd, valid UTF-8), and where they end.
char *live_tail(const char *path, size_t most, int64_t *end);
