// The small models with sizes that FP8 takes.
#pragma once

#include "model/fp8.h"
#include "small_models.h"

enum { TOKENS = 32, TOKENS_MOST = 64 };

static inline LayoutRequest fp8_request(SmallModel which, Precision precision) {
    LayoutRequest request = small_request(which);
    request.config.ffn = 80; // whole pieces for the tensor cores
    request.config.vocab = 112;
    if (which == SMALL_MOE) request.config.moe_ffn = 32;
    request.seq = TOKENS / 2;
    request.logits_rows = 16; // two chunks
    request.precision = precision;
    return request;
}
