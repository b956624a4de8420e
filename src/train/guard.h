// The loss-spike guard's memory: the losses of the last accepted steps. The limit it gives is applied on the device
// (ops->guard), so that a refused step never touches the weights.
#pragma once

#include "base/json.h"
#include "base/status.h"

#include <stdint.h>

enum { GUARD_WINDOW_MAX = 1024 };

typedef struct Guard {
    double factor; // 0: only NaN and Inf are refused
    int window;
    int64_t max_skips;
    double losses[GUARD_WINDOW_MAX]; // ring
    int64_t accepted, skipped, skipped_in_row;
} Guard;

float guard_limit(const Guard *guard); // INFINITY while there is too little to compare with
void guard_note(Guard *guard, double loss, bool skipped);

json_t *guard_json(const Guard *guard); // for the checkpoint: the limit must be the same after a resume
Status guard_restore(Guard *guard, const json_t *root, const char *where);
