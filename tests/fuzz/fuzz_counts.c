// Any bytes as a number of the command line: what is read can be written for people, and shortest for programs.
#include "fuzz_files.h"

#include "base/text.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1), out[32];
    int64_t whole, same;
    double value, again;
    memcpy(text, data, size);
    text[size] = 0;
    if (text_to_int64(text, &whole)) {
        snprintf(out, sizeof out, "%lld", (long long)whole);
        if (!text_to_int64(out, &same) || same != whole) abort();
        text_grouped(out, whole);
    }
    if (text_to_double(text, &value) && isfinite(value) &&
        (!text_to_double(text_number(out, value), &again) || again != value))
        abort();
    if (text_to_count(text, &value) && isfinite(value)) {
        text_count(out, value);
        text_gib(out, value);
        text_duration(out, value);
    }
    free(text);
    return 0;
}
