#include "train/loss_scale.h"

#include <math.h>

bool loss_scale_note(LossScale *scale, bool skipped, bool overflow) {
    if (scale->scale <= 0) return false;
    if (overflow) {
        bool halved = scale->scale > LOSS_SCALE_LEAST;
        if (halved) scale->scale /= 2;
        scale->good = 0;
        return halved;
    }
    if (skipped || ++scale->good < scale->every) return false;
    scale->good = 0;
    if (scale->scale < LOSS_SCALE_MOST) scale->scale *= 2;
    return false;
}

json_t *loss_scale_json(const LossScale *scale) {
    return json_pack("{s:f,s:I}", "scale", scale->scale, "good_steps", (json_int_t)scale->good);
}

Status loss_scale_restore(LossScale *scale, const json_t *state, const char *where) {
    const json_t *root = json_object_get(state, "loss_scale");
    if (!root || scale->scale <= 0) return NULL;
    double value = json_number_value(json_object_get(root, "scale"));
    int64_t good;
    TRY(json_get_int(root, "good_steps", &good, where));
    int exponent;
    bool fine = value >= LOSS_SCALE_LEAST && value <= LOSS_SCALE_MOST && frexp(value, &exponent) == 0.5 && good >= 0;
    if (!fine)
        return status_at(status_usage("loss_scale of state.json is no power of two from 1 to 2^40"), where, 0, 0);
    scale->scale = value;
    scale->good = good;
    return NULL;
}
