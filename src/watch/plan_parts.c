#include "watch/plan_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *plan_money_text(char *out, double usd) {
    if (usd >= 1e6)
        snprintf(out, 32, "$%.2fM", usd / 1e6);
    else if (usd >= 1e4)
        snprintf(out, 32, "$%.1fk", usd / 1e3);
    else
        snprintf(out, 32, "$%.2f", usd);
    return out;
}

const char *plan_time_text(char *out, double seconds) {
    if (isinf(seconds))
        snprintf(out, 32, "never");
    else if (seconds >= 2 * 86400)
        snprintf(out, 32, "%.1f days", seconds / 86400);
    else if (seconds >= 3600)
        snprintf(out, 32, "%.2f hours", seconds / 3600);
    else
        text_duration(out, seconds);
    return out;
}

static const char *span_number(char *out, double value) {
    snprintf(out, 32, value >= 1000 ? "%.0f" : value >= 0.01 ? "%.4g" : "%.2g", value);
    return out;
}

const char *plan_span_text(char *out, size_t size, double seconds) {
    char hours[32], days[32];
    PlanSpan span = plan_span(seconds);
    snprintf(out, size, "%s hours = %s days = %.*f months", span_number(hours, span.hours),
             span_number(days, span.days), span.months < 0.01 ? 4 : 2, span.months);
    return out;
}

// ---- text -----------------------------------------------------------------------------------------------------------

void plan_tokens_rows(Document *d, const PlanBudget *b, double parameters) {
    char a[32], c[32], words[256];
    document_row(d, "tokens\t%s\t%.0f %% of Chinchilla's 20 per parameter (%s)", text_count(a, b->tokens),
                 100 * b->tokens / b->chinchilla_tokens, text_count(c, b->chinchilla_tokens));
    plan_chinchilla_words(b->tokens, parameters, words, sizeof words);
    document_row(d, "\t\t%s", words);
}

void plan_time_row(Document *d, const PlanBudget *b) {
    char a[32], span[128];
    document_row(d, "time\t%s\t%s of 30 days; %.4g GPU-hours", plan_time_text(a, b->seconds),
                 plan_span_text(span, sizeof span, b->seconds), b->gpu_hours);
}

void plan_cost_rows(Document *d, const PlanBudget *b, const PlanMachine *machine) {
    char a[32];
    document_row(d, "cost\t%s\tat $%.2f per GPU-hour", plan_money_text(a, b->cost), machine->gpu.usd_per_hour);
    document_row(d, "energy\t%.4g kWh\t%.0f W per device, PUE %.2f; %s at $%.2f per kWh", b->energy_kwh,
                 machine->gpu.watts, machine->defaults.pue, plan_money_text(a, b->energy_cost),
                 machine->defaults.usd_per_kwh);
}

static void crash_rows(Document *d, const PlanBudget *b, const PlanMachine *machine) {
    char a[32], c[32], span[128];
    document_row(d, "a crash costs\t%s\thalf an interval and %.0f s to come back", plan_money_text(a, b->crash_cost),
                 machine->defaults.recovery);
    if (isinf(b->calendar_seconds)) {
        document_row(d, "calendar time\tnever\ta crash costs more time than there is between crashes");
        return;
    }
    document_row(d, "crashes expected\t%.*f\tover the run; together %s", b->crashes < 9.95 ? 2 : 0, b->crashes,
                 plan_money_text(a, b->crashes_cost));
    document_row(d, "calendar time\t%s\t%s, with crashes and writes: %s", plan_time_text(a, b->calendar_seconds),
                 plan_span_text(span, sizeof span, b->calendar_seconds), plan_money_text(c, b->calendar_cost));
}

