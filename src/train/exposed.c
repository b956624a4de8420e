#include "train/exposed.h"

#include "base/text.h"

#include <string.h>

void exposed_begin(Exposed *exposed, const Trainer *trainer) {
    const Ranks *ranks = &trainer->ranks;
    *exposed = (Exposed){.first_only = ranks->opened_count && strcmp(ranks->opened[0]->backend, "nccl") == 0};
    if (exposed->first_only) comm_record_events(ranks->world, 1);
}

void exposed_step(Exposed *exposed, const Trainer *trainer, const MetricsStep *metrics, bool warm) {
    World *world = trainer->ranks.world;
    if (!world || world->size == 1) return;
    if (exposed->first_only) {
        if (exposed->of > 0) return;
        exposed->seconds = comm_exposed_seconds(world);
        exposed->of = metrics->seconds;
        comm_record_events(world, 0);
    } else if (warm) {
        exposed->seconds += metrics->comm_wait * metrics->seconds;
        exposed->of += metrics->seconds;
    }
}

char *exposed_text(const Exposed *exposed) {
    if (exposed->of <= 0) return NULL;
    return text_format("communication: rank 0 stood still for other ranks %.1f %% of %s",
                       100 * exposed->seconds / exposed->of,
                       exposed->first_only ? "the first step, which ran op by op" : "the time of its steps");
}
