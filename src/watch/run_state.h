// state.json of a run directory: how far the last process of a run came. What it says of a process that is gone without
// a word is found out by the lock, which such a process no longer holds.
#pragma once

#include "base/json.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum RunState { RUN_RUNNING, RUN_FINISHED, RUN_STOPPED, RUN_FAILED } RunState;

const char *run_state_name(RunState state); // "running"
// message: why it failed; NULL: nothing to say.
Status run_state_write(const char *directory, RunState state, int64_t step, const char *message);
// Of a directory whose last process was killed, or of a version that wrote no state.json: stopped, or finished where
// plan.json's steps are done by `last_step`. *message is malloc'd, or NULL.
RunState run_state_read(const char *directory, int64_t last_step, char **message);
bool run_is_locked(const char *directory); // a process is at work in it

json_t *run_file_json(const char *directory, const char *name); // NULL: not there, or not to be read
