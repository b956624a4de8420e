#include "plan/schedule.h"

#include <math.h>

double plan_lr_linear(double lr, double batch_from, double batch_to) {
    return lr * batch_to / batch_from;
}

double plan_lr_sqrt(double lr, double batch_from, double batch_to) {
    return lr * sqrt(batch_to / batch_from);
}

double plan_warmup_steps(double batch_from, double batch_to) {
    return batch_to / batch_from * 1000;
}

double plan_lr_cosine(double step, double total, double lr_max, double lr_min) {
    double done = fmin(1, step / total);
    return lr_min + (lr_max - lr_min) * (1 + cos(M_PI * done)) / 2;
}

double plan_perplexity(double loss) {
    return exp(loss);
}

double plan_initial_loss(double vocab) {
    return log(vocab);
}
