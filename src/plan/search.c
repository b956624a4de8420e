#include "plan/search.h"

#include "base/text.h"
#include "plan/batch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const int micro_batches[] = {1,  2,  3,  4,  5,  6,  7,  8,  10, 12, 14, 16,
                                    20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128};
enum { MICRO_COUNT = sizeof micro_batches / sizeof micro_batches[0] };

typedef struct Search {
    SearchResult *result;
    const PlanMachine *machine;
    const PlanRun *run;
    const SearchSpace *space;
    int capacity;
} Search;

static void keep_candidate(Search *search, const PlanRun *run, const PlanMemory *memory, const StepModel *step) {
    SearchResult *result = search->result;
    if (result->found_count == search->capacity) {
        search->capacity = search->capacity ? 2 * search->capacity : 256;
        result->found = xrealloc(result->found, (size_t)search->capacity * sizeof *result->found);
    }
    SearchCandidate *c = &result->found[result->found_count++];
    *c = (SearchCandidate){.mesh = run->layout.mesh,
                           .recompute = run->layout.recompute,
                           .micro_batch = run->layout.micro_batch,
                           .seq = run->layout.seq,
                           .grad_accum = run->grad_accum,
                           .virtual_stages = run->virtual_stages,
                           .tokens_per_second = step->tokens_per_second,
                           .seconds = step->seconds,
                           .mfu = step->mfu,
                           .memory = memory->total,
                           .memory_fraction = memory->fraction};
    for (int i = 0; i < STEP_PART_COUNT; i++) {
        double share = step->part[i] / step->seconds;
        if (share > c->first_share) {
            c->second = c->first, c->second_share = c->first_share;
            c->first = (StepPart)i, c->first_share = share;
        } else if (share > c->second_share) {
            c->second = (StepPart)i, c->second_share = share;
        }
    }
}

static bool is_over(const Search *search) {
    return search->space->tries_max > 0 && search->result->tried >= search->space->tries_max;
}

// Micro-batches grow until memory is full: what does not fit at one size does not fit at a larger one.
static void try_micro_batches(Search *search, const PlanRun *base) {
    bool doubled = search->space->tries_max > 0;
    for (int i = 0; i < MICRO_COUNT && !is_over(search); i++) {
        if (doubled && (micro_batches[i] & (micro_batches[i] - 1))) continue;
        PlanRun run = *base;
        Layout layouts[3];
        int count;
        run.layout.micro_batch = micro_batches[i];
        double micro_tokens = (double)run.layout.micro_batch * run.layout.seq * run.layout.mesh.dp * plan_islands(&run);
        if (search->space->batch_tokens > 0) {
            if (micro_tokens > 1.25 * search->space->batch_tokens) return;
            run.grad_accum = (int)plan_accum_nearest(search->space->batch_tokens, micro_tokens);
        }
        plan_limit_virtual_stages(&run);
        search->result->tried++;
        Status status = plan_layouts(layouts, &count, &run);
        if (status) {
            search->result->refused++;
            status_free(status);
            return;
        }
        PlanMemory memory = plan_memory(search->machine, &run, layouts, count);
        bool fits = memory.fraction <= search->space->memory_limit;
        if (fits) {
            StepModel step;
            step_model(&step, search->machine, &run, layouts, count, memory.fraction);
            keep_candidate(search, &run, &memory, &step);
        } else {
            search->result->too_large++;
        }
        plan_layouts_free(layouts, count);
        if (!fits) return;
    }
}

// One sequence at a time, with all that saves memory: what does not fit so does not fit at all.
static bool smallest_fits(Search *search, const PlanRun *base, int zero) {
    PlanRun run = *base;
    Layout layouts[3];
    int count;
    run.layout.mesh.zero = zero;
    run.layout.recompute = RECOMPUTE_FULL;
    run.layout.micro_batch = 1;
    for (int s = 0; s < search->space->seq_count; s++)
        if (search->space->seqs[s] < run.layout.seq || s == 0) run.layout.seq = search->space->seqs[s];
    plan_limit_virtual_stages(&run);
    search->result->tried++;
    Status status = plan_layouts(layouts, &count, &run);
    if (status) {
        search->result->refused++;
        status_free(status);
        return false;
    }
    bool fits = plan_memory(search->machine, &run, layouts, count).fraction <= search->space->memory_limit;
    plan_layouts_free(layouts, count);
    if (!fits) search->result->too_large++;
    return fits;
}

static void try_memory_modes(Search *search, const PlanRun *base) {
    const Mesh *mesh = &base->layout.mesh;
    bool fitted = search->machine->software.state_bytes > 0; // its states are sharded over all ranks: ZeRO 3
    int most = mesh_data_ranks(mesh) > 1 ? 3 : 0;
    if (is_over(search) || (search->space->tries_max > 0 && !smallest_fits(search, base, most))) return;
    for (int zero = fitted ? most : 0; zero <= most; zero++)
        for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_FULL; mode++)
            for (int s = 0; s < search->space->seq_count; s++) {
                PlanRun run = *base;
                run.layout.mesh.zero = zero;
                run.layout.recompute = (Recompute)mode;
                run.layout.seq = search->space->seqs[s];
                // Without QK-norm and experts there is nothing that selective recompute drops.
                const ModelConfig *c = &run.layout.config;
                if (mode == RECOMPUTE_SELECTIVE && !model_qk_norm(c) && !model_sparse_layers(c) && !fitted) continue;
                try_micro_batches(search, &run);
            }
}

