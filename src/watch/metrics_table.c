// The table of metrics, and reading values by it.
#include "watch/metrics_table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define OF_STEP(member) offsetof(MetricsStep, member)
#define OF_EVAL(member) offsetof(MetricsEvaluation, member)

// In the order of a line.
static const MetricsField metrics_fields[] = {
    {METRICS_STEP, "step", METRICS_INT64, OF_STEP(step), METRICS_ALWAYS, NULL, "", NULL, METRICS_PLAIN, "step %.0f",
     "optimizer steps so far, skipped ones included"},
    {METRICS_STEP, "tokens", METRICS_INT64, OF_STEP(tokens), METRICS_ALWAYS, NULL, "tokens", "train/tokens",
     METRICS_COUNT, "%s tok", "trained on so far, by all ranks and islands"},
    {METRICS_STEP, "loss", METRICS_DOUBLE, OF_STEP(loss), METRICS_ALWAYS, NULL, "nats", "train/loss", METRICS_PLAIN,
     "loss %.4f", "mean cross entropy over the step's targets; null where it was not finite"},
    {METRICS_STEP, "loss_aux", METRICS_DOUBLE, OF_STEP(loss_aux), METRICS_ALWAYS, NULL, "", "moe/loss_aux",
     METRICS_PLAIN, "aux %.3f", "load-balancing loss of experts, without its coefficient; 0 for dense models", true},
    {METRICS_STEP, "lr", METRICS_DOUBLE, OF_STEP(lr), METRICS_ALWAYS, NULL, "", "train/lr", METRICS_PLAIN, "lr %.2e",
     "learning rate of the step"},
    {METRICS_STEP, "grad_norm", METRICS_DOUBLE, OF_STEP(grad_norm), METRICS_ALWAYS, NULL, "", "train/grad_norm",
     METRICS_PLAIN, "norm %.3f", "norm of all gradients, before clipping; null where it was not finite"},
    {METRICS_STEP, "grad_accum", METRICS_INT64, OF_STEP(grad_accum), METRICS_ALWAYS, NULL, "", NULL, METRICS_PLAIN,
     "accumulation %.0f", "micro-batches of the step"},
    {METRICS_STEP, "tok_s", METRICS_DOUBLE, OF_STEP(tokens_per_second), METRICS_ALWAYS, NULL, "tokens/s", "speed/tok_s",
     METRICS_GROUPED, "%s tok/s", "tokens per second of this step, over all ranks"},
    {METRICS_STEP, "tflops", METRICS_DOUBLE, OF_STEP(tflops), METRICS_ALWAYS, NULL, "TFLOP/s", "speed/tflops",
     METRICS_PLAIN, "%.3g TFLOP/s", "FLOPs of the model, without recomputation, that the step did in a second"},
    {METRICS_STEP, "mfu", METRICS_DOUBLE, OF_STEP(mfu), METRICS_POSITIVE, NULL, "share", "speed/mfu", METRICS_PERCENT,
     "MFU %.1f%%", "tflops over the dense peak of all devices, where the peak is known"},
    {METRICS_STEP, "memory_bytes", METRICS_DOUBLE, OF_STEP(memory_bytes), METRICS_ALWAYS, NULL, "bytes", "memory/bytes",
     METRICS_BYTES, "%s", "in use on the device of rank 0 (of a CPU: what the model asked for)"},
    {METRICS_STEP, "memory_fraction", METRICS_DOUBLE, OF_STEP(memory_fraction), METRICS_ALWAYS, NULL, "share",
     "memory/share", METRICS_PERCENT, "%.0f%%", "of what the device has"},
    {METRICS_STEP, "memory_peak_bytes", METRICS_DOUBLE, OF_STEP(memory_peak_bytes), METRICS_POSITIVE, NULL, "bytes",
     "memory/peak_bytes", METRICS_BYTES, "peak %s", "the most so far that memory_bytes was in this process"},
    {METRICS_STEP, "memory_own_bytes", METRICS_DOUBLE, OF_STEP(memory_own_bytes), METRICS_POSITIVE, NULL, "bytes",
     "memory/own_bytes", METRICS_BYTES, "own %s",
     "of memory_bytes, what hearth itself asked for: what is predicted; the rest are CUDA's context and kernels, its "
     "libraries, other programs"},
    {METRICS_STEP, "data_wait", METRICS_DOUBLE, OF_STEP(data_wait), METRICS_ALWAYS, NULL, "share", "wait/data",
     METRICS_PERCENT, "wait %.1f%%", "of the step, spent waiting for data"},
    {METRICS_STEP, "comm_wait", METRICS_DOUBLE, OF_STEP(comm_wait), METRICS_POSITIVE, NULL, "share", "wait/comm",
     METRICS_PERCENT, "comm %.1f%%", "of the step, that rank 0 was blocked for other ranks; absent with one rank"},
    {METRICS_STEP, "seconds", METRICS_DOUBLE, OF_STEP(seconds), METRICS_ALWAYS, NULL, "s", "speed/step_seconds",
     METRICS_PLAIN, "%.3f s", "time of the step"},
    {METRICS_STEP, "elapsed", METRICS_DOUBLE, OF_STEP(elapsed), METRICS_ALWAYS, NULL, "s", NULL, METRICS_DURATION,
     "after %s", "since this process began to train"},
    {METRICS_STEP, "skipped", METRICS_BOOL, OF_STEP(skipped), METRICS_ALWAYS, NULL, "", NULL, METRICS_UNPRINTED, NULL,
     "the guard refused the step: the weights are as before it"},
    {METRICS_STEP, "skipped_total", METRICS_INT64, OF_STEP(skipped_total), METRICS_ALWAYS, NULL, "steps",
     "train/skipped", METRICS_PLAIN, "%.0f skipped", "refused so far"},
    {METRICS_STEP, "loss_scale", METRICS_DOUBLE, OF_STEP(loss_scale), METRICS_POSITIVE, NULL, "x", "train/loss_scale",
     METRICS_PLAIN, "scale %.0f",
     "fp16: factor that the gradients of the step carried; halved after a step whose "
     "gradients overflowed"},
    {METRICS_STEP, "loss_bf16", METRICS_DOUBLE, OF_STEP(loss_bf16), METRICS_CHECKED, NULL, "nats", "train/loss_bf16",
     METRICS_PLAIN, "in bf16 %.4f", "fp8: loss of the same batch in bf16, before the update"},
    {METRICS_STEP, "loss_gap", METRICS_DOUBLE, OF_STEP(loss_gap), METRICS_CHECKED, NULL, "share", "train/loss_gap",
     METRICS_PERCENT, "gap %.3f%%", "fp8: by how much loss is off loss_bf16, as a share of it"},
    {METRICS_STEP, "split_ms", METRICS_SPLIT, 0, METRICS_PROFILED, NULL, "ms", "step_ms", METRICS_UNPRINTED, NULL,
     "the step by kind of operation (profile.every)"},
    {METRICS_STEP, "expert_rows_grown", METRICS_INT64, OF_STEP(expert_rows_grown), METRICS_POSITIVE, NULL, "rows", NULL,
     METRICS_PLAIN, "rows grown to %.0f",
     "on a step that ran again for lack of room: rows of experts that a rank has room for now"},
    {METRICS_STEP, "moe_load_max", METRICS_DOUBLE, OF_STEP(moe_worst.load_max), METRICS_LOADED, "%.6g", "x",
     "moe/load_max", METRICS_PLAIN, "load %.2fx", "busiest expert over the mean, of the worst layer"},
    {METRICS_STEP, "moe_entropy", METRICS_DOUBLE, OF_STEP(moe_worst.entropy), METRICS_LOADED, "%.6g", "", "moe/entropy",
     METRICS_PLAIN, "ent %.2f", "of the experts' shares, of the worst layer: 1 is balanced"},
    {METRICS_STEP, "moe_dead", METRICS_INT, OF_STEP(moe_worst.dead), METRICS_LOADED, NULL, "experts", "moe/dead",
     METRICS_PLAIN, "dead %.0f", "experts that no token of the step chose, in the worst layer"},
    {METRICS_STEP, "moe_layers", METRICS_LAYERS, 0, METRICS_LOADED, NULL, "", NULL, METRICS_UNPRINTED, NULL,
     "load_max, entropy and dead of every sparse layer"},
    {METRICS_STEP, "host_bytes", METRICS_DOUBLE, OF_STEP(machine.host_bytes), METRICS_POSITIVE, NULL, "bytes",
     "memory/host_bytes", METRICS_BYTES, "host %s", "memory of the process of rank 0, without mapped files"},
    {METRICS_STEP, "cpu_cores", METRICS_DOUBLE, OF_STEP(machine.cpu_cores), METRICS_POSITIVE, "%.4g", "cores",
     "machine/cpu_cores", METRICS_PLAIN, "%.1f cores",
     "cores that the process of rank 0 kept busy, about once a second"},
    {METRICS_STEP, "gpu_clock", METRICS_DOUBLE, OF_STEP(machine.gpu_clock), METRICS_GPU, "%.5g", "MHz",
     "machine/gpu_clock", METRICS_PLAIN, "%.0f MHz", "clock of the GPU's multiprocessors, mean of a reading a second"},
    {METRICS_STEP, "gpu_power", METRICS_DOUBLE, OF_STEP(machine.gpu_power), METRICS_GPU, "%.5g", "W",
     "machine/gpu_power", METRICS_PLAIN, "%.0f W", "that the GPU draws"},
    {METRICS_STEP, "gpu_temperature", METRICS_DOUBLE, OF_STEP(machine.gpu_temperature), METRICS_GPU, "%.4g", "deg C",
     "machine/gpu_temperature", METRICS_PLAIN, "%.0f C", "of the GPU's chip"},
    {METRICS_STEP, "gpu_throttled", METRICS_DOUBLE, OF_STEP(machine.gpu_throttled), METRICS_GPU, "%.4g", "share",
     "machine/gpu_throttled", METRICS_PERCENT, "throttled %.0f%%", "of readings: slowed down by heat or by a fault"},
    {METRICS_STEP, "gpu_power_capped", METRICS_DOUBLE, OF_STEP(machine.gpu_power_capped), METRICS_GPU, "%.4g", "share",
     "machine/gpu_power_capped", METRICS_PERCENT, "power cap %.0f%%",
     "of readings: at the limit of its power, which is usual for large products"},
    {METRICS_STEP, "gpu_energy", METRICS_DOUBLE, OF_STEP(machine.gpu_energy), METRICS_POSITIVE, "%.6g", "J",
     "machine/gpu_energy", METRICS_PLAIN, "%.4g J",
     "that the GPU took since the line before, by its own counter; absent where that has not moved or is not there"},
    {METRICS_STEP, "checkpoint_age", METRICS_DOUBLE, OF_STEP(checkpoint_age), METRICS_POSITIVE, "%.4g", "s", NULL,
     METRICS_DURATION, "checkpoint %s old", "since what the newest complete checkpoint holds, or since the start"},
    {METRICS_STEP, "time", METRICS_DOUBLE, OF_STEP(time), METRICS_POSITIVE, "%.3f", "s", NULL, METRICS_CLOCK, "%s",
     "wall clock, in seconds since 1970"},

    {METRICS_EVALUATION, "step", METRICS_INT64, OF_EVAL(step), METRICS_ALWAYS, NULL, "", NULL, METRICS_PLAIN,
     "step %.0f", "steps of training before it"},
    {METRICS_EVALUATION, "tokens", METRICS_INT64, OF_EVAL(tokens), METRICS_ALWAYS, NULL, "tokens", NULL, METRICS_COUNT,
     "%s tok", "tokens of training before it"},
    {METRICS_EVALUATION, "eval", METRICS_FULL, OF_EVAL(evaluation.full), METRICS_ALWAYS, NULL, "", NULL,
     METRICS_UNPRINTED, NULL, "\"subset\": the fixed one of eval.windows; \"full\": all validation data"},
    {METRICS_EVALUATION, "val_loss", METRICS_DOUBLE, OF_EVAL(evaluation.loss), METRICS_ALWAYS, NULL, "nats", "val/loss",
     METRICS_PLAIN, "validation loss %.4f", "mean cross entropy over the targets"},
    {METRICS_EVALUATION, "perplexity", METRICS_DOUBLE, OF_EVAL(evaluation.perplexity), METRICS_ALWAYS, NULL, "",
     "val/perplexity", METRICS_PLAIN, "perplexity %.2f", "exp of val_loss"},
    {METRICS_EVALUATION, "bits_per_byte", METRICS_DOUBLE, OF_EVAL(evaluation.bits_per_byte), METRICS_POSITIVE, NULL,
     "bits", "val/bits_per_byte", METRICS_PLAIN, "%.4f bits per byte",
     "of the text; where the data says how long it is"},
    {METRICS_EVALUATION, "targets", METRICS_INT64, OF_EVAL(evaluation.targets), METRICS_ALWAYS, NULL, "tokens", NULL,
     METRICS_GROUPED, "%s targets", "that the loss is the mean of"},
    {METRICS_EVALUATION, "seconds", METRICS_DOUBLE, OF_EVAL(evaluation.seconds), METRICS_ALWAYS, NULL, "s", NULL,
     METRICS_PLAIN, "%.1f s", "that it took"},
    {METRICS_EVALUATION, "time", METRICS_DOUBLE, OF_EVAL(time), METRICS_POSITIVE, "%.3f", "s", NULL, METRICS_CLOCK,
     "%s", "wall clock, in seconds since 1970"},
};

