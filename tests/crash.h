// What a crash of the machine may leave of a directory: the calls that an operation makes are recorded, and after every
// one of them the states are made up that a file system may come back with.
//
// What was synced is there. What was not may be there or not: each change of a name (create, rename, remove) until the
// directory is synced (for a rename, that of the new name), each content until the file is; a content that is not may
// be the one synced last, whole, cut in half, all zeros at its full length, or zeros but for what was written last.
#pragma once

#include "testing.h"

typedef struct Crash Crash;

// Takes all that lies in `root` for synced, and records calls below it until crash_stop. Nothing is really synced.
Crash *crash_record(const char *root);
// Fails the test when what was recorded does not lead to what is there: then a call went past the layer.
void crash_stop(Crash *crash);

// Makes each different state in `directory` and calls check(); `when` says what it is, `ended` whether the operation
// had returned, so that its result must be there. Returns how many there were.
typedef void CrashCheck(void *context, const char *directory, const char *when, bool ended);
int crash_replay(Crash *crash, const char *directory, CrashCheck *check, void *context);
void crash_free(Crash *crash);
