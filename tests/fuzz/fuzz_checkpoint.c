// {"manifest": ..., "state": ..., "config": ...} as the files of a checkpoint, the checksums of state and config made
// right, beside the tensors of a tiny model: verified, found, the best chosen, and its state taken up.
#include "fuzz_json.h"

#include "base/text.h"
#include "tiny_model.h"
#include "train/checkpoint.h"
#include "train/checkpoint_write.h"
#include "train/guard.h"
#include "train/router_bias.h"
#include "train/schedule.h"

#define FOLDER "/mem/checkpoints/step-3"

const char *const fuzz_words[] = {"format",
                                  "hearth-checkpoint",
                                  "version",
                                  "xxh64",
                                  "state",
                                  "config",
                                  "manifest",
                                  "model.safetensors",
                                  "adam_m.safetensors",
                                  "adam_v.safetensors",
                                  "step",
                                  "tokens",
                                  "applied",
                                  "sample",
                                  "seed",
                                  "guard",
                                  "accepted",
                                  "skipped",
                                  "skipped_in_row",
                                  "losses",
                                  "schedule",
                                  "kind",
                                  "lr",
                                  "min_lr",
                                  "warmup_steps",
                                  "decay_steps",
                                  "total_steps",
                                  "cosine",
                                  "wsd",
                                  "constant",
                                  "val_loss",
                                  "router_bias",
                                  "0:8,0:8 0123456789abcdef",
                                  "0:1,0:8 0",
                                  "9223372036854775807:-9223372036854775808,0:1 0",
                                  NULL};

static Model *tiny_model;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    tiny_model = fuzz_tiny_model();
    fuzz_tiny_checkpoint(tiny_model, "/mem/checkpoints", json_pack("{s:i}", "step", 3));
    fuzz_files_fix();
    return 0;
}

static void state_take(const json_t *state) {
    Guard guard = {.factor = 2, .window = 16};
    Schedule schedule = {.kind = SCHEDULE_CONSTANT, .lr = 1};
    Status status = guard_restore(&guard, json_object_get(state, "guard"), "state.json");
    if (!status) {
        guard_limit(&guard);
        guard_note(&guard, 2.0, false);
        json_decref(guard_json(&guard));
    }
    status_free(status);
    schedule_read(&schedule, json_object_get(state, "schedule"));
    schedule_lr(&schedule, 1);
    schedule_lr(&schedule, 1000);
    status_free(router_bias_restore(tiny_model, state, "state.json"));
    tiny_model->router_bias = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *root = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    json_t *manifest = json_object_get(root, "manifest"), *state = json_object_get(root, "state");
    json_t *config = json_object_get(root, "config");
    if (json_is_object(manifest) && json_is_object(state) && json_is_object(config)) { // as files have it
        char hash[24];
        checkpoint_hash_text(hash, checkpoint_json_hash(state));
        json_object_set_new(manifest, "state", json_string(hash));
        checkpoint_hash_text(hash, checkpoint_json_hash(config));
        json_object_set_new(manifest, "config", json_string(hash));
    }
    fuzz_file_put_json(FOLDER "/manifest.json", manifest);
    fuzz_file_put_json(FOLDER "/state.json", state);
    fuzz_file_put_json(FOLDER "/config.json", config);
    status_free(checkpoint_verify(FOLDER));
    int64_t step;
    status_free(checkpoint_best("/mem/checkpoints", &step));
    if (state) state_take(state);
    json_decref(root);
    fuzz_files_clear();
    return 0;
}
