// One checkpoint, written by all ranks together. Inside of train/checkpoint.
//
// Rank 0 makes .writing-step-N with the files at their full size and says so (`ready-A`, A: the how many-eth attempt of
// this run); every rank writes its boxes of whole tensors into them, syncs, and leaves their checksums
// (`part-R-A.json`) or why it could not (`part-R-A.failed`); rank 0 waits for all, and when the parts cover every
// tensor once it writes the rest and gives the directory its name. When it gives up it says that too (`failed-A`). The
// ranks meet in these files alone: nothing here takes part in a collective. What a rank could not write down the steps
// of the run tell the others (checkpoint_give_up).
#pragma once

#include "base/json.h"
#include "model/model.h"
#include "model/safetensors.h"

#include <stdatomic.h>

// The files of a checkpoint with a value for every parameter. All have the same tensors.
typedef struct CheckpointFile {
    char name[64];
    ModelState state;
    int island; // whose ranks write it
} CheckpointFile;
enum { CHECKPOINT_FILES = 3, CHECKPOINT_OUTER_FILES = 2 }; // of an island; of an outer optimizer
// One of an island's.
CheckpointFile checkpoint_file(int island, int index);
// All of a run with so many islands (0: without an outer optimizer); malloc'd.
int checkpoint_file_list(CheckpointFile **files, int islands);

// The whole model's tensors, whatever this rank has of them, and the files that hold them.
typedef struct CheckpointForm {
    LayoutSlice *tensors;
    int count;
    SafetensorsForm file;
    CheckpointFile *files; // all of that form
    int file_count;
} CheckpointForm;
Status checkpoint_form_make(CheckpointForm *form, const Layout *layout);
void checkpoint_form_free(CheckpointForm *form);

typedef struct CheckpointJob {
    const char *directory; // RUN/checkpoints
    const Layout *layout;
    const CheckpointForm *form;
    const ModelSnapshot *snapshot;
    int64_t step;
    const json_t *state; // rank 0's
    int rank, ranks;
    int64_t attempt;          // how many writes this run has begun: the same on all ranks
    uint64_t token;           // rank 0's: of this attempt alone
    double limit;             // seconds to wait for other ranks
    const atomic_int *failed; // one of them that will not come, whatever its files say; below 0: none
} CheckpointJob;

// On rank 0 the checkpoint is complete on success, on others this rank's part of it is on disk.
Status checkpoint_write(const CheckpointJob *job);

uint64_t checkpoint_json_hash(const json_t *root);
void checkpoint_hash_text(char out[24], uint64_t hash);
