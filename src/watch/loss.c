#include "watch/loss.h"

#include "base/text.h"

#include <stdlib.h>

#define WORTH_TRYING 0.02 // of tokens/s, or of a step
#define WORTH_SAYING 0.5  // of a step, in products and attention

const char *loss_name(Loss loss) {
    static const char *const names[LOSS_COUNT] = {
        [LOSS_DATA] = "waiting for data",
        [LOSS_RANKS] = "waiting for other ranks",
        [LOSS_GAPS] = "gaps between operations",
        [LOSS_OPTIMIZER] = "optimizer",
        [LOSS_ELEMENTWISE] = "norms, rotary, SwiGLU, loss",
        [LOSS_ROUTING] = "routing of experts",
        [LOSS_COPY] = "copies",
        [LOSS_RATES] = "products and attention below the rates of this device",
        [LOSS_RECOMPUTE] = "recomputation in the backward pass",
    };
    return names[loss];
}

bool loss_at_floor(double seconds, double floor) {
    return floor > 0 && seconds <= LOSS_AT_FLOOR * floor;
}

double loss_over_floor(double seconds, double floor) {
    return floor > 0 && seconds > floor ? seconds - floor : 0;
}

Loss loss_worst(const LossTable *table) {
    Loss worst = LOSS_DATA;
    for (int i = 0; i < LOSS_COUNT; i++)
        if (table->item[i].seconds > table->item[worst].seconds) worst = (Loss)i;
    return worst;
}

// ---- what to try ----------------------------------------------------------------------------------------------------

static void try_add(TextBuffer *out, int *count, const char *what) {
    text_buffer_format(out, "%s%s", (*count)++ ? ", or " : " Try ", what);
}

static void try_batch(TextBuffer *out, int *count, const LossFacts *facts) {
    if (!facts->known || facts->batch_fits) try_add(out, count, "a larger train.micro_batch");
}

static void advise_gaps(const LossTable *table, const LossFacts *facts, TextBuffer *out, int *count) {
    if (table->graph_known && (!facts->known || facts->gpu)) {
        if (table->no_graph[0])
            text_buffer_format(out, " There is no recorded graph (%s).", table->no_graph);
        else
            text_buffer_format(out, " Micro-steps are replayed from a graph already.");
    }
    try_batch(out, count, facts);
}

// What makes the op's memory traffic less, whatever the rates are.
static void advise_elementwise(const LossFacts *facts, TextBuffer *out, int *count) {
    if (!facts->known) return;
    if (facts->gpu && facts->precision == PRECISION_FP32) try_add(out, count, "train.precision = \"bf16\"");
    if (!facts->recompute_fits) return;
    if (facts->recompute == RECOMPUTE_FULL)
        try_add(out, count, "recompute.mode = \"selective\"");
    else if (facts->recompute == RECOMPUTE_SELECTIVE)
        try_add(out, count, "recompute.mode = \"none\"");
}

static void advise_optimizer(const LossFacts *facts, TextBuffer *out, int *count) {
    try_add(out, count, "a larger batch (train.batch_tokens), which pays for it less often");
    if (facts->known && !facts->shards_optimizer) try_add(out, count, "parallelism.zero = 1, which shares it out");
}

static void advise_rates(const LossItem *item, TextBuffer *out) {
    text_buffer_format(out, item->experts
                                ? " Products of experts are slow where loads are uneven or small: look at the "
                                  "load of experts."
                                : " Look for what else uses the device, and at its clocks and temperature; "
                                  "hearth bench measures its rates.");
}

static void advise_recompute(const LossFacts *facts, TextBuffer *out, int *count) {
    if (facts->known && facts->recompute == RECOMPUTE_NONE) return;
    if (!facts->known || facts->recompute == RECOMPUTE_FULL) try_add(out, count, "recompute.mode = \"selective\"");
    try_add(out, count, "recompute.mode = \"none\", with a smaller train.micro_batch where memory asks for it");
}

// False: there is nothing to try.
static bool advise(const LossTable *table, Loss loss, const LossFacts *facts, TextBuffer *out) {
    const LossItem *item = &table->item[loss];
    bool floor = loss_at_floor(item->seconds, item->floor);
    size_t before = out->length;
    int count = 0;
    switch (loss) {
    case LOSS_DATA:
        try_add(out, &count, "a faster disk for the shards, or more batches read ahead (data.prefetch)");
        break;
    case LOSS_RANKS:
        try_batch(out, &count, facts);
        try_add(out, &count, "a larger train.batch_tokens: more work between exchanges");
        try_add(out, &count, "another mesh (hearth plan --search)");
        break;
    case LOSS_GAPS: advise_gaps(table, facts, out, &count); break;
    case LOSS_OPTIMIZER: advise_optimizer(facts, out, &count); break;
    case LOSS_ELEMENTWISE: advise_elementwise(facts, out, &count); break;
    case LOSS_ROUTING:
    case LOSS_COPY:
        if (!floor) try_batch(out, &count, facts);
        break;
    case LOSS_RATES: advise_rates(item, out); break;
    case LOSS_RECOMPUTE: advise_recompute(facts, out, &count); break;
    case LOSS_COUNT: break;
    }
    if (count) text_buffer_format(out, ".");
    return out->length > before;
}

