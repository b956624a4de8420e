// Any bytes as metrics.jsonl: what a resumed run keeps of it are whole lines up to its step, and what it adds is read.
#include "fuzz_files.h"

#include "watch/metrics.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_file(data, size);
    double *losses;
    int64_t count, before, kept = size ? data[size - 1] : 0;
    metrics_has_full_eval(path, kept);
    Metrics *metrics;
    if (metrics_open(&metrics, path, kept)) abort(); // whatever it holds
    if (metrics_last_step(path) > kept) abort();
    if (metrics_read_losses(path, &losses, &before)) abort();
    free(losses);
    MetricsStep step = {.step = kept + 1, .loss = 2.5};
    if (metrics_step(metrics, &step) || metrics_step(metrics, &step)) abort();
    metrics_close(metrics);
    if (metrics_read_losses(path, &losses, &count) || count != before + 2 || losses[count - 1] != 2.5) abort();
    if (metrics_last_step(path) != kept + 1) abort();
    free(losses);
    fuzz_files_clear();
    return 0;
}
