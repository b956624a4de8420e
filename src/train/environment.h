// environment.json: where a run was trained, with what build and which libraries.
#pragma once

#include "base/status.h"
#include "train/trainer.h"

// Adds this process to the list in the run directory's environment.json, and makes the file where there is none. A file
// of an earlier version, which holds one process alone, becomes a list; one that is damaged starts again.
Status environment_write(const char *directory, const Trainer *trainer);
