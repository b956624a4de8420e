// A plan and a prediction as JSON: base units, one object.
#include "watch/plan_parts.h"
#include "watch/plan_text.h"

static json_t *mesh_json(const Mesh *m) {
    return json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "dp", m->dp, "tp", m->tp, "pp", m->pp, "cp", m->cp, "ep", m->ep,
                     "etp", m->etp, "zero", m->zero);
}

static json_t *memory_json(const PlanMemory *memory) {
    json_t *root = json_object();
    for (int kind = 0; memory->exact && kind < LAYOUT_KIND_COUNT; kind++)
        json_object_set_new(root, layout_kind_name((LayoutKind)kind), json_integer(memory->bytes[kind]));
    json_object_set_new(root, "total", json_integer((json_int_t)memory->total));
    json_object_set_new(root, "fraction", json_real(memory->fraction));
    json_object_set_new(root, "exact", json_boolean(memory->exact));
    if (memory->expert_rows)
        json_object_set_new(root, "expert_rows",
                            json_pack("{s:I,s:I,s:I}", "room", (json_int_t)memory->expert_rows, "mean",
                                      (json_int_t)memory->expert_rows_mean, "most",
                                      (json_int_t)memory->expert_rows_most));
    return root;
}

static json_t *parts_json(const StepModel *step) {
    json_t *root = json_object();
    for (int i = 0; i < STEP_PART_COUNT; i++)
        if (step->part[i] > 0) json_object_set_new(root, step_part_name((StepPart)i), json_real(step->part[i]));
    return root;
}

json_t *plan_prediction_json(const PlanMachine *machine, const PlanRun *run, const PlanPrediction *prediction) {
    const StepModel *s = &prediction->step;
    const LayoutRequest *l = &run->layout;
    return json_pack("{s:s,s:i,s:s,s:b,s:s,s:f,s:o,s:s,s:s,s:i,s:i,s:i,s:f,s:o,s:f,s:o,s:f,s:f,s:f,s:f,s:f}", "device",
                     machine->gpu.name, "devices", machine->gpus, "software", machine->software.name, "measured_rates",
                     machine->gpu.measured, "peak_dtype", hardware_dtype_name(s->dtype), "peak_flops", s->peak, "mesh",
                     mesh_json(&l->mesh), "precision", precision_name(l->precision), "recompute",
                     recompute_name(l->recompute), "micro_batch", l->micro_batch, "seq", l->seq, "grad_accum",
                     run->grad_accum, "calibration", run->calibration, "memory_bytes", memory_json(&prediction->memory),
                     "step_seconds", s->seconds, "step_parts", parts_json(s), "batch_tokens", s->tokens,
                     "tokens_per_second", s->tokens_per_second, "flops_per_token", s->flops_per_token, "mfu", s->mfu,
                     "mfu_causal", s->mfu_causal);
}

static json_t *communication_json(const StepModel *step) {
    json_t *root = json_object();
    for (int i = 0; i < STEP_PART_COUNT; i++) {
        const StepAxis *a = &step->axis[i];
        if (a->bytes <= 0) continue;
        json_object_set_new(root, step_part_name((StepPart)i),
                            json_pack("{s:i,s:b,s:f,s:f,s:f}", "ranks", a->ranks, "between_nodes", a->between_nodes,
                                      "bytes", a->bytes, "seconds", a->seconds, "exposed_seconds", a->exposed));
    }
    return root;
}

static json_t *ops_json(const StepModel *step) {
    json_t *list = json_array();
    for (int i = 0; i < step->op_count; i++) {
        const StepOp *op = &step->ops[i];
        json_array_append_new(list,
                              json_pack("{s:s,s:s,s:s,s:f,s:f,s:f,s:f}", "name", op->name, "pass",
                                        step_pass_name(op->pass), "part", step_part_name(op->part), "seconds",
                                        op->seconds, "flops", op->flops, "bytes", op->bytes, "kernels", op->kernels));
    }
    return list;
}

static json_t *change_json(const PlanChange *change) {
    return json_pack("{s:s,s:f,s:f,s:f}", "what", change->what, "gain", change->gain, "tokens_per_second",
                     change->tokens_per_second, "memory_fraction", change->memory_fraction);
}

static json_t *advice_json(const PlanReport *r) {
    json_t *changes = json_array(), *warnings = json_array(), *checklist = json_array();
    for (int i = 0; i < r->change_count; i++)
        json_array_append_new(changes, change_json(&r->changes[i]));
    for (int i = 0; i < r->warning_count; i++)
        json_array_append_new(warnings, json_string(r->warnings[i]));
    for (int i = 0; i < r->checklist_count; i++)
        json_array_append_new(checklist, change_json(&r->checklist[i]));
    return json_pack("{s:s,s:s,s:o,s:o,s:o}", "bottleneck", step_part_name(r->bottleneck), "text", r->bottleneck_text,
                     "changes", changes, "checklist", checklist, "warnings", warnings);
}

