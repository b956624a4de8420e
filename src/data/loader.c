// The loader thread and its ring of buffers.
#include "data/loader.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/timeline.h"

#include <pthread.h>
#include <stdlib.h>

struct Loader {
    const Samples *samples;
    int micro_batch, rank, ranks;
    LoaderBatch *ring; // [depth]: batch m lives in ring[m % depth]
    int depth;
    uint64_t first_sample;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t filled, freed;
    uint64_t made, taken; // batches; the caller holds batch taken - 1
    bool stop;
    Status damage; // found in batch `made`, which is then the last
};

static Status micro_batch_fill(const Loader *loader, LoaderBatch *batch, uint64_t number) {
    int seq = loader->samples->seq;
    uint64_t micro = (uint64_t)loader->micro_batch;
    batch->first_sample = loader->first_sample + (number * (uint64_t)loader->ranks + (uint64_t)loader->rank) * micro;
    batch->valid = 0;
    for (int row = 0; row < loader->micro_batch; row++) {
        size_t at = (size_t)row * (size_t)seq;
        int valid;
        TRY(samples_read(loader->samples, batch->first_sample + (uint64_t)row, batch->ids + at, batch->targets + at,
                         batch->doc_start ? batch->doc_start + at : NULL, &valid));
        batch->valid += valid;
    }
    return NULL;
}

static void *loader_main(void *argument) {
    Loader *loader = argument;
    timeline_name_thread("loader");
    pthread_mutex_lock(&loader->lock);
    while (!loader->stop) {
        // One slot is the caller's: it may still read batch taken - 1.
        if (loader->made - loader->taken >= (uint64_t)loader->depth - 1) {
            pthread_cond_wait(&loader->freed, &loader->lock);
            continue;
        }
        uint64_t number = loader->made;
        pthread_mutex_unlock(&loader->lock);
        double begin = timeline_begin();
        Status damage = micro_batch_fill(loader, &loader->ring[number % (uint64_t)loader->depth], number);
        timeline_end(begin, "read a micro-batch", -1);
        pthread_mutex_lock(&loader->lock);
        loader->made += !damage;
        loader->damage = damage;
        pthread_cond_signal(&loader->filled);
        if (damage) break;
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

static void loader_free(Loader *loader) {
    for (int i = 0; i < loader->depth; i++) {
        free(loader->ring[i].ids);
        free(loader->ring[i].targets);
        free(loader->ring[i].doc_start);
    }
    free(loader->ring);
    status_free(loader->damage);
    pthread_mutex_destroy(&loader->lock);
    pthread_cond_destroy(&loader->filled);
    pthread_cond_destroy(&loader->freed);
    free(loader);
}

Status loader_start(Loader **out, const Samples *samples, int micro_batch, int rank, int ranks, int depth,
                    uint64_t first_sample) {
    *out = NULL;
    Loader *loader = xcalloc(1, sizeof *loader);
    *loader = (Loader){.samples = samples,
                       .micro_batch = micro_batch,
                       .rank = rank,
                       .ranks = ranks,
                       .depth = depth + 1,
                       .first_sample = first_sample};
    loader->ring = xcalloc((size_t)loader->depth, sizeof *loader->ring);
    size_t tokens = (size_t)micro_batch * (size_t)samples->seq;
    for (int i = 0; i < loader->depth; i++) {
        loader->ring[i].ids = xmalloc(tokens * sizeof(int32_t));
        loader->ring[i].targets = xmalloc(tokens * sizeof(int32_t));
        loader->ring[i].doc_start = samples->mask_documents ? xmalloc(tokens * sizeof(int32_t)) : NULL;
    }
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->filled, NULL);
    pthread_cond_init(&loader->freed, NULL);
    if (pthread_create(&loader->thread, NULL, loader_main, loader)) {
        loader_free(loader);
        return status_runtime("cannot start the loader's thread");
    }
    *out = loader;
    return NULL;
}

Status loader_next(Loader *loader, const LoaderBatch **batch, double *waited) {
    Status damage = NULL;
    double begin = timeline_begin();
    pthread_mutex_lock(&loader->lock);
    if (loader->made == loader->taken) {
        double start = clock_seconds();
        while (loader->made == loader->taken && !loader->damage)
            pthread_cond_wait(&loader->filled, &loader->lock);
        *waited += clock_seconds() - start;
    }
    *batch = &loader->ring[loader->taken % (uint64_t)loader->depth];
    if (loader->made == loader->taken) {
        damage = loader->damage;
        loader->damage = NULL;
    } else {
        loader->taken++;
        pthread_cond_signal(&loader->freed);
    }
    pthread_mutex_unlock(&loader->lock);
    // All of the call: where cores are few, waking the loader alone may take its time.
    if (begin > 0) timeline_add(TIMELINE_DATA_WAIT, "take a micro-batch", NULL, -1, begin, clock_seconds());
    return damage;
}

void loader_stop(Loader *loader) {
    if (!loader) return;
    pthread_mutex_lock(&loader->lock);
    loader->stop = true;
    pthread_cond_signal(&loader->freed);
    pthread_mutex_unlock(&loader->lock);
    pthread_join(loader->thread, NULL);
    loader_free(loader);
}
