#include "plan/checkpointing.h"

#include <math.h>

double plan_checkpoint_parameter_bytes(int islands) {
    if (!islands) return PLAN_CHECKPOINT_PARAMETER_BYTES;
    return (double)PLAN_CHECKPOINT_PARAMETER_BYTES * islands + PLAN_CHECKPOINT_OUTER_BYTES;
}

double plan_write_seconds(double bytes, double bandwidth, double writers) {
    return bytes / (bandwidth * writers);
}

double plan_young_interval(double mtbf_s, double checkpoint_s) {
    return sqrt(2 * checkpoint_s * mtbf_s);
}

double plan_checkpoint_waste(double interval_s, double mtbf_s, double checkpoint_s) {
    return (interval_s / 2 + checkpoint_s * mtbf_s / interval_s) / mtbf_s;
}

double plan_young_waste(double mtbf_s, double checkpoint_s) {
    return plan_checkpoint_waste(plan_young_interval(mtbf_s, checkpoint_s), mtbf_s, checkpoint_s);
}

double plan_checkpoint_overhead(double checkpoint_s, double interval_s) {
    return checkpoint_s / interval_s;
}

double plan_steps_per_interval(double interval_s, double step_s) {
    return interval_s / step_s;
}

double plan_expected_crashes(double seconds, double mtbf_s) {
    return seconds / mtbf_s;
}

double plan_calendar_seconds(double work_s, double mtbf_s, double checkpoint_s, double recovery_s) {
    double lost = plan_young_waste(mtbf_s, checkpoint_s) + recovery_s / mtbf_s;
    return lost < 1 ? work_s / (1 - lost) : INFINITY;
}

double plan_crash_cost(double gpus, double usd_per_gpu_hour, double interval_s, double recovery_s) {
    return gpus * usd_per_gpu_hour * (interval_s / 2 + recovery_s) / 3600;
}
