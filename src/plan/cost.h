// Money and energy. Prices stay in the unit of the price list (USD per hour, USD per kWh).
#pragma once

double plan_node_cost(double seconds, double usd_per_node_hour);
double plan_gpu_cost(double gpus, double seconds, double usd_per_gpu_hour);
double plan_energy_kwh(double gpus, double watts, double seconds,
                       double pue); // pue: the building's draw over the GPUs'
double plan_electricity_cost(double gpus, double watts, double seconds, double usd_per_kwh, double pue);
double plan_storage_cost(double bytes, double months, double usd_per_gb_month); // GB of 1e9 bytes
double plan_saving_relative(double run_cost, double relative_gain);             // a gain of 1 % of the MFU
double plan_saving_points(double run_cost, double mfu, double points);          // a gain of one point: 40 % to 41 %
