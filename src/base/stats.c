// The median works on a sorted copy: the lists here are short, and callers keep theirs in the order of time.
#include "base/stats.h"

#include "base/text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int double_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double double_median(const double *values, size_t count) {
    assert(count > 0);
    double *sorted = xmalloc(count * sizeof *sorted);
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, double_order);
    double median = count % 2 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
    free(sorted);
    return median;
}
