// One run of prepare, shared by prepare.c and the prepare_*.c files that each do a part of it.
#pragma once

#include "data/prepare.h"
#include "data/prepare_unit.h"

#include <jansson.h>

typedef struct Prepare {
    const PrepareOptions *options;
    Tokenizer *tokenizer;
    Reader *reader;
    char *work;        // output/work
    json_t *plan;      // sources, options, tokenizer
    json_t *work_plan; // the plan and when the sources were changed last
    int lock;
    size_t unit_count; // done
    ReaderPosition position;
    PrepareCounts counts;
    UnitComplete complete;
    bool hopeless; // no other try with these options could do better
} Prepare;

// prepare_plan.c
void prepare_plan_make(Prepare *prepare);
void prepare_plan_hash(const Prepare *prepare, char out[24]);
// *done: the output holds the finished dataset of this very plan, and it is not to be replaced.
Status prepare_is_finished(const Prepare *prepare, bool *done);
// Begins the work with this plan, or refuses when the work folder holds work of another.
Status prepare_plan_compare(Prepare *prepare);

// prepare_scatter.c
Status prepare_find_units(Prepare *prepare); // those of a killed run
Status prepare_scatter(Prepare *prepare);    // reads on until the targets can be filled or the input ends

// prepare_result.c
Status prepare_dataset_write(const Prepare *prepare, json_t *splits);
uint64_t prepare_tokens_missing(json_t *splits); // of what was asked for
Status prepare_nothing_kept(const PrepareCounts *counts);
