// Finding and opening a trained model, wherever it lies.
#include "infer/loaded.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "base/threads.h"
#include "data/mix.h"
#include "model/hf.h"
#include "train/checkpoint.h"
#include "train/router_bias.h"

#include <stdlib.h>
#include <string.h>

static bool directory_holds(const char *directory, const char *name) {
    char *path = path_join(directory, name);
    bool found = file_exists(path);
    free(path);
    return found;
}

static void say_damaged(void *context, const char *message) {
    (void)context;
    log_warn("%s", message);
}

static Status best_checkpoint(const char *directory, char **source) {
    int64_t step;
    TRY(checkpoint_best(directory, &step));
    if (step < 0) return status_usage("no checkpoint below %s has a validation loss to be the best by", directory);
    *source = text_format("%s/step-%lld", directory, (long long)step);
    return checkpoint_verify(*source);
}

static Status checkpoint_missing(const char *directory, const char *wanted) {
    int64_t *steps = NULL;
    int count = 0;
    TextBuffer list = {0};
    status_free(checkpoint_steps(directory, &steps, &count));
    for (int i = 0; i < count; i++)
        text_buffer_format(&list, "%s%lld", i ? ", " : "", (long long)steps[i]);
    Status status = status_hint(status_usage("there is no checkpoint %s", wanted), "there are those of steps %s",
                                count ? list.data : "none");
    text_buffer_free(&list);
    free(steps);
    return status;
}

static Status run_checkpoint(const char *directory, const char *wanted, char **source) {
    int64_t step;
    if (wanted && strcmp(wanted, "best") == 0) return best_checkpoint(directory, source);
    if (wanted && strcmp(wanted, "newest") != 0) {
        if (!text_to_int64(wanted, &step))
            return status_usage("a checkpoint is newest, best or a step, not \"%s\"", wanted);
        *source = text_format("%s/step-%lld", directory, (long long)step);
        if (!file_is_directory(*source)) return checkpoint_missing(directory, *source);
        return checkpoint_verify(*source);
    }
    TRY(checkpoint_find(directory, source, &step, say_damaged, NULL));
    if (*source) return NULL;
    return status_hint(status_usage("no complete checkpoint below %s", directory),
                       "train for longer, or lower checkpoint.every");
}

Status loaded_source(const char *path, const char *checkpoint, char **source) {
    *source = NULL;
    if (!file_is_directory(path)) return status_usage("%s is neither a run nor a Hugging Face directory", path);
    char *directory = path_join(path, "checkpoints");
    Status status = NULL;
    if (file_is_directory(directory))
        status = run_checkpoint(directory, checkpoint, source);
    else if (directory_holds(path, "config.json")) {
        *source = text_copy(path);
        if (directory_holds(path, "manifest.json")) status = checkpoint_verify(path);
    } else
        status = status_hint(status_usage("%s holds neither checkpoints nor a config.json", path),
                             "give a run directory, one of its checkpoints, or a Hugging Face directory");
    if (status) {
        free(*source);
        *source = NULL;
    }
    free(directory);
    return status;
}

static bool is_run(const char *directory) {
    return directory_holds(directory, "config.toml") && directory_holds(directory, "model.json");
}

// The run directory that path is, or is a checkpoint of (RUN/checkpoints/step-N); malloc'd, NULL: none.
static char *run_of(const char *path) {
    if (is_run(path)) return text_copy(path);
    char *whole = realpath(path, NULL); // without "." and slashes at the end
    if (!whole) return NULL;
    char *above = path_directory(whole), *run = path_directory(above);
    bool found = text_ends_with(above, "/checkpoints") && is_run(run);
    free(whole);
    free(above);
    if (found) return run;
    free(run);
    return NULL;
}

Status loaded_run_config(const char *path, Config *config, bool *found) {
    char *run = run_of(path), *file = run ? path_join(run, "config.toml") : NULL;
    Status status = file ? config_read(config, file, NULL, 0) : NULL;
    *found = file && !status;
    free(file);
    free(run);
    return status;
}

static char *tokenizer_in(const char *directory) {
    char *path = path_join(directory, "tokenizer.json");
    if (file_exists(path)) return path;
    free(path);
    return NULL;
}

// Runs copy every tokenizer but the built-in one. A run without a copy was made with that, or with one that was not
// found: its configuration or its data says which.
static bool run_has_bytes(const char *run) {
    Config config;
    bool found = false, known;
    Status status = loaded_run_config(run, &config, &known);
    if (known) {
        found = strcmp(config.data.tokenizer, "bytes") == 0;
        Mix mix = {0};
        if (!config.data.tokenizer[0] && config.data.train.count)
            status = mix_open(&mix, config.data.train.items[0], "train", VERIFY_NEVER);
        Tokenizer *bytes = NULL;
        if (!status) status = tokenizer_load(&bytes, "bytes");
        if (!status && mix.count && mix.datasets[0].shard_count)
            found = mix.datasets[0].tokenizer_hash == tokenizer_hash(bytes);
        tokenizer_free(bytes);
        mix_close(&mix);
        config_free(&config);
    }
    status_free(status); // data that is gone says nothing
    return found;
}

