// Step times of a run and their median.
#include "train/outcome.h"

#include "base/clock.h"
#include "base/stats.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

void outcome_note(Outcome *outcome, double seconds, double memory, double in_use) {
    if (outcome->count == outcome->capacity) {
        outcome->capacity = outcome->capacity ? 2 * outcome->capacity : 256;
        outcome->seconds = xrealloc(outcome->seconds, outcome->capacity * sizeof *outcome->seconds);
    }
    outcome->seconds[outcome->count++] = seconds;
    outcome->memory = memory;
    outcome->in_use = in_use;
}

bool outcome_measured(const Outcome *outcome, double step_tokens, PlanMeasured *measured) {
    *measured = (PlanMeasured){0};
    if (outcome->count < OUTCOME_STEPS_LEAST) return false;
    double median = double_median(outcome->seconds, outcome->count);
    *measured = (PlanMeasured){.memory = outcome->memory,
                               .memory_beside = outcome->in_use - outcome->memory,
                               .step_seconds = median,
                               .tokens_per_second = step_tokens / median};
    return true;
}

MachineLoad machine_load_now(void) {
    MachineLoad load = {.clock = clock_seconds()};
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    load.own = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    // user nice system idle iowait irq softirq steal: all but the two that are idle
    unsigned long long t[8] = {0};
    FILE *file = fopen("/proc/stat", "re");
    if (file && fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5],
                       &t[6], &t[7]) == 8)
        load.busy = (double)(t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / (double)sysconf(_SC_CLK_TCK);
    if (file) fclose(file);
    return load;
}

double machine_load_others(const MachineLoad *from, const MachineLoad *to, int ranks, int cores) {
    double seconds = to->clock - from->clock, others = (to->busy - from->busy) - ranks * (to->own - from->own);
    return from->busy > 0 && to->busy > 0 && seconds > 0 && others > 0 ? others / (seconds * cores) : 0;
}

double outcome_others(const MachineLoad *from, DeviceKind kind, const World *world) {
    if (kind != DEVICE_CPU) return 0;
    MachineLoad now = machine_load_now();
    return machine_load_others(from, &now, world ? world->local_size : 1, (int)sysconf(_SC_NPROCESSORS_ONLN));
}

const char *outcome_unfit(size_t steps, size_t least, double others) {
    const char *wanted = getenv("HEARTH_CALIBRATION");
    if (wanted && strcmp(wanted, "always") == 0) return NULL;
    if (steps < least) return "the run was too short";
    return others > OUTCOME_OTHERS_MOST ? "other programs were at work on this machine" : NULL;
}

void outcome_free(Outcome *outcome) {
    free(outcome->seconds);
    *outcome = (Outcome){0};
}
