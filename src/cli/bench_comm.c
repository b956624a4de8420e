// hearth bench comm: what the links between ranks do.
#include "bench/bench_comm.h"
#include "base/file.h"
#include "base/json.h"
#include "base/range.h"
#include "bench/profile.h"
#include "cli/args.h"
#include "cli/bench_commands.h"
#include "cli/launch.h"
#include "dist/device.h"
#include "train/prediction.h"

#include <stdlib.h>
#include <string.h>

enum { SIZES_MAX = 32 };

// "1K,1M": with K, M and G by 1024.
static Status parse_sizes(const char *text, int64_t sizes[SIZES_MAX], int *count) {
    for (*count = 0; *text;) {
        size_t length = strcspn(text, ",");
        char *word = text_copy_n(text, length);
        size_t digits = strspn(word, "0123456789");
        const char *unit = word + digits, *units = "KMG", *found = *unit ? strchr(units, *unit & ~0x20) : NULL;
        double value = strtod(word, NULL) * (found ? (double)((int64_t)1 << (10 * (found - units + 1))) : 1);
        bool fine = digits && (!*unit || (found && !unit[1])) && value >= 1 && value <= 0x1p36 && *count < SIZES_MAX;
        Status status = fine ? NULL : status_usage("--sizes has \"%s\": sizes are bytes, as in 1K,64K,1M", word);
        free(word);
        TRY(status);
        sizes[(*count)++] = (int64_t)value;
        text += length + (text[length] == ',');
    }
    return *count ? NULL : status_usage("--sizes names no size");
}

static int host_count(const World *world) {
    int hosts = 0;
    for (int r = 0; r < world->size; r++) {
        int before = 0;
        while (before < r && strcmp(world->hosts[before], world->hosts[r]) != 0)
            before++;
        hosts += before == r;
    }
    return hosts;
}

static void print_table(const Comm *comm, const BenchCommRow *rows, int count) {
    printf("# %d ranks on %d host%s, %s, %s, float\n", comm->size, host_count(comm->world),
           host_count(comm->world) > 1 ? "s" : "", comm->backend, comm->ops->device);
    printf("# %-14s %12s %12s %12s %12s %8s\n", "op", "bytes", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "wrong");
    for (int i = 0; i < count; i++)
        printf("  %-14s %12lld %12.2f %12.3f %12.3f %8lld\n", rows[i].op, (long long)rows[i].bytes,
               1e6 * rows[i].seconds, rows[i].algorithm / 1e9, rows[i].bus / 1e9, (long long)rows[i].wrong);
}

static void print_json(const Comm *comm, const BenchCommRow *rows, int count) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:s, s:I, s:f, s:f, s:f, s:I}", "op", rows[i].op, "bytes",
                                              (json_int_t)rows[i].bytes, "us", 1e6 * rows[i].seconds, "algbw_GBps",
                                              rows[i].algorithm / 1e9, "busbw_GBps", rows[i].bus / 1e9, "wrong",
                                              (json_int_t)rows[i].wrong));
    json_t *json = json_pack("{s:i, s:i, s:s, s:s, s:o}", "ranks", comm->size, "hosts", host_count(comm->world),
                             "backend", comm->backend, "device", comm->ops->device, "rows", list);
    char *text = json_dumps(json, JSON_REAL_PRECISION(6));
    printf("%s\n", text);
    free(text);
    json_decref(json);
}

// The profile with these links in place of the ones it had.
static Status write_links(const Comm *comm, const BenchLink *link, const char *out) {
    char *path = out ? text_copy(out) : prediction_machine_path(), *old = NULL, gpu[HARDWARE_NAME_MAX];
    size_t size;
    if (!path) return status_hint(status_usage("there is no home directory to write to"), "name a file with --out");
    Status status = bench_entry_name(gpu, sizeof gpu, comm->ops, NULL);
    if (!status && file_exists(path)) status = file_read(&old, &size, path);
    if (!status && !old) old = text_format("[machine]\ngpu = \"%s\"\ndevice = \"%s\"\n", gpu, comm->ops->device);
    if (!status && !profile_is_of(old, gpu))
        status = status_hint(status_usage("%s is a profile of another device than %s", path, gpu),
                             "name another file with --out, or measure this device first: hearth bench machine");
    if (!status) {
        bool between = host_count(comm->world) > 1;
        char *others = profile_lines(old, false), *links = profile_lines(old, true);
        char *mine = profile_link_lines(link, comm->size, between);
        TextBuffer text = {0};
        text_buffer_format(&text, "%s", others);
        for (const char *line = links; *line; line += strcspn(line, "\n") + 1) // of the other kind
            if (text_starts_with(line, between ? "link_" : "nic_"))
                text_buffer_add(&text, line, strcspn(line, "\n") + 1);
        text_buffer_format(&text, "%s", mine);
        status = bench_write_profile(&text, path);
        text_buffer_free(&text);
        free(others);
        free(links);
        free(mine);
    }
    free(old);
    free(path);
    return status;
}

