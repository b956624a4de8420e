// Reading every parameter and handing its spread to the recorder.
#include "train/histograms.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

Status histograms_check(const Trainer *trainer) {
    const Config *config = trainer->config;
    if (!config->watch.histograms) return NULL;
    if (!config->watch.tensorboard)
        return config_blame(
            config, "watch.histograms",
            status_hint(status_usage("watch.histograms has nowhere to write to"), "set watch.tensorboard = true"));
    if (trainer->model->layout.zero)
        return config_blame(config, "watch.histograms",
                            status_hint(status_usage("watch.histograms needs whole parameters on a rank, and ZeRO cuts "
                                                     "them up"),
                                        "set watch.histograms = 0, or parallelism.zero = 0"));
    return NULL;
}

static void take_state(Trainer *trainer, Recorder *recorder, const LayoutParam *param, ModelState state,
                       float *values) {
    Histogram *histogram = xcalloc(1, sizeof *histogram);
    const char *what = state == MODEL_WEIGHTS ? "weights" : "gradients", *name = layout_param_name(param->id);
    char *tag =
        param->layer < 0 ? text_format("%s/%s", what, name) : text_format("%s/layer %02d %s", what, param->layer, name);
    for (char *at = tag; (at = strchr(at, ' '));)
        *at = '_';
    model_read_param(trainer->model, param, state, values);
    histogram_add(histogram, values, param->count);
    recorder_histogram(recorder, trainer->step, tag, histogram);
    free(tag);
    free(histogram);
}

void histograms_take(Trainer *trainer, Recorder *recorder) {
    const Layout *layout = &trainer->model->layout;
    int64_t most = 0;
    for (int i = 0; i < layout->param_count; i++)
        most = layout->params[i].count > most ? layout->params[i].count : most;
    float *values = xmalloc((size_t)most * sizeof *values);
    for (int i = 0; i < layout->param_count; i++) {
        if (!layout->params[i].count) continue;
        take_state(trainer, recorder, &layout->params[i], MODEL_WEIGHTS, values);
        take_state(trainer, recorder, &layout->params[i], MODEL_GRADIENTS, values);
    }
    free(values);
}
