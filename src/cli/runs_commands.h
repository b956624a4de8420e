// The commands of hearth runs.
#pragma once

#include "base/status.h"

Status runs_compare(int argc, char **argv);
Status runs_csv(int argc, char **argv);
Status runs_keys(int argc, char **argv);
Status runs_rm(int argc, char **argv);
