// The report of one run or several as one page: HTML that is XML too, with its styles and pictures inside, nothing from
// a network and no script.
#pragma once

#include "watch/report_figures.h"

#include "base/text.h"

#include <math.h>

void report_write(const ReportRun *runs, int count, TextBuffer *out); // count >= 1

// ---- parts of the page (report_*.c) ---------------------------------------------------------------------------------

extern const char report_style[];
// Of a bar, in per cent: whatever a file says, it stays within its track.
static inline double report_width(double share) {
    return 100 * fmin(fmax(share, 0), 1); // fmax makes 0 of NaN
}
void report_ladder_table(const ReportRun *runs, const RunFigures *figures, int count,
                         TextBuffer *out); // and a sentence
void report_ladder(const ReportRun *runs, const RunFigures *figures, int count, TextBuffer *out);
void report_run(const ReportRun *run, const RunFigures *figures, int count, TextBuffer *out); // of `count` on the page
// Its parts around the curves, for a page that draws those itself.
void report_run_before(const ReportRun *run, const RunFigures *figures, const Waterfall *waterfall, TextBuffer *out);
void report_run_behind(const ReportRun *run, const RunFigures *figures, const Waterfall *waterfall, int count,
                       TextBuffer *out);
void report_subtitle(const RunRecord *run, const RunFigures *figures, TextBuffer *out);
void report_profile(const RunRecord *run, TextBuffer *out); // nothing of a run without one
void report_time(const RunRecord *run, const RunFigures *figures, const Waterfall *waterfall, TextBuffer *out);
