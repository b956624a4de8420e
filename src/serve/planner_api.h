// The planner's and the workbook's answers: from the parameters of a query to JSON. Nothing is kept between two calls
// and nothing is shared, so that any number of threads may ask; the work is bounded whatever they ask for.
#pragma once

#include "base/json.h"
#include "serve/routes.h"

// {"plan": what `hearth plan --json` writes, "machine": the devices, "command": the words that give the same plan}.
// Parameters are the options of `hearth plan` without their dashes ("gpus"), "model" (a preset) or "params",
// "model.layers" and the other sizes of a model.
Status planner_plan(json_t **root, const ServeParameter *parameters, int count);
// Choices of the fields: presets with their sizes, devices, nodes, words.
Status planner_lists(json_t **root);
// "quantity" and its inputs; with "value" it is solved for the input that is left out. As `hearth calc --json`.
Status planner_calc(json_t **root, const ServeParameter *parameters, int count);

// The same as answers of the server (planner_answers.c).
Status planner_plan_answer(const ServeRequest *request, ServeReply *reply);
Status planner_lists_answer(const ServeRequest *request, ServeReply *reply);
Status planner_calc_answer(const ServeRequest *request, ServeReply *reply);
Status planner_quantities_answer(const ServeRequest *request, ServeReply *reply);
