#include "train/checkpoint_write.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/io.h"
#include "base/text.h"
#include "plan/checkpointing.h"
#include "train/checkpoint_box.h"
#include "train/checkpoint_keep.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

enum { CHUNK = 1 << 20, FOLDER_SECONDS = 20 };

_Static_assert(CHECKPOINT_FILES * sizeof(float) == PLAN_CHECKPOINT_PARAMETER_BYTES &&
                   CHECKPOINT_OUTER_FILES * sizeof(float) == PLAN_CHECKPOINT_OUTER_BYTES,
               "the planner counts what is written here");

CheckpointFile checkpoint_file(int island, int index) {
    static const CheckpointFile first[CHECKPOINT_FILES] = {{"model.safetensors", MODEL_WEIGHTS, 0},
                                                           {"adam_m.safetensors", MODEL_M, 0},
                                                           {"adam_v.safetensors", MODEL_V, 0}};
    CheckpointFile file = first[index];
    file.island = island;
    if (island) snprintf(file.name, sizeof file.name, "island-%d-%.32s", island, first[index].name);
    return file;
}

int checkpoint_file_list(CheckpointFile **files, int islands) {
    static const CheckpointFile outer[CHECKPOINT_OUTER_FILES] = {{"outer_weights.safetensors", MODEL_ANCHOR, 0},
                                                                 {"outer_momentum.safetensors", MODEL_MOMENTUM, 0}};
    int count = 0, each = islands > 1 ? islands : 1;
    *files = xmalloc((size_t)(CHECKPOINT_FILES * each + CHECKPOINT_OUTER_FILES) * sizeof **files);
    for (int i = 0; i < CHECKPOINT_FILES * each; i++)
        (*files)[count++] = checkpoint_file(i / CHECKPOINT_FILES, i % CHECKPOINT_FILES);
    for (int i = 0; i < CHECKPOINT_OUTER_FILES && islands; i++) // the same on all islands
        (*files)[count++] = outer[i];
    return count;
}

// ---- the whole model ------------------------------------------------------------------------------------------------

Status checkpoint_form_make(CheckpointForm *form, const Layout *layout) {
    *form = (CheckpointForm){0};
    LayoutRequest request = layout->request;
    request.mesh = MESH_SINGLE;
    request.rank = 0;
    Layout whole;
    TRY(layout_build(&whole, &request));
    for (int i = 0; i < whole.param_count; i++)
        form->count += layout_slice_count(&whole, &whole.params[i]);
    form->tensors = xcalloc((size_t)form->count + 1, sizeof *form->tensors);
    SafeTensor *tensors = xcalloc((size_t)form->count + 1, sizeof *tensors);
    for (int i = 0, at = 0; i < whole.param_count; i++)
        for (int k = 0; k < layout_slice_count(&whole, &whole.params[i]); k++, at++) {
            LayoutSlice *slice = &form->tensors[at];
            *slice = layout_slice(&whole, &whole.params[i], k);
            tensors[at] = (SafeTensor){.name = slice->name,
                                       .dtype = DTYPE_F32,
                                       .dims = slice->dims,
                                       .shape = {slice->shape[0], slice->shape[1]}};
        }
    safetensors_form_make(&form->file, tensors, form->count);
    form->file_count = checkpoint_file_list(&form->files, layout->request.islands);
    free(tensors);
    layout_free(&whole);
    return NULL;
}

void checkpoint_form_free(CheckpointForm *form) {
    safetensors_form_free(&form->file);
    free(form->tensors);
    free(form->files);
    *form = (CheckpointForm){0};
}

// ---- this rank's part -----------------------------------------------------------------------------------------------

void checkpoint_hash_text(char out[24], uint64_t hash) {
    snprintf(out, 24, "%016llx", (unsigned long long)hash);
}

