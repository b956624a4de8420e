// The rules of the alarms. Each looks at enough steps, or enough time, that noise does not raise it.
#include "watch/alarms.h"

#include "base/json.h"
#include "base/stats.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>

#define WARM_STEPS         10   // the first ones tune kernels and fill caches
#define WAIT_SHARE         0.02 // of a window
#define WAIT_WINDOWS       3    // in a row: one alone may be chance
#define WINDOW_SECONDS     60.0
#define WINDOW_STEPS       50
#define LEAK_RISES         4     // windows in a row whose least use is above that of the one before
#define LEAK_SHARE         0.005 // and so much above the first of them
#define LEAK_BYTES         (16.0 * 1024 * 1024)
#define LOSS_SIGMAS        8   // robust standard deviations above the median of the window
#define LOSS_SHARE         0.1 // and this share of it
#define NORM_FACTOR        10  // times the median of the window
#define DEAD_IN_ROW        5   // readings
#define DEAD_FIRST_STEP    100 // before that routers are still finding their experts
#define CLOCK_SHARE        0.9 // of the usual
#define THROTTLED_SHARE    0.5 // of a window's readings
#define SPEED_SECONDS      900.0
#define SPEED_SHARE        0.95 // of the best window
#define SPEED_SLOW_WINDOWS 4    // in a row: an hour
#define DISK_CHECKPOINTS   2
#define DISK_TREND_SECONDS 3600.0
#define DISK_HOURS_LEFT    12.0
#define DISK_TREND_SHARE   0.02 // of what was free; less is what any disk does in an hour

typedef struct AlarmRow {
    const char *name, *advice;
} AlarmRow;

static const AlarmRow alarm_rows[ALARM_COUNT] = {
    [ALARM_DATA_WAIT] = {"data_wait",
                         "raise data.prefetch, put the shards on a faster disk, or give the loader's thread "
                         "a core of its own"},
    [ALARM_MEMORY] = {"memory",
                      "a run uses the same memory from its first step on: look for another program on the "
                      "device, else report it with this run's metrics.jsonl; checkpoints are good to resume from"},
    [ALARM_LOSS_SPIKE] = {"loss_spike",
                          "one that comes down again by itself is harmless; else resume from a checkpoint "
                          "before it with a lower optimizer.lr, or with train.spike_factor set"},
    [ALARM_NORM_SPIKE] = {"norm_spike", "optimizer.clip bounds what one such step does; where they come often lower "
                                        "optimizer.lr or lengthen schedule.warmup_steps"},
    [ALARM_LOSS_GAP] = {"loss_gap", "the products in FP8 lose too much here: go on from a checkpoint with "
                                    "train.precision = \"bf16\", or raise train.loss_check_bound if the curve is fine"},
    [ALARM_DEAD_EXPERTS] = {"dead_experts", "raise model.aux_coef, or balance by model.router_bias_rate"},
    [ALARM_THROTTLED] = {"throttled", "look at the cooling and the power limit of this GPU (nvidia-smi -q -d "
                                      "PERFORMANCE,TEMPERATURE,POWER), and at what else runs on it"},
    [ALARM_SLOWING] = {"slowing", "compare gpu_clock, data_wait, comm_wait and cpu_cores of then and now in "
                                  "metrics.jsonl: what has changed names the cause"},
    [ALARM_MFU] = {"mfu", "correct watch.peak_tflops, or set it to 0 for the hardware catalogue's"},
    [ALARM_CHECKPOINT_AGE] = {"checkpoint_age", "a failure now costs more than checkpoints would: lower "
                                                "checkpoint.minutes, and look whether checkpoints fail"},
    [ALARM_DISK] = {"disk",
                    "make room: hearth runs rm frees whole runs or their older checkpoints, checkpoint.keep_last "
                    "and keep_every say how many stay"},
};

const char *alarm_name(AlarmKind kind) {
    return alarm_rows[kind].name;
}

const char *alarm_advice(AlarmKind kind) {
    return alarm_rows[kind].advice;
}

void alarm_free(Alarm *alarm) {
    free(alarm->message);
    alarm->message = NULL;
}

void alarms_begin(Alarms *alarms, const AlarmOptions *options) {
    *alarms = (Alarms){.options = *options};
}

// ---- raising --------------------------------------------------------------------------------------------------------

typedef struct Raise { // what the rules add to
    Alarms *alarms;
    const MetricsStep *step;
    Alarm *out;
    int count;
} Raise;

__attribute__((format(printf, 3, 4))) static void raise_alarm(Raise *raise, AlarmKind kind, const char *format, ...) {
    if (raise->alarms->raised[kind]) return;
    raise->alarms->raised[kind] = true;
    va_list args;
    va_start(args, format);
    raise->out[raise->count++] =
        (Alarm){kind, raise->step->step, raise->step->tokens, raise->step->time, text_vformat(format, args)};
    va_end(args);
}

// Adds a step to the window; true when it is full: the caller judges it and then empties it.
static bool window_add(AlarmWindow *window, const MetricsStep *step, double value, double seconds) {
    window->seconds += step->seconds;
    window->sum += value * step->seconds;
    window->count++;
    return window->seconds >= seconds && window->count >= WINDOW_STEPS;
}

