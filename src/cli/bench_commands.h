// The parts of `hearth bench` that have files of their own.
#pragma once

#include "base/json.h"
#include "bench/bench_step.h"

#include "base/status.h"
#include "base/text.h"
#include "model/config.h"
#include "ops/ops.h"

Status bench_comm_command(int argc, char **argv);
Status bench_energy_command(int argc, char **argv);
Status bench_machine_command(int argc, char **argv);
Status bench_ops_command(int argc, char **argv);

// A preset by its name, or a config.json. layers > 0: only the first so many layers of it.
Status bench_model_read(ModelConfig *config, const char *name, int64_t layers);
// --seq and --micro-batch: at least 1, and so few tokens that their count is an int.
Status bench_check_shape(int64_t seq, int64_t micro_batch);

// The catalogue entry that a profile of this device refines: the one that is asked for (may be NULL), the CPU's, or the
// one with the driver's name of the device.
Status bench_entry_name(char *out, size_t size, const Ops *ops, const char *asked);
Status bench_write_profile(const TextBuffer *text, const char *path);

// --profile: BenchStep.look, whose context is a BenchProfile.
typedef struct BenchProfile {
    World *world;
    const char *directory;
    int accum;
} BenchProfile;
Status bench_profile_steps(void *context, Model *model, void (*step)(void *run), void *run);

// What ranks said to each other in a step: figures for the command's line, and everything, into a file.
json_t *bench_comm_json(const BenchExchange *comm);
Status bench_write_events(const BenchExchange *comm, const char *path);
