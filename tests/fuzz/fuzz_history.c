// Any bytes as the history of earlier runs: a correction within its bounds, whatever the lines say.
#include "fuzz_files.h"

#include "train/prediction.c" // calibrate_from

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static PlanMachine machine = {.gpu = {.name = "cpu"}, .gpus = 1};
    static PlanRun run;
    char *text = malloc(size + 1); // as file_read gives it
    memcpy(text, data, size);
    text[size] = 0;
    PlanCalibration calibration = calibrate_from(text, &machine, &run, 0.5);
    if (!(calibration.factor >= CALIBRATION_LEAST && calibration.factor <= CALIBRATION_MOST)) abort();
    if (calibration.runs < 0 || calibration.runs > CALIBRATION_WINDOW || !(calibration.spread >= 1)) abort();
    free(text);
    return 0;
}
