// hearth bench machine: measures this machine for the planner and writes its profile.
#include "bench/bench_machine.h"
#include "base/file.h"
#include "bench/profile.h"
#include "cli/args.h"
#include "cli/bench_commands.h"
#include "train/outcome.h"
#include "train/prediction.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Status bench_entry_name(char *out, size_t size, const Ops *ops, const char *asked) {
    Hardware hardware;
    const HardwareGpu *gpu = NULL;
    TRY(prediction_hardware(&hardware, NULL, false));
    Status status = NULL;
    if (asked)
        status = hardware_find_gpu(&hardware, asked, &gpu);
    else if (ops->kind == DEVICE_CPU)
        status = hardware_find_cpu(&hardware, ops->device, &gpu);
    else
        gpu = hardware_match_device(&hardware, ops->device);
    if (!status && !gpu)
        status = status_hint(status_usage("the hardware catalogue does not know the device \"%s\"", ops->device),
                             "name the entry to refine with --gpu, or add one to configs/hardware.toml");
    if (!status) snprintf(out, size, "%s", gpu->name);
    hardware_free(&hardware);
    return status;
}

Status bench_write_profile(const TextBuffer *text, const char *path) {
    char *directory = path_directory(path);
    Status status = dir_make(directory);
    if (!status) status = file_write_atomic(path, text->data, text->length);
    if (!status) fprintf(stderr, "wrote %s\n", path);
    free(directory);
    return status;
}

// What `hearth bench comm` has measured of the same device stays in the profile.
static Status write_profile(TextBuffer *text, const char *gpu, const char *out) {
    char *path = out ? text_copy(out) : prediction_machine_path(), *old = NULL;
    size_t size;
    if (!path) return status_hint(status_usage("there is no home directory to write to"), "name a file with --out");
    Status status = file_exists(path) ? file_read(&old, &size, path) : NULL;
    if (!status && old && profile_is_of(old, gpu)) {
        char *links = profile_lines(old, true);
        text_buffer_format(text, "%s", links);
        free(links);
    }
    if (!status) status = bench_write_profile(text, path);
    free(old);
    free(path);
    return status;
}

Status bench_machine_command(int argc, char **argv) {
    const char *device = "auto", *gpu = NULL, *out = NULL;
    bool quick = false, print = false;
    const Arg options[] = {
        {"--device", ARG_TEXT, &device, "D", "auto, cpu or cuda"},
        {"--gpu", ARG_TEXT, &gpu, "NAME", "catalogue entry to refine (default: the one of this device)"},
        {"--out", ARG_TEXT, &out, "FILE", "where to write (default: ~/.config/hearth/machine.toml)"},
        {"--quick", ARG_FLAG, &quick, NULL, "a third of the shapes, shorter measurements"},
        {"--print", ARG_FLAG, &print, NULL, "print the profile instead of writing it"},
    };
    const ArgCommand command = {
        "hearth bench machine [options]",
        "Measures products, attention, memory-bound kernels, launch gap and transfers of this machine and writes a\n"
        "profile that `hearth plan`, `preflight` and `train` use in place of the catalogue's figures.",
        options,
        ARG_COUNT(options),
        0,
        0};
    ArgList words;
    bool helped;
    Status status = args_parse(&command, argc, argv, &words, &helped);
    free(words.items);
    if (status || helped) return status;
    Ops *ops;
    TRY(ops_create(&ops, device));
    char name[HARDWARE_NAME_MAX];
    TextBuffer text = {0};
    status = bench_entry_name(name, sizeof name, ops, gpu);
    MachineLoad start = machine_load_now();
    if (!status) status = bench_machine(ops, name, quick, &text);
    double others = outcome_others(&start, ops->kind, NULL);
    if (!status && others > OUTCOME_OTHERS_MOST)
        fprintf(stderr, "other programs had %.0f %% of the cores: measure again without them if you can\n",
                100 * others);
    if (!status && print)
        fputs(text.data, stdout);
    else if (!status)
        status = write_profile(&text, name, out);
    text_buffer_free(&text);
    ops_destroy(ops);
    return status;
}
