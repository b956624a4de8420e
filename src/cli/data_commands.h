// The sub-commands of `hearth data`, one file data_<name>.c each.
#pragma once

#include "base/status.h"

#include <stdint.h>

Status data_cat(int argc, char **argv);
Status data_encode(int argc, char **argv);
Status data_train_tokenizer(int argc, char **argv);
Status data_prepare(int argc, char **argv);
Status data_synth(int argc, char **argv);
Status data_estimate(int argc, char **argv);
Status data_inspect(int argc, char **argv);
Status data_mix(int argc, char **argv);
Status data_pull(int argc, char **argv);

// "20B", "100M", "1.5K" or a plain number, as token counts are given. `option` is what errors name.
Status data_parse_count(const char *option, const char *text, int64_t *count);
