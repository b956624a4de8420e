// How evenly the router of an MoE layer spreads its tokens.
#pragma once

typedef struct ExpertLoad { // of one layer, as MoeLoad of ops/ops.h defines them
    double load_max;        // busiest expert over the mean
    double entropy;         // of the shares: 1 is balanced
    int dead;               // experts that no token chose
} ExpertLoad;

// The worst of each figure over layers.
ExpertLoad expert_load_worst(const ExpertLoad *layers, int count);
