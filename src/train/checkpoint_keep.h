// Which checkpoints stay: the newest, the best by validation, and every K-th. Inside of train/checkpoint.
#pragma once

#include "train/checkpoint.h"

#define CHECKPOINT_PARTIAL ".writing-" // prefix of a directory that is not a checkpoint yet
#define CHECKPOINT_TRASH   ".removing-"

// A checkpoint is removed in two steps: renamed, then, when that is on disk, taken apart by checkpoint_clean. A crash
// in the middle leaves no half checkpoint under a checkpoint's name.
Status checkpoint_to_trash(const char *directory, int64_t step);
Status checkpoint_from_trash(const char *directory, int64_t step);
Status checkpoint_prune(const char *directory, const CheckpointPolicy *policy);
Status checkpoint_clean(const char *directory); // removes trash, and what a crash left behind
