#include "ops/cuda/grouped_race.h"

void grouped_race_results(Race *race, const GroupedCall *call) {
    enum { SPREAD = 1 << 16 };
    if (call->product == GROUPED_WEIGHT) { // of some of the floats the upper halves, which are bf16
        int64_t count = (int64_t)call->experts * call->m * call->n, apart = (count + SPREAD - 1) / SPREAD;
        race->results[0].memory = (bf16 *)call->out + 1;
        race->results[0].stride = 2 * apart, race->results[0].columns = 1;
        race->rows = count / apart;
    } else {
        race->results[0].memory = call->out;
        race->results[0].stride = race->results[0].columns = call->n;
        race->rows = grouped_rows_in_use(call->rows, call->experts);
    }
}

int64_t grouped_race_rows(Ops *ops, const Race *race, const int32_t *row_count) {
    int32_t used = 0;
    ops->download(ops, &used, row_count, sizeof used);
    if (used >= RACE_ROWS) return used;
    race_give_up(cuda_state(ops), race);
    return 0;
}

void grouped_race_perform(Ops *ops, Race *race, const GroupedCall *call) {
    int choice = RACE_PLAIN;
    bool few = grouped_rows_in_use(call->rows, call->experts) < RACE_ROWS; // a gradient's race counts its results
    if (!few && !race_known(cuda_state(ops), race, &choice) && !call->accumulate) {
        int64_t used = grouped_race_rows(ops, race, call->offsets + call->experts);
        if (call->product != GROUPED_WEIGHT) race->rows = used;
        if (used) choice = race_run(ops, race);
    }
    if (!race->run(ops, race->call, choice)) race->run(ops, race->call, RACE_PLAIN);
}
