#include "model/agree.h"

#include "base/rng.h"
#include "base/text.h"
#include "model/fp8.h"

#include <stdlib.h>
#include <string.h>

// What `root` knows becomes what all ranks know; what they know beside it stays.
static void share_choices(TuneFile *tune, World *world, int root) {
    char *text = world->rank == root ? tune_text(tune) : NULL;
    int64_t length = text ? (int64_t)strlen(text) : 0;
    world_broadcast(world, &length, sizeof length, root);
    if (!text) text = xcalloc((size_t)length + 1, 1);
    if (length) world_broadcast(world, text, (size_t)length, root);
    if (world->rank != root) tune_take(tune, text);
    free(text);
}

// The first rank after `before` that has asked for something nobody knew; -1: none.
static int next_in_need(const TuneFile *tune, World *world, int before) {
    double mine = tune_missing(tune), *all = xmalloc((size_t)world->size * sizeof *all);
    int next = -1;
    world_gather_doubles(world, &mine, 1, all);
    for (int rank = world->size - 1; rank > before; rank--)
        if (all[rank] > 0) next = rank;
    free(all);
    return next;
}

void tune_agree(TuneFile *tune, World *world, void (*rehearse)(void *context), void *context) {
    if (world->rank > 0) tune_clear(tune); // its file may be of another host
    share_choices(tune, world, 0);
    for (int racer = 0; racer >= 0; racer = next_in_need(tune, world, racer)) {
        tune_hold(tune, world->rank != racer);
        rehearse(context);
        share_choices(tune, world, racer);
    }
    tune_hold(tune, true);
}

typedef struct Rehearsal {
    Model *model;
    int32_t *ids, *doc_start;
    Status status;
} Rehearsal;

// The micro-step that overwrites gradients and the one that adds to them, op by op.
static void rehearse_step(void *context) {
    Rehearsal *rehearsal = context;
    Model *model = rehearsal->model;
    bool direct = model->direct;
    model->direct = true;
    // A pipeline has room for as many as its steps have, and an interleaved one runs whole rounds of them.
    int stages = model->layout.request.mesh.pp, most = model->layout.micro_batches;
    int count = stages == 1 ? 2 : most < 2 * stages ? most : 2 * stages;
    model_step_begin(model, count * model->layout.tokens * mesh_data_ranks(&model->layout.request.mesh), count);
    for (int i = 0; i < count; i++)
        model_micro_step(model, rehearsal->ids, rehearsal->ids, rehearsal->doc_start);
    Status status = model->ops->sync(model->ops);
    model->direct = direct;
    if (rehearsal->status)
        status_free(status);
    else
        rehearsal->status = status;
}

Status model_agree_kernels(Model *model, World *world) {
    Ops *ops = model->ops;
    if (!world || world->size == 1 || !ops->tune) return NULL;
    const LayoutRequest *request = &model->layout.request;
    size_t tokens = (size_t)request->micro_batch * (size_t)request->seq; // of all ranks that share a sequence
    Rehearsal rehearsal = {model, xmalloc(tokens * sizeof(int32_t)), xcalloc(tokens, sizeof(int32_t)), NULL};
    for (size_t i = 0; i < tokens; i++)
        rehearsal.ids[i] = (int32_t)rng_below(2, RNG_STREAM_BENCH, i, (uint64_t)request->config.vocab);
    bool scaled = model->fp8_scaled;
    tune_agree(ops->tune, world, rehearse_step, &rehearsal);
    fp8_forget(model, scaled);
    ops->forget_choices(ops);
    free(rehearsal.ids);
    free(rehearsal.doc_start);
    return rehearsal.status;
}
