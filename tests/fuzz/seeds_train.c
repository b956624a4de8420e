// The files of a sound checkpoint as one document, for the checkpoint target to start from. usage: seeds_train FOLDER
#include "testing.h"

#include "base/json.h"
#include "tiny_model.h"
#include "train/checkpoint.h"

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    char *folder = path_join(argv[1], "fuzz_checkpoint"), *checkpoints = text_format("%s-files", folder);
    json_t *whole = json_object();
    fuzz_tiny_checkpoint(
        fuzz_tiny_model(), checkpoints,
        json_pack("{s:i,s:i,s:i,s:i,s:f,s:{s:i,s:i,s:i,s:[f,f]},s:{s:s,s:f,s:f,s:i,s:i,s:i},s:[[f,f]]}", "step", 3,
                  "tokens", 96, "applied", 3, "sample", 12, "val_loss", 2.5, "guard", "accepted", 2, "skipped", 1,
                  "skipped_in_row", 0, "losses", 2.5, 2.25, "schedule", "kind", "cosine", "lr", 0.01, "min_lr", 0.001,
                  "warmup_steps", 3, "decay_steps", 0, "total_steps", 10, "router_bias", 0.5, -0.5));
    static const char *const names[] = {"manifest", "state", "config"};
    for (int i = 0; i < 3; i++) {
        char *path = text_format("%s/step-3/%s.json", checkpoints, names[i]);
        json_t *root;
        assert_ok(json_read_file(&root, path));
        json_object_set_new(whole, names[i], root);
        free(path);
    }
    char *text = json_dumps(whole, JSON_COMPACT), *path = path_join(folder, "sound");
    assert_ok(dir_make(folder));
    assert_ok(file_write_atomic(path, text, strlen(text)));
    assert_ok(dir_remove(checkpoints));
    return 0;
}