int metrics_field_count(void) {
    return (int)(sizeof metrics_fields / sizeof *metrics_fields);
}

const MetricsField *metrics_field(int index) {
    return &metrics_fields[index];
}

const MetricsField *metrics_field_find(MetricsLine line, const char *key) {
    for (int i = 0; i < metrics_field_count(); i++)
        if (metrics_fields[i].line == line && strcmp(metrics_fields[i].key, key) == 0) return &metrics_fields[i];
    return NULL;
}

// ---- values ---------------------------------------------------------------------------------------------------------

MetricsStep metrics_step_whole(const MetricsStep *step) {
    MetricsStep whole = *step;
    if (step->moe_count) whole.moe_worst = expert_load_worst(step->moe, step->moe_count);
    return whole;
}

double metrics_field_value(const MetricsField *field, const void *values) {
    const void *at = (const char *)values + field->offset;
    switch (field->type) {
    case METRICS_INT64: return (double)*(const int64_t *)at;
    case METRICS_INT: return *(const int *)at;
    case METRICS_DOUBLE: return *(const double *)at;
    case METRICS_BOOL: return *(const bool *)at;
    default: return NAN;
    }
}

bool metrics_field_present(const MetricsField *field, const void *values) {
    const MetricsStep *step = field->line == METRICS_STEP ? values : NULL;
    switch (field->presence) {
    case METRICS_ALWAYS: return true;
    case METRICS_POSITIVE: return metrics_field_value(field, values) > 0;
    case METRICS_PROFILED: return step && step->split_count > 0;
    case METRICS_LOADED: return step && step->moe_count > 0;
    case METRICS_GPU: return step && step->machine.gpu_clock > 0;
    case METRICS_CHECKED: return step && step->loss_bf16 > 0;
    }
    return false;
}

