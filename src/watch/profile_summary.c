#include "watch/profile_summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *profile_part_name(ProfilePart part) {
    static const char *const names[] = {"communication", "data", "gaps"};
    return (int)part < CATEGORY_COUNT ? op_category_name((OpCategory)part) : names[(int)part - CATEGORY_COUNT];
}

// ---- parts ----------------------------------------------------------------------------------------------------------

typedef struct Edge {
    double time;
    int part, change;
} Edge;

static int edge_order(const void *a, const void *b) {
    double x = ((const Edge *)a)->time, y = ((const Edge *)b)->time;
    return (x > y) - (x < y);
}

// Whose time it is while several run: copies run beside everything, and what waits does nothing.
static ProfilePart first_running(const int running[PROFILE_PART_COUNT]) {
    static const ProfilePart order[] = {
        (ProfilePart)CATEGORY_GEMM,    (ProfilePart)CATEGORY_GROUPED,     (ProfilePart)CATEGORY_ATTENTION,
        (ProfilePart)CATEGORY_ROUTING, (ProfilePart)CATEGORY_ELEMENTWISE, (ProfilePart)CATEGORY_OPTIMIZER,
        PROFILE_COMMUNICATION,         (ProfilePart)CATEGORY_COPY,        PROFILE_DATA};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        if (running[order[i]] > 0) return order[i];
    return PROFILE_GAPS;
}

void profile_take_parts(const ProfileSpan *spans, int64_t count, double begin, double end,
                        double part[PROFILE_PART_COUNT]) {
    Edge *edges = xmalloc((size_t)(2 * count + 1) * sizeof *edges);
    int64_t edge_count = 0;
    for (int64_t i = 0; i < count; i++) {
        double from = fmax(spans[i].begin, begin), to = fmin(spans[i].end, end);
        if (!(from < to)) continue;
        edges[edge_count++] = (Edge){from, (int)spans[i].part, 1};
        edges[edge_count++] = (Edge){to, (int)spans[i].part, -1};
    }
    edges[edge_count++] = (Edge){end, PROFILE_GAPS, 0};
    qsort(edges, (size_t)edge_count, sizeof *edges, edge_order);
    int running[PROFILE_PART_COUNT] = {0};
    double now = begin;
    for (int64_t i = 0; i < edge_count; i++) {
        part[first_running(running)] += edges[i].time - now;
        now = edges[i].time;
        running[edges[i].part] += edges[i].change;
    }
    free(edges);
}

// ---- ops ------------------------------------------------------------------------------------------------------------

static int op_order(const void *a, const void *b) {
    const ProfileOp *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? 1 : -1;
    return strcmp(x->name, y->name);
}

void profile_take_ops(ProfileSummary *summary, ProfileOp *ops, int count) {
    qsort(ops, (size_t)count, sizeof *ops, op_order);
    memset(summary->floor, 0, sizeof summary->floor);
    summary->recompute = 0;
    for (int i = 0; i < count; i++) {
        summary->floor[ops[i].category] += ops[i].floor;
        if (ops[i].pass == STEP_RECOMPUTE) summary->recompute += ops[i].seconds;
    }
    summary->op_count = count < PROFILE_OPS_SHOWN ? count : PROFILE_OPS_SHOWN;
    memcpy(summary->ops, ops, (size_t)summary->op_count * sizeof *ops);
}

// ---- rows -----------------------------------------------------------------------------------------------------------

static void row_add(ProfileRow *rows, int *count, const char *name, double seconds, double floor, bool inside) {
    if (seconds > 0) rows[(*count)++] = (ProfileRow){name, seconds, floor, inside};
}

