// The search's result, and a simulated step, as pages.
#include "watch/plan_text.h"
#include "watch/timeline_svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0
#define COLUMNS                                                                     \
    "#\ttokens/s\tper GPU\tMFU\tmemory\tdp\ttp\tpp\tcp\tep\tetp\tZeRO\trecompute\t" \
    "micro x seq x accum\ttokens a step\truns\t"
enum { TOP = 10, FRONTIER = 12 };

static bool same_way(const SearchCandidate *a, const SearchCandidate *b) {
    return memcmp(&a->mesh, &b->mesh, sizeof a->mesh) == 0 && a->recompute == b->recompute && a->seq == b->seq;
}

int search_top(const SearchResult *result, int *indices, int most) {
    int count = 0;
    for (int i = 0; i < result->found_count && count < most; i++) {
        bool seen = false;
        for (int k = 0; k < count && !seen; k++)
            seen = same_way(&result->found[i], &result->found[indices[k]]);
        if (!seen) indices[count++] = i;
    }
    return count;
}

static double candidate_batch(const SearchCandidate *c) {
    return (double)c->micro_batch * c->seq * c->grad_accum * c->mesh.dp;
}

static void candidate_row(Document *d, int place, const SearchCandidate *c, int gpus, const char *reason) {
    const Mesh *m = &c->mesh;
    char batch[32];
    document_row(d, "%d\t%.0f\t%.0f\t%.1f %%\t%.1f %%\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%d x %d x %d\t%s\t%s\t%s", place,
                 c->tokens_per_second, c->tokens_per_second / gpus, 100 * c->mfu, 100 * c->memory_fraction, m->dp,
                 m->tp, m->pp, m->cp, m->ep, m->etp, m->zero, recompute_name(c->recompute), c->micro_batch, c->seq,
                 c->grad_accum, text_count(batch, candidate_batch(c)), c->runs ? "yes" : "no", reason);
}

Document *search_document(const PlanReport *report, const SearchResult *result, double memory_limit, double seconds,
                          const char *lacks) {
    static const char align[] = "rrrrrrrrrrrrlrrll";
    char *title = text_format("Search: %s on %d x %s", report->name, report->machine.gpus, report->machine.gpu.title);
    Document *d = document_create(title);
    free(title);
    int gpus = report->machine.gpus, top[TOP], count = search_top(result, top, TOP);
    document_section(d, "Fastest ways to run it (best micro-batch of each)", align, COLUMNS "why");
    for (int i = 0; i < count; i++) {
        char reason[PLAN_TEXT_MAX];
        search_reason(result, top[i], reason, sizeof reason);
        candidate_row(d, i + 1, &result->found[top[i]], gpus, reason);
    }
    if (!count) document_note(d, NOTHING_FITS, 100 * memory_limit);
    document_note(d, "%d candidates in %.2f s: %d fit below %.0f %% of memory, %d do not, %d cannot be cut that way",
                  result->tried, seconds, result->found_count, 100 * memory_limit, result->too_large, result->refused);
    document_note(d, "runs: hearth trains on such a mesh%s%s", lacks ? "; for these devices this build lacks " : "",
                  lacks ? lacks : "");
    document_note(d, "ranked by tokens/s: MFU rises with the sequence length even where the run slows down");
    double least = INFINITY, most = 0;
    for (int i = 0; i < count; i++) {
        least = fmin(least, candidate_batch(&result->found[top[i]]));
        most = fmax(most, candidate_batch(&result->found[top[i]]));
    }
    if (most > 1.5 * least) // beyond what whole micro-batches round to
        document_note(d, "the ways take steps of different sizes, which learn differently: --batch-tokens N compares "
                         "them at one size");
    document_section(d, "Frontier: the fastest for less memory", align, COLUMNS "memory per device");
    int shown = result->frontier_count < FRONTIER ? result->frontier_count : FRONTIER;
    for (int i = 0; i < shown; i++) { // evenly over the whole frontier
        int index = result->frontier[shown > 1 ? i * (result->frontier_count - 1) / (shown - 1) : 0];
        char memory[32];
        candidate_row(d, i + 1, &result->found[index], gpus, text_gib(memory, result->found[index].memory));
    }
    return d;
}

json_t *search_json(const SearchResult *result) {
    json_t *list = json_array();
    int top[TOP], count = search_top(result, top, TOP);
    for (int i = 0; i < count; i++) {
        const SearchCandidate *c = &result->found[top[i]];
        const Mesh *m = &c->mesh;
        char reason[PLAN_TEXT_MAX];
        search_reason(result, top[i], reason, sizeof reason);
        json_array_append_new(
            list, json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:s,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:b,s:s}", "dp",
                            m->dp, "tp", m->tp, "pp", m->pp, "cp", m->cp, "ep", m->ep, "etp", m->etp, "zero", m->zero,
                            "recompute", recompute_name(c->recompute), "micro_batch", c->micro_batch, "seq", c->seq,
                            "grad_accum", c->grad_accum, "batch_tokens", candidate_batch(c), "tokens_per_second",
                            c->tokens_per_second, "step_seconds", c->seconds, "mfu", c->mfu, "memory_bytes", c->memory,
                            "memory_fraction", c->memory_fraction, "runs", c->runs, "reason", reason));
    }
    return json_pack("{s:i,s:i,s:i,s:i,s:o}", "tried", result->tried, "fit", result->found_count, "too_large",
                     result->too_large, "refused", result->refused, "top", list);
}

void simulate_section(Document *d, const SimulateRequest *request, const SimulateResult *result) {
    TextBuffer svg = {0};
    document_section(d, "Simulated step", "lr", "");
    document_row(d, "schedule\t%s, %d stages, %d micro-batches, %d virtual stages",
                 pipeline_schedule_name(request->schedule), request->stages, request->micro_batches,
                 request->virtual_stages);
    document_row(d, "step\t%.2f ms", 1e3 * result->seconds);
    document_row(d, "stages idle\t%.1f %% of the compute time", 100 * result->bubble);
    document_row(d, "gradients after the last backward\t%.2f ms", 1e3 * result->exposed);
    document_row(d, "micro-batches in flight, first and last stage\t%d and %d", result->stash[0],
                 result->stash[result->stages - 1]);
    timeline_svg(result, &svg);
    document_svg(d, svg.data);
    text_buffer_free(&svg);
}
