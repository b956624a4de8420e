// hearth: pretrain language models on the hardware you have. This file only picks the command.
#include "base/build.h"
#include "base/log.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "hearth_commit.h"
#include "hearth_features.h"
#include "ops/cpu/level.h"

#include <jansson.h>

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static Status print_version(const CpuLevel *level) {
    char levels[64];
    CpuBf16 bf16;
    TRY(cpu_bf16(&bf16));
    cpu_level_names(levels, sizeof levels);
    printf("hearth %s, commit %s\n", HEARTH_VERSION, HEARTH_COMMIT);
    printf("with:    %s\nwithout: %s\n", HEARTH_FEATURES_IN, HEARTH_FEATURES_OUT[0] ? HEARTH_FEATURES_OUT : " nothing");
    printf("CPU:      %s (%s), of %s\nbf16:     by %s\nCUDA:     %s\ncompiler: %s\n", level->name, level->title, levels,
           cpu_bf16_title(bf16) ? cpu_bf16_title(bf16) : "floats", HEARTH_BUILT_ARCHITECTURES, __VERSION__);
    return NULL;
}

static Status run(int argc, char **argv) {
    const CpuLevel *level;
    TRY(threads_check_environment());
    TRY(cpu_level(&level));
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        return print_version(level);
    }
    return commands_run("hearth", "hearth pretrains language models: plan, prepare, train, explain.", hearth_commands,
                        hearth_command_count, argc, argv);
}

int main(int argc, char **argv) {
    build_set_commit(HEARTH_COMMIT);
    json_set_alloc_funcs(xmalloc, free); // ends as all else where there is no memory
    signal(SIGXFSZ, SIG_IGN);            // a file that reaches a limit is an error that names it
    Status status = run(argc, argv);
    bool flushed = !fflush(stdout);
    if (!status && !flushed) status = status_errno("cannot write to standard output");
    if (!status && ferror(stdout)) status = status_runtime("not all could be written to standard output");
    if (!status) return 0;
    status_print(status, stderr);
    int code = (int)status_code(status);
    status_free(status);
    return code;
}