int profile_rows(const ProfileSummary *s, ProfileRow rows[PROFILE_ROWS]) {
    const double *part = s->part, *floor = s->floor;
    double products = part[CATEGORY_GEMM] + part[CATEGORY_GROUPED];
    double memory = part[CATEGORY_ELEMENTWISE] + part[CATEGORY_ROUTING] + part[CATEGORY_COPY];
    int count = 0;
    row_add(rows, &count, "products", products, floor[CATEGORY_GEMM] + floor[CATEGORY_GROUPED], false);
    if (part[CATEGORY_GROUPED] > 0)
        row_add(rows, &count, "of experts", part[CATEGORY_GROUPED], floor[CATEGORY_GROUPED], true);
    row_add(rows, &count, "attention", part[CATEGORY_ATTENTION], floor[CATEGORY_ATTENTION], false);
    row_add(rows, &count, "memory-bound", memory,
            floor[CATEGORY_ELEMENTWISE] + floor[CATEGORY_ROUTING] + floor[CATEGORY_COPY], false);
    row_add(rows, &count, loss_name(LOSS_ELEMENTWISE), part[CATEGORY_ELEMENTWISE], floor[CATEGORY_ELEMENTWISE], true);
    row_add(rows, &count, loss_name(LOSS_ROUTING), part[CATEGORY_ROUTING], floor[CATEGORY_ROUTING], true);
    row_add(rows, &count, loss_name(LOSS_COPY), part[CATEGORY_COPY], floor[CATEGORY_COPY], true);
    row_add(rows, &count, "communication", part[PROFILE_COMMUNICATION], 0, false);
    row_add(rows, &count, "optimizer", part[CATEGORY_OPTIMIZER], floor[CATEGORY_OPTIMIZER], false);
    row_add(rows, &count, "gaps", part[PROFILE_GAPS], 0, false);
    row_add(rows, &count, loss_name(LOSS_DATA), part[PROFILE_DATA], 0, false);
    return count;
}

// ---- losses ---------------------------------------------------------------------------------------------------------

static const struct {
    Loss loss;
    OpCategory category;
} memory_bound[] = {{LOSS_OPTIMIZER, CATEGORY_OPTIMIZER},
                    {LOSS_ELEMENTWISE, CATEGORY_ELEMENTWISE},
                    {LOSS_ROUTING, CATEGORY_ROUTING},
                    {LOSS_COPY, CATEGORY_COPY}};

static bool is_product(int category) {
    return category == CATEGORY_GEMM || category == CATEGORY_GROUPED || category == CATEGORY_ATTENTION;
}

// The op that loses the most of it.
static void take_where(const ProfileSummary *s, Loss loss, int category, LossItem *item) {
    const ProfileOp *worst = NULL;
    double most = 0;
    for (int i = 0; i < s->op_count; i++) {
        const ProfileOp *op = &s->ops[i];
        bool of_it = loss == LOSS_RATES       ? is_product(op->category)
                     : loss == LOSS_RECOMPUTE ? op->pass == STEP_RECOMPUTE
                                              : op->category == category;
        double lost = loss == LOSS_RATES ? loss_over_floor(op->seconds, op->floor) : op->seconds;
        if (of_it && lost > most) worst = op, most = lost;
    }
    if (!worst) return;
    int length = snprintf(item->where, sizeof item->where, "\"%s\"", worst->name);
    if (worst->floor > 0 && !loss_at_floor(worst->seconds, worst->floor))
        snprintf(item->where + length, sizeof item->where - (size_t)length, " at %.3g times its floor",
                 worst->seconds / worst->floor);
    item->experts = worst->category == CATEGORY_GROUPED;
}

