#include "train/environment.h"

#include "base/build.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "base/threads.h"
#include "ops/cpu/level.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

// ---- libraries ------------------------------------------------------------------------------------------------------

// Libraries are asked by name, as far as this process has them: no header is needed, and what is not there is not
// listed.
static void *symbol_of(const char *library, const char *name) {
    void *handle = library ? dlopen(library, RTLD_LAZY | RTLD_NOLOAD) : RTLD_DEFAULT;
    void *symbol = handle || !library ? dlsym(handle, name) : NULL;
    if (library && handle) dlclose(handle); // it stays loaded by who loaded it
    return symbol;
}

static void add_version(json_t *root, const char *key, int major, int minor, int patch) {
    char text[48];
    snprintf(text, sizeof text, "%d.%d.%d", major, minor, patch);
    json_object_set_new(root, key, json_string(text));
}

static void add_cuda(json_t *root) {
    static const struct {
        const char *key, *function;
    } rows[] = {{"CUDA", "cudaRuntimeGetVersion"}, {"CUDA of the driver", "cudaDriverGetVersion"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int version = 0, (*get)(int *) = (int (*)(int *))symbol_of(NULL, rows[i].function);
        if (get && get(&version) == 0 && version)
            add_version(root, rows[i].key, version / 1000, version % 1000 / 10, version % 10);
    }
    char *text = NULL;
    size_t size;
    Status status = json_object_size(root) ? file_read(&text, &size, "/sys/module/nvidia/version") : NULL;
    if (!status && text) {
        text[strcspn(text, "\n")] = 0;
        json_object_set_new(root, "driver", json_string(text));
    }
    status_free(status);
    free(text);
}

static void add_cuda_libraries(json_t *root) {
    size_t (*cublas)(void) = (size_t(*)(void))symbol_of(NULL, "cublasLtGetVersion");
    size_t (*cudnn)(void) = (size_t(*)(void))symbol_of(NULL, "cudnnGetVersion");
    int (*nccl)(int *) = (int (*)(int *))symbol_of(NULL, "ncclGetVersion"), version = 0;
    if (cublas)
        version = (int)cublas(), add_version(root, "cuBLAS", version / 10000, version % 10000 / 100, version % 100);
    if (cudnn) {
        version = (int)cudnn();
        int major = version >= 90000 ? 10000 : 1000; // from cuDNN 9 on
        add_version(root, "cuDNN", version / major, version % major / 100, version % 100);
    }
    if (nccl && nccl(&version) == 0) add_version(root, "NCCL", version / 10000, version % 10000 / 100, version % 100);
}

// The first of "Open MPI v4.1.4, package: ..., and more".
static void add_name(json_t *root, const char *key, const char *name) {
    json_object_set_new(root, key, json_stringn(name, strcspn(name, ",\n")));
}

// The libraries of a GPU are asked only where one is used: cuDNN loads its parts when it is asked for its version, and
// ends the process where there is no room for them.
static json_t *libraries_json(DeviceKind kind) {
    json_t *root = json_object();
    if (kind == DEVICE_CUDA) {
        add_cuda(root);
        add_cuda_libraries(root);
    }
    int (*mpi)(char *, int *) = (int (*)(char *, int *))symbol_of(NULL, "MPI_Get_library_version"), length = 0;
    char *name = xcalloc(1, 1 << 14); // more than any MPI's MPI_MAX_LIBRARY_VERSION_STRING
    if (mpi && mpi(name, &length) == 0) add_name(root, "MPI", name);
    free(name);
#ifdef HEARTH_HAVE_BLAS
    char *(*blas)(void) = (char *(*)(void))symbol_of(HEARTH_BLAS_PATH, "openblas_get_config");
    if (!blas) blas = (char *(*)(void))symbol_of("libopenblas.so.0", "openblas_get_config");
    if (blas) add_name(root, "BLAS", blas());
#endif
    return root;
}

// ---- this process ---------------------------------------------------------------------------------------------------

static void add_cpu(json_t *root) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[512];
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        json_object_set_new(root, "cpu", json_string(colon + 2));
        break;
    }
    if (file) fclose(file);
    const CpuLevel *level;
    Status status = cpu_level(&level);
    if (!status) json_object_set_new(root, "cpu_level", json_string(level->name));
    status_free(status);
}

static void add_build(json_t *root) {
    const char *commit = build_commit();
    size_t length = strlen(commit);
    bool dirty = text_ends_with(commit, "-dirty");
    json_object_set_new(root, "commit", json_stringn(commit, dirty ? length - strlen("-dirty") : length));
    if (strcmp(commit, "unknown") != 0) json_object_set_new(root, "clean", json_boolean(!dirty));
}

static json_t *environment_json(const Trainer *trainer) {
    char host[256] = "", started[64];
    struct utsname system;
    gethostname(host, sizeof host - 1);
    uname(&system);
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", &utc);
    Ops *ops = trainer->ops;
    json_t *root =
        json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:I,s:I}", "hearth", HEARTH_VERSION, "compiler", __VERSION__, "system",
                  system.sysname, "kernel", system.release, "host", host, "started", started, "cores",
                  (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "device_memory_bytes", (json_int_t)ops->memory_total(ops));
    json_object_set_new(root, "device", json_string(ops->device));
    add_build(root);
    add_cpu(root);
    const char *bf16 = ops->kind == DEVICE_CPU ? ops_cpu_bf16(ops) : NULL;
    if (bf16) json_object_set_new(root, "cpu_bf16", json_string(bf16));
    json_object_set_new(root, "ranks", json_integer(ranks_size(&trainer->ranks)));
    json_object_set_new(root, "threads", json_integer(threads_count()));
    json_object_set_new(root, "first_step", json_integer(trainer->step + 1));
    json_object_set_new(root, "libraries", libraries_json(ops->kind));
    return root;
}

Status environment_write(const char *directory, const Trainer *trainer) {
    char *path = path_join(directory, "environment.json");
    json_t *before = NULL, *list = NULL;
    if (file_exists(path)) status_free(json_read_file(&before, path));
    list = json_is_array(before) ? json_incref(before) : json_array();
    if (json_is_object(before)) json_array_append(list, before);
    json_array_append_new(list, environment_json(trainer));
    Status status = json_write_file(list, path);
    json_decref(list);
    json_decref(before);
    free(path);
    return status;
}
