// Which shards were read through and found whole, remembered in the file .verified beside them: one line each of name,
// size, inode, time of the last change and header. A shard that is written, replaced or copied has another line, and is
// read through again.
#pragma once

#include "data/shard.h"

#define VERIFIED_FILE ".verified"

bool verified_find(const Shard *shard);
void verified_add(const Shard *shard); // where the folder cannot be written, nothing is remembered
