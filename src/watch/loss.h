// What a step loses its time to, and what to try: one table for the waterfall of a report and for a profile.
#pragma once

typedef enum Loss {
    LOSS_DATA,
    LOSS_RANKS,
    LOSS_GAPS,
    LOSS_OPTIMIZER,
    LOSS_ELEMENTWISE,
    LOSS_ROUTING,
    LOSS_COPY,
    LOSS_RATES, // products and attention that take longer than at the rates that were measured or are known
    LOSS_RECOMPUTE,
    LOSS_COUNT,
} Loss;

const char *loss_name(Loss loss);   // "waiting for data"
const char *loss_advice(Loss loss); // a sentence without its full stop
