// The machine's profile is one [machine] table, which `bench machine` and `bench comm` each measure a part of: one must
// not lose the other's.
#pragma once

#include "base/text.h"
#include "bench/bench_comm.h"

// Lines of `text` that are about links, or all others.
char *profile_lines(const char *text, bool links);
// The lines for what `bench comm` has measured inside of a host, or between hosts.
char *profile_link_lines(const BenchLink *link, int ranks, bool between_hosts);
// Does the profile refine this entry of the catalogue? Also true of an empty one.
bool profile_is_of(const char *text, const char *gpu);
