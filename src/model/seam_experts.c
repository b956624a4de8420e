// Experts that are spread over ranks (ep), or whose widths are (etp).
//
// The ranks of a dispatch group have every share of every expert once between them. Each routes its own tokens; then
// all of them get all tokens with their choices, make rows for their own experts, and hand back parts of the sums over
// a token's experts, which are reduced to the rank that has the token. Shares of one expert's width are parts of the
// same sums. Shapes do not depend on the routing, so nothing waits for the host and the micro-step can be recorded; an
// all-gather and a reduce-scatter move as much as two all-to-alls when ep is top_k, and less below.
#include "model/seam.h"

static bool spread(const Model *model) { // also of a model that is only recorded
    return model->layout.request.mesh.ep * model->layout.request.mesh.etp > 1;
}

static CommTicket gather_all(const Model *model, ActId place, Tensor own) {
    Comm *group = model->ranks.dispatch;
    return group ? comm_all_gather(group, flat_view(model_act(model, place, -1)), flat_view(own)) : 0;
}

static void finish(const Model *model, CommTicket ticket) {
    if (model->ranks.dispatch) comm_wait(model->ranks.dispatch, ticket);
}

MoeRouting seam_expert_rows(const Model *model, int layer, MoeRouting *routing) {
    MoeRouting rows = *routing;
    if (!spread(model)) return rows;
    routing->offsets = routing->row_of_slot = routing->token_of_row = routing->row_weight = TENSOR_NONE;
    rows.logits = rows.bias = rows.probs = rows.lse = rows.prob_sum = TENSOR_NONE;
    // Gathered for as long as rows are made of them; of the experts only the shape is used later.
    rows.expert = model_act(model, ACT_ALL_EXPERT, -1);
    rows.weight = model_act(model, ACT_ALL_WEIGHT, -1);
    if (!tensor_present(rows.expert)) rows.expert = rows.row_of_slot;
    rows.counts = model_act(model, ACT_ROW_COUNTS, layer);
    rows.first_expert = model->layout.place.ep * (int)rows.counts.cols;
    return rows;
}

CommTicket seam_dispatch_start(Model *model, Tensor own) {
    return spread(model) ? gather_all(model, ACT_DISPATCHED, own) : 0;
}

Tensor seam_dispatched(Model *model, Tensor own, CommTicket ticket) {
    if (!spread(model)) return own;
    finish(model, ticket);
    return model_act(model, ACT_DISPATCHED, -1);
}

void seam_place_rows(Model *model, const MoeRouting *own, const MoeRouting *rows) {
    if (!spread(model)) return; // moe_route_forward has done it
    CommTicket experts = gather_all(model, ACT_ALL_EXPERT, own->expert);
    CommTicket weights = gather_all(model, ACT_ALL_WEIGHT, own->weight);
    finish(model, experts);
    finish(model, weights);
    model->ops->moe_place_rows(model->ops, model_scalar(model, SCALAR_ROWS), rows);
}

void seam_combine(Model *model, Tensor out, Tensor in, Tensor residual, const MoeRouting *rows) {
    if (!spread(model)) {
        model->ops->moe_sum(model->ops, out, in, residual, rows);
        return;
    }
    seam_combine_wait(model, seam_combine_start(model, out, in, rows));
    model->ops->add(model->ops, out, residual); // once, by the rank whose tokens these are
}

CommTicket seam_combine_start(Model *model, Tensor out, Tensor in, const MoeRouting *rows) {
    Comm *group = model->ranks.dispatch;
    Tensor parts = spread(model) ? model_act(model, ACT_DISPATCHED, -1) : out;
    model->ops->moe_sum(model->ops, parts, in, TENSOR_NONE, rows);
    return group ? comm_reduce_scatter(group, flat_view(out), flat_view(parts)) : 0;
}

void seam_combine_wait(Model *model, CommTicket ticket) {
    finish(model, ticket);
}

SlotGradient seam_slot_gradient_start(Model *model, Tensor drow_weight, const MoeRouting *rows) {
    if (!spread(model)) return (SlotGradient){drow_weight, 0};
    Comm *group = model->ranks.dispatch;
    Tensor parts = model_act(model, ACT_ALL_WEIGHT, -1), own = model_act(model, ACT_DWEIGHT, -1);
    model->ops->moe_slot_gradient(model->ops, parts, drow_weight, rows);
    return (SlotGradient){own, group ? comm_reduce_scatter(group, flat_view(own), flat_view(parts)) : 0};
}

Tensor seam_slot_gradient(Model *model, SlotGradient gradient) {
    finish(model, gradient.coming);
    return gradient.dweight;
}

void seam_rows_needed(Model *model) {
    Comm *all = model->ranks.all;
    if (all && layout_rows_bounded(&model->layout.request))
        comm_wait(all, comm_all_reduce_max(all, model_scalar(model, SCALAR_ROWS)));
}