LossTable profile_losses(const ProfileSummary *s) {
    LossTable table = {.step = s->step_seconds, .graph_known = true};
    LossItem *item = table.item;
    bool floors = true;
    item[LOSS_DATA].seconds = s->part[PROFILE_DATA];
    item[LOSS_RANKS].seconds = s->part[PROFILE_COMMUNICATION];
    item[LOSS_GAPS].seconds = s->part[PROFILE_GAPS];
    item[LOSS_RECOMPUTE].seconds = s->recompute;
    snprintf(item[LOSS_RANKS].where, sizeof item->where, "%s", s->waited_for);
    snprintf(table.no_graph, sizeof table.no_graph, "%s", s->no_graph);
    for (size_t i = 0; i < sizeof memory_bound / sizeof memory_bound[0]; i++) {
        int category = memory_bound[i].category;
        LossItem *of_it = &item[memory_bound[i].loss];
        of_it->seconds = s->part[category];
        of_it->floor = s->floor[category];
        take_where(s, memory_bound[i].loss, category, of_it);
    }
    for (int i = 0; i < CATEGORY_COUNT; i++) {
        if (!is_product(i)) continue;
        item[LOSS_RATES].seconds += loss_over_floor(s->part[i], s->floor[i]);
        table.products += s->part[i];
        table.products_floor += s->floor[i];
        floors = floors && (s->floor[i] > 0 || !(s->part[i] > 0));
    }
    if (!floors) table.products_floor = 0;
    take_where(s, LOSS_RATES, -1, &item[LOSS_RATES]);
    take_where(s, LOSS_RECOMPUTE, -1, &item[LOSS_RECOMPUTE]);
    return table;
}

// ---- text -----------------------------------------------------------------------------------------------------------

bool profile_shows_floor(const ProfileSummary *s, double seconds, double floor) {
    return floor > 0 && seconds >= 0.0005 * s->step_seconds; // else its share reads 0.0 %
}

static void floor_columns(const ProfileSummary *s, double seconds, double floor, TextBuffer *out) {
    if (profile_shows_floor(s, seconds, floor))
        text_buffer_format(out, "  %10.3f %6.2fx", 1e3 * floor, seconds / floor);
    text_buffer_format(out, "\n");
}

static void ops_text(const ProfileSummary *s, TextBuffer *out) {
    if (!s->op_count) return;
    text_buffer_format(out, "  %-46s %10s %7s  %10s %7s\n", "most expensive ops", "ms", "share", "floor ms", "over");
    for (int i = 0; i < s->op_count; i++) {
        const ProfileOp *op = &s->ops[i];
        char name[80];
        snprintf(name, sizeof name, "%s (%s)", op->name, step_pass_name(op->pass));
        text_buffer_format(out, "    %-44s %10.3f %5.1f %%", name, 1e3 * op->seconds,
                           100 * op->seconds / s->step_seconds);
        floor_columns(s, op->seconds, op->floor, out);
    }
}

void profile_text(const ProfileSummary *s, const LossFacts *facts, TextBuffer *out) {
    ProfileRow rows[PROFILE_ROWS];
    int count = profile_rows(s, rows);
    text_buffer_format(out, "profile of %d step%s from step %lld on%s: %.3f ms a step\n", s->steps,
                       s->steps == 1 ? "" : "s", (long long)s->first_step, s->ranks > 1 ? ", parts of rank 0" : "",
                       1e3 * s->step_seconds);
    text_buffer_format(out, "  %-46s %10s %7s  %10s %7s\n", "part", "ms", "share", "floor ms", "over");
    for (int i = 0; i < count; i++) {
        text_buffer_format(out, "  %s%-*s %10.3f %5.1f %%", rows[i].inside ? "    " : "  ", rows[i].inside ? 42 : 44,
                           rows[i].name, 1e3 * rows[i].seconds, 100 * rows[i].seconds / s->step_seconds);
        floor_columns(s, rows[i].seconds, rows[i].floor, out);
    }
    ops_text(s, out);
    if (s->hidden > 0) text_buffer_format(out, "  communication behind computation: %.3f ms a step\n", 1e3 * s->hidden);
    text_buffer_format(out, s->no_graph[0] ? "  graph: not recorded: %s\n" : "  graph: recorded and replayed%s\n",
                       s->no_graph);
    if (s->device_missing[0]) text_buffer_format(out, "  no timeline of the GPU: %s\n", s->device_missing);
    LossTable losses = profile_losses(s);
    char *sentence = loss_sentence(&losses, facts);
    text_buffer_format(out, "  %s\n", sentence);
    free(sentence);
}