static void check_data_wait(Raise *raise) {
    AlarmWindow *window = &raise->alarms->wait;
    if (!window_add(window, raise->step, raise->step->data_wait, WINDOW_SECONDS)) return;
    double share = window->sum / window->seconds;
    raise->alarms->waits_in_row = share > WAIT_SHARE ? raise->alarms->waits_in_row + 1 : 0;
    if (raise->alarms->waits_in_row >= WAIT_WINDOWS)
        raise_alarm(raise, ALARM_DATA_WAIT,
                    "%.1f %% of the last %.0f seconds went into waiting for data, and little less before", 100 * share,
                    window->seconds);
    *window = (AlarmWindow){0};
}

static void check_leak(Raise *raise, AlarmLeak *leak, double bytes, const char *whose) {
    if (bytes <= 0) return;
    if (!leak->window.count || bytes < leak->least) leak->least = bytes;
    if (!window_add(&leak->window, raise->step, 0, WINDOW_SECONDS)) return;
    leak->window = (AlarmWindow){0};
    bool rose = leak->before > 0 && leak->least > leak->before;
    if (!rose) leak->first = leak->least, leak->rises = 0;
    leak->rises += rose;
    leak->before = leak->least;
    double grown = leak->least - leak->first;
    char from[32], to[32];
    if (leak->rises >= LEAK_RISES && grown > LEAK_SHARE * leak->first && grown > LEAK_BYTES)
        raise_alarm(raise, ALARM_MEMORY, "%s memory in use keeps growing: from %s to %s over %d minutes and more",
                    whose, text_gib(from, leak->first), text_gib(to, leak->least),
                    (int)(LEAK_RISES * WINDOW_SECONDS / 60));
}

static void check_memory(Raise *raise) {
    Alarms *alarms = raise->alarms;
    if (raise->step->expert_rows_grown) alarms->device = alarms->host = (AlarmLeak){0}; // as it said itself
    check_leak(raise, &alarms->device, raise->step->memory_bytes, "device");
    check_leak(raise, &alarms->host, raise->step->machine.host_bytes, "host");
}

// Median absolute deviation, scaled to the standard deviation of a normal distribution.
static double robust_sigma(const double *values, double median) {
    double away[ALARM_WINDOW];
    for (int i = 0; i < ALARM_WINDOW; i++)
        away[i] = fabs(values[i] - median);
    return 1.4826 * double_median(away, ALARM_WINDOW);
}

static void check_spikes(Raise *raise) {
    Alarms *alarms = raise->alarms;
    const MetricsStep *step = raise->step;
    if (step->overflow) return; // the loss scale comes down, and that is all
    if (!isfinite(step->loss) || !isfinite(step->grad_norm)) {
        raise_alarm(raise, ALARM_LOSS_SPIKE, "the %s of step %lld is not finite; the step was skipped",
                    isfinite(step->loss) ? "gradient norm" : "loss", (long long)step->step);
        return;
    }
    if (alarms->accepted >= ALARM_WINDOW) {
        double loss = double_median(alarms->losses, ALARM_WINDOW), norm = double_median(alarms->norms, ALARM_WINDOW);
        double over = step->loss - loss;
        if (over > LOSS_SHARE * loss && over > LOSS_SIGMAS * robust_sigma(alarms->losses, loss))
            raise_alarm(raise, ALARM_LOSS_SPIKE,
                        "loss %.4f at step %lld, where the median of the %d steps before is %.4f", step->loss,
                        (long long)step->step, ALARM_WINDOW, loss);
        if (step->grad_norm > NORM_FACTOR * norm)
            raise_alarm(raise, ALARM_NORM_SPIKE,
                        "gradient norm %.4g at step %lld, %.0f times the median of the %d steps before",
                        step->grad_norm, (long long)step->step, step->grad_norm / norm, ALARM_WINDOW);
    }
    if (step->skipped) return;
    int64_t at = alarms->accepted++ % ALARM_WINDOW;
    alarms->losses[at] = step->loss;
    alarms->norms[at] = step->grad_norm;
}

static void check_loss_gap(Raise *raise) {
    const MetricsStep *step = raise->step;
    double bound = raise->alarms->options.loss_gap_bound;
    if (step->loss_bf16 > 0 && step->loss_gap > bound)
        raise_alarm(raise, ALARM_LOSS_GAP,
                    "loss %.4f in FP8 and %.4f in bf16 of the same batch at step %lld: %.2f %% apart, above %.2f %%",
                    step->loss, step->loss_bf16, (long long)step->step, 100 * step->loss_gap, 100 * bound);
}

static void check_experts(Raise *raise) {
    const MetricsStep *step = raise->step;
    Alarms *alarms = raise->alarms;
    if (!step->moe_count || step->step < DEAD_FIRST_STEP) return;
    int dead = expert_load_worst(step->moe, step->moe_count).dead;
    alarms->dead_in_row = dead ? alarms->dead_in_row + 1 : 0;
    if (alarms->dead_in_row >= DEAD_IN_ROW)
        raise_alarm(raise, ALARM_DEAD_EXPERTS, "a layer has %d experts that no token chose, %d readings in a row", dead,
                    DEAD_IN_ROW);
}

