// The mean loss over samples: forward passes, summed in double on the host.
#include "train/evaluate.h"

#include "base/clock.h"
#include "base/text.h"

#include <stdlib.h>

static void sum_over_ranks(const Comm *dp, double *sum, int64_t *targets) {
    World *world = dp->world;
    double mine[2] = {*sum, (double)*targets}, *all = xmalloc(2 * (size_t)world->size * sizeof *all);
    world_gather_doubles(world, mine, 2, all);
    *sum = 0;
    *targets = 0;
    for (int i = 0; i < dp->size; i++) {
        *sum += all[2 * dp->ranks[i]];
        *targets += (int64_t)all[2 * dp->ranks[i] + 1];
    }
    free(all);
}

Status evaluate_samples(Model *model, const Samples *samples, uint64_t windows, Evaluation *evaluation) {
    uint64_t micro = (uint64_t)model->layout.request.micro_batch;
    size_t seq = (size_t)model->layout.request.seq, tokens = (size_t)micro * seq;
    bool full = windows == 0 || windows >= samples->windows;
    if (full) windows = samples->windows;
    double start = clock_seconds(), sum = 0;
    int64_t targets = 0;
    Status status;
    int32_t *ids = xcalloc(3 * tokens, sizeof *ids), *wanted = ids + tokens, *doc_start = wanted + tokens;
    // Ranks take turns; every one runs as many forward passes, since their weights may be shared.
    const Comm *dp = model->ranks.dp;
    const MeshPlace *place = &model->layout.place;
    uint64_t rank = (uint64_t)place->dp, ranks = (uint64_t)model->layout.request.mesh.dp;
    uint64_t turns = (windows + micro * ranks - 1) / (micro * ranks);
    for (uint64_t turn = 0; turn < turns; turn++) {
        uint64_t first = (turn * ranks + rank) * micro;
        int64_t valid = 0;
        for (uint64_t row = 0; row < micro; row++) {
            size_t at = (size_t)row * seq;
            if (first + row < windows) {
                int counted;
                TRY_GOTO(samples_read(samples, first + row, ids + at, wanted + at, doc_start + at, &counted), damaged);
                valid += counted;
                continue;
            }
            for (size_t i = 0; i < seq; i++) // rows beyond the end do not count
                wanted[at + i] = -1;
        }
        StepResult result;
        model_step_begin(model, valid, 1);
        model_eval_step(model, ids, wanted, doc_start);
        model_step_result(model, &result);
        sum += result.loss * (double)valid;
        if (place->cp == 0) targets += valid; // ranks that share sequences have parts of the sum each
    }
    free(ids);
    if (dp) sum_over_ranks(dp, &sum, &targets);
    double text_bytes = 0, all_tokens = 0;
    for (size_t i = 0; i < samples->mix.count; i++) {
        text_bytes += (double)samples->mix.datasets[i].text_bytes;
        all_tokens += (double)samples->mix.datasets[i].token_count;
    }
    *evaluation = plan_evaluation(sum, targets, all_tokens, text_bytes);
    evaluation->full = full;
    evaluation->seconds = clock_seconds() - start;
    return model->ops->sync(model->ops);
damaged:
    free(ids);
    return status;
}
