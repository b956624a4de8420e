// Where the time went: the waterfall of a step, and its parts against their prediction.
#include "plan/calibration.h"
#include "watch/report.h"

#include <math.h>
#include <stdio.h>

static const char *time_text(char out[48], double seconds) {
    snprintf(out, 48, seconds < 1 ? "%.3g ms" : "%.4g s", seconds < 1 ? 1e3 * seconds : seconds);
    return out;
}

static void write_waterfall(const RunFigures *figures, const Waterfall *w, TextBuffer *out) {
    double step = figures->step_seconds, level = step;
    char text[48];
    text_buffer_format(out, "<div class=\"fall\">\n");
    for (int i = 0; i < w->count; i++) {
        const WaterfallRow *row = &w->rows[i];
        bool loss = row->kind == WATERFALL_LOSS;
        double share = row->seconds / step, from = loss ? level / step - share : 0;
        text_buffer_format(
            out,
            "<div class=\"%s%s\"><span>%s%s</span><span class=\"track\"><i class=\"%s\" "
            "style=\"left:%.2f%%;width:%.2f%%\"></i></span><span>%s <small>%.1f %%</small></span></div>\n",
            loss ? "loss" : "level", i == w->worst ? " worst" : "", loss ? "− " : "", row->name,
            i == w->worst ? "b1"
            : loss        ? "b4"
                          : "b0",
            report_width(from), report_width(share), time_text(text, row->seconds), 100 * share);
        level = loss ? level - row->seconds : row->seconds;
    }
    text_buffer_format(out, "</div>\n");
}

static void write_how(const RunRecord *run, const RunFigures *figures, const Waterfall *w, TextBuffer *out) {
    text_buffer_format(out, "<p class=\"note\">The step is the median of %zu, without the first %zu. ",
                       figures->measured, figures->first);
    if (w->by_profile)
        text_buffer_format(out, "Its parts are those of the profile below. ");
    else if (w->profiled)
        text_buffer_format(out, "Its parts are the mean of %zu steps that ran op by op (profile.every). ",
                           run->split_count);
    else
        text_buffer_format(out, "Its parts were not measured (hearth train --profile, or profile.every): they stand as "
                                "predicted. ");
    if (w->shrunk < 1)
        text_buffer_format(out, "Together they took longer than a whole step: all are shown at %.1f %% of their time. ",
                           100 * w->shrunk);
    text_buffer_format(out, "The rates are the planner's for these shapes, without what it learned from earlier runs; "
                            "the peak is that of the hardware catalogue, with half of the attention masked.</p>\n");
}

// ---- predicted against measured -------------------------------------------------------------------------------------

#define LARGE_ERROR 10 // per cent

static void error_cell(double predicted, double measured, TextBuffer *out) {
    double error = plan_error_percent((PlanOutcome){predicted, measured});
    if (predicted > 0 && measured > 0 && isfinite(error))
        text_buffer_format(out, "<td class=\"r%s\">%+.1f %%</td>", fabs(error) > LARGE_ERROR ? " above" : "", error);
    else
        text_buffer_format(out, "<td class=\"r soft\">–</td>");
}

static void time_cell(double seconds, TextBuffer *out) {
    char text[48];
    text_buffer_format(out, "<td class=\"r\">%s</td>", seconds > 0 ? time_text(text, seconds) : "–");
}

static void time_row(const char *name, double predicted, double measured, double most, TextBuffer *out) {
    if (!(predicted > 0.0005 * most) && !(measured > 0.0005 * most)) return;
    text_buffer_format(out, "<tr><td>%s</td>", name);
    time_cell(predicted, out);
    time_cell(measured, out);
    error_cell(predicted, measured, out);
    text_buffer_format(
        out,
        "<td class=\"wide-only\"><i class=\"bar b0 faint\" style=\"width:%.1f%%\"></i><i class=\"bar b0\" "
        "style=\"width:%.1f%%\"></i></td></tr>\n",
        report_width(predicted / most), report_width(measured / most));
}

static void figure_row(const char *name, double predicted, double measured, double scale, const char *unit,
                       TextBuffer *out) {
    if (!(predicted > 0) || !(measured > 0)) return;
    char text[2][32];
    double value[] = {predicted / scale, measured / scale};
    for (int i = 0; i < 2; i++)
        if (fmax(value[0], value[1]) >= 1000)
            text_grouped(text[i], llround(fmin(value[i], 1e18)));
        else
            snprintf(text[i], sizeof text[i], "%.2f", value[i]);
    text_buffer_format(out, "<tr><td>%s</td><td class=\"r\">%s%s</td><td class=\"r\">%s%s</td>", name, text[0], unit,
                       text[1], unit);
    error_cell(predicted, measured, out);
    text_buffer_format(out, "<td class=\"wide-only\"></td></tr>\n");
}

