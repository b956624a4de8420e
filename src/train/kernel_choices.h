// The kernels that a run has chosen on its GPU, in its directory: kernels.txt, lines of ops/tune.h. A run that is
// resumed takes the same ones, whatever the machine's own file says by then.
#pragma once

#include "train/trainer.h"

// Takes the run's choices where it has some, and lets all ranks agree on the rest. Collective.
Status kernel_choices_settle(Trainer *trainer, const char *directory);
// Writes what is known by now, when that is more than the *kept choices of the last time; on rank 0. What goes wrong is
// a warning.
void kernel_choices_keep(const Trainer *trainer, const char *directory, int *kept);
