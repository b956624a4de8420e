// The folder of a dataset that is written: what may be taken away from it, and the tokenizer that is kept in it.
#pragma once

#include "data/prepare.h"

#define OUTPUT_WORK "work" // folder of units and journal while prepare works
#define OUTPUT_LOCK "lock" // in it

// Refuses, before anything is touched, an output whose folders hold what prepare did not write or reads from now.
Status output_check(const PrepareOptions *options, const Reader *reader, const Tokenizer *tokenizer);
// For a dataset that no journal resumes: refuses an output that is not empty, with `overwrite` one that holds more than
// a finished dataset.
Status output_check_new(const char *output, bool overwrite);
// Removes a former dataset, but for a tokenizer.json that is `tokenizer` (may be NULL). Only after one of the checks.
Status output_clear(const char *output, const Tokenizer *tokenizer);
Status output_clear_work(const char *output); // units and journal, all but the lock
// Copies the tokenizer beside dataset.json, so that the dataset can be used from any directory.
Status output_keep_tokenizer(const PrepareOptions *options, const Tokenizer *tokenizer);
