#include "train/expert_room.h"

#include "base/log.h"
#include "base/text.h"

Status expert_room_grow(Model *model, const char *what, int64_t rows_needed) {
    const Layout *layout = &model->layout;
    int64_t rows = layout->rows, bytes = layout->total_bytes;
    char needed[32], had[32], has[32];
    Status status = model_grow_experts(model, rows_needed);
    double more = (double)(layout->total_bytes - bytes) / 0x1p30;
    text_grouped(needed, rows_needed);
    text_grouped(had, rows);
    text_grouped(has, layout->rows);
    if (status)
        return status_hint(
            status_context(status,
                           "%s needs %s expert rows on a rank that has room for %s, and there is no memory for %s "
                           "(%.2f GiB more)",
                           what, needed, had, has, more),
            "take a smaller train.micro_batch or a heavier recompute.mode; parallelism.expert_headroom = %.3g asks for "
            "these rows from the start, so that what fits is known before the run",
            layout->request.expert_headroom);
    log_info(
        "%s needs %s expert rows on a rank, and there was room for %s: it runs again with room for %s, %.2f GiB more "
        "(parallelism.expert_headroom = %.3g from now on)",
        what, needed, had, has, more, layout->request.expert_headroom);
    return NULL;
}