// Rows that are whole in the file and in the parameter are one stretch in both.
static Status write_box(const CheckpointJob *job, int fd, const char *path, int64_t offset, int64_t all_cols,
                        const LayoutParam *param, CheckpointBox *box, ModelState state, float *chunk) {
    XXH64_state_t *digest = memory_or_exit(XXH64_createState(), 88);
    XXH64_reset(digest, 0);
    bool joined = box->cols == all_cols && box->stride == all_cols;
    int64_t runs = joined ? 1 : box->rows, length = joined ? box->rows * box->cols : box->cols;
    Status status = NULL;
    for (int64_t run = 0; run < runs && !status; run++)
        for (int64_t at = 0; at < length && !status; at += CHUNK) {
            int64_t count = length - at < CHUNK ? length - at : CHUNK, row = box->row + run;
            size_t bytes = (size_t)count * sizeof *chunk;
            model_snapshot_read(job->snapshot, job->layout, param, state, box->at + run * box->stride + at, count,
                                chunk);
            XXH64_update(digest, chunk, bytes);
            status = file_write_all_at(fd, chunk, bytes,
                                       offset + (row * all_cols + box->col + at) * (int64_t)sizeof *chunk, path);
        }
    box->hash = XXH64_digest(digest);
    XXH64_freeState(digest);
    return status;
}

static Status write_slice(const CheckpointJob *job, int fd, const char *path, const LayoutParam *param, int index,
                          ModelState state, float *chunk, json_t *hashes) {
    CheckpointBox boxes[CHECKPOINT_BOXES_MAX];
    LayoutSlice slice = layout_slice(job->layout, param, index);
    int count = checkpoint_boxes_of(job->layout, param, index, boxes);
    if (!count) return NULL;
    json_t *list = json_array();
    json_object_set_new(hashes, slice.name, list);
    int64_t all_cols = slice.shape[slice.dims - 1];
    int64_t offset = safetensors_form_find(&job->form->file, slice.name)->offset;
    for (int i = 0; i < count; i++) {
        TRY(write_box(job, fd, path, offset, all_cols, param, &boxes[i], state, chunk));
        json_array_append_new(list, checkpoint_box_json(&boxes[i]));
    }
    return NULL;
}

static Status write_boxes(const CheckpointJob *job, int fd, const char *path, ModelState state, json_t *hashes) {
    const Layout *layout = job->layout;
    float *chunk = xmalloc(CHUNK * sizeof *chunk);
    Status status = NULL;
    for (int i = 0; i < layout->param_count && !status; i++)
        for (int k = 0; k < layout_slice_count(layout, &layout->params[i]) && !status; k++)
            status = write_slice(job, fd, path, &layout->params[i], k, state, chunk, hashes);
    free(chunk);
    return status;
}

// Rank 0 creates; the files stay open until they are synced, so that no failure of the disk goes unseen in between.
// They are never open for reading: what a file server's client has not read, it cannot write back over the bytes of
// other ranks in the same block.
static bool writes_file(const CheckpointJob *job, int index) {
    return job->form->files[index].island == job->layout->request.island;
}

static Status open_files(const CheckpointJob *job, const char *beside, char *paths[], int fds[]) {
    int flags = O_WRONLY | O_CLOEXEC | (job->rank == 0 ? O_CREAT | O_EXCL : 0);
    for (int i = 0; i < job->form->file_count; i++) {
        if (job->rank && !writes_file(job, i)) continue;
        paths[i] = path_join(beside, job->form->files[i].name);
        fds[i] = io_open(paths[i], flags, 0644);
        if (fds[i] < 0) return status_errno("cannot open %s for writing", paths[i]);
        if (job->rank == 0) TRY(safetensors_form_start(&job->form->file, fds[i], paths[i]));
    }
    return NULL;
}

static Status close_files(const CheckpointJob *job, char *paths[], int fds[], Status status) {
    for (int i = 0; i < job->form->file_count; i++) {
        if (fds[i] >= 0 && io_close(fds[i]) && !status) status = status_errno("cannot close %s", paths[i]);
        free(paths[i]);
    }
    return status;
}

// ---- messages between ranks -----------------------------------------------------------------------------------------

static char *message_path(const CheckpointJob *job, const char *beside, const char *kind, int rank, const char *end) {
    long long attempt = (long long)job->attempt;
    return rank < 0 ? text_format("%s/%s-%lld", beside, kind, attempt)
                    : text_format("%s/%s-%d-%lld%s", beside, kind, rank, attempt, end);
}

// Whole or not there, for those who look now; after a crash nobody looks, so nothing is synced.
static Status message_write(const char *path, const char *text) {
    char *partial = text_format("%s.tmp", path);
    int fd = io_open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    Status status =
        fd < 0 ? status_errno("cannot create %s", partial) : file_write_all(fd, text, strlen(text), partial);
    if (fd >= 0 && io_close(fd) && !status) status = status_errno("cannot close %s", partial);
    if (!status && io_rename(partial, path)) status = status_errno("cannot rename %s to %s", partial, path);
    if (status && fd >= 0) io_unlink(partial);
    free(partial);
    return status;
}

