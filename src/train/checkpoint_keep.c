// Listing, pruning and clearing away checkpoints, by renames that a crash cannot tear.
#include "train/checkpoint_keep.h"

#include "base/file.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_steps(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

Status checkpoint_steps(const char *directory, int64_t **steps, int *count) {
    char **names;
    size_t name_count;
    TRY(dir_list(&names, &name_count, directory));
    *steps = xcalloc(name_count + 1, sizeof **steps);
    *count = 0;
    for (size_t i = 0; i < name_count; i++) {
        int64_t step;
        if (text_starts_with(names[i], "step-") && text_to_int64(names[i] + 5, &step) && step >= 0)
            (*steps)[(*count)++] = step;
    }
    names_free(names, name_count);
    qsort(*steps, (size_t)*count, sizeof **steps, compare_steps);
    return NULL;
}

// INFINITY without a state that says it; but a state that cannot be read may be that of the best.
static Status validation_loss(const char *directory, int64_t step, double *loss) {
    char *path = text_format("%s/step-%lld/state.json", directory, (long long)step);
    json_t *root = NULL;
    *loss = INFINITY;
    Status status = json_read_file(&root, path);
    if (!status) status = json_get_double(root, "val_loss", loss, path);
    if (status && status_code(status) == STATUS_USAGE) {
        status_free(status);
        status = NULL;
    }
    json_decref(root);
    free(path);
    return status;
}

Status checkpoint_to_trash(const char *directory, int64_t step) {
    char *path = text_format("%s/step-%lld", directory, (long long)step);
    char *trash = text_format("%s/" CHECKPOINT_TRASH "step-%lld", directory, (long long)step);
    Status status = dir_remove(trash);
    if (!status && io_rename(path, trash) != 0) status = status_errno("cannot rename %s", path);
    free(path);
    free(trash);
    return status;
}

Status checkpoint_from_trash(const char *directory, int64_t step) {
    char *path = text_format("%s/step-%lld", directory, (long long)step);
    char *trash = text_format("%s/" CHECKPOINT_TRASH "step-%lld", directory, (long long)step);
    Status status = io_rename(trash, path) ? status_errno("cannot rename %s", trash) : NULL;
    free(path);
    free(trash);
    return status;
}

Status checkpoint_best(const char *directory, int64_t *step) {
    int64_t *steps = NULL;
    int count = 0;
    *step = -1;
    TRY(checkpoint_steps(directory, &steps, &count));
    double lowest = INFINITY, loss;
    Status status = NULL;
    for (int i = 0; i < count && !status; i++) {
        status = validation_loss(directory, steps[i], &loss);
        if (!status && loss < lowest) lowest = loss, *step = steps[i];
    }
    free(steps);
    return status;
}

Status checkpoint_prune(const char *directory, const CheckpointPolicy *policy) {
    int64_t *steps = NULL, best = -1;
    int count = 0;
    if (policy->keep_best) TRY(checkpoint_best(directory, &best));
    TRY(checkpoint_steps(directory, &steps, &count));
    Status status = NULL;
    for (int i = 0; i + policy->keep_last < count && !status; i++) {
        bool milestone = policy->keep_every && steps[i] % policy->keep_every == 0;
        if (steps[i] == best || milestone) continue;
        status = checkpoint_to_trash(directory, steps[i]);
    }
    free(steps);
    return status ? status : checkpoint_clean(directory);
}

Status checkpoint_clean(const char *directory) {
    char **names;
    size_t count;
    TRY(dir_list(&names, &count, directory));
    Status status = NULL;
    bool synced = false;
    for (size_t i = 0; i < count && !status; i++) {
        if (!text_starts_with(names[i], CHECKPOINT_PARTIAL) && !text_starts_with(names[i], CHECKPOINT_TRASH)) continue;
        // The rename that made it trash must be on disk first: a crash could undo that and keep the removal.
        if (!synced) TRY_GOTO(file_sync(directory), done);
        synced = true;
        char *path = path_join(directory, names[i]);
        status = dir_remove(path);
        free(path);
    }
done:
    names_free(names, count);
    return status;
}

static Status step_set_aside(const char *directory, int64_t step) {
    char *from = text_format("%s/step-%lld", directory, (long long)step);
    char *to = text_format("%s/" CHECKPOINT_SET_ASIDE "step-%lld", directory, (long long)step);
    bool replaces = file_exists(to);
    Status status = dir_remove(to);
    if (!status && io_rename(from, to) != 0) status = status_errno("cannot rename %s to %s", from, to);
    if (!status)
        log_warn("the checkpoint of step %lld is set aside as %s%s", (long long)step, to,
                 replaces ? ", in the place of an older one" : "");
    free(from);
    free(to);
    return status;
}

Status checkpoint_set_aside(const char *directory, int64_t step) {
    int64_t *steps = NULL;
    int count = 0;
    TRY(checkpoint_steps(directory, &steps, &count));
    Status status = NULL;
    bool moved = false;
    for (int i = 0; i < count && !status; i++) {
        if (steps[i] <= step) continue;
        status = step_set_aside(directory, steps[i]);
        moved = true;
    }
    free(steps);
    return status || !moved ? status : file_sync(directory); // or a crash could bring one back as the newest
}
