// Any query to the planner and to the calculator of `hearth serve`: the first byte chooses which, the rest is the
// query. It is answered whole or refused in words, and none makes it search or allocate without bound (-timeout,
// -malloc_limit_mb).
#include "fuzz_files.h"

#include "serve/planner_api.h"

static const char catalogue[] =
    "[gpu.cpu]\ntitle = \"CPU\"\ncpu = true\nfp32_tflops = 0.1\nmemory_gib = 16\nmemory_GBps = 20\nlink_GBps = 1\n"
    "nic_GBps = 1\nhost_GBps = 10\n[gpu.h100-sxm]\ntitle = \"H100\"\nbf16_tflops = 989.4\nfp32_tflops = 67\n"
    "fp8_tflops = 1979\nmemory_gib = 79.1\nmemory_GBps = 3350\nlink_GBps = 450\nnic_GBps = 50\nhost_GBps = 50\n"
    "[node.dgx]\ngpu = \"h100-sxm\"\ngpus = 8\n[software.hearth]\ntitle = \"hearth\"\n";

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    setenv("HEARTH_HARDWARE", fuzz_file_put("/mem/hardware.toml", catalogue, sizeof catalogue - 1), 1);
    setenv("HEARTH_MACHINE", "", 1);
    setenv("HEARTH_HISTORY", "", 1);
    fuzz_files_fix();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const queries[] = {"/plan?model=demo-llama&", "/plan?model=demo-moe&gpus=8&", "/plan?",
                                          "/calc?quantity=train_hours&", "/calc?"};
    if (size < 1) return 0;
    const char *query = queries[data[0] % (sizeof queries / sizeof queries[0])];
    size_t length = strlen(query);
    char *target = malloc(length + size);
    memcpy(target, query, length);
    memcpy(target + length, data + 1, size - 1);
    target[length + size - 1] = 0;
    ServeRequest request;
    json_t *root = NULL;
    Status status = serve_request_parse(&request, NULL, target);
    if (!status)
        status = query[1] == 'p' ? planner_plan(&root, request.parameters, request.parameter_count)
                                 : planner_calc(&root, request.parameters, request.parameter_count);
    if (!status == !root) abort();
    if (status && status_code(status) != STATUS_USAGE) {
        fprintf(stderr, "%s: %s\n", target, status_text(status));
        abort();
    }
    if (root) {
        char *text = json_dumps(root, JSON_COMPACT); // no NaN, no infinity: json_pack would have refused it
        if (!text) abort();
        free(text);
    }
    json_decref(root);
    status_free(status);
    serve_request_free(&request);
    free(target);
    fuzz_files_clear();
    return 0;
}
