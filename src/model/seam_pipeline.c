// Where a stage of a pipeline meets its neighbours. A lane carries what one stage sends another in one kind of pass, in
// the order in which both run those passes; it waits for nothing else. A message stays where it was made until the
// neighbour has taken it, and there are two places for each: with these no schedule waits for itself.
#include "model/pipeline.h"
#include "model/seam.h"

#include <assert.h>

// The balancing loss of all layers together, as a chain: sums of counts and probabilities travel forward with the
// activations, the gradient, which every layer has in common, comes back with theirs.
static bool balances_together(const Model *model) {
    const LayoutRequest *request = &model->layout.request;
    return request->mesh.pp > 1 && model->balance == BALANCE_TOGETHER && model_sparse_layers(&request->config);
}

static const LayoutChunk *chunk_of(const Model *model) {
    return &model->layout.chunks[model->chunk];
}

// ---- messages -------------------------------------------------------------------------------------------------------

typedef struct Message {
    Tensor part[STAGE_MESSAGES];
    int count;
} Message;

static void message_add(Message *message, Tensor part) {
    message->part[message->count++] = part;
}

// What a forward pass hands on beside the activations, and a backward pass beside their gradient.
static void message_add_losses(Message *message, const Model *model, PipelinePass pass) {
    if (!balances_together(model)) return;
    if (pass == PIPELINE_FORWARD) message_add(message, model_act(model, ACT_STAGE_COUNTS, -1));
    message_add(message, model_act(model, pass == PIPELINE_FORWARD ? ACT_STAGE_PROBS : ACT_STAGE_DPROB, -1));
}

void seam_stage_receive(Model *model, PipelinePass pass, bool losses) {
    const LayoutChunk *chunk = chunk_of(model);
    bool forward = pass == PIPELINE_FORWARD, starts = forward ? chunk->embeds : chunk->predicts;
    Ops *ops = model->ops;
    Message message = {0};
    model->pass = forward ? STEP_FORWARD : STEP_BACKWARD;
    model->half[pass] ^= 1;
    pipeline_wait_sent(model, pass);
    Tensor input = forward ? model_act(model, ACT_RESIDUAL_IN, chunk->first) : model_act(model, ACT_DRESIDUAL, -1);
    message_add(&message, input);
    if (losses) message_add_losses(&message, model, pass);
    if (starts) { // nothing but the losses' part, which begins here
        for (int i = 1; i < message.count && forward; i++)
            ops->zero(ops, message.part[i]);
        if (message.count > 1 && !forward)
            ops->copy(ops, message.part[1].data, model_act(model, ACT_DPROB, -1).data,
                      (size_t)message.part[1].cols * sizeof(float));
        return;
    }
    Comm *lane = model->ranks.lane[pass][0];
    CommTicket ticket = 0;
    for (int i = 0; i < message.count; i++)
        ticket = comm_receive(lane, message.part[i], 0);
    comm_wait(lane, ticket); // a lane keeps the order
}

void seam_stage_send(Model *model, PipelinePass pass, bool losses) {
    const LayoutChunk *chunk = chunk_of(model);
    bool forward = pass == PIPELINE_FORWARD;
    if (forward ? chunk->predicts : chunk->embeds) return;
    Message message = {0};
    model->pass = forward ? STEP_FORWARD : STEP_BACKWARD;
    message_add(&message, model_act(model, forward ? ACT_STAGE_OUT : ACT_DRESIDUAL, -1));
    if (losses) message_add_losses(&message, model, pass);
    for (int i = 0; i < message.count; i++)
        pipeline_note_sent(model, pass, i, comm_send(model->ranks.lane[pass][1], message.part[i], 1));
}

// ---- balancing ------------------------------------------------------------------------------------------------------

