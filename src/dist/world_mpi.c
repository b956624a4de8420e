// A world of several ranks over MPI: how they come together and how they end.
#include "dist/internal.h"

#ifdef HEARTH_HAVE_MPI
#include "base/log.h"
#include "base/threads.h"
#include "dist/arrival.h"
#include "dist/queue.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

// ---- the end of the job
// -----------------------------------------------------------------------------------------------

static void *exit_later(void *code) {
    sleep(5);
    _exit((int)(intptr_t)code);
}

static void end_job(void *context, int code) {
    const WorldState *state = context;
    pthread_t thread;
    usleep(200000); // for the launcher to pass the message on
    if (state->threads && pthread_create(&thread, NULL, exit_later, (void *)(intptr_t)code) == 0)
        MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code); // the launcher ends the others
}

// ---- together
// ---------------------------------------------------------------------------------------------------------

typedef struct Meeting { // what rank 0 tells the others
    uint64_t token;
    ChannelAddress address;
} Meeting;

static void gather_peers(WorldState *state) {
    World *world = &state->world;
    WatchPeer mine = {.process = getpid()};
    gethostname(mine.host, sizeof mine.host - 1);
    state->peers = xcalloc((size_t)world->size, sizeof *state->peers);
    state->hosts = xcalloc((size_t)world->size, sizeof *state->hosts);
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, state->peers, sizeof mine, MPI_BYTE, state->mpi);
    for (int rank = 0; rank < world->size; rank++)
        state->hosts[rank] = state->peers[rank].host;
    world->hosts = state->hosts;
}

// Ranks that may run on the same cores share them out, unless HEARTH_THREADS says otherwise.
static void share_cores(MPI_Comm local, int local_size) {
    cpu_set_t mine, *all = xcalloc((size_t)local_size, sizeof *all);
    int sharing = 0;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, local);
    for (int r = 0; r < local_size; r++)
        sharing += CPU_EQUAL(&mine, &all[r]) != 0;
    free(all);
    if (sharing > 1 && !getenv("HEARTH_THREADS")) {
        int threads = threads_cores() / sharing;
        threads_set(threads > 0 ? threads : 1);
    }
}

static void split_by_host(WorldState *state) {
    MPI_Comm local;
    MPI_Comm_split_type(state->mpi, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &state->world.local_rank);
    MPI_Comm_size(local, &state->world.local_size);
    share_cores(local, state->world.local_size);
    MPI_Comm_free(&local);
}

static Status start_watch(WorldState *state) {
    const World *world = &state->world;
    Meeting meeting = {0};
    if (getrandom(&meeting.token, sizeof meeting.token, 0) < 0) meeting.token = (uint64_t)getpid();
    MPI_Bcast(&meeting.token, sizeof meeting.token, MPI_BYTE, 0, state->mpi);
    state->watch = watch_create(&(WatchOptions){.size = world->size,
                                                .rank = world->rank,
                                                .peers = state->peers,
                                                .limit = state->options.watch_seconds,
                                                .start = state->options.start_seconds,
                                                .token = meeting.token,
                                                .end_job = end_job,
                                                .context = state});
    Status status = NULL;
    if (world->rank == 0) status = watch_listen(state->watch, &meeting.address, world->local_size < world->size);
    MPI_Bcast(&meeting, sizeof meeting, MPI_BYTE, 0, state->mpi);
    bool here = strcmp(state->hosts[0], state->hosts[world->rank]) == 0, *connected = xcalloc((size_t)world->size, 1);
    bool mine = world->rank > 0 && meeting.address.port && watch_connect(state->watch, &meeting.address, here);
    if (!mine && world->rank > 0)
        log_warn("no connection to rank 0 on %s: should a collective hang, this rank cannot be named", state->hosts[0]);
    MPI_Gather(&mine, 1, MPI_BYTE, connected, 1, MPI_BYTE, 0, state->mpi);
    if (!status) status = watch_start(state->watch, connected);
    free(connected);
    return status;
}

static Status check_launch(const WorldState *state, const Launch *launch) {
    const World *world = &state->world;
    if (launch->size > 0 && launch->size != world->size)
        return status_hint(
            status_usage("%s has started %d ranks, but MPI finds %d", launch->launcher, launch->size, world->size),
            "start with the mpirun of the MPI that hearth is built with, or with srun --mpi=pmix");
    if (launch->rank >= 0 && launch->rank != world->rank)
        return status_usage("%s counts this process as rank %d, MPI as %d", launch->launcher, launch->rank,
                            world->rank);
    return launch_check(world->rank, world->size, world->local_rank);
}

static Status make_everyone(WorldState *state) {
    static Ops host = {.kind = DEVICE_CPU}; // of its table, only the kind is asked for
    return comm_create_world(&state->everyone, &state->world, &host, "all ranks");
}

Status world_mpi_open(World **out, const WorldOptions *options) {
    Launch launch = launch_read();
    Arrival *arrival = arrival_start(&launch, options->start_seconds);
    int provided = MPI_THREAD_SINGLE, initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized || MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_SERIALIZED) {
        arrival_stop(arrival);
        return status_runtime(initialized ? "MPI can be started only once in a process"
                                          : "MPI cannot be started, or does not allow threads");
    }
    WorldState *state = xcalloc(1, sizeof *state);
    World *world = &state->world;
    state->options = *options;
    state->threads = provided >= MPI_THREAD_MULTIPLE;
    world->state = state;
    MPI_Comm_dup(MPI_COMM_WORLD, &state->mpi);
    MPI_Comm_set_errhandler(state->mpi, MPI_ERRORS_RETURN);
    MPI_Comm_rank(state->mpi, &world->rank);
    MPI_Comm_size(state->mpi, &world->size);
    log_set_rank(world->rank, world->size);
    gather_peers(state);
    split_by_host(state);
    Status status = start_watch(state);
    arrival_stop(arrival);
    if (status) { // no watchdog yet that could say it
        status_print(status, stderr);
        end_job(state, (int)status_code(status));
    }
    status = queue_create(&state->queue, &(QueueRunner){comm_mpi_run, comm_mpi_poll, state});
    if (!status) status = check_launch(state, &launch);
    if (!status && world->size > 1) status = make_everyone(state);
    if (status) world_abort(world, status);
    *out = world;
    return NULL;
}

void world_mpi_close(World *world) {
    WorldState *state = world->state;
    comm_wait_all(world);
    comm_destroy(state->everyone);
    comm_nccl_release(state);
    comm_device_release(state);
    queue_destroy(state->queue);
    watch_close(state->watch); // returns when all ranks are here
    MPI_Comm_free(&state->mpi);
    Launch launch = launch_read();
    Arrival *leaving = arrival_start(&launch, state->options.start_seconds);
    MPI_Finalize();
    arrival_stop(leaving);
    free(state->staging);
    free(state->pending);
    free(state->peers);
    free(state->hosts);
    free(state);
}
#endif
