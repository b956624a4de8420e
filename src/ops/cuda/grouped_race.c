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

void grouped_race_perform(Ops *ops, const Race *race, const GroupedCall *call) {
    enum { RACE_ROWS = 1024 }; // fewer are not worth a race; as in race.c, which counts results
    int choice = RACE_PLAIN;
    bool few = grouped_rows_in_use(call->rows, call->experts) < RACE_ROWS;
    if (!few && !call->accumulate)
        race_perform(ops, race);
    else if (few || !race_known(cuda_state(ops), race, &choice) || !race->run(ops, race->call, choice))
        race->run(ops, race->call, RACE_PLAIN);
}
