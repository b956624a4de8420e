// A plan of bare numbers as a page and as JSON.
#include "watch/plan_parts.h"
#include "watch/plan_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0

static void model_section(Document *d, const PlanNumbersReport *r) {
    const PlanNumbers *n = &r->asked;
    double memory = r->machine.gpu.memory;
    char a[32], b[32];
    document_section(d, "Model", "lrl", "");
    document_row(d, "parameters\t%s\t%s", text_count(a, n->parameters),
                 n->active < n->parameters ? "all experts" : "dense: each token meets all of them");
    if (n->active < n->parameters)
        document_row(d, "active per token\t%s\ttime uses this figure", text_count(b, n->active));
    document_row(d, "FLOPs per token\t%.4g\t6 x active parameters; attention needs a model: name a preset or config",
                 6 * n->active);
    document_row(d,
                 "states\t%.2f GiB\t16 bytes per parameter: %.0f %% of one device; sharded over all (ZeRO 3) %.2f "
                 "GiB, %.1f %%; activations come on top",
                 r->state_bytes / GIB, 100 * r->state_bytes / memory, r->state_bytes_sharded / GIB,
                 100 * r->state_bytes_sharded / memory);
}

static void rate_rows(Document *d, const PlanNumbersReport *r) {
    static const char *const sources[] = {[PLAN_RATE_MFU] = "given", [PLAN_RATE_MEASURED] = "from the rate given"};
    document_row(d, "peak\t%.4g\tTFLOP/s dense %s per device", r->peak / 1e12, hardware_dtype_name(r->dtype));
    document_row(d, "MFU\t%.1f %%\t6N of that peak, %s%s", 100 * r->mfu,
                 r->assumed ? "the middle of what is typical" : sources[r->rate_source],
                 r->assumed && r->asked.precision == PRECISION_FP8 ? ", faster by FP8" : "");
    plan_typical_row(d, &r->typical);
    document_row(d, "tokens/s\t%.0f\tall devices; %.0f per device", r->rate, r->rate / r->machine.gpus);
}

static void budget_section(Document *d, const PlanNumbersReport *r) {
    const PlanBudget *b = &r->budget;
    const HardwareDefaults *defaults = &r->machine.defaults;
    char a[32], c[32];
    document_section(d, "Speed, time and cost", "lrl", "");
    rate_rows(d, r);
    plan_tokens_rows(d, b, r->asked.parameters);
    document_row(d, "compute\t%.4g\tFLOPs = %.4g petaFLOP-days (6 x active parameters x tokens)",
                 b->petaflop_days * 8.64e19, b->petaflop_days);
    plan_time_row(d, b);
    if (r->assumed)
        document_row(d, "time range\t\t%s to %s at the ends of what is typical", plan_time_text(a, r->seconds_high),
                     plan_time_text(c, r->seconds_low));
    plan_cost_rows(d, b, &r->machine);
    if (r->fp8_seconds > 0)
        document_row(d, "with fp8\t%s\t%.2f x the speed: %s", plan_time_text(a, r->fp8_seconds),
                     b->seconds / r->fp8_seconds, defaults->fp8_speedup_source);
    if (r->asked.hours > 0)
        document_row(d, "in %.4g hours\t%s\ttokens, %.0f %% of Chinchilla", r->asked.hours,
                     text_count(a, r->hours_tokens), 100 * r->hours_tokens / b->chinchilla_tokens);
}

Document *numbers_document(const PlanNumbersReport *r) {
    char a[32], b[32];
    char *title = text_format("Plan of %s parameters on %s tokens with %d x %s", text_count(a, r->asked.parameters),
                              text_count(b, r->budget.tokens), r->machine.gpus, r->machine.gpu.title);
    Document *d = document_create(title);
    free(title);
    model_section(d, r);
    budget_section(d, r);
    plan_checkpoint_section(d, &r->budget, &r->machine, r->asked.parameters, r->rate, 0);
    plan_storage_section(d, &r->budget, &r->machine);
    plan_nodes_section(d, &r->nodes, r->machine.gpus);
    if (!r->warning_count) return d;
    document_section(d, "Warnings", "l", "");
    for (int i = 0; i < r->warning_count; i++)
        document_note(d, "! %s", r->warnings[i]);
    return d;
}

json_t *numbers_json(const PlanNumbersReport *r) {
    const PlanNumbers *n = &r->asked;
    json_t *warnings = json_array();
    for (int i = 0; i < r->warning_count; i++)
        json_array_append_new(warnings, json_string(r->warnings[i]));
    json_t *root = json_pack("{s:f,s:f,s:s,s:i,s:s,s:f,s:s,s:b,s:f,s:f,s:b,s:o}", "parameters", n->parameters,
                             "active_parameters", n->active, "device", r->machine.gpu.name, "devices", r->machine.gpus,
                             "peak_dtype", hardware_dtype_name(r->dtype), "peak_flops", r->peak, "precision",
                             precision_name(n->precision), "mfu_assumed", r->assumed, "state_bytes", r->state_bytes,
                             "state_bytes_sharded", r->state_bytes_sharded, "fits", r->fits, "warnings", warnings);
    json_object_set_new(root, "typical_mfu", plan_typical_json(&r->typical));
    json_object_set_new(root, "budget", plan_budget_json(&r->budget, n->parameters, r->rate, r->mfu));
    json_object_set_new(root, "checkpoint", plan_checkpoint_json(&r->budget));
    json_object_set_new(root, "storage", plan_storage_json(&r->budget, &r->machine));
    json_object_update_new(root, plan_nodes_json(&r->nodes));
    if (r->assumed) json_object_set_new(root, "typical_seconds", json_pack("[f,f]", r->seconds_high, r->seconds_low));
    if (r->fp8_seconds > 0) {
        json_object_set_new(root, "fp8_seconds", json_real(r->fp8_seconds));
        json_object_set_new(root, "fp8_source", json_string(r->machine.defaults.fp8_speedup_source));
    }
    if (n->hours > 0)
        json_object_set_new(root, "hours",
                            json_pack("{s:f,s:f,s:f}", "hours", n->hours, "tokens", r->hours_tokens, "chinchilla_share",
                                      r->hours_tokens / r->budget.chinchilla_tokens));
    return root;
}
