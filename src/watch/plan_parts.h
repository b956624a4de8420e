// Pieces that pages of plans share: a plan of a model (plan_text.c) and a plan of bare numbers (numbers_text.c).
#pragma once

#include "plan/nodes.h"
#include "watch/document.h"

#include <jansson.h>

// Into a buffer of at least 32 bytes, which is returned.
const char *plan_money_text(char *out, double usd);
const char *plan_time_text(char *out, double seconds);              // in the unit that suits; "never" of INFINITY
const char *plan_span_text(char *out, size_t size, double seconds); // "3472 hours = 144.7 days = 4.82 months"

void plan_tokens_rows(Document *d, const PlanBudget *budget, double parameters); // tokens, what they are to Chinchilla
void plan_time_row(Document *d, const PlanBudget *budget);
void plan_cost_rows(Document *d, const PlanBudget *budget, const PlanMachine *machine); // and energy
// rate and tokens of a step give the interval in steps; 0: not known.
void plan_checkpoint_section(Document *d, const PlanBudget *budget, const PlanMachine *machine, double parameters,
                             double rate, double step_tokens);
void plan_storage_section(Document *d, const PlanBudget *budget, const PlanMachine *machine);
void plan_nodes_section(Document *d, const PlanNodes *nodes, int gpus);
void plan_typical_row(Document *d, const HardwareTypical *typical); // nothing where the catalogue has none

json_t *plan_budget_json(const PlanBudget *budget, double parameters, double rate, double mfu);
json_t *plan_checkpoint_json(const PlanBudget *budget);
json_t *plan_storage_json(const PlanBudget *budget, const PlanMachine *machine);
json_t *plan_nodes_json(const PlanNodes *nodes);
json_t *plan_typical_json(const HardwareTypical *typical);