static void add_inverse(json_t *root, const PlanReport *r) {
    if (r->questions.hours > 0)
        json_object_set_new(root, "hours",
                            json_pack("{s:f,s:f,s:f}", "hours", r->questions.hours, "tokens", r->hours_tokens,
                                      "chinchilla_share", r->hours_tokens / r->budget.chinchilla_tokens));
    if (r->questions.vocab > 0) {
        json_t *list = json_array();
        for (int i = 0; i < 2; i++) {
            const PlanVocab *v = &r->vocab[i];
            json_array_append_new(list, json_pack("{s:i,s:I,s:I,s:f,s:f,s:f,s:f}", "vocab", v->vocab, "parameters",
                                                  (json_int_t)v->parameters.total, "active_parameters",
                                                  (json_int_t)v->parameters.active, "flops_per_token",
                                                  v->flops_per_token, "tokens_per_second", v->tokens_per_second,
                                                  "memory_bytes", v->memory_total, "seconds", v->seconds));
        }
        json_object_set_new(root, "vocabulary", list);
    }
    if (r->questions.target_hours > 0 && r->largest.found)
        json_object_set_new(root, "largest",
                            json_pack("{s:f,s:I,s:I,s:i,s:i,s:i,s:i,s:f,s:f,s:f}", "target_hours",
                                      r->questions.target_hours, "parameters", (json_int_t)r->largest.parameters.total,
                                      "active_parameters", (json_int_t)r->largest.parameters.active, "layers",
                                      r->largest.config.layers, "hidden", r->largest.config.hidden, "heads",
                                      r->largest.config.heads, "micro_batch", r->largest.micro_batch, "tokens",
                                      r->largest.tokens, "tokens_per_second", r->largest.tokens_per_second, "seconds",
                                      r->largest.seconds));
}

static json_t *pipeline_json(const PlanReport *r) {
    json_t *stages = json_array();
    for (int i = 0; i < r->stash_count; i++)
        json_array_append_new(stages, json_integer(r->stage_bytes[i]));
    return json_pack("{s:f,s:f,s:f,s:f,s:o}", "bubble_of_wall", r->bubble_of_wall, "bubble_of_ideal",
                     r->bubble_of_ideal, "stash_bytes_stage_0", r->stash[0], "in_flight_stage_0", r->in_flight[0],
                     "stage_bytes", stages);
}

json_t *plan_report_json(const PlanReport *r) {
    const StepModel *s = &r->prediction.step;
    json_t *root = plan_prediction_json(&r->machine, &r->run, &r->prediction);
    json_object_set_new(root, "name", json_string(r->name));
    json_object_set_new(root, "fits", json_boolean(r->fits));
    if (r->fitting.change.what[0]) json_object_set_new(root, "fitting", change_json(&r->fitting.change));
    json_object_set_new(root, "parameters", json_integer(r->parameters.total));
    json_object_set_new(root, "active_parameters", json_integer(r->parameters.active));
    json_object_set_new(root, "embedding_parameters", json_integer(r->parameters.embedding));
    json_object_set_new(root, "flops_per_token_causal", json_real(s->flops_per_token_causal));
    json_object_set_new(root, "flops_per_token_6n", json_real(s->flops_per_token_6n));
    json_object_set_new(root, "hfu", json_real(s->hfu));
    json_object_set_new(root, "communication", communication_json(s));
    json_object_set_new(root, "ops", ops_json(s));
    json_t *budget = plan_budget_json(&r->budget, (double)r->parameters.total, r->rate, r->mfu);
    json_object_set_new(budget, "steps", json_real(r->steps));
    json_object_set_new(budget, "critical_batch_tokens", json_real(r->critical_batch));
    json_object_set_new(root, "budget", budget);
    json_object_set_new(root, "typical_mfu",
                        plan_typical_json(&r->machine.typical[model_sparse_layers(&r->run.layout.config) > 0]));
    json_object_set_new(root, "checkpoint", plan_checkpoint_json(&r->budget));
    json_object_set_new(root, "storage", plan_storage_json(&r->budget, &r->machine));
    if (r->fp8.what[0]) json_object_set_new(root, "fp8", change_json(&r->fp8));
    if (r->stash_count) json_object_set_new(root, "pipeline", pipeline_json(r));
    json_object_set_new(root, "advice", advice_json(r));
    add_inverse(root, r);
    return root;
}
