// What a pass over validation data says. The sums are taken in train/evaluate; watch shows the result.
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct Evaluation {
    double loss;          // mean over the targets, in nats; NaN without targets
    double perplexity;    // exp(loss)
    double bits_per_byte; // of the text; 0: the data does not say how many bytes its tokens stand for
    int64_t targets;
    bool full;      // over all of the data, not the fixed subset
    double seconds; // that it took
} Evaluation;

// From the sum of the losses of `targets` tokens; text_bytes is what `tokens` tokens of this data stand for (0: not
// known).
Evaluation plan_evaluation(double loss_sum, int64_t targets, double tokens, double text_bytes);