// A failure that even a full disk should let through, if only without its reason.
static void message_failure(const char *path, Status failure) {
    Status status = message_write(path, status_message(failure));
    int fd = status ? io_open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (fd >= 0) io_close(fd);
    status_free(status);
}

// The failure that a message tells of; NULL when there is no such message.
static Status message_failed(const char *path, const char *who) {
    char *text = NULL;
    size_t size;
    if (!file_exists(path)) return NULL;
    Status unread = file_read(&text, &size, path);
    Status status = status_runtime("%s: %s", who, text && *text ? text : "it failed, and could not write down why");
    status_free(unread);
    free(text);
    return status;
}

static Status rank_failed(int rank) {
    return rank < 0 ? NULL : status_runtime("rank %d did not write its part", rank);
}

static void pause_shortly(int *tries) {
    long ms = *tries < 5 ? 1L << *tries : 20;
    ++*tries;
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000 * 1000}, NULL);
}

static Status wait_ready(const CheckpointJob *job, const char *beside, uint64_t *token) {
    char *ready = message_path(job, beside, "ready", -1, NULL), *failed = message_path(job, beside, "failed", -1, NULL);
    double until = clock_seconds() + job->limit, there = clock_seconds();
    Status status = NULL;
    int tries = 0;
    while (!(status = message_failed(failed, "rank 0")) && !file_exists(ready)) {
        if ((status = rank_failed(atomic_load(job->failed)))) break;
        if (file_is_directory(job->directory)) there = clock_seconds();
        if (clock_seconds() - there > FOLDER_SECONDS) { // then rank 0 cannot even say that it failed
            status = status_runtime("there is no folder %s, and rank 0 has not made it again", job->directory);
            break;
        }
        if (clock_seconds() > until) {
            status = status_runtime("rank 0 has not begun with the checkpoint of step %lld within %g s",
                                    (long long)job->step, job->limit);
            break;
        }
        pause_shortly(&tries);
    }
    char *text = NULL;
    size_t size;
    if (!status) status = file_read(&text, &size, ready);
    if (!status) *token = strtoull(text, NULL, 16);
    free(text);
    free(ready);
    free(failed);
    return status;
}

// ---- ranks above 0 --------------------------------------------------------------------------------------------------

static json_t *part_json(uint64_t token, json_t *hashes) {
    char text[24];
    checkpoint_hash_text(text, token);
    return json_pack("{s:s,s:O}", "token", text, "xxh64", hashes);
}

// This rank's boxes in all files, on disk; *hashes gets their checksums by file and tensor. Others wait for `started`.
static Status write_part(const CheckpointJob *job, const char *beside, json_t *hashes,
                         Status (*started)(const CheckpointJob *job, const char *beside)) {
    int count = job->form->file_count;
    char **paths = xcalloc((size_t)count, sizeof *paths);
    int *fds = xmalloc((size_t)count * sizeof *fds);
    for (int i = 0; i < count; i++)
        fds[i] = -1;
    Status status = open_files(job, beside, paths, fds);
    if (!status && started) status = started(job, beside);
    for (int i = 0; i < count && !status; i++) {
        json_t *of_file = json_object();
        json_object_set_new(hashes, job->form->files[i].name, of_file);
        if (writes_file(job, i)) status = write_boxes(job, fds[i], paths[i], job->form->files[i].state, of_file);
        if (!status && fds[i] >= 0) status = file_sync_descriptor(fds[i], paths[i]);
    }
    status = close_files(job, paths, fds, status);
    free(paths);
    free(fds);
    return status;
}

static Status leave_part(const CheckpointJob *job, const char *beside, uint64_t token, json_t *hashes) {
    char *path = message_path(job, beside, "part", job->rank, ".json");
    json_t *part = part_json(token, hashes);
    char *text = json_dumps(part, JSON_COMPACT);
    Status status = message_write(path, text);
    free(text);
    json_decref(part);
    free(path);
    return status;
}

