// A failing file layer: the n-th call of a kind fails, once or from then on. Calls of every thread count.
#pragma once

#include "testing.h"

#include "base/io.h"

enum { FAULT_SHORT = -1 }; // in the place of an errno: a write takes only half of its bytes

typedef struct Faults {
    IoKind kind;       // IO_KINDS: any call but reads and maps
    int number;        // the call that fails, from 1; 0: none
    int error;         // an errno or FAULT_SHORT
    bool lasting;      // those after it fail as well
    const char *where; // NULL, or a part of the paths whose calls count
    int count;         // told: calls so far
    bool fired;
    char path[4096]; // of the first call that failed
} Faults;

// Until faults_stop nothing is really synced, which makes thousands of tries a matter of seconds.
void faults_start(Faults *faults);
void faults_stop(void);
const char *fault_name(IoKind kind);
void fault_path(const IoCall *call, char *path,
                size_t size); // that a call is about, also when it has a descriptor only
int descriptors_open(void);
char *
memory_directory(void); // fresh, in memory where the system has such a place: thousands of files take no time there

// What is written to stderr in between: log lines. Nothing may fail a test there, or its message is caught too.
void stderr_catch(void);
char *stderr_caught(void); // malloc'd
