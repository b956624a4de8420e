// metrics.jsonl: one line a step, and one line per validation, as metrics_table.h says. Losses are written with nine
// digits, which tell any two floats apart, so that two runs can be compared bit for bit.
#pragma once

#include "base/json.h"
#include "plan/evaluation.h"
#include "watch/append_file.h"
#include "watch/expert_load.h"
#include "watch/machine.h"

#include <stdbool.h>
#include <stdint.h>

enum { METRICS_SPLIT_MAX = 8 };

typedef struct MetricsStep {
    int64_t step, tokens;                  // tokens trained on so far
    double loss, loss_aux;                 // mean over the step's targets
    double lr, grad_norm;                  // norm before clipping
    double tokens_per_second, tflops, mfu; // of this step; mfu is a fraction, 0 when the peak is not known
    double memory_bytes, memory_fraction;  // in use on the device
    double memory_peak_bytes;              // the most that was so far
    double memory_own_bytes;               // of memory_bytes, what hearth asked for
    double data_wait;                      // fraction of the step spent waiting for data
    double comm_wait;                      // and blocked for other ranks
    double seconds;                        // of the step
    double elapsed;                        // of this process
    int64_t grad_accum;
    bool skipped;
    bool overflow; // skipped for gradients that were too large for the loss scale alone
    int64_t skipped_total;
    double loss_scale;          // of the step; 0: the run has none
    double loss_bf16, loss_gap; // FP8: the loss of the same batch in bf16, and the difference over it; 0: not taken
    int split_count;            // milliseconds by kind of operation, on profiled steps
    const char *split_name[METRICS_SPLIT_MAX];
    double split_ms[METRICS_SPLIT_MAX];
    int64_t expert_rows_grown; // the step ran again with room for so many rows of experts on a rank; 0: it did not
    int moe_count;             // sparse layers, on steps whose expert load was taken; else 0
    const ExpertLoad *moe;     // [moe_count] of the whole step; not owned
    ExpertLoad moe_worst;      // of them; metrics_step fills it in
    double mfu_refused;        // above 1: the peak is wrong, and there is no mfu
    double checkpoint_age;     // seconds since the newest complete checkpoint, or the start; 0: not known
    double time;               // wall clock, seconds since 1970; 0: not known
    MachineReading machine;
} MetricsStep;

typedef struct Metrics Metrics;

// Appends to the file. Lines of steps after last_step, and a line torn by a crash, are dropped first.
Status metrics_open(Metrics **metrics, const char *path, int64_t last_step);
// What cannot be written (a full disk) is kept, as append_file.h says.
Status metrics_step(Metrics *metrics, const MetricsStep *step);
// Taken after `step` steps and `tokens` tokens of training.
Status metrics_evaluation(Metrics *metrics, int64_t step, int64_t tokens, double time, const Evaluation *evaluation);
void metrics_close(Metrics *metrics); // tries once more what could not be written

AppendMissing metrics_missing(Metrics *metrics); // in the file, after one more try

// Calls take(line, context) for every whole line of a file, which may be growing. metrics_table.h reads values by key.
Status metrics_read(const char *path, void (*take)(const json_t *line, void *context), void *context);

// The same of the whole lines from *offset on, in at most so many bytes; *offset moves behind each line before it is
// taken, and stays where there is none.
Status metrics_read_from(const char *path, int64_t *offset, size_t most,
                         void (*take)(const json_t *line, void *context), void *context);

// Losses of all step lines of a file, in order (malloc'd); for the curve at the end of a run.
Status metrics_read_losses(const char *path, double **losses, int64_t *count);
// Whether all validation data was evaluated after this step; false also when the file cannot be read.
bool metrics_has_full_eval(const char *path, int64_t step);
int64_t metrics_last_step(const char *path); // 0: no step, or no such file
