#include "plan/evaluation.h"

#include "plan/schedule.h"

#include <math.h>

Evaluation plan_evaluation(double loss_sum, int64_t targets, double tokens, double text_bytes) {
    double loss = targets ? loss_sum / (double)targets : NAN;
    return (Evaluation){.loss = loss,
                        .perplexity = plan_perplexity(loss),
                        .bits_per_byte = text_bytes > 0 ? loss / M_LN2 * tokens / text_bytes : 0,
                        .targets = targets};
}