void plan_checkpoint_section(Document *d, const PlanBudget *b, const PlanMachine *machine, double parameters,
                             double rate, double step_tokens) {
    char a[32], c[32], steps[48] = "";
    document_section(d, "Checkpoints", "lrl", "");
    document_row(d, "size\t%.4g GB\t%.0f bytes per parameter (14 with a half-precision copy: %.4g GB)",
                 b->checkpoint_bytes / 1e9, b->checkpoint_bytes / parameters, 14e-9 * parameters);
    document_row(d, "time to write\t%s\tat %.1f GB/s from all nodes, beside training",
                 text_duration(a, b->checkpoint_seconds), b->checkpoint_bytes / b->checkpoint_seconds / 1e9);
    document_row(d, "time between failures\t%s\tof the whole job", plan_time_text(a, b->mtbf));
    if (step_tokens > 0) snprintf(steps, sizeof steps, " = %.0f steps", b->checkpoint_interval * rate / step_tokens);
    document_row(d, "interval\t%s\tYoung: sqrt(2 x write x MTBF)%s", text_duration(c, b->checkpoint_interval), steps);
    document_row(d, "expected waste\t%.2f %%\thalf an interval per failure and the writes", 100 * b->checkpoint_waste);
    crash_rows(d, b, machine);
}

static const char *size_text(char *out, double bytes) {
    snprintf(out, 32, bytes < 1e13 ? "%.4g GB" : "%.4g TB", bytes < 1e13 ? bytes / 1e9 : bytes / 1e12);
    return out;
}

void plan_storage_section(Document *d, const PlanBudget *b, const PlanMachine *machine) {
    char a[32];
    const HardwareDefaults *defaults = &machine->defaults;
    document_section(d, "Storage", "lrl", "");
    document_row(d, "dataset\t%s\t%.0f bytes a token, one pass", size_text(a, b->dataset_bytes),
                 b->dataset_bytes / b->tokens);
    document_row(d, "checkpoints\t%s\t%.0f kept", size_text(a, b->checkpoints * b->checkpoint_bytes), b->checkpoints);
    document_row(d, "a month\t%s\tas long as they are kept; at $%.3f per GB-month%s%s",
                 plan_money_text(a, b->storage_month_cost), defaults->usd_per_gb_month,
                 defaults->usd_per_gb_month_source[0] ? ": " : "", defaults->usd_per_gb_month_source);
    if (!isinf(b->storage_cost))
        document_row(d, "over the run\t%s\tfor its calendar time", plan_money_text(a, b->storage_cost));
}

void plan_typical_row(Document *d, const HardwareTypical *t) {
    if (t->high <= 0) return;
    document_row(d, "typical MFU\t%.0f to %.0f %%\t6N: %s", 100 * t->low, 100 * t->high, t->title);
    document_note(d, "source: %s", t->source);
}

void plan_nodes_section(Document *d, const PlanNodes *nodes, int gpus) {
    char time[32], cost[32];
    document_section(d, "Nodes of the catalogue, cheapest first", "lrrrrl", "node\ttokens/s\tMFU\ttime\tcost\t");
    for (int i = 0; i < nodes->count; i++) {
        const PlanNode *n = &nodes->rows[i];
        if (!n->fits) {
            document_row(d, "%s\t\t\t\t\tdoes not fit or cannot run", n->name);
            continue;
        }
        const char *mark = i == nodes->cheapest && i == nodes->fastest ? ", cheapest and fastest"
                           : i == nodes->cheapest                      ? ", cheapest"
                           : i == nodes->fastest                       ? ", fastest"
                                                                       : "";
        char *remark = text_format("%s%s%s%s", mark, n->here ? ", this plan" : "", n->how[0] ? ", with " : "", n->how);
        document_row(d, "%s\t%.0f\t%.1f %%\t%s\t%s\t%s", n->name, n->rate, 100 * n->mfu,
                     plan_time_text(time, n->seconds), plan_money_text(cost, n->cost), remark[0] ? remark + 2 : "");
        free(remark);
    }
    document_note(d, "%d device%s each, paid by the device-hour", gpus, gpus == 1 ? "" : "s");
    if (nodes->cheapest < 0) return;
    const PlanNode *cheap = &nodes->rows[nodes->cheapest], *fast = &nodes->rows[nodes->fastest];
    document_note(d, "cheapest: %s (%s), %s and %s", cheap->name, cheap->title, plan_money_text(cost, cheap->cost),
                  plan_time_text(time, cheap->seconds));
    document_note(d, "fastest: %s (%s), %s and %s", fast->name, fast->title, plan_money_text(cost, fast->cost),
                  plan_time_text(time, fast->seconds));
}

