// A plan, a search and a simulation for people and for programs.
#pragma once

#include "plan/calibration.h"
#include "plan/numbers.h"
#include "plan/plan.h"
#include "plan/search.h"
#include "plan/simulate.h"
#include "watch/document.h"

#include <jansson.h>

#define NOTHING_FITS "nothing fits below %.0f %% of memory: more GPUs, shorter sequences or a smaller model"

Document *plan_document(const PlanReport *report, bool with_ops);
json_t *plan_report_json(const PlanReport *report);
Document *numbers_document(const PlanNumbersReport *report);
json_t *numbers_json(const PlanNumbersReport *report);
// What plan.json of a run holds: memory by kind, step time by part, tokens/s, MFU, and where they come from.
json_t *plan_prediction_json(const PlanMachine *machine, const PlanRun *run, const PlanPrediction *prediction);

// lacks: what the build would need to train on these devices ("CUDA"); NULL: nothing.
Document *search_document(const PlanReport *report, const SearchResult *result, double memory_limit, double seconds,
                          const char *lacks);
json_t *search_json(const SearchResult *result);
// The best candidates of different meshes, recompute modes or sequence lengths; returns how many.
int search_top(const SearchResult *result, int *indices, int most);

void simulate_section(Document *document, const SimulateRequest *request, const SimulateResult *result);

// "memory predicted 12.3 GiB measured 12.3 GiB error +0.0 %" and so on, one line each, for the end of a run.
void plan_outcome_text(const PlanPrediction *prediction, const PlanMeasured *measured, TextBuffer *out);
