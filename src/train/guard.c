// The running median that the spike limit follows.
#include "train/guard.h"

#include "base/stats.h"

#include <math.h>

float guard_limit(const Guard *guard) {
    int64_t count = guard->accepted < guard->window ? guard->accepted : guard->window;
    if (guard->factor <= 0 || count < (guard->window + 3) / 4) return INFINITY;
    return (float)(guard->factor * double_median(guard->losses, (size_t)count));
}

void guard_note(Guard *guard, double loss, bool skipped) {
    if (skipped) {
        guard->skipped++;
        guard->skipped_in_row++;
        return;
    }
    guard->skipped_in_row = 0;
    guard->losses[guard->accepted++ % guard->window] = loss;
}

json_t *guard_json(const Guard *guard) {
    json_t *losses = json_array();
    int64_t count = guard->accepted < guard->window ? guard->accepted : guard->window;
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(losses, json_real(guard->losses[i]));
    return json_pack("{s:I,s:I,s:I,s:o}", "accepted", (json_int_t)guard->accepted, "skipped",
                     (json_int_t)guard->skipped, "skipped_in_row", (json_int_t)guard->skipped_in_row, "losses", losses);
}

Status guard_restore(Guard *guard, const json_t *root, const char *where) {
    TRY(json_get_int(root, "accepted", &guard->accepted, where));
    TRY(json_get_int(root, "skipped", &guard->skipped, where));
    TRY(json_get_int(root, "skipped_in_row", &guard->skipped_in_row, where));
    const json_t *losses = json_object_get(root, "losses");
    size_t count = json_array_size(losses);
    int64_t expected = guard->accepted < guard->window ? guard->accepted : guard->window;
    if (guard->accepted < 0 || (int64_t)count != expected) { // another window than the run had: start anew
        guard->accepted = 0;
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        guard->losses[i] = json_number_value(json_array_get(losses, i));
    return NULL;
}