static char *clock_text(char *out, double seconds) {
    time_t whole = (time_t)seconds;
    struct tm local;
    localtime_r(&whole, &local);
    strftime(out, 32, "%Y-%m-%d %H:%M:%S", &local);
    return out;
}

char *metrics_field_print(const MetricsField *field, double value, char *out) {
    enum { ROOM = 64 };
    char text[32];
    switch (field->scale) {
    case METRICS_PLAIN: snprintf(out, ROOM, field->print, value); break;
    case METRICS_PERCENT: snprintf(out, ROOM, field->print, 100 * value); break;
    case METRICS_COUNT: snprintf(out, ROOM, field->print, text_count(text, value)); break;
    case METRICS_GROUPED: snprintf(out, ROOM, field->print, text_grouped(text, (int64_t)llround(value))); break;
    case METRICS_BYTES: snprintf(out, ROOM, field->print, text_gib(text, value)); break;
    case METRICS_DURATION: snprintf(out, ROOM, field->print, text_duration(text, value)); break;
    case METRICS_CLOCK: snprintf(out, ROOM, field->print, clock_text(text, value)); break;
    case METRICS_UNPRINTED: snprintf(out, ROOM, "%g", value); break;
    }
    return out;
}

// ---- lines ----------------------------------------------------------------------------------------------------------

