// `hearth data pull`: files of a Hugging Face hub dataset, over HTTP(S), in parallel ranges. A file gets its name only
// when its size and, where the hub states it, its SHA-256 are right; an interrupted download goes on where it stopped.
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct PullOptions {
    const char *repo;      // "HuggingFaceFW/fineweb-edu"
    const char *revision;  // NULL: "main"
    const char *path;      // folder inside the repository; NULL: all of it
    bool model;            // a model's repository, for its tokenizer
    const char *include;   // glob on the whole path of a file; NULL: "*.parquet", of a model "tokenizer.json"
    const char *output;    // local folder; paths of the repository are kept below it
    const char *endpoint;  // NULL: HF_ENDPOINT or https://huggingface.co
    const char *token;     // NULL: HF_TOKEN, else none
    int64_t tokens;        // fetch only as many files as hold so many; 0: all
    const char *tokenizer; // to count them with; NULL: a guess from the bytes of text
    const char *column;    // with the text; NULL: "text"
    int parallel;          // connections
    int retries;           // in a row without a byte gained, before giving up
    double retry_seconds;  // first delay; doubles each time, up to a minute; Retry-After of the server comes first
    int64_t part_bytes;    // size of a range
    bool list_only;
    bool quiet;
} PullOptions;

typedef struct PullResult {
    size_t listed, wanted, fetched, present; // files
    int64_t bytes;                           // fetched now
    double estimated_tokens;                 // of the files at hand; 0 unless asked
} PullResult;

PullOptions pull_defaults(void);
Status pull_run(const PullOptions *options, PullResult *result);
