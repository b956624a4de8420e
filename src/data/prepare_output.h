// The output folder of prepare: what may be taken away from it, and the tokenizer that is kept in it.
#pragma once

#include "data/prepare.h"

#define OUTPUT_WORK "work" // folder of units and journal while prepare works
#define OUTPUT_LOCK "lock" // in it

// Refuses, before anything is touched, an output whose folders hold what prepare did not write or reads from now.
Status output_check(const PrepareOptions *options, const Reader *reader, const Tokenizer *tokenizer);
// Removes a former dataset and its work, all but the lock. Only after output_check.
Status output_clear(const PrepareOptions *options, const Tokenizer *tokenizer);
Status output_clear_work(const char *output); // the work alone
// Copies the tokenizer beside dataset.json, so that the dataset can be used from any directory.
Status output_keep_tokenizer(const PrepareOptions *options, const Tokenizer *tokenizer);
