#include "cli/launch.h"

#include "base/file.h"
#include "base/text.h"
#include "base/threads.h"
#include "dist/arrival.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 4096 };

// ---- what is started ------------------------------------------------------------------------------------------------

// The mpirun of the MPI that hearth is built with; where that is not here, the one on the PATH.
static Status find_mpirun(char **out) {
    const char *asked = getenv("HEARTH_MPIRUN"), *path = getenv("PATH");
    *out = NULL;
    if (asked && asked[0]) {
        *out = text_copy(asked);
        return NULL;
    }
#ifdef HEARTH_MPIRUN_PATH
    if (access(HEARTH_MPIRUN_PATH, X_OK) == 0) {
        *out = text_copy(HEARTH_MPIRUN_PATH);
        return NULL;
    }
#endif
    for (const char *at = path ? path : ""; *at;) {
        size_t length = strcspn(at, ":");
        char *folder = text_copy_n(at, length), *file = path_join(folder, "mpirun");
        free(folder);
        if (length && access(file, X_OK) == 0) {
            *out = file;
            return NULL;
        }
        free(file);
        at += length + (at[length] == ':');
    }
    return status_hint(status_usage("mpirun, which starts the ranks, is not to be found"),
                       "install openmpi-bin (scripts/install-deps does), or name it in HEARTH_MPIRUN");
}

// This process's own arguments, as it was started.
static Status own_arguments(char **text, char ***words, int *count) {
    size_t size;
    TRY(file_read(text, &size, "/proc/self/cmdline"));
    *count = 0;
    *words = NULL;
    for (size_t at = 0; at < size; at += strlen(*text + at) + 1) {
        *words = xrealloc(*words, (size_t)(*count + 1) * sizeof **words);
        (*words)[(*count)++] = *text + at;
    }
    return NULL;
}

// Open MPI reads its options from the environment too, where other launchers do not mind them. What the user has set
// stays. Ranks that share cores must not spin against each other, nor be bound to one of them.
static void set_environment(int ranks) {
    char threads[16];
    int each = threads_cores() / ranks;
    snprintf(threads, sizeof threads, "%d", each > 0 ? each : 1);
    setenv("HEARTH_THREADS", threads, 0);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    setenv("OMPI_MCA_orte_execute_quiet", "1", 0); // hearth says itself what went wrong
    if (geteuid() == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
}

// Open MPI keeps the files of all jobs of a user in one folder, and a job that begins while another makes or removes it
// fails. Each has a folder of its own (malloc'd); NULL: where none can be made, or the user has named one.
static char *session_folder(void) {
    static const char name[] = "OMPI_MCA_orte_tmpdir_base";
    if (getenv(name)) return NULL;
    char *folder = path_join(dir_temporary(), "hearth-ranks-XXXXXX"); // mkdtemp fills in the last six
    if (mkdtemp(folder) && setenv(name, folder, 0) == 0) return folder;
    free(folder);
    return NULL;
}

static void session_remove(char *folder) {
    if (folder) status_free(dir_remove(folder));
    free(folder);
}

// ---- while it runs --------------------------------------------------------------------------------------------------

static int parent_of(const char *process) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", process);
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file) fclose(file);
    line[got] = 0;
    const char *end = strrchr(line, ')'); // of the program's name, which may hold anything
    int parent = -1;
    return end && sscanf(end + 1, " %*c %d", &parent) == 1 ? parent : -1;
}

// To the ranks themselves: mpirun would end them a moment after a signal of its own, in the midst of a checkpoint.
static void signal_ranks(pid_t mpirun, int number) {
    DIR *processes = opendir("/proc");
    bool any = false;
    for (const struct dirent *entry; processes && (entry = readdir(processes));) {
        int64_t process;
        if (!text_to_int64(entry->d_name, &process) || parent_of(entry->d_name) != mpirun) continue;
        any |= kill((pid_t)process, number) == 0;
    }
    if (processes) closedir(processes);
    if (!any) kill(mpirun, number);
}

static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

static int wait_for_ranks(pid_t mpirun, const sigset_t *signals) {
    for (;;) {
        int status, number = sigwaitinfo(signals, NULL);
        if (number > 0 && number != SIGCHLD) signal_ranks(mpirun, number);
        if (waitpid(mpirun, &status, WNOHANG) != mpirun) continue;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
}

static Status run_ranks(char **words, int *code) {
    sigset_t signals, before;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        sigaddset(&signals, passed_on[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    signal(SIGCHLD, SIG_DFL); // whoever started this one may ignore it: no signal would come, and no exit code
    fflush(NULL);
    pid_t parent = getpid(), child = fork();
    if (child < 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        return status_errno("cannot start %s", words[0]);
    }
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        setpgid(0, 0); // the terminal's Ctrl-C comes to this process alone, which passes it on
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent) _exit(1); // it died in between
        execvp(words[0], words);
        fprintf(stderr, "hearth: error: cannot start %s: %s\n", words[0], strerror(errno));
        _exit(127);
    }
    *code = wait_for_ranks(child, &signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return NULL;
}

static Status start_ranks(int ranks, int *code) {
    char *mpirun = NULL, *text = NULL, **own = NULL, count[16], self[4096];
    int own_count = 0;
    TRY(find_mpirun(&mpirun));
    Status status = own_arguments(&text, &own, &own_count);
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (!status && (length <= 0 || own_count < 1)) status = status_errno("hearth cannot find itself");
    if (!status) {
        self[length] = 0;
        snprintf(count, sizeof count, "%d", ranks);
        char **words = xcalloc((size_t)own_count + 4, sizeof *words);
        words[0] = mpirun;
        words[1] = "-n";
        words[2] = count;
        words[3] = self;
        memcpy(words + 4, own + 1, (size_t)(own_count - 1) * sizeof *words);
        set_environment(ranks);
        char *session = session_folder();
        status = run_ranks(words, code);
        session_remove(session);
        free(words);
    }
    free(own);
    free(text);
    free(mpirun);
    return status;
}

Status launch_ranks(int64_t ranks, bool *launched, int *code) {
    *launched = false;
    *code = 0;
    if (ranks < 0 || ranks > RANKS_MAX) return status_usage("--ranks must be from 1 to %d", RANKS_MAX);
    Launch launch = launch_read();
    if (launch.launcher) {
        if (ranks > 0 && launch.size > 0 && launch.size != ranks)
            return status_hint(
                status_usage("--ranks is %d, but %s has started %d ranks", (int)ranks, launch.launcher, launch.size),
                "leave --ranks out under a launcher");
        return NULL;
    }
    if (ranks <= 1) return NULL;
#ifdef HEARTH_HAVE_MPI
    *launched = true;
    return start_ranks((int)ranks, code);
#else
    (void)start_ranks;
    return status_hint(status_usage("--ranks needs MPI, and this hearth is built without"),
                       "install libopenmpi-dev and openmpi-bin (scripts/install-deps does), and build again");
#endif
}

// ---- the world of a command -----------------------------------------------------------------------------------------

static Status world_limits(WorldOptions *limits) {
    const char *text = getenv("HEARTH_WATCH_SECONDS");
    int64_t seconds;
    if (!text || !text[0]) return NULL;
    if (!text_to_int64(text, &seconds) || seconds < 1)
        return status_usage("HEARTH_WATCH_SECONDS is \"%s\", and must be a whole number of seconds, at least 1", text);
    limits->watch_seconds = (double)seconds;
    return NULL;
}

Status launch_open_world(World **world) {
    WorldOptions limits = {0};
    TRY(world_limits(&limits));
    return world_open(world, &limits);
}