static void check_clock(Raise *raise) {
    Alarms *alarms = raise->alarms;
    const MachineReading *machine = &raise->step->machine;
    if (machine->gpu_clock <= 0) return;
    alarms->throttled += machine->gpu_throttled * raise->step->seconds;
    if (!window_add(&alarms->clock, raise->step, machine->gpu_clock, WINDOW_SECONDS)) return;
    double clock = alarms->clock.sum / alarms->clock.seconds, share = alarms->throttled / alarms->clock.seconds;
    if (clock > alarms->usual_clock) alarms->usual_clock = clock;
    if (clock < CLOCK_SHARE * alarms->usual_clock || share > THROTTLED_SHARE)
        raise_alarm(
            raise, ALARM_THROTTLED,
            "the GPU ran at %.0f MHz in the last minute, where %.0f is usual; slowed down by heat or a fault in "
            "%.0f %% of the readings, %.0f C, %.0f W",
            clock, alarms->usual_clock, 100 * share, machine->gpu_temperature, machine->gpu_power);
    alarms->clock = (AlarmWindow){0};
    alarms->throttled = 0;
}

static void check_speed(Raise *raise) {
    Alarms *alarms = raise->alarms;
    AlarmWindow *window = &alarms->speed;
    if (raise->step->split_count) return; // taken apart: slower, and by intent
    if (!window_add(window, raise->step, raise->step->tokens_per_second, SPEED_SECONDS)) return;
    double speed = window->sum / window->seconds;
    *window = (AlarmWindow){0};
    if (speed > alarms->best_speed) alarms->best_speed = speed;
    alarms->slow_in_row = speed < SPEED_SHARE * alarms->best_speed ? alarms->slow_in_row + 1 : 0;
    if (alarms->slow_in_row >= SPEED_SLOW_WINDOWS)
        raise_alarm(raise, ALARM_SLOWING, "%.0f tok/s, and no more than %.0f %% of the best %.0f for an hour", speed,
                    100 * SPEED_SHARE, alarms->best_speed);
}

static void check_checkpoint_age(Raise *raise) {
    double young = raise->alarms->options.young_seconds, age = raise->step->checkpoint_age;
    char is[32], best[32];
    if (young > 0 && age > young)
        raise_alarm(raise, ALARM_CHECKPOINT_AGE, "the newest checkpoint is %s old; Young's interval for this run is %s",
                    text_duration(is, age), text_duration(best, young));
}

int alarms_step(Alarms *alarms, const MetricsStep *step, Alarm out[ALARM_COUNT]) {
    Raise raise = {alarms, step, out, 0};
    if (step->mfu_refused > 1)
        raise_alarm(
            &raise, ALARM_MFU,
            "no MFU from here on: %.4g TFLOP/s were reached, %.0f %% of a peak that can then not be the device's",
            step->tflops, 100 * step->mfu_refused);
    check_spikes(&raise);
    check_loss_gap(&raise);
    check_experts(&raise);
    check_checkpoint_age(&raise);
    if (++alarms->steps <= WARM_STEPS) return raise.count;
    check_data_wait(&raise);
    check_memory(&raise);
    check_clock(&raise);
    check_speed(&raise);
    return raise.count;
}

int alarms_disk(Alarms *alarms, const MetricsStep *last, double time, double free_bytes, Alarm out[ALARM_COUNT]) {
    Raise raise = {alarms, last, out, 0};
    double room = DISK_CHECKPOINTS * alarms->options.checkpoint_bytes, passed = time - alarms->disk_time;
    char left[32], needed[32];
    if (free_bytes < room)
        raise_alarm(&raise, ALARM_DISK, "%s are free, less than two checkpoints need (%s)", text_gib(left, free_bytes),
                    text_gib(needed, room));
    if (alarms->disk_time > 0 && passed < DISK_TREND_SECONDS) return raise.count;
    double lost = alarms->disk_free - free_bytes, hours = free_bytes / lost * passed / 3600;
    if (alarms->disk_time > 0 && lost > DISK_TREND_SHARE * alarms->disk_free && hours < DISK_HOURS_LEFT)
        raise_alarm(&raise, ALARM_DISK, "%s are free, and fewer by the hour: full in %.1f hours at this rate",
                    text_gib(left, free_bytes), hours);
    alarms->disk_time = time;
    alarms->disk_free = free_bytes;
    return raise.count;
}

void alarm_line(const Alarm *alarm, TextBuffer *out) {
    json_t *root = json_pack("{s:I,s:I,s:s,s:s,s:s,s:f}", "step", (json_int_t)alarm->step, "tokens",
                             (json_int_t)alarm->tokens, "alarm", alarm_name(alarm->kind), "message", alarm->message,
                             "advice", alarm_advice(alarm->kind), "time", alarm->time);
    char *text = json_dumps(root, JSON_COMPACT);
    text_buffer_format(out, "%s\n", text);
    free(text);
    json_decref(root);
}
