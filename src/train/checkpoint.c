// Writing a checkpoint from a snapshot on its own thread, and reading one back only when every checksum holds.
#include "train/checkpoint.h"

#include "base/file.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "model/safetensors.h"
#include "plan/checkpointing.h"
#include "train/checkpoint_keep.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CHUNK = 1 << 20 };

static const struct {
    const char *file;
    ModelState state;
} parts[] = {{"model.safetensors", MODEL_WEIGHTS}, {"adam_m.safetensors", MODEL_M}, {"adam_v.safetensors", MODEL_V}};
_Static_assert(sizeof parts / sizeof parts[0] * sizeof(float) == PLAN_CHECKPOINT_PARAMETER_BYTES,
               "the planner counts what is written here");

// ---- writing -------------------------------------------------------------------------------------------------------

static void hex(char out[24], uint64_t value) {
    snprintf(out, 24, "%016llx", (unsigned long long)value);
}

static Status write_tensor(SafetensorsWriter *writer, const Layout *layout, const ModelSnapshot *snapshot,
                           const LayoutParam *param, const LayoutSlice *part, ModelState state, float *chunk,
                           uint64_t *hash) {
    XXH64_state_t *digest = XXH64_createState();
    XXH64_reset(digest, 0);
    Status status = NULL;
    for (int64_t at = 0; at < part->count && !status; at += CHUNK) {
        int64_t count = part->count - at < CHUNK ? part->count - at : CHUNK;
        model_snapshot_read(snapshot, layout, param, state, part->at + at, count, chunk);
        XXH64_update(digest, chunk, (size_t)count * sizeof *chunk);
        status = safetensors_writer_add(writer, chunk, (size_t)count * sizeof *chunk);
    }
    *hash = XXH64_digest(digest);
    XXH64_freeState(digest);
    return status;
}

static Status write_part(const char *path, const Layout *layout, const ModelSnapshot *snapshot, ModelState state,
                         json_t *hashes) {
    int total = 0, at = 0;
    for (int i = 0; i < layout->param_count; i++)
        total += layout_slice_count(layout, &layout->params[i]);
    SafeTensor *tensors = xcalloc((size_t)total + 1, sizeof *tensors);
    LayoutSlice *pieces = xcalloc((size_t)total + 1, sizeof *pieces);
    const LayoutParam **owners = xcalloc((size_t)total + 1, sizeof *owners);
    for (int i = 0; i < layout->param_count; i++)
        for (int k = 0; k < layout_slice_count(layout, &layout->params[i]); k++, at++) {
            pieces[at] = layout_slice(layout, &layout->params[i], k);
            owners[at] = &layout->params[i];
            tensors[at] = (SafeTensor){.name = pieces[at].name,
                                       .dtype = DTYPE_F32,
                                       .dims = pieces[at].dims,
                                       .shape = {pieces[at].shape[0], pieces[at].shape[1]}};
        }
    float *chunk = xmalloc(CHUNK * sizeof *chunk);
    SafetensorsWriter *writer = NULL;
    Status status = safetensors_writer_open(&writer, path, tensors, total);
    for (int i = 0; i < total && !status; i++) {
        uint64_t hash;
        char text[24];
        status = write_tensor(writer, layout, snapshot, owners[i], &pieces[i], state, chunk, &hash);
        hex(text, hash);
        json_object_set_new(hashes, pieces[i].name, json_string(text));
    }
    if (status)
        safetensors_writer_abort(writer);
    else
        status = safetensors_writer_close(writer);
    free(chunk);
    free(owners);
    free(pieces);
    free(tensors);
    return status;
}

static uint64_t json_hash(const json_t *root) {
    char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    uint64_t hash = XXH64(text, strlen(text), 0);
    free(text);
    return hash;
}

static Status write_json(const char *directory, const char *name, const json_t *root) {
    char *path = path_join(directory, name);
    Status status = json_write_file(root, path);
    free(path);
    return status;
}

static Status write_files(const char *directory, const Layout *layout, const ModelSnapshot *snapshot,
                          const json_t *state) {
    json_t *tensors = json_object(), *config = model_config_json(&layout->request.config);
    Status status = NULL;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !status; i++) {
        json_t *hashes = json_object();
        json_object_set_new(tensors, parts[i].file, hashes);
        char *path = path_join(directory, parts[i].file);
        status = write_part(path, layout, snapshot, parts[i].state, hashes);
        free(path);
    }
    if (!status) status = write_json(directory, "config.json", config);
    if (!status) status = write_json(directory, "state.json", state);
    char state_hash[24], config_hash[24];
    hex(state_hash, json_hash(state));
    hex(config_hash, json_hash(config));
    json_t *manifest = json_pack("{s:s,s:i,s:s,s:s,s:O}", "format", "hearth-checkpoint", "version", 2, "state",
                                 state_hash, "config", config_hash, "xxh64", tensors);
    if (!status) status = write_json(directory, "manifest.json", manifest);
    json_decref(manifest);
    json_decref(config);
    json_decref(tensors);
    return status;
}

