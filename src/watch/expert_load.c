// The figures of many layers in one.
#include "watch/expert_load.h"

#include <math.h>

ExpertLoad expert_load_worst(const ExpertLoad *layers, int count) {
    ExpertLoad worst = {.entropy = 1};
    for (int i = 0; i < count; i++) {
        worst.load_max = fmax(worst.load_max, layers[i].load_max);
        worst.entropy = fmin(worst.entropy, layers[i].entropy);
        worst.dead = layers[i].dead > worst.dead ? layers[i].dead : worst.dead;
    }
    return worst;
}
