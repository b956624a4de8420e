// What a report shows of a run beside its files: prices of the catalogue, and what the planner would change.
#pragma once

#include "plan/hardware.h"
#include "watch/report_figures.h"

void report_prepare(ReportRun *run, const Hardware *hardware);