typedef struct CommOptions {
    const char *device, *out, *sizes;
    bool json, print;
    double seconds;
} CommOptions;

static Status run_bench(World *world, const CommOptions *options) {
    int64_t sizes[SIZES_MAX];
    BenchComm bench = {.sizes = sizes, .seconds = options->seconds};
    TRY(parse_sizes(options->sizes, sizes, &bench.size_count));
    Ops *ops;
    Comm *comm = NULL;
    BenchCommRow *rows = NULL;
    int count = 0;
    TRY(device_open(&ops, world, options->device));
    Status status = comm_create_world(&comm, world, ops, "bench");
    if (!status) status = bench_comm(comm, &bench, &rows, &count);
    if (!status && world->rank == 0) {
        if (options->json)
            print_json(comm, rows, count);
        else
            print_table(comm, rows, count);
        BenchLink link = bench_comm_link(rows, count, comm->size);
        if (!options->print) status = write_links(comm, &link, options->out);
    }
    for (int i = 0; !status && i < count; i++)
        if (rows[i].wrong)
            status = status_runtime("%s of %lld bytes: wrong results", rows[i].op, (long long)rows[i].bytes);
    free(rows);
    status = world_share(world, status);
    comm_destroy(comm);
    ops_destroy(ops);
    return status;
}

Status bench_comm_command(int argc, char **argv) {
    CommOptions options = {.device = "auto", .sizes = "1K,8K,64K,512K,4M,32M", .seconds = 0.25};
    int64_t ranks = 0;
    const Arg args[] = {
        {"--ranks", ARG_INT, &ranks, "N",
         "start N ranks on this machine (under mpirun or srun: as many as they started)"},
        {"--sizes", ARG_TEXT, &options.sizes, "LIST", "bytes of the messages (1K,8K,64K,512K,4M,32M)"},
        {"--seconds", ARG_DOUBLE, &options.seconds, "S", "to measure each for (0.25)"},
        {"--device", ARG_TEXT, &options.device, "D", "auto, cpu or cuda"},
        {"--out", ARG_TEXT, &options.out, "FILE", "the profile to write to (default: ~/.config/hearth/machine.toml)"},
        {"--print", ARG_FLAG, &options.print, NULL, "write no profile"},
        {"--json", ARG_FLAG, &options.json, NULL, "one JSON line instead of a table"},
    };
    const ArgCommand command = {
        "hearth bench comm --ranks N [options]",
        "Measures the collectives between ranks and messages between two of them: time, algorithm and bus bandwidth "
        "by\n"
        "size, as nccl-tests counts them, and whether the results are right. The all-reduce's figures go into the\n"
        "machine's profile for `hearth plan`.",
        args,
        ARG_COUNT(args),
        0,
        0};
    ArgList words;
    bool helped, launched;
    int code;
    Status status = args_parse(&command, argc, argv, &words, &helped);
    free(words.items);
    if (status || helped) return status;
    TRY(check_number("--seconds", options.seconds, 1e-3, 60));
    int64_t sizes[SIZES_MAX];
    int count;
    TRY(parse_sizes(options.sizes, sizes, &count)); // before anything is started
    TRY(launch_ranks(ranks, &launched, &code));
    if (launched) exit(code);
    World *world;
    TRY(launch_open_world(&world));
    if (world->size == 1)
        status = status_hint(status_usage("hearth bench comm needs at least two ranks"), "hearth bench comm --ranks 2");
    else
        status = run_bench(world, &options);
    if (status && world->size > 1) world_abort(world, status);
    world_close(world);
    return status;
}
