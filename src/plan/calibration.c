#include "plan/calibration.h"

#include "base/stats.h"

#include <math.h>
#include <stdlib.h>

double plan_error_percent(PlanOutcome outcome) {
    return 100 * (outcome.predicted / outcome.measured - 1);
}

PlanCalibration plan_calibrate(const PlanOutcome *steps, int count) {
    PlanCalibration result = {.factor = 1, .spread = 1};
    double ratios[CALIBRATION_WINDOW];
    for (int i = count - 1; i >= 0 && result.runs < CALIBRATION_WINDOW; i--) {
        double ratio = steps[i].measured / steps[i].predicted;
        if (!(steps[i].measured > 0 && steps[i].predicted > 0) || !isfinite(ratio)) continue;
        ratios[result.runs++] = ratio;
    }
    if (!result.runs) return result;
    qsort(ratios, (size_t)result.runs, sizeof *ratios, double_order);
    double factor = ratios[(result.runs - 1) / 2];
    result.factor = fmin(fmax(factor, CALIBRATION_LEAST), CALIBRATION_MOST);
    result.bounded = result.factor != factor;
    result.spread = ratios[result.runs - 1] / ratios[0];
    return result;
}