static void try_experts(Search *search, const PlanRun *base) {
    const ModelConfig *c = &base->layout.config;
    const Mesh *mesh = &base->layout.mesh;
    if (!model_sparse_layers(c)) {
        try_memory_modes(search, base);
        return;
    }
    int ranks = mesh->dp * mesh->cp * mesh->tp;
    for (int etp = 1; etp <= mesh->tp; etp = etp < mesh->tp ? mesh->tp : mesh->tp + 1)
        for (int ep = 1; ep <= c->experts && ep * etp <= ranks; ep++) {
            if (c->experts % ep || ranks % (ep * etp)) continue;
            PlanRun run = *base;
            run.layout.mesh.ep = ep;
            run.layout.mesh.etp = etp;
            try_memory_modes(search, &run);
        }
}

static void try_meshes_of(Search *search, int tp, int pp, int longest) {
    int rest = search->machine->gpus / plan_islands(search->run) / tp / pp;
    for (int cp = 1; cp <= rest && cp <= 16; cp++) {
        // Shorter pieces than this are better cut over the batch.
        if (rest % cp || (cp > 1 && longest / cp < 2048)) continue;
        PlanRun run = *search->run;
        run.layout.mesh = (Mesh){.dp = rest / cp, .tp = tp, .pp = pp, .ep = 1, .cp = cp, .etp = 1};
        try_experts(search, &run);
    }
}

static void try_meshes(Search *search) {
    const ModelConfig *c = &search->run->layout.config;
    int gpus = search->machine->gpus / plan_islands(search->run), tp_most = 2 * search->machine->gpus_per_node,
        longest = 0;
    for (int i = 0; i < search->space->seq_count; i++)
        if (search->space->seqs[i] > longest) longest = search->space->seqs[i];
    if (tp_most > c->heads) tp_most = c->heads;
    for (int cut = 1; cut <= gpus && cut <= tp_most * c->layers && !is_over(search); cut++) // of the model: tp x pp
        for (int tp = 1; tp <= cut && tp <= tp_most; tp++) {
            if (cut % tp || cut / tp > c->layers || gpus % cut || c->heads % tp) continue;
            try_meshes_of(search, tp, cut / tp, longest);
        }
}

// Faster first; of equals, the one that needs less memory, then the one with less recompute.
static int by_rate(const void *a, const void *b) {
    const SearchCandidate *x = a, *y = b;
    if (x->tokens_per_second != y->tokens_per_second) return x->tokens_per_second < y->tokens_per_second ? 1 : -1;
    if (x->memory != y->memory) return x->memory > y->memory ? 1 : -1;
    return (int)x->recompute - (int)y->recompute;
}

static void find_frontier(SearchResult *result) {
    double least = INFINITY;
    result->frontier = xmalloc((size_t)(result->found_count + 1) * sizeof *result->frontier);
    for (int i = 0; i < result->found_count; i++) {
        if (result->found[i].memory >= least) continue;
        least = result->found[i].memory;
        result->frontier[result->frontier_count++] = i;
    }
}

Status search_run(SearchResult *result, const PlanMachine *machine, const PlanRun *run, const SearchSpace *space) {
    *result = (SearchResult){0};
    if (space->seq_count < 1) return status_usage("the search needs at least one sequence length");
    Search search = {.result = result, .machine = machine, .run = run, .space = space};
    try_meshes(&search);
    if (result->found_count) qsort(result->found, (size_t)result->found_count, sizeof *result->found, by_rate);
    find_frontier(result);
    return NULL;
}

PlanRun search_candidate_run(const SearchCandidate *candidate, const PlanRun *run) {
    PlanRun found = *run;
    found.layout.mesh = candidate->mesh;
    found.layout.recompute = candidate->recompute;
    found.layout.micro_batch = candidate->micro_batch;
    found.layout.seq = candidate->seq;
    found.grad_accum = candidate->grad_accum;
    found.virtual_stages = candidate->virtual_stages;
    return found;
}

void search_free(SearchResult *result) {
    free(result->found);
    free(result->frontier);
    *result = (SearchResult){0};
}

void search_reason(const SearchResult *result, int index, char *out, size_t size) {
    const SearchCandidate *c = &result->found[index];
    char gap[48] = "fastest";
    if (index)
        snprintf(gap, sizeof gap, "%.1f %% behind",
                 100 * (1 - c->tokens_per_second / result->found[0].tokens_per_second));
    snprintf(out, size, "%s; %s %.0f %%, %s %.0f %%", gap, step_part_name(c->first), 100 * c->first_share,
             step_part_name(c->second), 100 * c->second_share);
}