// Each layer by itself; model_step_begin knows that single layers add up.
static void balance_layers(Model *model, Tensor counts, Tensor prob_sum, Tensor dprob) {
    Ops *ops = model->ops;
    Tensor all = seam_balance_sums(model, counts, prob_sum);
    int64_t tokens = model->tokens * model->layout.request.mesh.cp;
    for (int64_t i = 0; i < counts.rows; i++)
        ops->moe_balance(ops, model_scalar(model, SCALAR_AUX_SUM), tensor_rows(dprob, i, 1),
                         model_scalar(model, SCALAR_AUX_SCALE), tensor_rows(all, i, 1), tensor_rows(prob_sum, i, 1),
                         BALANCE_LAYERS, tokens);
}

static void add_to_chain(Model *model, Tensor counts, Tensor prob_sum) {
    Ops *ops = model->ops;
    for (int64_t i = 0; i < counts.rows; i++) {
        ops->moe_add_counts(ops, model_act(model, ACT_STAGE_COUNTS, -1), tensor_rows(counts, i, 1), true);
        ops->add(ops, model_act(model, ACT_STAGE_PROBS, -1), tensor_rows(prob_sum, i, 1));
    }
}

// At the end of the chain: all sparse layers are one with as many tokens.
static void balance_chain(Model *model) {
    Ops *ops = model->ops;
    const LayoutRequest *request = &model->layout.request;
    Tensor counts = model_act(model, ACT_STAGE_COUNTS, -1), prob_sum = model_act(model, ACT_STAGE_PROBS, -1);
    Tensor all = seam_balance_sums(model, counts, prob_sum);
    ops->moe_balance(ops, model_scalar(model, SCALAR_AUX_SUM), tensor_rows(model_act(model, ACT_DPROB, -1), 0, 1),
                     model_scalar(model, SCALAR_AUX_SCALE), all, prob_sum, BALANCE_TOGETHER,
                     model->tokens * request->mesh.cp * model_sparse_layers(&request->config));
}

bool seam_stage_balance(Model *model, const LayoutChunk *chunk) {
    const ModelConfig *config = &model->layout.request.config;
    if (model->layout.request.mesh.pp == 1) return false;
    bool together = balances_together(model);
    if (chunk->sparse) {
        int before = 0;
        for (int i = 0; i < chunk->first; i++)
            before += config->sparse[i];
        Tensor counts = tensor_rows(model_act(model, ACT_COUNTS, -1), 0, chunk->sparse);
        Tensor prob_sum = tensor_rows(model_act(model, ACT_PROB_SUM, -1), 0, chunk->sparse);
        if (together)
            add_to_chain(model, counts, prob_sum);
        else
            balance_layers(model, counts, prob_sum, tensor_rows(model_act(model, ACT_DPROB, -1), 0, chunk->sparse));
        Tensor total = tensor_rows(model_const(model, CONST_EXPERT_TOTAL), before, chunk->sparse);
        model->ops->moe_add_counts(model->ops, total, counts, true); // the step has cleared those of all stages
    }
    if (together && chunk->predicts) balance_chain(model);
    return true;
}

Tensor seam_dprob(const Model *model, Tensor own) {
    return balances_together(model) ? model_act(model, ACT_STAGE_DPROB, -1) : own;
}

// ---- the end of a step ----------------------------------------------------------------------------------------------

void seam_stage_sums(Model *model, Tensor sums, Tensor counts) {
    Comm *pp = model->ranks.pp;
    if (!pp) return;
    if (tensor_present(counts)) comm_all_reduce(pp, tensor_reshape(counts, 1, tensor_count(counts)));
    comm_wait(pp, comm_all_reduce(pp, sums));
}

void seam_tied_embedding(Model *model) {
    Comm *ends = model->ranks.ends;
    if (!ends) return;
    const LayoutParam *param = layout_param(&model->layout, PARAM_EMBEDDING, -1);
    const LayoutUnit *unit = &model->layout.units[param->unit];
    Tensor gradient = model->layout.zero ? model_piece(model, LAYOUT_GRADIENTS, unit, false)
                                         : model_unit(model, LAYOUT_GRADIENTS, unit);
    comm_wait(ends, comm_all_reduce(ends, gradient));
}
