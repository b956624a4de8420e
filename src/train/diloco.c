#include "train/diloco.h"

#include "base/text.h"
#include "base/threads.h"
#include "model/seam.h"
#include "plan/collectives.h"

#include <stdlib.h>
#include <string.h>

// Where a piece is while it is worked on: weights as the model has them (float, or 16 bits and behind all of those what
// it has of the master weights), and the change.
typedef struct Slot {
    char *weights, *change;
} Slot;

static Slot slot_of(const Diloco *diloco, const Layout *layout, int unit) {
    int64_t piece = layout->piece_elements;
    char *slots = (char *)diloco->memory + (size_t)layout->shard_count * 8;
    size_t weight = layout->request.precision == PRECISION_FP16 ? 6 : 4;
    char *own = slots + (size_t)(unit % 2) * (size_t)piece * (weight + 4);
    return (Slot){own, own + (size_t)piece * weight};
}

// ---- weights between the device and a slot --------------------------------------------------------------------------

static void move_weights(Model *model, const LayoutUnit *unit, Slot slot, bool in) {
    Ops *ops = model->ops;
    const LayoutKind kinds[] = {LAYOUT_WEIGHTS, LAYOUT_MASTER};
    char *host = slot.weights;
    for (int i = 0; i < 2; i++) {
        Tensor piece = model_piece(model, kinds[i], unit, false);
        if (!tensor_present(piece)) continue;
        size_t bytes = (size_t)unit->piece * dtype_size(piece.dtype);
        if (in)
            ops->download(ops, host, piece.data, bytes);
        else
            ops->upload(ops, piece.data, host, bytes);
        host += bytes;
    }
}

typedef struct Elements { // of a piece, for a loop over them
    float *anchor, *momentum;
    Slot slot;
    int64_t count;
    Precision precision;
    DType exchange;
    int islands;
    double lr, mu;
} Elements;

static Elements elements_of(const Diloco *diloco, const Model *model, int unit) {
    const Layout *layout = &model->layout;
    float *anchor = model->outer + layout->units[unit].shard_offset;
    return (Elements){.anchor = anchor,
                      .momentum = anchor + layout->shard_count,
                      .slot = slot_of(diloco, layout, unit),
                      .count = layout->units[unit].piece,
                      .precision = layout->request.precision,
                      .exchange = diloco->exchange,
                      .islands = diloco->islands ? diloco->islands->size : 1,
                      .lr = diloco->lr,
                      .mu = diloco->momentum};
}

static float weight_get(const Elements *e, int64_t i) {
    if (e->precision == PRECISION_FP32) return ((const float *)e->slot.weights)[i];
    const uint16_t *high = (const uint16_t *)e->slot.weights;
    if (e->precision == PRECISION_FP16) return ((const float *)(high + e->count))[i];
    return precision_master_bytes(e->precision) ? bf16_join(high[i], ((const int16_t *)(high + e->count))[i])
                                                : bf16_to_f32(high[i]);
}

static void weight_set(const Elements *e, int64_t i, float value) {
    uint16_t *high = (uint16_t *)e->slot.weights;
    if (e->precision == PRECISION_FP32)
        ((float *)e->slot.weights)[i] = value;
    else if (e->precision == PRECISION_FP16)
        high[i] = f16_from_f32(value), ((float *)(high + e->count))[i] = value;
    else if (precision_master_bytes(e->precision))
        high[i] = bf16_split(value, (int16_t *)(high + e->count) + i);
    else
        high[i] = bf16_from_f32(value);
}

// What the islands set out from: the anchor as weights without a master can have it.
static float weight_before(const Elements *e, int64_t i) {
    return e->precision == PRECISION_BF16_PURE ? bf16_to_f32(bf16_from_f32(e->anchor[i])) : e->anchor[i];
}

// ---- a meeting ------------------------------------------------------------------------------------------------------

static void take_changes(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Elements *e = context;
    for (int64_t i = begin; i < end; i++) {
        float change = weight_before(e, i) - weight_get(e, i);
        if (e->exchange == DTYPE_BF16)
            ((bf16 *)e->slot.change)[i] = bf16_from_f32(change);
        else
            ((float *)e->slot.change)[i] = change;
    }
}

static double mean_change(const Elements *e, int64_t i) {
    // Nothing is rounded on the way to nobody: lr 1 without momentum leaves one island's weights as they are.
    if (e->islands == 1) return (double)weight_before(e, i) - (double)weight_get(e, i);
    float sum =
        e->exchange == DTYPE_BF16 ? bf16_to_f32(((const bf16 *)e->slot.change)[i]) : ((const float *)e->slot.change)[i];
    return (double)sum / e->islands;
}

static void take_outer_step(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Elements *e = context;
    for (int64_t i = begin; i < end; i++) {
        double change = mean_change(e, i), momentum = e->mu * (double)e->momentum[i] + change;
        e->momentum[i] = (float)momentum;
        e->anchor[i] = (float)((double)e->anchor[i] - e->lr * (change + e->mu * momentum));
        weight_set(e, i, e->anchor[i]);
    }
}

enum { CHUNK = 1 << 15 };

