// Any bytes as the word behind --set: a value in its range that is written and read back, or a message.
#include "fuzz_files.h"

#include "base/toml.h"
#include "train/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Config defaults;
    if (!defaults.data.tokenizer) config_defaults(&defaults);
    Config config = defaults;
    config.arena = (Arena){0};
    char *word = malloc(size + 1);
    memcpy(word, data, size);
    word[size] = 0;
    Status status = config_set(&config, word);
    if (!status) {
        TextBuffer text = {0};
        Toml toml;
        config_write(&config, &text);
        if (toml_parse(&toml, text.data, text.length, "written")) abort();
        toml_free(&toml);
        text_buffer_free(&text);
        status = config_check(&config);
    }
    status_free(status);
    arena_free(&config.arena);
    free(word);
    return 0;
}