static Status write_as_other(const CheckpointJob *job, const char *beside) {
    json_t *hashes = json_object();
    uint64_t token = 0;
    Status status = wait_ready(job, beside, &token);
    if (!status) status = write_part(job, beside, hashes, NULL);
    if (!status) status = leave_part(job, beside, token, hashes);
    json_decref(hashes);
    if (!status) return NULL;
    char *told = message_path(job, beside, "part", job->rank, ".failed");
    char *failed = message_path(job, beside, "failed", -1, NULL);
    Status cause = message_failed(failed, "rank 0"); // which then took the files away
    if (cause) {
        status_free(status);
        status = cause;
    } else {
        message_failure(told, status);
    }
    free(told);
    free(failed);
    return status_context(status, "rank %d did not write its part of the checkpoint of step %lld", job->rank,
                          (long long)job->step);
}

// ---- rank 0 ---------------------------------------------------------------------------------------------------------

static Status say_ready(const CheckpointJob *job, const char *beside) {
    char *path = message_path(job, beside, "ready", -1, NULL), token[24];
    checkpoint_hash_text(token, job->token);
    Status status = message_write(path, token);
    free(path);
    return status;
}

// Adds a part's checksums to those of all.
static void merge_part(json_t *hashes, const json_t *part) {
    const char *file, *name;
    json_t *to, *boxes;
    json_object_foreach(hashes, file, to) {
        json_object_foreach(json_object_get(part, file), name, boxes) {
            json_t *known = json_object_get(to, name);
            if (known)
                json_array_extend(known, boxes);
            else
                json_object_set(to, name, boxes);
        }
    }
}

// *taken: the rank's part of this attempt is there. One with another token is not it: a process of an earlier run may
// have been late to die.
static Status take_part(const CheckpointJob *job, const char *beside, int rank, json_t *hashes, bool *taken) {
    char *path = message_path(job, beside, "part", rank, ".json"), token[24], who[32];
    char *failed = message_path(job, beside, "part", rank, ".failed");
    snprintf(who, sizeof who, "rank %d", rank);
    checkpoint_hash_text(token, job->token);
    Status status = message_failed(failed, who);
    if (!status && file_exists(path)) {
        json_t *part = NULL;
        char *text = NULL;
        size_t size;
        status = file_read(&text, &size, path);
        if (!status) status = json_read_text(&part, text, size, path);
        const char *stated = json_string_value(json_object_get(part, "token"));
        *taken = !status && stated && strcmp(stated, token) == 0;
        if (*taken) merge_part(hashes, json_object_get(part, "xxh64"));
        json_decref(part);
        free(text);
    }
    free(path);
    free(failed);
    return status;
}

static Status parts_missing(const CheckpointJob *job, const bool *taken, int missing) {
    TextBuffer ranks = {0};
    for (int rank = 1; rank < job->ranks; rank++)
        if (!taken[rank]) text_buffer_format(&ranks, "%s%d", ranks.length ? ", " : "", rank);
    Status status = status_runtime("%s %s %s not written %s part of step %lld within %g s",
                                   missing > 1 ? "ranks" : "rank", ranks.data, missing > 1 ? "have" : "has",
                                   missing > 1 ? "their" : "its", (long long)job->step, job->limit);
    text_buffer_free(&ranks);
    return status;
}

static Status wait_parts(const CheckpointJob *job, const char *beside, json_t *hashes) {
    bool *taken = xcalloc((size_t)job->ranks, sizeof *taken);
    double until = clock_seconds() + job->limit;
    Status status = NULL;
    for (int missing = job->ranks - 1, tries = 0; missing && !status;) {
        int failed = atomic_load(job->failed); // before its file is looked for, which would say why
        for (int rank = 1; rank < job->ranks && !status; rank++) {
            if (taken[rank]) continue;
            status = take_part(job, beside, rank, hashes, &taken[rank]);
            missing -= taken[rank];
        }
        if (!missing || status) break;
        status = clock_seconds() > until ? parts_missing(job, taken, missing) : rank_failed(failed);
        if (!status) pause_shortly(&tries);
    }
    free(taken);
    return status;
}

// Every tensor of the model in every file, each covered once.
static Status check_parts(const CheckpointJob *job, const json_t *hashes) {
    for (int i = 0; i < job->form->file_count; i++) {
        const char *file = job->form->files[i].name;
        const json_t *of_file = json_object_get(hashes, file);
        if (json_object_size(of_file) > (size_t)job->form->count)
            return status_runtime("the ranks wrote tensors that are not in the model");
        for (int k = 0; k < job->form->count; k++) {
            const LayoutSlice *slice = &job->form->tensors[k];
            CheckpointBox *boxes;
            int count;
            Status status =
                checkpoint_boxes_read(&boxes, &count, json_object_get(of_file, slice->name), slice->rows, slice->cols);
            if (status) return status_context(status, "the ranks' parts of %s, tensor \"%s\"", file, slice->name);
            free(boxes);
        }
    }
    return NULL;
}

