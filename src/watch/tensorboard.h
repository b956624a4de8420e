// Event files as TensorBoard reads them, also while they grow: records with checksums (TFRecord) around protocol
// buffers (Event). Each process of a run writes a file of its own.
#pragma once

#include "watch/append_file.h"
#include "watch/histogram.h"
#include "watch/metrics.h"

typedef struct TensorBoard TensorBoard;

// A new file in the folder, which is made where it is missing. What earlier files have of steps after last_step is
// superseded. The file sorts behind all others that are there.
Status tensorboard_open(TensorBoard **board, const char *folder, int64_t last_step, double time);
void tensorboard_close(TensorBoard *board); // NULL is fine
// What cannot be written is kept, as append_file.h says.
Status tensorboard_step(TensorBoard *board, const MetricsStep *step);
Status tensorboard_evaluation(TensorBoard *board, int64_t step, double time, const Evaluation *evaluation);
Status tensorboard_text(TensorBoard *board, const char *tag, const char *text, int64_t step, double time);
Status tensorboard_histogram(TensorBoard *board, const char *tag, const Histogram *histogram, int64_t step,
                             double time);

// CRC-32C, continued from `crc` (0 at the start), and masked as TFRecord stores it.
uint32_t crc32c(uint32_t crc, const void *data, size_t size);
uint32_t crc32c_masked(const void *data, size_t size);
