// Histograms of weights and gradients, on demand (watch.histograms).
#pragma once

#include "train/trainer.h"
#include "watch/recorder.h"

Status histograms_check(const Trainer *trainer); // whether the layout lets rank 0 read them
// Of every parameter that this rank holds, after a step; reads them all from the device.
void histograms_take(Trainer *trainer, Recorder *recorder);
