// A mix of datasets by weight, as a pure function of the sample index: any rank, at any time, knows which dataset
// sample n comes from and which sample of that dataset it is, without a state to save. Shares hold over every stretch
// of samples, not only on average.
//
// mix.json: {"format": "hearth-mix", "datasets": [{"path": "fineweb", "weight": 0.7}, {"path": "code", "weight": 0.3}]}
// Relative paths are relative to the file. Weights are relative to their sum.
#pragma once

#include "data/dataset.h"

typedef struct Mix {
    Dataset *datasets; // [count]
    double *weights;   // [count], sum 1
    uint64_t *shares;  // [count]: share of dataset i among datasets i.., in 1/2^32; the last is 2^32
    size_t count;
} Mix;

// path: a mix file, or anything that dataset_open takes (a mix of one).
Status mix_open(Mix *mix, const char *path, const char *split, DatasetVerify verify);
// The mix that mix_write with the same datasets and weights would write: to check it first.
Status mix_join(Mix *mix, const char *const *datasets, const double *weights, size_t count, const char *split);
void mix_close(Mix *mix);
void mix_set_shares(Mix *mix);      // from the weights, for a mix that was put together by hand
bool mix_is_file(const char *path); // a .json file with the mix format

// Sample `sample` of the mix is sample *index of datasets[return value].
size_t mix_locate(const Mix *mix, uint64_t sample, uint64_t *index);

// Writes a mix file; paths are stored as given. Weights must be positive.
Status mix_write(const char *path, const char *const *datasets, const double *weights, size_t count);
