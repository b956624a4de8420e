// Files in memory for code that takes paths: everything below /mem/. The linker puts the functions of fuzz_files.c in
// the place of the system's (--wrap, see `run`), so that an execution makes no system call. Each file is an allocation
// of its exact size, also when it is mapped: ASan sees the first byte read behind its end, which a page would hide.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);

void fuzz_files_clear(void); // all but the fixed ones; at the end of each execution, or its files count as leaks
// Copies the bytes into a new file, or in the place of an old one; returns the path.
const char *fuzz_file_put(const char *path, const void *data, size_t size);
void fuzz_files_fix(void); // those that are there now stay
const void *fuzz_file_get(const char *path, size_t *size);

// The only file of an execution.
static inline const char *fuzz_file(const uint8_t *data, size_t size) {
    return fuzz_file_put("/mem/input", data, size);
}

// What pthread_create does: start a thread; run it to its end before it returns; fail.
typedef enum FuzzThreads { FUZZ_THREADS_REAL, FUZZ_THREADS_INLINE, FUZZ_THREADS_NONE } FuzzThreads;
extern FuzzThreads fuzz_threads;
