// What an advice about a run's time rests on: the run as the planner sees it, and what the planner would change.
#pragma once

#include "train/prediction.h"
#include "watch/loss.h"

LossFacts loss_facts(const Prediction *prediction); // NULL: nothing is known