// ---- JSON -----------------------------------------------------------------------------------------------------------

static json_t *finite_json(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *plan_budget_json(const PlanBudget *b, double parameters, double rate, double mfu) {
    char words[256];
    PlanSpan span = plan_span(b->seconds);
    plan_chinchilla_words(b->tokens, parameters, words, sizeof words);
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "tokens_per_second", rate, "mfu",
                     mfu, "tokens", b->tokens, "chinchilla_tokens", b->chinchilla_tokens, "chinchilla_ratio",
                     b->tokens / b->chinchilla_tokens, "chinchilla_words", words, "seconds", b->seconds, "hours",
                     span.hours, "days", span.days, "months", span.months, "gpu_hours", b->gpu_hours, "cost_usd",
                     b->cost, "energy_kwh", b->energy_kwh, "electricity_usd", b->energy_cost, "petaflop_days",
                     b->petaflop_days);
}

// What takes forever has no number: null.
json_t *plan_checkpoint_json(const PlanBudget *b) {
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:o,s:o,s:o,s:o}", "bytes", b->checkpoint_bytes, "write_seconds",
                     b->checkpoint_seconds, "mtbf_seconds", b->mtbf, "interval_seconds", b->checkpoint_interval,
                     "waste", b->checkpoint_waste, "crash_usd", b->crash_cost, "crashes", finite_json(b->crashes),
                     "crashes_usd", finite_json(b->crashes_cost), "calendar_seconds", finite_json(b->calendar_seconds),
                     "calendar_usd", finite_json(b->calendar_cost));
}

json_t *plan_storage_json(const PlanBudget *b, const PlanMachine *machine) {
    return json_pack("{s:f,s:f,s:f,s:f,s:s,s:f,s:o}", "dataset_bytes", b->dataset_bytes, "checkpoints", b->checkpoints,
                     "bytes", b->stored_bytes, "usd_per_GB_month", machine->defaults.usd_per_gb_month, "price_source",
                     machine->defaults.usd_per_gb_month_source, "usd_per_month", b->storage_month_cost, "usd",
                     finite_json(b->storage_cost));
}

json_t *plan_typical_json(const HardwareTypical *t) {
    if (t->high <= 0) return json_null();
    return json_pack("{s:s,s:s,s:f,s:f,s:s}", "class", t->name, "title", t->title, "mfu_low", t->low, "mfu_high",
                     t->high, "source", t->source);
}

json_t *plan_nodes_json(const PlanNodes *nodes) {
    json_t *list = json_array();
    for (int i = 0; i < nodes->count; i++) {
        const PlanNode *n = &nodes->rows[i];
        json_t *row =
            json_pack("{s:s,s:s,s:b,s:b}", "name", n->name, "device", n->title, "this_plan", n->here, "fits", n->fits);
        if (n->fits)
            json_object_update_new(row, json_pack("{s:f,s:f,s:f,s:f,s:f,s:s}", "tokens_per_second", n->rate, "mfu",
                                                  n->mfu, "seconds", n->seconds, "cost_usd", n->cost, "energy_kwh",
                                                  n->energy_kwh, "change", n->how));
        json_array_append_new(list, row);
    }
    json_t *root = json_pack("{s:o}", "nodes", list);
    if (nodes->cheapest >= 0) {
        json_object_set_new(root, "cheapest", json_string(nodes->rows[nodes->cheapest].name));
        json_object_set_new(root, "fastest", json_string(nodes->rows[nodes->fastest].name));
    }
    return root;
}