static Status check_space(const char *directory, const Layout *layout) {
    int64_t available = 0, needed = 0;
    for (int i = 0; i < layout->param_count; i++)
        needed += layout->params[i].count * PLAN_CHECKPOINT_PARAMETER_BYTES;
    TRY(disk_free_bytes(&available, directory));
    char a[32], b[32];
    if (available < needed + (1 << 16))
        return status_runtime("a checkpoint takes %s, and the disk of %s has %s left", text_gib(a, (double)needed),
                              directory, text_gib(b, (double)available));
    return NULL;
}

// The complete directory `beside` takes the name `final`. One that is there under it already (the write of this step
// was taken for failed, and is tried again) makes room, and comes back when that fails.
static Status take_name(const char *directory, const char *beside, const char *final, int64_t step) {
    bool replaces = file_exists(final);
    if (replaces) TRY(checkpoint_to_trash(directory, step));
    if (io_rename(beside, final) == 0) return file_sync(directory);
    Status status = status_errno("cannot rename %s to %s", beside, final);
    if (replaces) status_free(checkpoint_from_trash(directory, step));
    return status;
}

// Beside, then in: the directory is complete before it takes its name, and on disk: each file in it syncs its content
// and its name when it is written.
static Status write_checkpoint(const char *directory, const Layout *layout, const ModelSnapshot *snapshot, int64_t step,
                               const json_t *state) {
    char *beside = text_format("%s/" CHECKPOINT_PARTIAL "step-%lld", directory, (long long)step);
    char *final = text_format("%s/step-%lld", directory, (long long)step);
    Status status = check_space(directory, layout);
    if (!status) status = dir_remove(beside);
    if (!status) status = dir_make(beside);
    if (!status) status = write_files(beside, layout, snapshot, state);
    if (!status) status = take_name(directory, beside, final, step);
    if (status) {
        status_free(dir_remove(beside)); // best effort: the first failure is the one to report
        status = status_hint(status_context(status, "the checkpoint of step %lld was not written", (long long)step),
                             "earlier checkpoints are intact; look at the disk and at its free space");
    }
    free(beside);
    free(final);
    return status;
}

// ---- the writer's thread -------------------------------------------------------------------------------------------

struct CheckpointWriter {
    char *directory;
    const Layout *layout;
    CheckpointPolicy policy;
    ModelSnapshot snapshot;
    json_t *state;
    int64_t step, done_step;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, stop;
    Status status; // of the last write, until polled
};

static void writer_run(CheckpointWriter *writer) {
    Status status = write_checkpoint(writer->directory, writer->layout, &writer->snapshot, writer->step, writer->state);
    if (!status) { // the checkpoint is complete, whatever becomes of the older ones
        Status pruned = checkpoint_prune(writer->directory, &writer->policy);
        if (pruned) log_warn("older checkpoints were not removed: %s", status_text(pruned));
        status_free(pruned);
    }
    pthread_mutex_lock(&writer->lock);
    if (!status) writer->done_step = writer->step;
    status_free(writer->status);
    writer->status = status;
    writer->busy = false;
    json_decref(writer->state);
    writer->state = NULL;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
}

static void *writer_main(void *argument) {
    CheckpointWriter *writer = argument;
    for (;;) {
        pthread_mutex_lock(&writer->lock);
        while (!writer->busy && !writer->stop)
            pthread_cond_wait(&writer->changed, &writer->lock);
        bool work = writer->busy;
        pthread_mutex_unlock(&writer->lock);
        if (!work) return NULL;
        writer_run(writer);
    }
}

Status checkpoint_writer_open(CheckpointWriter **out, const char *directory, const Layout *layout,
                              const CheckpointPolicy *policy, int rank, int ranks) {
    (void)rank, (void)ranks;
    *out = NULL;
    TRY(dir_make(directory));
    TRY(checkpoint_clean(directory));
    CheckpointWriter *writer = xcalloc(1, sizeof *writer);
    *writer = (CheckpointWriter){
        .directory = text_copy(directory), .layout = layout, .policy = *policy, .done_step = -1, .step = -1};
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->changed, NULL);
    if (policy->async && pthread_create(&writer->thread, NULL, writer_main, writer)) {
        free(writer->directory);
        free(writer);
        return status_runtime("cannot start the checkpoint thread");
    }
    *out = writer;
    return NULL;
}

