// Checkpoints: checkpoints/step-N/ with
// - model.safetensors, adam_m.safetensors, adam_v.safetensors: whole tensors by HF name, fp32 (weights at master
//   precision)
// - of a run with an outer optimizer: outer_weights.safetensors and outer_momentum.safetensors, and of every island but
//   the first, whose files are the ones above: island-N-model.safetensors and so on
// - config.json: the model's shape, so that the directory can also be read as an HF model
// - state.json: step, tokens, data position, guard, schedule, config hash
// - manifest.json: XXH64 of every tensor, box by box as ranks wrote it, of state.json and of config.json
// The files are the same whatever the mesh, but for the boxes in the manifest: each rank writes what it owns into the
// whole tensors, and reads what it needs of them. A directory takes its name only when everything in it is on disk; a
// name that can be seen is a complete checkpoint.
#pragma once

#include "base/json.h"
#include "model/model.h"

#define CHECKPOINT_SET_ASIDE "damaged-" // before the name of a checkpoint that is no longer one

typedef struct CheckpointPolicy {
    int64_t keep_last, keep_every; // keep_every 0: none
    bool keep_best;
    bool async;
    double limit_seconds; // how long a write waits for other ranks; 0: 600
} CheckpointPolicy;

typedef struct CheckpointWriter CheckpointWriter;

// directory: RUN/checkpoints, the same one for all ranks. The layout must outlive the writer. Rank 0 removes remains of
// writes that a crash cut short; it must have opened its writer before any rank saves.
Status checkpoint_writer_open(CheckpointWriter **writer, const char *directory, const Layout *layout,
                              const CheckpointPolicy *policy, int rank, int ranks);
// Copies the model's state to host memory and hands it to the writer's thread (or writes at once without async). Waits
// first for a write that is still under way. `state` is taken over; that of ranks above 0 is not written and may be
// NULL. A failed write is reported by checkpoint_poll. All ranks save the same steps in the same order; no collective
// is called here or by the thread.
Status checkpoint_save(CheckpointWriter *writer, Model *model, int64_t step, json_t *state);
// Waits for the write under way, if `wait`. *done_step: step of a checkpoint completed since the last call, or -1. The
// status is that of a write that failed; training state is intact, and older checkpoints are still there. On ranks
// above 0 both speak of this rank's part: whether there is a checkpoint, rank 0 knows, where any rank's failure is one.
Status checkpoint_poll(CheckpointWriter *writer, bool wait, int64_t *done_step);
bool checkpoint_is_busy(CheckpointWriter *writer); // a write is under way
// This rank has failed in the write under way, and may not be able to say so in a file: nobody needs to wait for it.
void checkpoint_give_up(CheckpointWriter *writer, int rank);
// Removes older checkpoints by the policy, as rank 0 does after every write; not while one is under way. A failure is a
// warning, the next one only after a success.
void checkpoint_writer_prune(CheckpointWriter *writer);
void checkpoint_writer_close(CheckpointWriter *writer); // waits

// The newest complete, undamaged checkpoint below directory; damaged ones are reported through `say` and passed over.
// *path is malloc'd, NULL when there is none; an error when there are some and none can be used, or when one cannot be
// read at the second try either: it may be good, so none before it is taken in its place.
Status checkpoint_find(const char *directory, char **path, int64_t *step,
                       void (*say)(void *context, const char *message), void *context);
// Every checksum. STATUS_USAGE: what is there is not a whole checkpoint. STATUS_RUNTIME: it could not be read, and may
// be good.
Status checkpoint_verify(const char *path);
// Weights, and moments when with_moments: on each rank what its mesh has there, whatever the mesh that wrote them.
// *state (may be NULL) is owned by the caller.
// On an island, its own; where the checkpoint has no such island, the first one's.
Status checkpoint_load(Model *model, const char *path, bool with_moments, json_t **state);
// Anchor and momentum of the outer optimizer, if the model has one and the checkpoint does: *loaded.
Status checkpoint_load_outer(Model *model, const char *path, bool *loaded);
Status checkpoint_steps(const char *directory, int64_t **steps, int *count); // of complete ones, rising; malloc'd
// The complete checkpoint with the lowest validation loss; -1: none has one.
Status checkpoint_best(const char *directory, int64_t *step);
// Renames checkpoints of later steps than `step` (damaged, or of ruined weights) to damaged-step-N, so that they
// neither count as newest nor are lost, and logs each.
Status checkpoint_set_aside(const char *directory, int64_t step);
