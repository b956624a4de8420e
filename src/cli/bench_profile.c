// hearth bench step --profile: a few more steps under the eyes of the profiler that runs have.
#include "cli/bench_commands.h"
#include "train/profiler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP = 2, ACTIVE = 3 };

Status bench_profile_steps(void *context, Model *model, void (*step)(void *run), void *run) {
    const BenchProfile *profile = context;
    Ops *ops = model->ops;
    Prediction *prediction = xcalloc(1, sizeof *prediction);
    Status unknown = prediction_make(prediction, &model->layout.request, profile->accum, ops->device,
                                     (double)ops->memory_total(ops), profile->world->size);
    Profiler *profiler = profiler_open(&(ProfilerOptions){.warmup = WARMUP,
                                                          .active = ACTIVE,
                                                          .model = model,
                                                          .world = profile->world,
                                                          .prediction = unknown ? NULL : prediction,
                                                          .directory = profile->directory,
                                                          .gpu = ops->gpu});
    MetricsStep metrics = {.memory_own_bytes = (double)model->layout.total_bytes};
    Status status = NULL;
    for (int i = 0; i < WARMUP + ACTIVE && !status; i++) {
        profiler_step_begin(profiler, i + 1);
        step(run);
        status = ops->sync(ops);
        if (!status) profiler_step_end(profiler, &metrics);
    }
    char *said = profiler_said(profiler);
    if (said) fprintf(stderr, "%s\n", said); // what others read is the line of JSON
    free(said);
    profiler_close(profiler);
    status_free(unknown);
    free(prediction);
    return status;
}