static void wait_idle(CheckpointWriter *writer) {
    pthread_mutex_lock(&writer->lock);
    while (writer->busy)
        pthread_cond_wait(&writer->changed, &writer->lock);
    pthread_mutex_unlock(&writer->lock);
}

Status checkpoint_save(CheckpointWriter *writer, Model *model, int64_t step, json_t *state) {
    wait_idle(writer);
    Status status = model_snapshot(model, &writer->snapshot, true);
    if (status) {
        json_decref(state);
        return status;
    }
    pthread_mutex_lock(&writer->lock);
    writer->state = state;
    writer->step = step;
    writer->busy = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    if (!writer->policy.async) writer_run(writer);
    return NULL;
}

Status checkpoint_poll(CheckpointWriter *writer, bool wait, int64_t *done_step) {
    if (wait) wait_idle(writer);
    pthread_mutex_lock(&writer->lock);
    Status status = writer->status;
    writer->status = NULL;
    *done_step = writer->done_step;
    writer->done_step = -1;
    pthread_mutex_unlock(&writer->lock);
    return status;
}

void checkpoint_writer_close(CheckpointWriter *writer) {
    if (!writer) return;
    wait_idle(writer);
    if (writer->policy.async) {
        pthread_mutex_lock(&writer->lock);
        writer->stop = true;
        pthread_cond_broadcast(&writer->changed);
        pthread_mutex_unlock(&writer->lock);
        pthread_join(writer->thread, NULL);
    }
    model_snapshot_free(&writer->snapshot);
    status_free(writer->status);
    pthread_mutex_destroy(&writer->lock);
    pthread_cond_destroy(&writer->changed);
    free(writer->directory);
    free(writer);
}

// ---- reading -------------------------------------------------------------------------------------------------------

// Read, not mapped: what the disk cannot deliver is an error then, and not the end of the process.
static Status read_json(const char *directory, const char *name, json_t **root) {
    char *path = path_join(directory, name), *text;
    size_t size;
    Status status = file_read(&text, &size, path);
    if (!status) status = json_read_text(root, text, size, path);
    free(text);
    free(path);
    return status;
}

static Status hash_range(int fd, size_t offset, size_t bytes, char *chunk, const char *path, uint64_t *hash) {
    XXH64_state_t *digest = XXH64_createState();
    XXH64_reset(digest, 0);
    Status status = NULL;
    while (bytes && !status) {
        ssize_t n = io_read_at(fd, chunk, bytes < CHUNK ? bytes : CHUNK, (int64_t)offset);
        if (n < 0) {
            status = status_errno("cannot read %s", path);
        } else if (n == 0) {
            status = status_runtime("%s became shorter while it was read", path);
        } else {
            XXH64_update(digest, chunk, (size_t)n);
            offset += (size_t)n;
            bytes -= (size_t)n;
        }
    }
    *hash = XXH64_digest(digest);
    XXH64_freeState(digest);
    return status;
}

static Status verify_tensors(const Safetensors *file, const json_t *hashes, const char *path) {
    if ((size_t)file->count != json_object_size(hashes))
        return status_at(status_usage("the file holds other tensors than the manifest"), path, 0, 0);
    int fd = io_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return status_errno("cannot open %s", path);
    char *chunk = xmalloc(CHUNK), actual[24];
    Status status = NULL;
    for (int i = 0; i < file->count && !status; i++) {
        const SafeTensor *tensor = &file->tensors[i];
        uint64_t hash;
        size_t offset = (size_t)((const char *)tensor->data - (const char *)file->map.data);
        TRY_GOTO(hash_range(fd, offset, tensor->bytes, chunk, path, &hash), done);
        hex(actual, hash);
        const char *stated = json_string_value(json_object_get(hashes, tensor->name));
        if (!stated || strcmp(stated, actual) != 0)
            status = status_at(status_usage("tensor \"%s\" is damaged: its checksum does not match", tensor->name),
                               path, 0, 0);
    }
done:
    free(chunk);
    io_close(fd);
    return status;
}

static Status verify_part(const char *directory, const char *name, const json_t *hashes) {
    char *path = path_join(directory, name);
    Safetensors file;
    Status status = safetensors_open(&file, path);
    if (!status) {
        status = verify_tensors(&file, hashes, path);
        safetensors_close(&file);
    }
    free(path);
    return status;
}

static Status verify_json(const char *path, const json_t *manifest, const char *key, const json_t *root) {
    const char *stated = json_string_value(json_object_get(manifest, key));
    char actual[24];
    hex(actual, json_hash(root));
    if (stated && strcmp(stated, actual) == 0) return NULL;
    return status_at(status_usage("%s.json is damaged: its checksum does not match", key), path, 0, 0);
}

