// Boxes: rows and columns of a tensor in a checkpoint, the unit in which ranks write and in which the manifest has
// checksums. Inside of train/checkpoint.
#pragma once

#include "base/json.h"
#include "model/layout.h"

typedef struct CheckpointBox {
    int64_t row, rows, col, cols; // of the whole tensor; a vector is one row
    uint64_t hash;                // XXH64 of its values, row after row
    int64_t at, stride;           // elements: where it starts in the LayoutParam, and from one row to the next
} CheckpointBox;

// The part of a slice that this rank writes; returns how many boxes it takes: rows that it has whole, and at each end
// one that it has in part.
enum { CHECKPOINT_BOXES_MAX = 3 };
int checkpoint_boxes_of(const Layout *layout, const LayoutParam *param, int slice,
                        CheckpointBox boxes[CHECKPOINT_BOXES_MAX]);

// As the manifest has it: "0:97,0:48 0123456789abcdef", rows and columns from and up to.
json_t *checkpoint_box_json(const CheckpointBox *box);
bool checkpoint_box_parse(CheckpointBox *box, const json_t *json);

// Boxes (malloc'd) of a JSON array, if they cover a tensor of rows x cols once; else an error without place or tensor.
Status checkpoint_boxes_read(CheckpointBox **boxes, int *count, const json_t *json, int64_t rows, int64_t cols);
