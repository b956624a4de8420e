// The writer: a snapshot of the model, and a thread that writes it while training goes on.
#include "train/checkpoint.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "base/timeline.h"
#include "train/checkpoint_keep.h"
#include "train/checkpoint_write.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

enum { LIMIT_SECONDS = 600 };

struct CheckpointWriter {
    char *directory;
    const Layout *layout;
    CheckpointForm form;
    CheckpointPolicy policy;
    int rank, ranks;
    int64_t attempt; // writes begun so far
    ModelSnapshot snapshot;
    json_t *state;
    int64_t step, done_step;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, stop;
    atomic_int failed; // another rank in the write under way; -1: none that is known
    bool unpruned;     // what the policy removes is still there, which is told
    Status status;     // of the last write, until polled
};

void checkpoint_writer_prune(CheckpointWriter *writer) {
    if (writer->rank != 0) return;
    Status status = checkpoint_prune(writer->directory, &writer->policy);
    if (status && !writer->unpruned) log_warn("older checkpoints were not removed: %s", status_text(status));
    writer->unpruned = status != NULL;
    status_free(status);
}

static void writer_run(CheckpointWriter *writer) {
    double limit = writer->policy.limit_seconds;
    double mark[] = {clock_seconds(), (double)getpid(), (double)writer->attempt};
    CheckpointJob job = {.directory = writer->directory,
                         .layout = writer->layout,
                         .form = &writer->form,
                         .snapshot = &writer->snapshot,
                         .step = writer->step,
                         .state = writer->state,
                         .rank = writer->rank,
                         .ranks = writer->ranks,
                         .attempt = writer->attempt,
                         .token = XXH64(mark, sizeof mark, 0),
                         .limit = limit > 0 ? limit : LIMIT_SECONDS,
                         .failed = &writer->failed};
    Status status = checkpoint_write(&job);
    if (!status) checkpoint_writer_prune(writer); // it is complete, whatever becomes of the older ones
    pthread_mutex_lock(&writer->lock);
    if (!status) writer->done_step = writer->step;
    status_free(writer->status);
    writer->status = status;
    writer->busy = false;
    json_decref(writer->state);
    writer->state = NULL;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
}

static void *writer_main(void *argument) {
    CheckpointWriter *writer = argument;
    timeline_name_thread("checkpoint writer");
    for (;;) {
        pthread_mutex_lock(&writer->lock);
        while (!writer->busy && !writer->stop)
            pthread_cond_wait(&writer->changed, &writer->lock);
        bool work = writer->busy;
        pthread_mutex_unlock(&writer->lock);
        if (!work) return NULL;
        double begin = timeline_begin();
        writer_run(writer);
        timeline_end(begin, "write a checkpoint", -1);
    }
}

Status checkpoint_writer_open(CheckpointWriter **out, const char *directory, const Layout *layout,
                              const CheckpointPolicy *policy, int rank, int ranks) {
    *out = NULL;
    if (rank == 0) TRY(dir_make(directory));
    if (rank == 0) TRY(checkpoint_clean(directory));
    CheckpointForm form;
    TRY(checkpoint_form_make(&form, layout));
    CheckpointWriter *writer = xcalloc(1, sizeof *writer);
    *writer = (CheckpointWriter){.directory = text_copy(directory),
                                 .layout = layout,
                                 .form = form,
                                 .policy = *policy,
                                 .rank = rank,
                                 .ranks = ranks,
                                 .done_step = -1,
                                 .step = -1};
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->changed, NULL);
    if (policy->async && pthread_create(&writer->thread, NULL, writer_main, writer)) {
        checkpoint_form_free(&writer->form);
        free(writer->directory);
        free(writer);
        return status_runtime("cannot start the checkpoint thread");
    }
    *out = writer;
    return NULL;
}

static void wait_idle(CheckpointWriter *writer) {
    pthread_mutex_lock(&writer->lock);
    while (writer->busy)
        pthread_cond_wait(&writer->changed, &writer->lock);
    pthread_mutex_unlock(&writer->lock);
}

Status checkpoint_save(CheckpointWriter *writer, Model *model, int64_t step, json_t *state) {
    wait_idle(writer);
    writer->attempt++;
    atomic_store(&writer->failed, -1);
    Status status = model_snapshot(model, &writer->snapshot, true);
    if (status) {
        json_decref(state);
        return status;
    }
    pthread_mutex_lock(&writer->lock);
    writer->state = state;
    writer->step = step;
    writer->busy = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    if (!writer->policy.async) writer_run(writer);
    return NULL;
}

Status checkpoint_poll(CheckpointWriter *writer, bool wait, int64_t *done_step) {
    if (wait) wait_idle(writer);
    pthread_mutex_lock(&writer->lock);
    Status status = writer->status;
    writer->status = NULL;
    *done_step = writer->done_step;
    writer->done_step = -1;
    pthread_mutex_unlock(&writer->lock);
    return status;
}

bool checkpoint_is_busy(CheckpointWriter *writer) {
    pthread_mutex_lock(&writer->lock);
    bool busy = writer->busy;
    pthread_mutex_unlock(&writer->lock);
    return busy;
}

void checkpoint_give_up(CheckpointWriter *writer, int rank) {
    atomic_store(&writer->failed, rank);
}

void checkpoint_writer_close(CheckpointWriter *writer) {
    if (!writer) return;
    wait_idle(writer);
    if (writer->policy.async) {
        pthread_mutex_lock(&writer->lock);
        writer->stop = true;
        pthread_cond_broadcast(&writer->changed);
        pthread_mutex_unlock(&writer->lock);
        pthread_join(writer->thread, NULL);
    }
    model_snapshot_free(&writer->snapshot);
    checkpoint_form_free(&writer->form);
    status_free(writer->status);
    pthread_mutex_destroy(&writer->lock);
    pthread_cond_destroy(&writer->changed);
    free(writer->directory);
    free(writer);
}
