// OpenBLAS, loaded when the first CPU table is made and not before: it starts threads and takes memory as it is loaded,
// and where there is too little of that it does not fail but try for ever. No command that computes no product has it.
#include "ops/cpu/cpu.h"

#include "base/text.h"

#ifdef HEARTH_HAVE_BLAS

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BLAS_SONAME       "libopenblas.so.0"
#define BLAS_THREAD_BYTES ((size_t)129 << 20) // what OpenBLAS 0.3 maps for a thread at its first product, and a bit

CblasSgemm *cpu_blas_sgemm;
static _Atomic(void *) blas_reserved; // address space for its buffers, kept free until the first product
static size_t blas_reserved_bytes;
static pthread_mutex_t blas_lock = PTHREAD_MUTEX_INITIALIZER;

static Status blas_load(void) {
    const char *threads = getenv("OPENBLAS_NUM_THREADS");
    char *before = threads ? text_copy(threads) : NULL;
    setenv("OPENBLAS_NUM_THREADS", "1", 1); // read as it is loaded; hearth's own threads each call it
    void *library = dlopen(HEARTH_BLAS_PATH, RTLD_NOW | RTLD_LOCAL);
    if (!library) library = dlopen(BLAS_SONAME, RTLD_NOW | RTLD_LOCAL);
    if (before)
        setenv("OPENBLAS_NUM_THREADS", before, 1);
    else
        unsetenv("OPENBLAS_NUM_THREADS");
    free(before);
    cpu_blas_sgemm = library ? (CblasSgemm *)dlsym(library, "cblas_sgemm") : NULL;
    if (cpu_blas_sgemm) return NULL;
    return status_hint(status_runtime("OpenBLAS cannot be loaded: %s", dlerror()),
                       "install libopenblas0, or build hearth with -DHEARTH_BLAS=OFF");
}

static Status blas_reserve(void) {
    blas_reserved_bytes = (size_t)threads_count() * BLAS_THREAD_BYTES;
    void *space = mmap(NULL, blas_reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return status_hint(status_errno("there is no memory for OpenBLAS, which takes %zu MiB for %d threads",
                                        blas_reserved_bytes >> 20, threads_count()),
                           "fewer threads (train.threads, HEARTH_THREADS), or a higher limit (ulimit -v)");
    atomic_store(&blas_reserved, space);
    return NULL;
}

Status cpu_blas_start(void) {
    pthread_mutex_lock(&blas_lock);
    Status status = cpu_blas_sgemm ? NULL : blas_reserve();
    if (!status && !cpu_blas_sgemm) status = blas_load();
    pthread_mutex_unlock(&blas_lock);
    return status;
}

void cpu_blas_release(void) {
    if (__builtin_expect(!atomic_load_explicit(&blas_reserved, memory_order_relaxed), 1)) return;
    void *space = atomic_exchange(&blas_reserved, NULL);
    if (space) munmap(space, blas_reserved_bytes);
}

#endif
