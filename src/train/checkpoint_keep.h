// Which checkpoints stay: the newest, the best by validation, and every K-th. Inside of train/checkpoint.
#pragma once

#include "train/checkpoint.h"

#define CHECKPOINT_PARTIAL ".writing-" // prefix of a directory that is not a checkpoint yet
#define CHECKPOINT_TRASH   ".removing-"

Status checkpoint_prune(const char *directory, const CheckpointPolicy *policy);
Status checkpoint_clean(const char *directory); // removes what a crash left behind
