#include "dist/arrival.h"

#include "base/text.h"
#include "base/threads.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

// ---- what the launcher says -----------------------------------------------------------------------------------------

static int number_of(const char *variable) {
    const char *text = getenv(variable);
    int64_t value;
    return text && text_to_int64(text, &value) && value >= 0 && value < (1 << 24) ? (int)value : -1;
}

static int first_number(const char *const *variables) {
    for (; *variables; variables++)
        if (number_of(*variables) >= 0) return number_of(*variables);
    return -1;
}

Launch launch_read(void) {
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", NULL};
    static const char *const local_ranks[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", NULL};
    static const char *const local_sizes[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", NULL};
    Launch launch = {.rank = -1, .size = -1, .local_rank = -1, .local_size = -1};
    // A batch script that runs a program without srun has SLURM_PROCID too, but no step.
    bool step = getenv("SLURM_STEP_ID") && number_of("SLURM_STEP_NUM_TASKS") >= 0;
    if (number_of("OMPI_COMM_WORLD_SIZE") >= 0 || number_of("PMI_SIZE") >= 0)
        launch.launcher = "mpirun";
    else if (step || number_of("PMIX_RANK") >= 0)
        launch.launcher = "srun";
    if (!launch.launcher) return launch;
    launch.rank = first_number(ranks);
    launch.size = first_number(sizes);
    launch.local_rank = first_number(local_ranks);
    launch.local_size = first_number(local_sizes);
    const char *job = getenv("OMPI_MCA_ess_base_jobid") ? getenv("OMPI_MCA_ess_base_jobid") : getenv("PMIX_NAMESPACE");
    if (job)
        snprintf(launch.job, sizeof launch.job, "%s", job);
    else if (step && getenv("SLURM_JOB_ID"))
        snprintf(launch.job, sizeof launch.job, "%s.%s", getenv("SLURM_JOB_ID"), getenv("SLURM_STEP_ID"));
    return launch;
}

static Status check_variable(const char *variable, int is) {
    int says = number_of(variable);
    if (says < 0 || says == is) return NULL;
    return status_hint(
        status_usage("%s is %d in the environment, but this process is %d as it was started", variable, says, is),
        "unset RANK, LOCAL_RANK and WORLD_SIZE, or set them as mpirun or srun count");
}

Status launch_check(int rank, int size, int local_rank) {
    TRY(check_variable("WORLD_SIZE", size));
    TRY(check_variable("RANK", rank));
    return check_variable("LOCAL_RANK", local_rank);
}

// ---- who is here ----------------------------------------------------------------------------------------------------

struct Arrival {
    Launch launch;
    double limit;
    int here; // the socket that says so; -1: none
    pthread_t thread;
    bool started, done;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static socklen_t name_of(struct sockaddr_un *name, const Launch *launch, int rank) {
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "hearth/%d/%.60s/%d", (int)getuid(),
                          launch->job, rank); // the first byte stays 0: an abstract name
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int say_here(const Launch *launch) {
    struct sockaddr_un name;
    socklen_t length = name_of(&name, launch, launch->rank);
    int fd = launch->job[0] && launch->rank >= 0 ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&name, length) || listen(fd, SOMAXCONN))) {
        close(fd); // without it, a late rank goes without its name
        fd = -1;
    }
    return fd;
}

static bool rank_is_here(const Launch *launch, int rank) {
    struct sockaddr_un name;
    socklen_t length = name_of(&name, launch, rank);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool here = fd >= 0 && connect(fd, (struct sockaddr *)&name, length) == 0;
    if (fd >= 0) close(fd);
    return here;
}

static void say_who_is_missing(const Arrival *arrival, const char *here, int count) {
    const Launch *launch = &arrival->launch;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    TextBuffer text = {0};
    text_buffer_format(&text, "hearth: error: the %d ranks have not come together within %g s: ", launch->size,
                       arrival->limit);
    if (launch->local_size == launch->size) {
        for (int rank = 0, named = 0; rank < launch->size; rank++)
            if (!here[rank]) text_buffer_format(&text, "%s%d", named++ ? ", " : "waiting for rank ", rank);
        if (count == launch->size) text_buffer_format(&text, "all are here, and MPI does not connect them");
    } else if (count == launch->local_size) {
        text_buffer_format(&text, "the %d ranks of this host are here; waiting for those of other hosts", count);
    } else {
        text_buffer_format(&text, "here are only rank");
        for (int rank = 0, named = 0; rank < launch->size; rank++)
            if (here[rank]) text_buffer_format(&text, "%s %d", named++ ? "," : "", rank);
        if (launch->local_size > 0) text_buffer_format(&text, ", %d of this host's %d", count, launch->local_size);
    }
    text_buffer_format(&text, " (on %s)\n", host);
    fputs(text.data, stderr);
    fflush(stderr);
    text_buffer_free(&text);
}

_Noreturn static void give_up(const Arrival *arrival) {
    const Launch *launch = &arrival->launch;
    int size = launch->size > 0 ? launch->size : 1, count = 0, first = -1;
    char *here = xcalloc((size_t)size, 1);
    for (int rank = 0; rank < size; rank++) {
        here[rank] = rank == launch->rank || (arrival->here >= 0 && rank_is_here(launch, rank));
        count += here[rank];
        if (here[rank] && first < 0) first = rank;
    }
    // The first one of a host speaks; the others only if that has not ended them.
    if (first != launch->rank) sleep(2);
    say_who_is_missing(arrival, here, count);
    usleep(200000); // for the launcher to pass it on
    _exit(1);
}

static void *arrival_main(void *argument) {
    Arrival *arrival = argument;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)arrival->limit;
    until.tv_nsec += (long)((arrival->limit - (double)(time_t)arrival->limit) * 1e9);
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&arrival->lock);
    int code = 0;
    while (!arrival->done && code != ETIMEDOUT)
        code = pthread_cond_timedwait(&arrival->changed, &arrival->lock, &until);
    bool done = arrival->done;
    pthread_mutex_unlock(&arrival->lock);
    if (!done) give_up(arrival);
    return NULL;
}

Arrival *arrival_start(const Launch *launch, double limit) {
    Arrival *arrival = xcalloc(1, sizeof *arrival);
    *arrival = (Arrival){.launch = *launch, .limit = limit, .here = say_here(launch)};
    condition_init(&arrival->changed);
    pthread_mutex_init(&arrival->lock, NULL);
    arrival->started = thread_start(&arrival->thread, arrival_main, arrival) == 0;
    return arrival;
}

void arrival_stop(Arrival *arrival) {
    pthread_mutex_lock(&arrival->lock);
    arrival->done = true;
    pthread_cond_signal(&arrival->changed);
    pthread_mutex_unlock(&arrival->lock);
    if (arrival->started) pthread_join(arrival->thread, NULL);
    if (arrival->here >= 0) close(arrival->here);
    pthread_cond_destroy(&arrival->changed);
    pthread_mutex_destroy(&arrival->lock);
    free(arrival);
}
