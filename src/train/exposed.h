// The share of a run's steps for which the computation stood still for other ranks. Between hosts it is measured in
// every step; waits of a GPU for NCCL are seen only outside of graphs, in the first step of a process, which runs op by
// op.
#pragma once

#include "train/trainer.h"

typedef struct Exposed {
    bool first_only;    // NCCL
    double seconds, of; // waited, of so many
} Exposed;

void exposed_begin(Exposed *exposed, const Trainer *trainer); // before the first step
void exposed_step(Exposed *exposed, const Trainer *trainer, const MetricsStep *metrics, bool warm);
// "communication: ..." for the end of the run; malloc'd, NULL: nothing to say.
char *exposed_text(const Exposed *exposed);