MetricsLine metrics_line_kind(const json_t *line) {
    if (json_object_get(line, "eval")) return METRICS_EVALUATION;
    return json_object_get(line, "loss") ? METRICS_STEP : METRICS_NO_LINE; // null where it was not finite
}

double metrics_line_value(const json_t *line, const char *key) {
    const json_t *value = json_object_get(line, key);
    if (json_is_boolean(value)) return json_is_true(value);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void split_write(const MetricsStep *step, TextBuffer *out) {
    for (int i = 0; i < step->split_count; i++)
        text_buffer_format(out, "%c\"%s\":%.6g", i ? ',' : '{', step->split_name[i], step->split_ms[i]);
    text_buffer_format(out, "}");
}

static void layers_write(const MetricsStep *step, TextBuffer *out) {
    const ExpertLoad *layers = step->moe;
    text_buffer_format(out, "{\"load_max\":");
    for (int i = 0; i < step->moe_count; i++)
        text_buffer_format(out, "%c%.6g", i ? ',' : '[', layers[i].load_max);
    text_buffer_format(out, "],\"entropy\":");
    for (int i = 0; i < step->moe_count; i++)
        text_buffer_format(out, "%c%.6g", i ? ',' : '[', layers[i].entropy);
    text_buffer_format(out, "],\"dead\":");
    for (int i = 0; i < step->moe_count; i++)
        text_buffer_format(out, "%c%d", i ? ',' : '[', layers[i].dead);
    text_buffer_format(out, "]}");
}

static void field_write(const MetricsField *field, const void *values, TextBuffer *out) {
    const void *at = (const char *)values + field->offset;
    switch (field->type) {
    case METRICS_INT64: text_buffer_format(out, "%lld", (long long)*(const int64_t *)at); break;
    case METRICS_INT: text_buffer_format(out, "%d", *(const int *)at); break;
    case METRICS_BOOL: text_buffer_format(out, "%s", *(const bool *)at ? "true" : "false"); break;
    case METRICS_FULL: text_buffer_format(out, "\"%s\"", *(const bool *)at ? "full" : "subset"); break;
    case METRICS_SPLIT: split_write(values, out); break;
    case METRICS_LAYERS: layers_write(values, out); break;
    case METRICS_DOUBLE: {
        double value = *(const double *)at;
        if (isfinite(value))
            text_buffer_format(out, field->digits ? field->digits : "%.9g", value);
        else
            text_buffer_format(out, "null"); // JSON has no NaN
        break;
    }
    }
}

void metrics_line_write(MetricsLine line, const void *values, TextBuffer *out) {
    const char *before = "{";
    for (int i = 0; i < metrics_field_count(); i++) {
        const MetricsField *field = &metrics_fields[i];
        if (field->line != line || !metrics_field_present(field, values)) continue;
        text_buffer_format(out, "%s\"%s\":", before, field->key);
        field_write(field, values, out);
        before = ",";
    }
    text_buffer_format(out, "}\n");
}

// ---- the documentation ----------------------------------------------------------------------------------------------

void metrics_table_markdown(TextBuffer *out) {
    static const char *const titles[] = {"A line of a step", "A line of a validation"};
    static const char *const presence[] = {"",
                                           "",
                                           "on profiled steps",
                                           "with experts, on printed steps",
                                           "on an NVIDIA GPU",
                                           "every train.loss_check_every steps"};
    for (MetricsLine line = METRICS_STEP; line < METRICS_NO_LINE; line++) {
        text_buffer_format(out, "%s## %s\n\n| key | unit | TensorBoard | what it means |\n|---|---|---|---|\n",
                           line ? "\n" : "", titles[line]);
        for (int i = 0; i < metrics_field_count(); i++) {
            const MetricsField *field = &metrics_fields[i];
            if (field->line != line) continue;
            text_buffer_format(out, "| `%s` | %s | %s%s%s%s | %s%s%s |\n", field->key, field->unit,
                               field->tag ? "`" : "", field->tag ? field->tag : "",
                               field->type == METRICS_SPLIT ? "/*" : "", field->tag ? "`" : "", field->meaning,
                               presence[field->presence][0] ? "; " : "", presence[field->presence]);
        }
    }
}
