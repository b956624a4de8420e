// DiLoCo: islands of ranks train apart for some steps, and meet. Between meetings each is a run of its own, with AdamW
// and its own part of the data; at a meeting the mean of their changes since the last one moves the anchor, the weights
// that they share, by SGD with Nesterov momentum:
//
//   change = mean over islands (anchor - weights)      momentum = mu momentum + change
//   anchor = anchor - lr (change + mu momentum)        weights = anchor
//
// So what goes over the links between islands is a number per parameter every `every` steps, instead of a gradient in
// each. AdamW's moments stay with their island. One island alone is allowed: the outer optimizer then looks back over
// its own steps.
//
// Anchor and momentum are floats in host memory, and each rank has those of its pieces (LAYOUT_OUTER of the layout): on
// a GPU they take none of its memory, and a meeting costs it a copy of the weights to the host and back.
#pragma once

#include "train/ranks.h"

typedef struct Diloco {
    int64_t every; // 0: off
    double lr, momentum;
    DType exchange; // of the changes on their way
    Ops *host;      // whose memory it is in
    bool own_host;  // not the model's
    Comm *islands;  // ranks at the same place of every island; NULL: there is one
    void *memory;
    size_t bytes;
    int64_t meetings, sent_bytes; // so far in this process; of this rank
} Diloco;

// The outer state of a model, uninitialised. A configuration without [diloco] every leaves it off.
Status diloco_open(Diloco *diloco, const Config *config, const Ranks *ranks, Model *model);
void diloco_close(Diloco *diloco);
// The weights, as they are now, become the anchor; no momentum.
void diloco_start(Diloco *diloco, Model *model);
// After step `step` of a run of `total` (0: not known): is there a meeting? Steps count from the start of the run, so a
// run that was resumed meets where it would have.
bool diloco_due(const Diloco *diloco, int64_t step, int64_t total);
// Collective over all ranks of all islands.
void diloco_meet(Diloco *diloco, Model *model);

// Bytes that this rank sends to other islands in one meeting.
double diloco_meeting_bytes(const Diloco *diloco, const Layout *layout);
