// What somebody should look at while a run goes on. Each kind is raised once by a process, with what to do about it;
// alarms.jsonl in the run directory has a line for each.
#pragma once

#include "base/text.h"
#include "watch/metrics.h"

typedef enum AlarmKind {
    ALARM_DATA_WAIT,
    ALARM_MEMORY,
    ALARM_LOSS_SPIKE,
    ALARM_NORM_SPIKE,
    ALARM_LOSS_GAP,
    ALARM_DEAD_EXPERTS,
    ALARM_THROTTLED,
    ALARM_SLOWING,
    ALARM_MFU,
    ALARM_CHECKPOINT_AGE,
    ALARM_DISK,
    ALARM_COUNT,
} AlarmKind;

typedef struct AlarmOptions {
    double young_seconds;    // Young's interval between checkpoints; 0: not known
    double checkpoint_bytes; // of one of this run's; 0: not known
    double loss_gap_bound;   // of MetricsStep.loss_gap
} AlarmOptions;

enum { ALARM_WINDOW = 64 };

typedef struct AlarmWindow { // of steps, until there are enough to judge
    double seconds, sum;
    int64_t count;
} AlarmWindow;

typedef struct AlarmLeak { // the least of each window rises again and again where something is not given back
    AlarmWindow window;
    double least, before, first;
    int rises;
} AlarmLeak;

typedef struct Alarms {
    AlarmOptions options;
    bool raised[ALARM_COUNT];
    int64_t steps; // seen by this process
    AlarmWindow wait, clock, speed;
    AlarmLeak device, host;
    double losses[ALARM_WINDOW], norms[ALARM_WINDOW];
    int64_t accepted;
    int waits_in_row, dead_in_row, slow_in_row;
    double throttled;               // sum over `clock`
    double usual_clock, best_speed; // 0: not known yet
    double disk_time, disk_free;    // where the hour of the trend began; time 0: nowhere
} Alarms;

typedef struct Alarm {
    AlarmKind kind;
    int64_t step, tokens;
    double time;
    char *message; // malloc'd: what was seen, in figures
} Alarm;
void alarm_free(Alarm *alarm);

const char *alarm_name(AlarmKind kind);   // "data_wait", as alarms.jsonl has it
const char *alarm_advice(AlarmKind kind); // what to do

void alarms_begin(Alarms *alarms, const AlarmOptions *options);
// The alarms that this step raises, at most `ALARM_COUNT`: their number.
int alarms_step(Alarms *alarms, const MetricsStep *step, Alarm out[ALARM_COUNT]);
// Free bytes of the run directory's disk, looked at about once a minute.
int alarms_disk(Alarms *alarms, const MetricsStep *last, double time, double free_bytes, Alarm out[ALARM_COUNT]);

void alarm_line(const Alarm *alarm, TextBuffer *out); // of alarms.jsonl