static Status verify_manifest(const char *path, const json_t *manifest, const json_t *state, const json_t *config) {
    const char *format = json_string_value(json_object_get(manifest, "format"));
    if (!format || strcmp(format, "hearth-checkpoint") != 0)
        return status_at(status_usage("manifest.json is not one of a checkpoint"), path, 0, 0);
    TRY(verify_json(path, manifest, "state", state));
    int64_t version = 0;
    TRY(json_get_int(manifest, "version", &version, path));
    if (version > 1) TRY(verify_json(path, manifest, "config", config)); // version 1 did not state it
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const json_t *hashes = json_object_get(json_object_get(manifest, "xxh64"), parts[i].file);
        if (!json_is_object(hashes))
            return status_at(status_usage("manifest.json does not list %s", parts[i].file), path, 0, 0);
        TRY(verify_part(path, parts[i].file, hashes));
    }
    return NULL;
}

Status checkpoint_verify(const char *path) {
    json_t *manifest = NULL, *state = NULL, *config = NULL;
    Status status = read_json(path, "manifest.json", &manifest);
    if (!status) status = read_json(path, "state.json", &state);
    if (!status) status = read_json(path, "config.json", &config);
    if (!status) status = verify_manifest(path, manifest, state, config);
    json_decref(manifest);
    json_decref(state);
    json_decref(config);
    return status;
}

static Status none_usable(const char *directory, const int64_t *steps, int count) {
    TextBuffer names = {0};
    for (int i = 0; i < count; i++)
        text_buffer_format(&names, "%sstep-%lld", i ? ", " : "", (long long)steps[i]);
    Status status = status_hint(status_runtime("no checkpoint in %s can be used", directory),
                                "damaged: %s; put back a good copy, or move them away", names.data);
    text_buffer_free(&names);
    return status;
}

// A disk or a file server that fails once may well deliver at the second try.
static Status verify_twice(const char *path) {
    Status status = checkpoint_verify(path);
    if (!status || status_code(status) == STATUS_USAGE) return status;
    status_free(status);
    return checkpoint_verify(path);
}

static Status unreadable(Status status, const char *path) {
    return status_hint(
        status_context(status, "the checkpoint %s cannot be read, which says nothing of its content", path),
        "nothing was changed; try again, or rename its folder to go on from an earlier one");
}

Status checkpoint_find(const char *directory, char **path, int64_t *step,
                       void (*say)(void *context, const char *message), void *context) {
    int64_t *steps = NULL;
    int count = 0;
    *path = NULL;
    if (!file_is_directory(directory)) return NULL;
    TRY(checkpoint_steps(directory, &steps, &count));
    Status status = NULL;
    for (int i = count - 1; i >= 0 && !status && !*path; i--) {
        char *candidate = text_format("%s/step-%lld", directory, (long long)steps[i]);
        Status damage = verify_twice(candidate);
        if (!damage) {
            *path = candidate;
            *step = steps[i];
            break;
        }
        if (status_code(damage) != STATUS_USAGE) {
            status = unreadable(damage, candidate);
        } else {
            char *message =
                text_format("checkpoint step-%lld cannot be used: %s", (long long)steps[i], status_text(damage));
            if (say) say(context, message);
            free(message);
            status_free(damage);
        }
        free(candidate);
    }
    if (!status && !*path && count) status = none_usable(directory, steps, count);
    free(steps);
    return status;
}

static Status load_part_file(Model *model, const char *directory, const char *name, ModelState state) {
    const Layout *layout = &model->layout;
    char *path = path_join(directory, name);
    Safetensors file;
    Status status = safetensors_open(&file, path);
    bool opened = !status;
    for (int i = 0; i < layout->param_count && !status; i++) {
        const LayoutParam *param = &layout->params[i];
        float *host = xmalloc((size_t)param->count * sizeof *host);
        for (int k = 0; k < layout_slice_count(layout, param) && !status; k++) {
            LayoutSlice part = layout_slice(layout, param, k);
            const SafeTensor *tensor = safetensors_find(&file, part.name);
            if (!tensor || tensor->count != part.count)
                status = status_at(
                    status_usage("tensor \"%s\" is missing or has another size than the config says", part.name), path,
                    0, 0);
            else
                status = safetensors_read_f32(tensor, 0, part.count, host + part.at, path);
        }
        if (!status) model_write_param(model, param, state, host);
        free(host);
    }
    if (opened) safetensors_close(&file);
    free(path);
    return status;
}

Status checkpoint_load(Model *model, const char *path, bool with_moments, json_t **state) {
    size_t count = with_moments ? sizeof parts / sizeof *parts : 1;
    for (size_t i = 0; i < count; i++)
        TRY(load_part_file(model, path, parts[i].file, parts[i].state));
    return state ? read_json(path, "state.json", state) : NULL;
}
