// The folder of a dataset that is written: what may be taken away from it, and the tokenizer that is kept in it.
#pragma once

#include "data/prepare.h"

#define OUTPUT_WORK "work" // folder of units, journal and shards while prepare works
#define OUTPUT_LOCK "lock" // in it

// Refuses, before anything is touched, an output whose folders hold what prepare did not write or reads from now.
Status output_check(const PrepareOptions *options, const Reader *reader, const Tokenizer *tokenizer);
// For a dataset that no journal resumes: refuses an output that is not empty, with `overwrite` one that holds more than
// a finished dataset.
Status output_check_new(const char *output, bool overwrite);
// Removes a former dataset, but for a tokenizer.json that is `tokenizer` (may be NULL). Only after one of the checks.
Status output_clear(const char *output, const Tokenizer *tokenizer);
Status output_clear_work(const char *output); // units, journal and shards, all but the lock

// A mark in the work folder that the work is to replace what the output holds: as long as it stands, a dataset.json is
// the former one, and whoever resumes the work need not ask for it again.
Status output_mark_replaced(const char *output);
bool output_is_replaced(const char *output);
// Moves the shards of the work folder into their places, the former dataset out of the way first if it is marked as
// replaced, with the tokenizer beside them, so that the dataset can be used from any directory. Only dataset.json is
// missing then. After a kill in the middle, the units still give the same shards again.
Status output_publish(const PrepareOptions *options, const Tokenizer *tokenizer);
