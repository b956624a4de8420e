// What was measured once on a GPU: text values under text keys, kept in a text file, "gpu name <tab> key <tab> value" a
// line. Which of several kernels runs a shape, above all; another one may round otherwise, so ranks that repeat each
// other's work must choose alike (model/agree.h), and so must a run that is resumed.
#pragma once

#include <stdbool.h>

typedef struct TuneFile TuneFile;

TuneFile *tune_open(const char *path, const char *gpu_name); // path may be NULL: memory only
const char *tune_get(TuneFile *tune, const char *key);       // NULL when unknown, which is remembered: tune_missing
void tune_put(TuneFile *tune, const char *key, const char *value); // adds to the file
void tune_close(TuneFile *tune);

// Everything known, as lines of the file; malloc'd. Lines that are taken count from now on, whatever was known before;
// they are not added to the file. Lines of other GPUs are passed over.
char *tune_text(const TuneFile *tune);
void tune_take(TuneFile *tune, const char *text);
void tune_clear(TuneFile *tune);
int tune_known(const TuneFile *tune);   // keys that have a value
int tune_missing(const TuneFile *tune); // keys that were asked for and have none

// While held, nothing is measured: what is not known is done in the first way there is, and not kept.
void tune_hold(TuneFile *tune, bool held);
bool tune_held(const TuneFile *tune);
