#include "train/kernel_choices.h"

#include "base/file.h"
#include "base/log.h"
#include "model/agree.h"

#include <stdlib.h>
#include <string.h>

static Status take_file(TuneFile *tune, const char *directory) {
    char *path = path_join(directory, "kernels.txt"), *text = NULL;
    size_t size;
    Status status = file_exists(path) ? file_read(&text, &size, path) : NULL;
    if (text) tune_take(tune, text);
    free(text);
    free(path);
    return status;
}

Status kernel_choices_settle(Trainer *trainer, const char *directory) {
    TuneFile *tune = trainer->ops->tune;
    if (!tune) return NULL;
    if (ranks_rank(&trainer->ranks) == 0) TRY(take_file(tune, directory));
    return model_agree_kernels(trainer->model, trainer->ranks.world);
}

void kernel_choices_keep(const Trainer *trainer, const char *directory, int *kept) {
    TuneFile *tune = trainer->ops->tune;
    if (!tune || ranks_rank(&trainer->ranks) || tune_known(tune) == *kept) return;
    *kept = tune_known(tune);
    char *path = path_join(directory, "kernels.txt"), *text = tune_text(tune);
    Status status = file_write_atomic(path, text, strlen(text));
    if (status) log_warn("a resumed run may choose other kernels: %s", status_text(status));
    status_free(status);
    free(text);
    free(path);
}
