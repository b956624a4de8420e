// Any bytes as a file of kernel choices: what is taken of it is written and taken again as the same.
#include "fuzz_files.h"

#include "ops/tune.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    TuneFile *tune = tune_open(fuzz_file(data, size), "gpu"), *again = tune_open(NULL, "gpu");
    char *text = tune_text(tune);
    tune_get(tune, "gemm 1 2 3");
    tune_take(again, text);
    char *twice = tune_text(again);
    if (!memchr(data, 0, size) && (strcmp(text, twice) != 0 || tune_known(tune) != tune_known(again))) abort();
    free(text);
    free(twice);
    tune_close(again);
    tune_close(tune);
    fuzz_files_clear();
    return 0;
}