// ---- what there is --------------------------------------------------------------------------------------------------

// Seconds of it that need not be, as far as that is known.
static double could_be_had(const LossTable *table, Loss loss) {
    const LossItem *item = &table->item[loss];
    bool has_floor = loss == LOSS_OPTIMIZER || loss == LOSS_ELEMENTWISE || loss == LOSS_ROUTING || loss == LOSS_COPY;
    if (!has_floor) return item->seconds;
    return loss_at_floor(item->seconds, item->floor) ? 0 : loss_over_floor(item->seconds, item->floor);
}

static void say_where(const LossItem *item, TextBuffer *out) {
    if (item->where[0]) text_buffer_format(out, ", most of all in %s", item->where);
}

// Where nothing is to be tried against the biggest loss: the one that takes the most beyond what it must.
static void say_next(const LossTable *table, Loss worst, const LossFacts *facts, TextBuffer *out) {
    Loss next = worst;
    for (int i = 0; i < LOSS_COUNT; i++)
        if (could_be_had(table, (Loss)i) > could_be_had(table, next)) next = (Loss)i;
    double over = could_be_had(table, next);
    if (!(over >= WORTH_TRYING * table->step)) return;
    if (next == worst) {
        text_buffer_format(out, " Of these, %.4g ms lie above the floor that memory bandwidth sets.", 1e3 * over);
        return;
    }
    text_buffer_format(out, " What could be had back is mostly in %s: %.0f %% (%.4g ms)", loss_name(next),
                       100 * over / table->step, 1e3 * over);
    say_where(&table->item[next], out);
    text_buffer_format(out, ".");
    advise(table, next, facts, out);
}

static void say_products(const LossTable *table, const LossFacts *facts, TextBuffer *out) {
    double share = table->products / table->step, of_peak = facts->products_peak / table->products;
    bool below = table->item[LOSS_RATES].seconds >= WORTH_TRYING * table->step, peak = of_peak > 0 && of_peak <= 1;
    if (!(share >= WORTH_SAYING) || !loss_at_floor(table->products, table->products_floor)) return;
    text_buffer_format(out, " Products and attention are %.0f %% of the step", 100 * share);
    if (!below) text_buffer_format(out, ", at the rates of this device for their shapes");
    if (peak)
        text_buffer_format(out, below ? ", at %.0f %% of the device's peak" : " (%.0f %% of its peak)", 100 * of_peak);
    text_buffer_format(out, ".");
}

static void say_planner(const LossFacts *facts, bool advised, TextBuffer *out) {
    const PlanChange *changes[] = {&facts->change, &facts->fp8};
    int first = facts->fp8.gain > facts->change.gain, said = 0;
    if (!facts->known) return;
    for (int i = 0; i < 2; i++) {
        const PlanChange *change = changes[i ? !first : first];
        if (!change->what[0] || !(change->gain >= WORTH_TRYING)) continue;
        text_buffer_format(out, said++ ? ", %.0f %% from %s" : " The planner expects %.0f %% more tokens/s from %s",
                           100 * change->gain, change->what);
    }
    if (said)
        text_buffer_format(out, ".");
    else if (!advised && facts->fp8.what[0])
        text_buffer_format(out, " The planner finds no change that brings %.0f %% or more (%s: %.1f %%).",
                           100 * WORTH_TRYING, facts->fp8.what, 100 * facts->fp8.gain);
    else if (!advised)
        text_buffer_format(out, " The planner finds no change that brings %.0f %% or more.", 100 * WORTH_TRYING);
}

char *loss_sentence(const LossTable *table, const LossFacts *facts) {
    Loss worst = loss_worst(table);
    const LossItem *item = &table->item[worst];
    TextBuffer out = {0};
    if (!(item->seconds > 0) || !(table->step > 0)) return text_copy("Nothing was lost that could be seen.");
    text_buffer_format(&out, "The biggest loss of time is %s: %.0f %% of a step (%.4g of %.4g ms)", loss_name(worst),
                       100 * item->seconds / table->step, 1e3 * item->seconds, 1e3 * table->step);
    say_where(item, &out);
    bool floor = loss_at_floor(item->seconds, item->floor);
    text_buffer_format(&out, floor ? ", at the floor that memory bandwidth sets." : ".");
    bool advised = advise(table, worst, facts, &out);
    if (!advised && floor) text_buffer_format(&out, " Nothing is to be had there.");
    if (!advised) say_next(table, worst, facts, &out);
    say_products(table, facts, &out);
    say_planner(facts, advised, &out);
    return out.data;
}
