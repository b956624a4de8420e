// The few numbers of a step that live on the device (floats in CONST_SCALARS), so that a recorded micro-step reads them
// fresh each time and nothing waits for the host.
#pragma once

enum {
    SCALAR_CE_SCALE,      // 1 / valid targets of the step
    SCALAR_AUX_SCALE,     // aux_coef / micro-batches of the step
    SCALAR_Z_COEF,        // z-loss coefficient / (tokens * sparse layers * micro-batches)
    SCALAR_LOSS_SUM,      // sum of the cross entropies of the step so far
    SCALAR_AUX_SUM,       // sum over micro-batches of the load-balancing loss
    SCALAR_NORM,          // gradient norm
    SCALAR_SKIP,          // int32: the guard refused the step
    SCALAR_ROWS,          // int32: rows that experts needed beyond the room for them; 0: there was room
    SCALAR_DLOGITS_SCALE, // of the logits' gradient in FP8; libraries read it at 16 bytes
    MODEL_SCALARS = 16,
};