static Status remove_messages(const char *beside) {
    char **names;
    size_t count;
    TRY(dir_list(&names, &count, beside));
    Status status = NULL;
    for (size_t i = 0; i < count && !status; i++) {
        if (!text_starts_with(names[i], "part-") && !text_starts_with(names[i], "ready-")) continue;
        char *path = path_join(beside, names[i]);
        if (io_unlink(path)) status = status_errno("cannot remove %s", path);
        free(path);
    }
    names_free(names, count);
    return status;
}

uint64_t checkpoint_json_hash(const json_t *root) {
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

// The manifest comes last, and with it the names of all files are on disk.
static Status write_manifest(const CheckpointJob *job, const char *beside, json_t *hashes) {
    json_t *config = model_config_json(&job->layout->request.config);
    Status status = write_json(beside, "config.json", config);
    if (!status) status = write_json(beside, "state.json", job->state);
    char state_hash[24], config_hash[24];
    checkpoint_hash_text(state_hash, checkpoint_json_hash(job->state));
    checkpoint_hash_text(config_hash, checkpoint_json_hash(config));
    json_t *manifest = json_pack("{s:s,s:i,s:s,s:s,s:O}", "format", "hearth-checkpoint", "version", 3, "state",
                                 state_hash, "config", config_hash, "xxh64", hashes);
    if (!status) status = write_json(beside, "manifest.json", manifest);
    json_decref(manifest);
    json_decref(config);
    return status;
}

static Status check_space(const CheckpointJob *job) {
    int64_t available = 0, needed = job->form->file_count * (int64_t)job->form->file.data_bytes;
    TRY(disk_free_bytes(&available, job->directory));
    char a[32], b[32];
    if (available < needed + (1 << 16))
        return status_runtime("a checkpoint takes %s, and the disk of %s has %s left", text_gib(a, (double)needed),
                              job->directory, text_gib(b, (double)available));
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

// Beside, then in: the directory is complete before it takes its name, and on disk.
static Status write_files(const CheckpointJob *job, const char *beside) {
    json_t *hashes = json_object();
    Status status = dir_make(job->directory); // whoever removed it does not mean the checkpoints to come
    if (!status) status = check_space(job);
    if (!status) status = dir_remove(beside);
    if (!status) status = dir_make(beside);
    if (!status) status = write_part(job, beside, hashes, job->ranks > 1 ? say_ready : NULL);
    if (!status && job->ranks > 1) status = wait_parts(job, beside, hashes);
    if (!status) status = check_parts(job, hashes);
    if (!status && job->ranks > 1) status = remove_messages(beside);
    if (!status) status = write_manifest(job, beside, hashes);
    json_decref(hashes);
    return status;
}

// Best effort: the first failure is the one to report. Ranks that have not begun are told, in a directory that the next
// write clears away.
static void give_up(const CheckpointJob *job, const char *beside, Status failure) {
    status_free(dir_remove(beside));
    if (job->ranks == 1) return;
    char *path = message_path(job, beside, "failed", -1, NULL);
    status_free(dir_make(beside));
    message_failure(path, failure);
    free(path);
}

static Status write_as_first(const CheckpointJob *job, const char *beside) {
    char *final = text_format("%s/step-%lld", job->directory, (long long)job->step);
    Status status = write_files(job, beside);
    if (!status) status = take_name(job->directory, beside, final, job->step);
    free(final);
    if (!status) return NULL;
    give_up(job, beside, status);
    int64_t *steps = NULL;
    int earlier = 0;
    status_free(checkpoint_steps(job->directory, &steps, &earlier));
    free(steps);
    return status_hint(status_context(status, "the checkpoint of step %lld was not written", (long long)job->step),
                       "%s; look at the disk and at its free space",
                       earlier ? "earlier checkpoints are intact" : "there is no earlier checkpoint");
}

Status checkpoint_write(const CheckpointJob *job) {
    char *beside = text_format("%s/" CHECKPOINT_PARTIAL "step-%lld", job->directory, (long long)job->step);
    Status status = job->rank == 0 ? write_as_first(job, beside) : write_as_other(job, beside);
    free(beside);
    return status;
}
