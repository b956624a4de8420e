#include "plan/calibration.h"

#include <math.h>

double plan_error_percent(PlanOutcome outcome) {
    return 100 * (outcome.predicted / outcome.measured - 1);
}

PlanCalibration plan_calibrate(const PlanOutcome *steps, int count) {
    PlanCalibration result = {.factor = 1, .spread = 1};
    double sum = 0, least = INFINITY, most = 0;
    for (int i = count - 1; i >= 0 && result.runs < CALIBRATION_WINDOW; i--) {
        double ratio = steps[i].measured / steps[i].predicted;
        if (!(steps[i].measured > 0 && steps[i].predicted > 0) || !isfinite(ratio)) continue;
        sum += log(ratio);
        least = fmin(least, ratio), most = fmax(most, ratio);
        result.runs++;
    }
    if (!result.runs) return result;
    double factor = exp(sum / result.runs);
    result.factor = fmin(fmax(factor, CALIBRATION_LEAST), CALIBRATION_MOST);
    result.bounded = result.factor != factor;
    result.spread = most / least;
    return result;
}
