// dump_logits MODEL OUT ID...: logits of a model (run or HF directory) for the given token ids, computed by hearth in
// fp32 on the CPU, as raw little-endian floats [ids, vocab]. compare_export.py sets them against transformers.
#include "base/file.h"
#include "base/text.h"
#include "infer/loaded.h"
#include "model/transformer.h"

#include <stdio.h>
#include <stdlib.h>

static Status dump(const char *path, const char *out, int32_t *ids, int count) {
    Loaded loaded;
    LoadedRequest request = {.path = path, .device = "cpu", .precision = "fp32", .micro_batch = 1, .seq = count};
    TRY(loaded_open(&loaded, &request));
    int vocab = loaded.config.vocab;
    Status status = NULL;
    size_t bytes = (size_t)count * (size_t)vocab * sizeof(float);
    float *logits = xmalloc(bytes);
    for (int i = 0; i < count && !status; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            status = status_usage("token id %d is outside the vocabulary of %d", ids[i], vocab);
    if (!status) {
        model_step_begin(loaded.model, count, 1);
        model_eval_step(loaded.model, ids, ids, NULL);
        transformer_logits(loaded.model, logits);
        status = loaded.ops->sync(loaded.ops);
    }
    if (!status) status = file_write_atomic(out, logits, bytes);
    free(logits);
    loaded_close(&loaded);
    return status;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: %s MODEL OUT ID ID...\n", argv[0]);
        return 2;
    }
    int count = argc - 3;
    int32_t *ids = xmalloc((size_t)count * sizeof *ids);
    for (int i = 0; i < count; i++)
        ids[i] = (int32_t)strtol(argv[i + 3], NULL, 10);
    Status status = dump(argv[1], argv[2], ids, count);
    free(ids);
    if (!status) return 0;
    status_print(status, stderr);
    status_free(status);
    return 1;
}
