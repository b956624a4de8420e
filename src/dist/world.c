// The world: one rank that was started alone, or what world_mpi.c opens; and the small collectives of host values,
// which go through the same queue as everything else.
#include "base/log.h"
#include "dist/arrival.h"
#include "dist/internal.h"
#include "dist/queue.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool world_launched(void) {
    Launch launch = launch_read();
    return launch.launcher && launch.size != 1;
}

// ---- one rank -------------------------------------------------------------------------------------------------------

typedef struct SelfWorld {
    World world;
    char host[64];
    const char *hosts[1];
} SelfWorld;

static Status self_open(World **out) {
    int size = 1;
    const char *text = getenv("WORLD_SIZE");
    int64_t value;
    if (text && text_to_int64(text, &value) && value > 1) size = (int)value;
    if (size > 1)
        return status_hint(status_usage("WORLD_SIZE is %d, but this process was started alone", size),
                           "start the ranks with `hearth train --ranks %d`, mpirun or srun --mpi=pmix", size);
    TRY(launch_check(0, 1, 0));
    SelfWorld *self = xcalloc(1, sizeof *self);
    gethostname(self->host, sizeof self->host - 1);
    self->hosts[0] = self->host;
    self->world = (World){.size = 1, .local_size = 1, .hosts = self->hosts};
    *out = &self->world;
    return NULL;
}

Status world_open(World **world, const WorldOptions *options) {
    *world = NULL;
    WorldOptions filled = options ? *options : (WorldOptions){0};
    if (filled.start_seconds <= 0) filled.start_seconds = 60;
    if (filled.watch_seconds <= 0) filled.watch_seconds = 300;
    if (!world_launched()) return self_open(world);
#ifdef HEARTH_HAVE_MPI
    return world_mpi_open(world, &filled);
#else
    return status_hint(status_usage("this process is one of several ranks, but this hearth is built without MPI"),
                       "install libopenmpi-dev and openmpi-bin, and build again");
#endif
}

void world_close(World *world) {
    if (!world) return;
#ifdef HEARTH_HAVE_MPI
    if (world->state) {
        world_mpi_close(world);
        return;
    }
#endif
    free(world); // the first member of a SelfWorld
}

void world_abort(World *world, Status status) {
    assert(status);
    fflush(stdout);
    log_file("failed: %s", status_text(status));
    if (world && world->state) watch_fail(world->state->watch, (int)status_code(status), status_text(status));
    status_print(status, stderr);
    exit((int)status_code(status));
}

// ---- collectives ----------------------------------------------------------------------------------------------------

static Tensor bytes_of(const void *data, size_t size) {
    return tensor_make((void *)data, DTYPE_U8, 1, (int64_t)size, "bytes");
}

void world_gather_doubles(World *world, const double *mine, int count, double *all) {
    size_t bytes = (size_t)count * sizeof *mine;
    if (world->size == 1) {
        if (all != mine && bytes) memcpy(all, mine, bytes);
        return;
    }
    Comm *everyone = world->state->everyone;
    comm_wait(everyone, comm_all_gather(everyone, bytes_of(all, bytes * (size_t)world->size), bytes_of(mine, bytes)));
}

void world_broadcast(World *world, void *bytes, size_t size, int root) {
    if (world->size == 1) return;
    Comm *everyone = world->state->everyone;
    comm_wait(everyone, comm_broadcast(everyone, bytes_of(bytes, size), root));
}

void world_barrier(World *world) {
    if (world->size == 1) return;
    comm_wait(world->state->everyone, comm_barrier(world->state->everyone));
}

static uint64_t hash_bytes(const void *bytes, size_t size) { // FNV-1a
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash ^ size;
}

Status world_agree(World *world, const char *what, const void *bytes, size_t size) {
    if (world->size == 1) return NULL;
    uint64_t mine = hash_bytes(bytes, size), *all = xcalloc((size_t)world->size, sizeof *all);
    Comm *everyone = world->state->everyone;
    comm_wait(everyone, comm_all_gather(everyone, bytes_of(all, (size_t)world->size * sizeof mine),
                                        bytes_of(&mine, sizeof mine)));
    TextBuffer who = {0};
    for (int rank = 1, named = 0; rank < world->size; rank++)
        if (all[rank] != all[0])
            text_buffer_format(&who, "%s%d on %s", named++ ? ", rank " : "rank ", rank, world->hosts[rank]);
    free(all);
    if (!who.data) return NULL;
    Status status = status_hint(status_usage("another %s than rank 0 on %s: %s", what, world->hosts[0], who.data),
                                "start all ranks with the same command, files and version of hearth");
    text_buffer_free(&who);
    return status;
}

Status world_share(World *world, Status status) {
    if (world->size == 1) return status;
    enum { SHARED_TEXT = 1024 };
    struct {
        int32_t code;
        char text[SHARED_TEXT];
    } mine = {0}, *all;
    if (status) {
        mine.code = (int32_t)status_code(status);
        snprintf(mine.text, sizeof mine.text, "%s", status_text(status));
    }
    all = xcalloc((size_t)world->size, sizeof *all);
    Comm *everyone = world->state->everyone;
    comm_wait(everyone, comm_all_gather(everyone, bytes_of(all, (size_t)world->size * sizeof mine),
                                        bytes_of(&mine, sizeof mine)));
    for (int rank = 0; rank < world->size && !status; rank++) {
        if (!all[rank].code) continue;
        const char *text = all[rank].text;
        status = all[rank].code == STATUS_USAGE ? status_usage("rank %d on %s: %s", rank, world->hosts[rank], text)
                                                : status_runtime("rank %d on %s: %s", rank, world->hosts[rank], text);
    }
    free(all);
    return status;
}

// ---- the watchdog ---------------------------------------------------------------------------------------------------

void world_set_step(World *world, int64_t step) {
    if (world->state) watch_set_step(world->state->watch, step);
}

void world_enter(World *world, const char *what) {
    if (world->state)
        watch_begin(world->state->watch, WATCH_CALLER, what, "all ranks", ++world->state->entered, -1, NULL, 0);
}

void world_leave(World *world) {
    if (world->state) watch_end(world->state->watch, WATCH_CALLER);
}
