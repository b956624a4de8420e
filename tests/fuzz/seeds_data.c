// Sound files for the data targets to start from. usage: seeds_data FOLDER
#include "../data/parquet_build.h"
#include "base/file.h"
#include "base/text.h"
#include "data/prepare_unit.h"
#include "data/shard.h"

static const char *const words[] = {"alpha", "", "gamma", "alpine", "alpha", "a somewhat longer text", "Z\xc3\xbcrich"};
static const char *const gaps[] = {NULL, "one", NULL, NULL, "two", "two", NULL, "three", "one", NULL};

static char *seed_path(const char *folder, const char *target, const char *name) {
    char *directory = text_format("%s/%s", folder, target);
    assert_ok(dir_make(directory));
    char *path = path_join(directory, name);
    free(directory);
    return path;
}

static void seed_write(const char *folder, const char *target, const char *name, const char *data, size_t size) {
    char *path = seed_path(folder, target, name);
    assert_ok(file_write_atomic(path, data, size));
    free(path);
}

static void parquet_seeds(const char *folder) {
    static const int codecs[] = {CODEC_NONE, CODEC_SNAPPY, CODEC_GZIP, CODEC_ZSTD};
    for (int c = 0; c < 4; c++) {
        for (int version = 1; version <= 2; version++) {
            Build build;
            char name[32];
            build_start(&build, codecs[c], version == 2);
            build_group(&build);
            build_dictionary(&build, words, 7);
            build_page(&build, version, DICTIONARY, words, 7);
            build_page(&build, version, PLAIN, version == 2 ? gaps : words, 7);
            build_page(&build, version, DELTA_LENGTH, words, 7);
            build_page(&build, version, DELTA_STRINGS, words, 7);
            build_finish(&build);
            snprintf(name, sizeof name, "codec%d-v%d", codecs[c], version);
            seed_write(folder, "fuzz_parquet", name, build.file.data, build.file.length);
            text_buffer_free(&build.file);
        }
    }
}

static void shard_seeds(const char *folder) {
    static const uint64_t vocabularies[] = {300, 70000};
    for (int i = 0; i < 2; i++) {
        char *path = seed_path(folder, "fuzz_shard", i ? "wide" : "narrow");
        const uint32_t ids[] = {1, 2, 3, 4, 5};
        ShardWriter *writer;
        assert_ok(shard_writer_open(&writer, path, vocabularies[i], 7));
        assert_ok(shard_writer_add(writer, ids, 5, 9));
        assert_ok(shard_writer_add(writer, ids, 2, 3));
        assert_ok(shard_writer_close(writer, NULL));
        free(path);
    }
}

static void unit_seeds(const char *folder) {
    const uint32_t ids[] = {1, 2, 3, 4, 5};
    char *directory = path_join(folder, "fuzz_units");
    assert_ok(dir_make(directory));
    for (uint32_t bytes = 2; bytes <= 4; bytes += 2) {
        UnitBuffer *buffer = unit_buffer_new(bytes);
        unit_buffer_add(buffer, (DocumentHash){bytes, 1}, 9, ids, 5);
        unit_buffer_add(buffer, (DocumentHash){5, 1}, 4, ids, 0);
        unit_buffer_add(buffer, (DocumentHash){9, 2}, 4, ids, 2);
        assert_ok(unit_buffer_write(buffer, directory, bytes, (ReaderPosition){0, 3},
                                    &(PrepareCounts){.documents = 3, .tokens = 7}, UNIT_END));
        unit_buffer_free(buffer);
    }
    free(directory);
}

static void text_seeds(const char *folder) {
    static const char *const lines[] = {"{\"text\":\"a \\u00e9 \\ud83d\\ude00 \\n\",\"score\":-1.5e3}",
                                        "{\"a\":[1,{\"b\":null},true],\"text\":null}", "{\"te\\u0078t\":\"x\"}"};
    static const char *const documents[] = {
        "a = 1\n[t]\nb = \"x\\u00e9\"\nc = [1, 2.5, 'y']\n[[l]]\nd = 1979-05-27T07:32:00Z\n",
        "k = {x = 1, y.z = \"\"\"\nlong\"\"\"}\nh = 0xff\nf = inf\n"};
    char name[16];
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "line%zu", i);
        seed_write(folder, "fuzz_jsonl", name, lines[i], strlen(lines[i]));
    }
    for (size_t i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "document%zu", i);
        seed_write(folder, "fuzz_toml", name, documents[i], strlen(documents[i]));
    }
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    parquet_seeds(argv[1]);
    shard_seeds(argv[1]);
    unit_seeds(argv[1]);
    text_seeds(argv[1]);
    return 0;
}
