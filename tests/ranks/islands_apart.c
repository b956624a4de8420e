// The islands of a DiLoCo run as separate runs of one rank each, with the outer step taken by hand in double:
// islands_apart CONFIG CHECKPOINT SETS... trains both islands of CONFIG (an fp32 one of two islands of one rank) up to
// the checkpoint's step and compares its weights with theirs. Prints the largest difference of an element in units of
// what one meeting may round (see below), and the largest ||a - b|| / ||b|| of a tensor.
#include "base/text.h"
#include "model/safetensors.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ISLANDS = 2 };

typedef struct Outer { // of all parameters, one after the other
    double *anchor, *momentum, *slack;
    int64_t count;
} Outer;

static void read_weights(Trainer *trainer, float *out) {
    const Layout *layout = &trainer->model->layout;
    for (int i = 0; i < layout->param_count; out += layout->params[i++].count)
        model_read_param(trainer->model, &layout->params[i], MODEL_WEIGHTS, out);
}

static void write_weights(Trainer *trainer, const float *in) {
    const Layout *layout = &trainer->model->layout;
    for (int i = 0; i < layout->param_count; in += layout->params[i++].count)
        model_write_param(trainer->model, &layout->params[i], MODEL_WEIGHTS, in);
}

// What floats may add: the rounding of each change, of their sum, and of momentum (all relative to the changes), and of
// the new anchor.
static void outer_step(Outer *outer, float *const *weights, const Config *config, float *next) {
    double lr = config->diloco.outer_lr, mu = config->diloco.outer_momentum, u = 0x1p-24;
    for (int64_t i = 0; i < outer->count; i++) {
        double change = 0, size = 0;
        for (int k = 0; k < ISLANDS; k++) {
            change += (outer->anchor[i] - (double)weights[k][i]) / ISLANDS;
            size += fabs(outer->anchor[i] - (double)weights[k][i]) / ISLANDS;
        }
        outer->momentum[i] = mu * outer->momentum[i] + change;
        outer->anchor[i] -= lr * (change + mu * outer->momentum[i]);
        outer->slack[i] = u * (fabs(outer->anchor[i]) + 2 * lr * (1 + mu) * (size + fabs(outer->momentum[i])));
        next[i] = (float)outer->anchor[i];
    }
}

static Status compare(const Layout *layout, const char *checkpoint, const float *weights, const double *slack) {
    char *path = text_format("%s/model.safetensors", checkpoint);
    Safetensors file;
    Status status = safetensors_open(&file, path);
    free(path);
    TRY(status);
    double worst = 0, worst_tensor = 0;
    for (int i = 0; i < layout->param_count; i++) {
        const LayoutParam *param = &layout->params[i];
        for (int k = 0; k < layout_slice_count(layout, param); k++) {
            LayoutSlice slice = layout_slice(layout, param, k);
            const float *theirs = safetensors_find(&file, slice.name)->data;
            double apart = 0, norm = 0;
            for (int64_t at = 0; at < slice.count; at++) {
                int64_t own = slice.at + at / slice.cols * slice.stride + at % slice.cols;
                double difference = fabs((double)theirs[at] - (double)weights[own]);
                worst = fmax(worst, difference / slack[own]);
                apart += difference * difference;
                norm += (double)weights[own] * (double)weights[own];
            }
            worst_tensor = fmax(worst_tensor, sqrt(apart / norm));
        }
        weights += param->count;
        slack += param->count;
    }
    safetensors_close(&file);
    printf("%.4g %.4g\n", worst, worst_tensor);
    return NULL;
}

static Status train_apart(const Config *config, const char *checkpoint) {
    Config plain = *config; // shares the strings
    plain.diloco.every = 0;
    plain.diloco.islands = 1;
    Trainer trainers[ISLANDS];
    World worlds[ISLANDS];
    float *weights[ISLANDS];
    Outer outer = {0};
    for (int k = 0; k < ISLANDS; k++) {
        TRY(trainer_open(&trainers[k], &plain));
        worlds[k] = (World){.size = ISLANDS, .rank = k}; // it reads this island's samples, and meets nobody
        trainers[k].ranks.world = &worlds[k];
        trainers[k].ranks.islands = ISLANDS;
    }
    const Layout *layout = &trainers[0].model->layout;
    for (int i = 0; i < layout->param_count; i++)
        outer.count += layout->params[i].count;
    size_t count = (size_t)outer.count;
    outer.anchor = xcalloc(3 * count, sizeof(double));
    outer.momentum = outer.anchor + count;
    outer.slack = outer.momentum + count;
    for (int k = 0; k < ISLANDS; k++)
        weights[k] = xcalloc(count, sizeof(float));
    read_weights(&trainers[0], weights[0]);
    for (size_t i = 0; i < count; i++)
        outer.anchor[i] = (double)weights[0][i];
    for (int64_t step = 1; step <= trainers[0].total_steps; step++) {
        MetricsStep metrics;
        bool stopped;
        for (int k = 0; k < ISLANDS; k++)
            TRY(trainer_step(&trainers[k], &metrics, NULL, &stopped));
        if (step % config->diloco.every && step < trainers[0].total_steps) continue;
        for (int k = 0; k < ISLANDS; k++)
            read_weights(&trainers[k], weights[k]);
        outer_step(&outer, weights, config, weights[0]);
        for (int k = 0; k < ISLANDS; k++)
            write_weights(&trainers[k], weights[0]);
    }
    Status status = compare(layout, checkpoint, weights[0], outer.slack);
    for (int k = 0; k < ISLANDS; k++) {
        trainers[k].ranks.world = NULL;
        trainer_close(&trainers[k]);
        free(weights[k]);
    }
    free(outer.anchor);
    return status;
}

int main(int argc, char **argv) {
    Config config;
    if (argc < 3) {
        fprintf(stderr, "usage: %s CONFIG CHECKPOINT [SECTION.KEY=VALUE]...\n", argv[0]);
        return 2;
    }
    Status status = config_read(&config, argv[1], (const char *const *)argv + 3, argc - 3);
    if (!status) {
        status = train_apart(&config, argv[2]);
        config_free(&config);
    }
    if (status) fprintf(stderr, "%s\n", status_text(status));
    int code = status != NULL;
    status_free(status);
    return code;
}
