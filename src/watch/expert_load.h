// How evenly the router of an MoE layer spreads its tokens.
#pragma once

#include <stdint.h>

typedef struct ExpertLoad {
    double load_max; // busiest expert over the mean; 1 is balanced, experts / top_k the worst
    double entropy;  // of the shares, over its maximum: 1 is balanced, 0 is one expert for all
    int dead;        // experts that no token chose
} ExpertLoad;

// Of one layer: counts [experts]. A layer that saw no token has load_max and entropy 0.
ExpertLoad expert_load(const int32_t *counts, int experts);
// The worst of each figure over layers.
ExpertLoad expert_load_worst(const ExpertLoad *layers, int count);