static CommTicket start_exchange(Diloco *diloco, Model *model, int unit) {
    Elements e = elements_of(diloco, model, unit);
    move_weights(model, &model->layout.units[unit], e.slot, true);
    if (!diloco->islands) return 0;
    threads_for(e.count, CHUNK, take_changes, &e);
    return comm_all_reduce(diloco->islands, tensor_make(e.slot.change, diloco->exchange, 1, e.count, "change"));
}

static void finish_exchange(Diloco *diloco, Model *model, int unit, CommTicket ticket) {
    Elements e = elements_of(diloco, model, unit);
    if (diloco->islands) comm_wait(diloco->islands, ticket);
    threads_for(e.count, CHUNK, take_outer_step, &e);
    move_weights(model, &model->layout.units[unit], e.slot, false);
}

// Biases on the choice of experts are no part of a gradient: their mean.
static void meet_router_bias(Diloco *diloco, Model *model) {
    Tensor bias = model_const(model, CONST_ROUTER_BIAS);
    if (!diloco->islands || !model->router_bias || !tensor_present(bias)) return;
    int64_t count = tensor_count(bias);
    float *all = xmalloc((size_t)count * sizeof *all);
    for (int64_t at = 0; at < count; at += model->layout.piece_elements) {
        int64_t part = count - at < model->layout.piece_elements ? count - at : model->layout.piece_elements;
        Slot slot = slot_of(diloco, &model->layout, 0);
        model->ops->download(model->ops, slot.change, (float *)bias.data + at, (size_t)part * sizeof(float));
        comm_wait(diloco->islands,
                  comm_all_reduce(diloco->islands, tensor_make(slot.change, DTYPE_F32, 1, part, "router bias")));
        for (int64_t i = 0; i < part; i++)
            all[at + i] = ((float *)slot.change)[i] / (float)diloco->islands->size;
    }
    model->ops->upload(model->ops, bias.data, all, (size_t)count * sizeof *all);
    free(all);
}

void diloco_meet(Diloco *diloco, Model *model) {
    int64_t before = diloco->islands ? comm_sent_bytes(diloco->islands->world) : 0;
    CommTicket under_way = 0;
    int units = model->layout.unit_count;
    for (int unit = 0; unit <= units; unit++) { // the next piece is fetched while the one before is exchanged
        CommTicket next = unit < units ? start_exchange(diloco, model, unit) : 0;
        if (unit > 0) finish_exchange(diloco, model, unit - 1, under_way);
        under_way = next;
    }
    meet_router_bias(diloco, model);
    if (diloco->islands) diloco->sent_bytes += comm_sent_bytes(diloco->islands->world) - before;
    diloco->meetings++;
    seam_outer_weights(model);
}

bool diloco_due(const Diloco *diloco, int64_t step, int64_t total) {
    return diloco->every > 0 && (step % diloco->every == 0 || step == total);
}

double diloco_meeting_bytes(const Diloco *diloco, const Layout *layout) {
    double islands = diloco->islands ? diloco->islands->size : 1;
    return plan_ring_allreduce_bytes((double)layout->shard_count * (double)dtype_size(diloco->exchange), islands);
}

// ---- life -----------------------------------------------------------------------------------------------------------

void diloco_start(Diloco *diloco, Model *model) {
    if (!diloco->every) return;
    memset(model->outer, 0, 2 * (size_t)model->layout.shard_count * sizeof(float));
    for (int unit = 0; unit < model->layout.unit_count; unit++) {
        Elements e = elements_of(diloco, model, unit);
        move_weights(model, &model->layout.units[unit], e.slot, true);
        for (int64_t i = 0; i < e.count; i++)
            e.anchor[i] = weight_get(&e, i);
    }
}

static Status open_islands(Diloco *diloco, const Ranks *ranks) {
    if (ranks->islands < 2) return NULL;
    int *members = xmalloc((size_t)ranks->islands * sizeof *members);
    for (int i = 0; i < ranks->islands; i++)
        members[i] = i * ranks_of_island(ranks) + ranks_place(ranks);
    Status status = comm_create(&diloco->islands, ranks->world, diloco->host, "islands", members, ranks->islands);
    free(members);
    return status;
}

Status diloco_open(Diloco *diloco, const Config *config, const Ranks *ranks, Model *model) {
    *diloco = (Diloco){.every = config->diloco.every,
                       .lr = config->diloco.outer_lr,
                       .momentum = config->diloco.outer_momentum,
                       .exchange = strcmp(config->diloco.exchange, "bfloat16") == 0 ? DTYPE_BF16 : DTYPE_F32};
    if (!diloco->every) return NULL;
    diloco->own_host = model->ops->kind != DEVICE_CPU;
    if (diloco->own_host)
        TRY(ops_cpu_create(&diloco->host));
    else
        diloco->host = model->ops;
    diloco->bytes = (size_t)model->layout.bytes[LAYOUT_OUTER];
    TRY(diloco->host->alloc(diloco->host, &diloco->memory, diloco->bytes, layout_kind_name(LAYOUT_OUTER)));
    model->outer = diloco->memory;
    return open_islands(diloco, ranks);
}

void diloco_close(Diloco *diloco) {
    comm_destroy(diloco->islands);
    if (diloco->memory) diloco->host->free(diloco->host, diloco->memory, diloco->bytes);
    if (diloco->own_host) ops_destroy(diloco->host);
    *diloco = (Diloco){0};
}
