// The mean loss over samples: forward passes, summed in double on the host.
#include "train/evaluate.h"

#include "base/clock.h"
#include "base/text.h"
#include "model/seam.h"
#include "train/expert_room.h"

#include <stdlib.h>

typedef struct Sums {
    double loss;
    int64_t targets;
    int64_t rows_needed; // of experts, beyond the room for them; 0: there was room
} Sums;

// Of the ranks that have seen other tokens, at the end of the pipeline, where the losses are.
static void sum_over_ranks(const Model *model, World *world, Sums *sums) {
    double mine[3] = {sums->loss, (double)sums->targets, (double)sums->rows_needed};
    double *all = xmalloc(3 * (size_t)world->size * sizeof *all);
    world_gather_doubles(world, mine, 3, all);
    const Mesh *mesh = &model->layout.request.mesh;
    int ahead = (mesh->pp - 1 - model->layout.place.pp) * mesh_stage_ranks(mesh);
    MeshGroup group = mesh_group(mesh, world->rank + ahead, MESH_DATA);
    for (int i = 0; i < world->size; i++)
        if (all[3 * i + 2] > (double)sums->rows_needed) sums->rows_needed = (int64_t)all[3 * i + 2];
    sums->loss = 0, sums->targets = 0;
    for (int i = 0; i < group.count; i++) {
        const double *rank = all + 3 * (group.first + i * group.stride);
        sums->loss += rank[0];
        sums->targets += (int64_t)rank[1];
    }
    free(all);
}

static Status take_sums(Model *model, const Samples *samples, uint64_t windows, Sums *sums) {
    uint64_t micro = (uint64_t)model->layout.request.micro_batch;
    size_t seq = (size_t)model->layout.request.seq, tokens = (size_t)micro * seq;
    Status status = NULL;
    *sums = (Sums){0};
    int32_t *ids = xcalloc(3 * tokens, sizeof *ids), *wanted = ids + tokens, *doc_start = wanted + tokens;
    // Ranks take turns; every one runs as many forward passes, since their weights may be shared.
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
        sums->loss += result.loss * (double)valid;
        if (place->cp == 0) sums->targets += valid; // ranks that share sequences have parts of the sum each
        if (result.rows_needed > sums->rows_needed) sums->rows_needed = result.rows_needed;
    }
    if (model->ranks.all) sum_over_ranks(model, model->ranks.all->world, sums);
damaged:
    free(ids);
    return status;
}

Status evaluate_samples(Model *model, const Samples *samples, uint64_t windows, Evaluation *evaluation) {
    bool full = windows == 0 || windows >= samples->windows;
    if (full) windows = samples->windows;
    double start = clock_seconds();
    Sums sums;
    TRY(take_sums(model, samples, windows, &sums));
    while (sums.rows_needed) {
        TRY(expert_room_grow(model, "an evaluation", sums.rows_needed));
        TRY(take_sums(model, samples, windows, &sums));
    }
    double text_bytes = 0, all_tokens = 0;
    for (size_t i = 0; i < samples->mix.count; i++) {
        text_bytes += (double)samples->mix.datasets[i].text_bytes;
        all_tokens += (double)samples->mix.datasets[i].token_count;
    }
    *evaluation = plan_evaluation(sums.loss, sums.targets, all_tokens, text_bytes);
    evaluation->full = full;
    evaluation->seconds = clock_seconds() - start;
    return model->ops->sync(model->ops);
}

Status evaluate_batch(Model *model, const EvaluateBatch *batch, StepResult *result) {
    const LayoutRequest *request = &model->layout.request;
    size_t seq = (size_t)request->seq, tokens = (size_t)request->micro_batch * seq;
    int32_t *ids = xcalloc(3 * tokens, sizeof *ids), *targets = ids + tokens, *doc_start = targets + tokens;
    Status status = NULL;
    model_step_begin(model, batch->valid, batch->micro_batches);
    for (int i = 0; i < batch->micro_batches; i++) {
        for (int row = 0; row < request->micro_batch; row++) {
            uint64_t sample = batch->first + (uint64_t)i * batch->round + (uint64_t)row;
            size_t at = (size_t)row * seq;
            int counted;
            TRY_GOTO(samples_read(batch->samples, sample, ids + at, targets + at, doc_start + at, &counted), damaged);
        }
        model_eval_step(model, ids, targets, doc_start);
    }
    seam_step_sums(model);
    model_step_result(model, result);
damaged:
    free(ids);
    return status;
}
