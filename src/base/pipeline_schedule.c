#include "base/pipeline_schedule.h"

#include <string.h>

static const char *const schedule_names[] = {
    [PIPELINE_GPIPE] = "gpipe", [PIPELINE_1F1B] = "1f1b", [PIPELINE_INTERLEAVED] = "interleaved"};
static const char *const other_names[] = {
    [PIPELINE_GPIPE] = "GPipe", [PIPELINE_1F1B] = "1F1B", [PIPELINE_INTERLEAVED] = "Interleaved1F1B"};

Status pipeline_schedule_parse(PipelineSchedule *schedule, const char *name) {
    for (int i = 0; i < PIPELINE_SCHEDULE_COUNT; i++) {
        if (strcmp(name, schedule_names[i]) != 0 && strcmp(name, other_names[i]) != 0) continue;
        *schedule = (PipelineSchedule)i;
        return NULL;
    }
    return status_usage("the schedule must be gpipe, 1f1b or interleaved, not \"%s\"", name);
}

const char *pipeline_schedule_name(PipelineSchedule schedule) {
    return schedule_names[schedule];
}

Status pipeline_schedule_check(PipelineSchedule schedule, int stages, int virtual_stages, int micro_batches) {
    if (stages < 1 || micro_batches < 1 || virtual_stages < 1)
        return status_usage("stages, micro-batches and virtual stages must be at least 1");
    if (schedule != PIPELINE_INTERLEAVED && virtual_stages > 1)
        return status_usage("virtual stages need the interleaved schedule");
    if (schedule == PIPELINE_INTERLEAVED && micro_batches % stages)
        return status_hint(
            status_usage("the interleaved schedule needs micro-batches (%d) that divide by the stages (%d)",
                         micro_batches, stages),
            "%d micro-batches do", (micro_batches + stages - 1) / stages * stages);
    return NULL;
}

int64_t pipeline_task_count(int virtual_stages, int micro_batches) {
    return 2 * (int64_t)virtual_stages * micro_batches;
}

// Forward passes that a rank runs before its first backward pass, without the one right before it. The last rank of
// 1F1B turns around at once, each rank before it one pass later; interleaved, a micro-batch comes back two passes later
// for each rank, after all chunks but the last.
static int64_t warmup_passes(PipelineSchedule schedule, int stages, int virtual_stages, int stage, int64_t passes) {
    int64_t warmup = passes;
    if (schedule == PIPELINE_1F1B) warmup = stages - stage - 1;
    if (schedule == PIPELINE_INTERLEAVED)
        warmup = 2 * (int64_t)(stages - stage - 1) + (virtual_stages - 1) * (int64_t)stages;
    return warmup < passes ? warmup : passes;
}

// The k-th pass of one kind: groups of `stages` micro-batches go through chunk 0, then chunk 1, ...; backward from the
// last chunk.
static PipelineTask chunk_task(PipelinePass pass, int stages, int virtual_stages, int64_t k) {
    int64_t round = (int64_t)stages * virtual_stages;
    int chunk = (int)(k % round / stages);
    if (pass == PIPELINE_BACKWARD) chunk = virtual_stages - 1 - chunk;
    return (PipelineTask){pass, (int)(k / round * stages + k % stages), chunk};
}

PipelineTask pipeline_task(PipelineSchedule schedule, int stages, int virtual_stages, int stage, int micro_batches,
                           int64_t index) {
    int64_t passes = (int64_t)virtual_stages * micro_batches;
    int64_t warmup = warmup_passes(schedule, stages, virtual_stages, stage, passes);
    int64_t paired = index - warmup; // from here on forward and backward in turn, until no forward pass is left
    if (paired < 0) return chunk_task(PIPELINE_FORWARD, stages, virtual_stages, index);
    if (paired >= 2 * (passes - warmup)) return chunk_task(PIPELINE_BACKWARD, stages, virtual_stages, index - passes);
    if (paired % 2 == 0) return chunk_task(PIPELINE_FORWARD, stages, virtual_stages, warmup + paired / 2);
    return chunk_task(PIPELINE_BACKWARD, stages, virtual_stages, paired / 2);
}

// After the first backward pass every forward pass is followed by one, so the most is reached before it.
int64_t pipeline_in_flight(PipelineSchedule schedule, int stages, int virtual_stages, int stage, int micro_batches) {
    int64_t in_flight = 0;
    while (pipeline_task(schedule, stages, virtual_stages, stage, micro_batches, in_flight).pass == PIPELINE_FORWARD)
        in_flight++;
    return in_flight;
}
