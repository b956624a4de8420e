// `hearth plan --params 8B ...`: a plan without a model.
#pragma once

#include "plan/numbers.h"
#include "train/plan_request.h"

typedef struct NumbersArgs {
    const char *params, *active_params, *peak_tflops; // as typed; NULL: not given
} NumbersArgs;

// What does not go with bare numbers, or not without them; `other` is an option of the command that needs a model,
// NULL: none was given. request->name is NULL where no model is named.
Status numbers_args_check(const NumbersArgs *args, const PlanRequest *request, const char *other);
// Of a setup that has no run.
Status numbers_args_plan(PlanNumbersReport *report, const NumbersArgs *args, const PlanSetup *setup,
                         const PlanRequest *request);
