#include "plan/cost.h"

double plan_node_cost(double seconds, double usd_per_node_hour) {
    return seconds / 3600 * usd_per_node_hour;
}

double plan_gpu_cost(double gpus, double seconds, double usd_per_gpu_hour) {
    return gpus * plan_node_cost(seconds, usd_per_gpu_hour);
}

double plan_energy_kwh(double gpus, double watts, double seconds, double pue) {
    return gpus * watts / 1000 * (seconds / 3600) * pue;
}

double plan_electricity_cost(double gpus, double watts, double seconds, double usd_per_kwh, double pue) {
    return plan_energy_kwh(gpus, watts, seconds, pue) * usd_per_kwh;
}

double plan_storage_cost(double bytes, double months, double usd_per_gb_month) {
    return bytes / 1e9 * months * usd_per_gb_month;
}

double plan_saving_relative(double run_cost, double relative_gain) {
    return run_cost * relative_gain;
}

double plan_saving_points(double run_cost, double mfu, double points) {
    return run_cost * (1 - mfu / (mfu + points));
}
