// Any bytes as a TOML document.
#include "base/toml.h"
#include "fuzz_files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Toml toml;
    Status status = toml_parse(&toml, (const char *)data, size, "input");
    if (!status) {
        toml_get(toml.root, "key");
        toml_free(&toml);
    }
    status_free(status);
    return 0;
}
