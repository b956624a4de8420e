// Checkpoints: size, time to write, how often (Young's interval), and what a crash costs.
#pragma once

// Of one parameter in a checkpoint of hearth: the weight and both moments of AdamW as floats, whatever the precision of
// the run. train/checkpoint.c writes that; PLAN_CHECKPOINT_BYTES in memory.h is the 14 bytes of others.
enum { PLAN_CHECKPOINT_PARAMETER_BYTES = 3 * 4 };
// And of an outer optimizer: anchor and momentum. The other islands have weights and moments of their own.
enum { PLAN_CHECKPOINT_OUTER_BYTES = 2 * 4 };
double plan_checkpoint_parameter_bytes(int islands); // 0: no outer optimizer

double plan_write_seconds(double bytes, double bandwidth,
                          double writers);                      // each writer has the whole bandwidth to itself
double plan_young_interval(double mtbf_s, double checkpoint_s); // seconds between checkpoints
// Share of time lost at an interval: half an interval per failure and one checkpoint per interval.
double plan_checkpoint_waste(double interval_s, double mtbf_s, double checkpoint_s);
double plan_young_waste(double mtbf_s, double checkpoint_s); // the same at Young's interval
double plan_checkpoint_overhead(double checkpoint_s, double interval_s);
double plan_steps_per_interval(double interval_s, double step_s);
double plan_expected_crashes(double seconds, double mtbf_s); // in so much wall-clock time
// Wall-clock time of so much work with checkpoints at Young's interval: Young's waste, and the recovery of every crash.
// INFINITY when crashes cost more time than there is between them.
double plan_calendar_seconds(double work_s, double mtbf_s, double checkpoint_s, double recovery_s);
double plan_crash_cost(double gpus, double usd_per_gpu_hour, double interval_s, double recovery_s);