char *loaded_tokenizer_path(const char *path, const char *source) {
    char *found = tokenizer_in(path);
    if (!found) found = tokenizer_in(source);
    if (found) return found;
    char *run = run_of(source);
    if (run) found = tokenizer_in(run);
    if (run && !found && run_has_bytes(run)) found = text_copy("bytes");
    free(run);
    return found;
}

static Status open_tokenizer(Loaded *loaded, const LoadedRequest *request) {
    loaded->tokenizer_path =
        request->tokenizer ? text_copy(request->tokenizer) : loaded_tokenizer_path(request->path, loaded->source);
    if (!loaded->tokenizer_path) return NULL;
    TRY(tokenizer_load(&loaded->tokenizer, loaded->tokenizer_path));
    if (tokenizer_vocab_size(loaded->tokenizer) <= loaded->config.vocab) return NULL;
    if (request->tokenizer)
        return status_usage("the tokenizer %s has %lld entries, the model only %d rows", loaded->tokenizer_path,
                            (long long)tokenizer_vocab_size(loaded->tokenizer), loaded->config.vocab);
    tokenizer_free(loaded->tokenizer); // a guess that does not fit
    loaded->tokenizer = NULL;
    return NULL;
}

// One that was found beside the model must be the one that its data was made with, to the byte. Checkpoints from before
// that was noted do not say.
static Status check_tokenizer(const Loaded *loaded, const json_t *state) {
    const char *stated = json_string_value(json_object_get(state, "tokenizer_hash"));
    char found[24];
    if (!stated || !loaded->tokenizer) return NULL;
    snprintf(found, sizeof found, "%016llx", (unsigned long long)tokenizer_hash(loaded->tokenizer));
    if (strcmp(stated, found) == 0) return NULL;
    return status_hint(status_runtime("%s is not the tokenizer that the model was trained with: the file was changed",
                                      loaded->tokenizer_path),
                       "put back the tokenizer.json of the training data, or name a tokenizer with --tokenizer");
}

// Experts are chosen as in training.
static Status restore_state(Loaded *loaded, bool own_tokenizer) {
    char *file = path_join(loaded->source, "state.json");
    json_t *state = NULL;
    Status status = json_read_file(&state, file);
    if (!status && own_tokenizer) status = check_tokenizer(loaded, state);
    if (!status) status = router_bias_restore(loaded->model, state, file);
    json_decref(state);
    free(file);
    return status;
}

static Status open_all(Loaded *loaded, const LoadedRequest *request) {
    TRY(loaded_source(request->path, request->checkpoint, &loaded->source));
    TRY(model_config_read(&loaded->config, loaded->source));
    TRY(open_tokenizer(loaded, request));
    TRY(ops_create(&loaded->ops, request->device));
    bool cuda = loaded->ops->kind == DEVICE_CUDA;
    int longest = loaded->config.max_positions < 4096 ? loaded->config.max_positions : 4096;
    LayoutRequest layout = {.config = loaded->config,
                            .mesh = MESH_SINGLE,
                            .micro_batch = request->micro_batch > 0 ? request->micro_batch : 1,
                            .seq = request->seq > 0 ? request->seq : longest,
                            .device = cuda ? DEVICE_CUDA : DEVICE_CPU,
                            .threads = threads_count(),
                            .recompute = RECOMPUTE_FULL,
                            .documents = request->documents,
                            .inference = true};
    TRY(precision_parse(&layout.precision, request->precision ? request->precision : cuda ? "bf16" : "fp32"));
    TRY(model_create(&loaded->model, loaded->ops, &layout));
    // A checkpoint names its weights as an HF directory does.
    loaded->checkpoint = directory_holds(loaded->source, "manifest.json");
    char *weights = path_join(loaded->source, "model.safetensors");
    Status status = hf_load_weights(loaded->model, loaded->checkpoint ? weights : loaded->source);
    free(weights);
    return status || !loaded->checkpoint ? status : restore_state(loaded, !request->tokenizer);
}

Status loaded_open(Loaded *loaded, const LoadedRequest *request) {
    *loaded = (Loaded){0};
    Status status = open_all(loaded, request);
    if (status) loaded_close(loaded);
    return status;
}

void loaded_close(Loaded *loaded) {
    model_destroy(loaded->model);
    if (loaded->ops) ops_destroy(loaded->ops);
    tokenizer_free(loaded->tokenizer);
    free(loaded->tokenizer_path);
    free(loaded->source);
    *loaded = (Loaded){0};
}
