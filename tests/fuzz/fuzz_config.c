// Any bytes as the configuration of a run: what is accepted is written and read back as the same.
#include "fuzz_files.h"

#include "train/config.c" // file_take: the defaults are read once, not for every input

static Config defaults;

static void config_again(const Config *config) {
    TextBuffer text = {0}, twice = {0};
    Config again = defaults;
    Toml toml;
    again.arena = (Arena){0};
    config_write(config, &text);
    if (toml_parse(&toml, text.data, text.length, "written") || file_take(&again, toml.root)) abort();
    config_write(&again, &twice);
    if (text.length != twice.length || memcmp(text.data, twice.data, text.length) != 0) abort();
    if (config_hash(config, 1) != config_hash(&again, 1)) abort();
    toml_free(&toml);
    arena_free(&again.arena);
    text_buffer_free(&text);
    text_buffer_free(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!defaults.data.tokenizer) config_defaults(&defaults);
    Config config = defaults;
    Toml toml;
    config.arena = (Arena){0};
    config.file = "config.toml";
    Status status = toml_parse(&toml, (const char *)data, size, "config.toml");
    if (!status) {
        status = file_take(&config, toml.root);
        toml_free(&toml);
        if (!status) status = config_check(&config);
        if (!status) config_again(&config);
    }
    status_free(status);
    arena_free(&config.arena);
    return 0;
}
