// Drawing a token: sort, cut, draw.
#include "infer/sampler.h"

#include "base/rng.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>

Status sampler_check(const Sampler *sampler) {
    if (!(sampler->temperature >= 0) || !isfinite(sampler->temperature))
        return status_usage("the temperature must be 0 or more, not %g", sampler->temperature);
    if (sampler->top_k < 0) return status_usage("top-k must be 0 (all) or more, not %d", sampler->top_k);
    if (!(sampler->top_p > 0 && sampler->top_p <= 1))
        return status_usage("top-p must be in (0, 1], not %g", sampler->top_p);
    return NULL;
}

typedef struct Candidate {
    int32_t id;
    float logit;
} Candidate;

static int by_logit(const void *a, const void *b) { // falling; equal logits by id, so that the order is fixed
    const Candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static int32_t most_likely(const float *logits, int vocab) {
    int best = 0;
    for (int i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

int32_t sampler_pick(const Sampler *sampler, const float *logits, int vocab, uint64_t position) {
    if (sampler->temperature == 0) return most_likely(logits, vocab);
    Candidate *candidates = xmalloc((size_t)vocab * sizeof *candidates);
    double *weights = xmalloc((size_t)vocab * sizeof *weights);
    for (int i = 0; i < vocab; i++)
        candidates[i] = (Candidate){i, logits[i]};
    qsort(candidates, (size_t)vocab, sizeof *candidates, by_logit);
    int count = sampler->top_k && sampler->top_k < vocab ? sampler->top_k : vocab;
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += weights[i] = exp(((double)candidates[i].logit - (double)candidates[0].logit) / sampler->temperature);
    // The smallest set that holds top_p of the weight; the first always stays.
    double kept = 0;
    int keep = 0;
    while (keep < count && (keep == 0 || kept < sampler->top_p * sum))
        kept += weights[keep++];
    double at = rng_uniform(sampler->seed, RNG_STREAM_SAMPLING, position) * kept;
    int pick = 0;
    while (pick + 1 < keep && at >= weights[pick])
        at -= weights[pick++];
    int32_t id = candidates[pick].id;
    free(candidates);
    free(weights);
    return id;
}