static double predicted_memory(const RunRecord *run) {
    const json_t *memory = json_object_get(json_object_get(run->plan, "prediction"), "memory_bytes");
    return json_number_value(json_object_get(memory, "total"));
}

// A GPU's memory holds more than the model.
static void write_memory_beside(const RunRecord *run, const RunFigures *figures, TextBuffer *out) {
    const json_t *environment = json_array_get(run->environment, 0);
    bool known = isfinite(figures->memory_own),
         gpu = json_object_get(json_object_get(environment, "libraries"), "CUDA");
    double beside = figures->memory - (known ? figures->memory_own : predicted_memory(run));
    char text[32];
    if (!gpu || !(beside > 0)) return;
    text_buffer_format(out,
                       known
                           ? "Memory is what the model asked for. Beside it the device had %s in use: the context and "
                             "kernels of CUDA and its libraries, and other programs."
                           : "Memory is predicted of the model alone; measured is all that the device had in use. The "
                             "%s between them are the context and kernels of CUDA and its libraries, and other "
                             "programs.",
                       text_gib(text, beside));
}

static void write_prediction(const RunRecord *run, const RunFigures *figures, const Waterfall *w, TextBuffer *out) {
    static const char *const names[STEP_LAUNCH] = {
        [STEP_GEMM] = "products",       [STEP_GROUPED] = "products of experts",
        [STEP_ATTENTION] = "attention", [STEP_ROUTING] = "routing of experts",
        [STEP_OPTIMIZER] = "optimizer", [STEP_ELEMENTWISE] = "norms, rotary, SwiGLU, loss",
        [STEP_COPY] = "copies",
    };
    double predicted = run_plan_number(run, "step_seconds"), measured = figures->step_seconds, comm = 0;
    if (!(predicted > 0) || !(measured > 0)) return;
    double most = fmax(predicted, measured);
    text_buffer_format(out,
                       "<h2>Predicted against measured</h2>\n<div class=\"scroll\"><table><tr><th>part of a step</th>"
                       "<th class=\"r\">predicted</th><th class=\"r\">measured</th><th class=\"r\">error</th><th "
                       "class=\"wide-only\"><span class=\"legend\"><span><i class=\"b0 faint\"></i>predicted"
                       "</span><span><i class=\"b0\"></i>measured</span></span></th></tr>\n");
    for (int k = 0; k < STEP_LAUNCH; k++)
        time_row(names[k], run_plan_part(run, (StepPart)k), w->profiled ? w->part[k] : NAN, most, out);
    for (int k = STEP_TENSOR; k <= STEP_BUBBLE; k++)
        comm += run_plan_part(run, (StepPart)k);
    time_row("gaps between operations", run_plan_part(run, STEP_LAUNCH), w->profiled ? w->part[STEP_LAUNCH] : NAN, most,
             out);
    time_row("other ranks: exchanges and bubble", comm, w->part[STEP_DATA_PARALLEL], most, out);
    time_row("data", run_plan_part(run, STEP_HOST_DATA), w->part[STEP_HOST_DATA], most, out);
    time_row("memory pressure", run_plan_part(run, STEP_PRESSURE), NAN, most, out);
    time_row("<b>step</b>", predicted, measured, most, out);
    figure_row("tokens a second", run_plan_number(run, "tokens_per_second"),
               run_plan_number(run, "batch_tokens") / measured, 1, "", out);
    if (figures->mfu > 0) figure_row("MFU", run_plan_number(run, "mfu"), figures->mfu, 0.01, " %", out);
    double bytes = predicted_memory(run), own = isfinite(figures->memory_own) ? figures->memory_own : figures->memory;
    bool large = bytes >= 0x1p30;
    figure_row("memory", bytes, own, large ? 0x1p30 : 0x1p20, large ? " GiB" : " MiB", out);
    text_buffer_format(out,
                       "</table></div>\n<p class=\"note\">The prediction is the one that the run made when it began "
                       "(plan.json)");
    double calibration = run_plan_number(run, "calibration");
    if (isfinite(calibration) && calibration != 1)
        text_buffer_format(out, ", with a factor of %.3g from earlier runs", calibration);
    text_buffer_format(out, ". An error is that of the prediction: + is too much. ");
    write_memory_beside(run, figures, out);
    text_buffer_format(out, "</p>\n");
}

void report_time(const RunRecord *run, const RunFigures *figures, const Waterfall *w, TextBuffer *out) {
    if (!w->count) return;
    text_buffer_format(out, "<h2>Where the time of a step goes</h2>\n");
    write_waterfall(figures, w, out);
    write_how(run, figures, w, out);
    write_prediction(run, figures, w, out);
}
