// What a process that was killed left beside its work: entries whose name ends in the number of their process, such as
// "config.json.tmp-4711-0" of file_write_atomic.
#pragma once

// Removes the entries of a directory whose name is anything, `mark` and the number of a process that runs no more on
// this machine. What cannot be removed stays: nothing reads it.
void leftovers_remove(const char *directory, const char *mark);
