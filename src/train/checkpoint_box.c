// From slices to boxes, from boxes to text and back, and whether they cover a tensor once.
#include "train/checkpoint_box.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>

int checkpoint_boxes_of(const Layout *layout, const LayoutParam *param, int index,
                        CheckpointBox boxes[CHECKPOINT_BOXES_MAX]) {
    LayoutSlice slice = layout_slice(layout, param, index);
    int64_t first, count, size = slice.rows * slice.stride;
    int found = 0;
    if (!layout_slice_owner(layout, param, index)) return 0;
    layout_owned(layout, param, &first, &count);
    // The owned range, counted from the slice's start: from column `left` of row `top` up to column `right` of row
    // `bottom`.
    int64_t begin = first - slice.at, end = begin + count;
    if (begin < 0) begin = 0;
    if (end > size) end = size;
    if (begin >= end) return 0;
    int64_t top = begin / slice.stride, left = begin % slice.stride;
    int64_t bottom = end / slice.stride, right = end % slice.stride;
    if (left > slice.cols) left = slice.cols; // what is between rows belongs to another slice
    if (right > slice.cols) right = slice.cols;
    const struct {
        int64_t row, rows, col, cols;
    } ranges[] = {
        {top, left > 0, left, (top == bottom ? right : slice.cols) - left},
        {top + (left > 0), bottom - top - (left > 0), 0, slice.cols},
        {bottom, left == 0 || top < bottom, 0, right},
    };
    for (int i = 0; i < CHECKPOINT_BOXES_MAX; i++)
        if (ranges[i].rows > 0 && ranges[i].cols > 0)
            boxes[found++] = (CheckpointBox){.row = slice.row + ranges[i].row,
                                             .rows = ranges[i].rows,
                                             .col = slice.col + ranges[i].col,
                                             .cols = ranges[i].cols,
                                             .at = slice.at + ranges[i].row * slice.stride + ranges[i].col,
                                             .stride = slice.stride};
    return found;
}

json_t *checkpoint_box_json(const CheckpointBox *box) {
    char text[128];
    snprintf(text, sizeof text, "%" PRId64 ":%" PRId64 ",%" PRId64 ":%" PRId64 " %016" PRIx64, box->row,
             box->row + box->rows, box->col, box->col + box->cols, box->hash);
    return json_string(text);
}

bool checkpoint_box_parse(CheckpointBox *box, const json_t *json) {
    const char *text = json_string_value(json);
    int64_t bottom, right;
    int end = -1;
    *box = (CheckpointBox){0};
    if (!text || sscanf(text, "%" SCNd64 ":%" SCNd64 ",%" SCNd64 ":%" SCNd64 " %16" SCNx64 "%n", &box->row, &bottom,
                        &box->col, &right, &box->hash, &end) != 5)
        return false;
    box->rows = bottom - box->row;
    box->cols = right - box->col;
    return end >= 0 && !text[end] && box->row >= 0 && box->col >= 0 && box->rows > 0 && box->cols > 0;
}

static int compare_boxes(const void *a, const void *b) {
    const CheckpointBox *x = a, *y = b;
    return (x->row > y->row) - (x->row < y->row);
}

// Boxes that lie inside, not on each other, and are as large as the tensor together cover it once.
static Status check_boxes(CheckpointBox *boxes, int count, int64_t rows, int64_t cols) {
    int64_t left = rows * cols;
    qsort(boxes, (size_t)count, sizeof *boxes, compare_boxes);
    for (int i = 0; i < count; i++) {
        const CheckpointBox *a = &boxes[i];
        if (a->row + a->rows > rows || a->col + a->cols > cols)
            return status_usage("rows %" PRId64 " to %" PRId64 ", columns %" PRId64 " to %" PRId64
                                " are outside of %" PRId64 " x %" PRId64,
                                a->row, a->row + a->rows, a->col, a->col + a->cols, rows, cols);
        for (int k = i + 1; k < count && boxes[k].row < a->row + a->rows; k++)
            if (boxes[k].col < a->col + a->cols && a->col < boxes[k].col + boxes[k].cols)
                return status_usage("row %" PRId64 ", column %" PRId64 " is there twice", boxes[k].row,
                                    boxes[k].col > a->col ? boxes[k].col : a->col);
        left -= a->rows * a->cols;
    }
    return left ? status_usage("%" PRId64 " of %" PRId64 " elements are in no part", left, rows * cols) : NULL;
}

Status checkpoint_boxes_read(CheckpointBox **boxes, int *count, const json_t *json, int64_t rows, int64_t cols) {
    Status status = NULL;
    *count = (int)json_array_size(json);
    *boxes = xcalloc((size_t)*count + 1, sizeof **boxes);
    for (int i = 0; i < *count && !status; i++)
        if (!checkpoint_box_parse(&(*boxes)[i], json_array_get(json, (size_t)i)))
            status = status_usage("entry %d is not of the form \"rows,columns checksum\"", i + 1);
    if (!status) status = check_boxes(*boxes, *count, rows, cols);
    if (!status) return NULL;
    free(*boxes);
    *boxes = NULL;
    return status;
}
