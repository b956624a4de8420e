#include "watch/loss.h"

static const struct {
    const char *name, *advice;
} losses[LOSS_COUNT] = {
    [LOSS_DATA] = {"waiting for data", "Try a faster disk for the shards, or more batches read ahead (data.prefetch)"},
    [LOSS_RANKS] = {"waiting for other ranks",
                    "Try more work between exchanges (train.micro_batch, train.batch_tokens) or another mesh: hearth "
                    "plan --search"},
    [LOSS_GAPS] = {"gaps between operations",
                   "Try a recorded graph (train.graph = true) and a larger train.micro_batch"},
    [LOSS_OPTIMIZER] = {"optimizer", "Try a larger batch (train.batch_tokens), which pays for it less often"},
    [LOSS_ELEMENTWISE] = {"norms, rotary, SwiGLU, loss", "They wait for memory: try train.precision = \"bf16\", and "
                                                         "less recomputation (recompute.mode)"},
    [LOSS_ROUTING] = {"routing of experts", "Try a larger train.micro_batch: routing costs less for each row"},
    [LOSS_COPY] = {"copies", "Try a larger train.micro_batch"},
    [LOSS_RATES] = {"products and attention below the rates of this device",
                    "Look for what else uses the device, and at its clocks and temperature; hearth bench measures its "
                    "rates"},
    [LOSS_RECOMPUTE] = {"recomputation in the backward pass",
                        "Try recompute.mode = \"selective\" or \"none\", with a smaller train.micro_batch where memory "
                        "asks for it"},
};

const char *loss_name(Loss loss) {
    return losses[loss].name;
}

const char *loss_advice(Loss loss) {
    return losses[loss].advice;
}
