// What the run's profile says (profile/summary.json): the parts of its steps, the ops that took the most, the sentence.
#include "watch/html.h"
#include "watch/profile_summary.h"
#include "watch/report.h"

#include <stdio.h>

// The bar is the time, its end in another colour what lies above the floor.
static void row_write(const ProfileSummary *s, const char *name, double seconds, double floor, const char *style,
                      TextBuffer *out) {
    bool shown = profile_shows_floor(s, seconds, floor), above = shown && !loss_at_floor(seconds, floor);
    double least = above ? floor : seconds;
    text_buffer_format(out, "<tr><td%s>", style);
    html_text(out, name);
    text_buffer_format(out, "</td><td class=\"r\">%.2f</td><td class=\"r\">%.1f %%</td>", 1e3 * seconds,
                       100 * seconds / s->step_seconds);
    if (shown)
        text_buffer_format(out, "<td class=\"r desk\">%.2f</td><td class=\"r%s\">%.2f</td>", 1e3 * floor,
                           above ? " above" : "", seconds / floor);
    else
        text_buffer_format(out, "<td class=\"r soft desk\">–</td><td class=\"r soft\">–</td>");
    text_buffer_format(out,
                       "<td class=\"wide-only\"><span class=\"bars\"><i class=\"bar b0\" style=\"width:%.1f%%\"></i>",
                       report_width(least / s->step_seconds));
    if (above)
        text_buffer_format(out, "<i class=\"bar b1\" style=\"width:%.1f%%\"></i>",
                           report_width((seconds - least) / s->step_seconds));
    text_buffer_format(out, "</span></td></tr>\n");
}

static void head_write(const char *what, TextBuffer *out) {
    text_buffer_format(
        out,
        "<tr><th>%s</th><th class=\"r\">ms a step</th><th class=\"r\">share</th>"
        "<th class=\"r desk\">floor</th><th class=\"r\">times it</th><th class=\"wide-only\"></th></tr>\n",
        what);
}

static void notes_write(const ProfileSummary *s, TextBuffer *out) {
    text_buffer_format(
        out,
        "<p class=\"note\">Of %d step%s from step %lld on%s, all of which is in the parts. A floor is "
        "what the planner's rates of this device make of an op's FLOPs and bytes; rates depend on clocks and "
        "heat, so that an op may take a little less, and up to %.2f times counts as at it. ",
        s->steps, s->steps == 1 ? "" : "s", (long long)s->first_step, s->ranks > 1 ? ", on rank 0" : "", LOSS_AT_FLOOR);
    if (s->no_graph[0]) {
        text_buffer_format(out, "Micro-steps were not replayed from a graph: ");
        html_text(out, s->no_graph);
        text_buffer_format(out, ". ");
    } else {
        text_buffer_format(out, "Micro-steps were replayed from a graph. ");
    }
    if (s->device_missing[0]) {
        text_buffer_format(out, "There is no timeline of the GPU: ");
        html_text(out, s->device_missing);
        text_buffer_format(out, ". ");
    }
    text_buffer_format(out, "The timeline is in profile/");
    html_text(out, s->trace);
    text_buffer_format(out, ", for Perfetto or chrome://tracing.</p>\n");
}

void report_profile(const RunRecord *run, TextBuffer *out) {
    ProfileSummary s;
    ProfileRow rows[PROFILE_ROWS];
    if (!run->profile || !profile_read(&s, run->profile)) return;
    text_buffer_format(out, "<h2>Profile</h2>\n");
    text_buffer_format(out, "<div class=\"scroll profile\"><table>\n");
    head_write("part of a step", out);
    int count = profile_rows(&s, rows);
    for (int i = 0; i < count; i++)
        row_write(&s, rows[i].name, rows[i].seconds, rows[i].floor,
                  rows[i].inside ? " class=\"soft\" style=\"padding-left:1.2rem\"" : "", out);
    if (s.op_count) head_write("most expensive ops", out);
    for (int i = 0; i < s.op_count; i++) {
        char name[STEP_OP_NAME + 32];
        snprintf(name, sizeof name, "%s (%s)", s.ops[i].name, step_pass_name(s.ops[i].pass));
        row_write(&s, name, s.ops[i].seconds, s.ops[i].floor, "", out);
    }
    text_buffer_format(out, "</table></div>\n");
    notes_write(&s, out);
}
