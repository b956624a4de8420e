// Statistics of expert counts, in double and in the order of the experts: the same counts give the same figures.
#include "watch/expert_load.h"

#include <math.h>

ExpertLoad expert_load(const int32_t *counts, int experts) {
    ExpertLoad load = {0};
    double total = 0, most = 0;
    for (int i = 0; i < experts; i++) {
        total += counts[i];
        most = fmax(most, counts[i]);
        load.dead += counts[i] == 0;
    }
    if (total <= 0) return load;
    load.load_max = most * experts / total;
    if (experts == 1) {
        load.entropy = 1;
        return load;
    }
    for (int i = 0; i < experts; i++)
        if (counts[i] > 0) load.entropy -= counts[i] / total * log(counts[i] / total);
    load.entropy = fmin(fmax(load.entropy / log(experts), 0), 1); // rounding may step over either end
    return load;
}

ExpertLoad expert_load_worst(const ExpertLoad *layers, int count) {
    ExpertLoad worst = {.entropy = 1};
    for (int i = 0; i < count; i++) {
        worst.load_max = fmax(worst.load_max, layers[i].load_max);
        worst.entropy = fmin(worst.entropy, layers[i].entropy);
        worst.dead = layers[i].dead > worst.dead ? layers[i].dead : worst.dead;
    }
    return worst;
}
