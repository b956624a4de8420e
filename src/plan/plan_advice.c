// What holds a run back, what would help, and what to be warned of. Help is not a rule of thumb: every change is put
// through the same model, and the two that gain most (and fit) are named.
#include "plan/plan.h"

#include "base/text.h"
#include "plan/schedule.h"
#include "plan/search.h"
#include "plan/step_model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

double plan_critical_batch(double params, double tokens) {
    double loss = 1.69 + 406.4 / pow(params, 0.34) + 410.7 / pow(tokens, 0.28); // Hoffmann et al. 2022
    return 2e8 / pow(loss, 1 / 0.21);                                           // Kaplan et al. 2020
}

// ---- changes --------------------------------------------------------------------------------------------------------

typedef struct Advice {
    const PlanReport *report;
    const PlanPrediction *now; // of the run that is to be changed
    double limit;              // of memory
    bool fits;                 // the run as it stands
    PlanTry *best;             // most gain first
    int count, most;
} Advice;

static void keep_best(Advice *advice, const PlanTry *try) {
    int place = advice->count;
    while (place > 0 && advice->best[place - 1].change.gain < try->change.gain)
        place--;
    if (place >= advice->most) return;
    if (advice->count < advice->most) advice->count++;
    for (int i = advice->count - 1; i > place; i--)
        advice->best[i] = advice->best[i - 1];
    advice->best[place] = *try;
}

static void consider_change(Advice *advice, const PlanRun *run, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void consider_change(Advice *advice, const PlanRun *run, const char *format, ...) {
    PlanPrediction prediction;
    Status status = plan_predict(&prediction, &advice->report->machine, run);
    if (status) { // the model cannot be cut that way
        status_free(status);
        return;
    }
    PlanTry try = {.run = *run,
                   .change = {.gain = prediction.step.tokens_per_second / advice->now->step.tokens_per_second - 1,
                              .tokens_per_second = prediction.step.tokens_per_second,
                              .memory_fraction = prediction.memory.fraction}};
    bool too_large = prediction.step.tokens > advice->now->step.tokens &&
                     prediction.step.tokens > advice->report->critical_batch; // such batches buy little
    if (too_large || prediction.memory.fraction > advice->limit || (advice->fits && try.change.gain < 0.005)) return;
    va_list args;
    va_start(args, format);
    vsnprintf(try.change.what, sizeof try.change.what, format, args);
    va_end(args);
    keep_best(advice, &try);
}

static void consider_batch(Advice *advice, const PlanRun *run) {
    PlanRun other = *run;
    other.layout.micro_batch *= 2;
    if (run->grad_accum % 2 == 0) {
        other.grad_accum /= 2;
        consider_change(advice, &other, "micro_batch %d with grad_accum %d (same batch)", other.layout.micro_batch,
                        other.grad_accum);
    } else {
        consider_change(advice, &other, "micro_batch %d (twice the batch)", other.layout.micro_batch);
    }
    other = *run;
    other.grad_accum *= 2;
    consider_change(advice, &other, "grad_accum %d (twice the batch, still below the critical one)", other.grad_accum);
    for (int divide = 2; divide <= run->layout.micro_batch; divide *= 2) {
        if (run->layout.micro_batch % divide) break;
        other = *run;
        other.layout.micro_batch /= divide;
        other.grad_accum *= divide;
        consider_change(advice, &other, "micro_batch %d with grad_accum %d (same batch)", other.layout.micro_batch,
                        other.grad_accum);
    }
}

static void consider_memory(Advice *advice, const PlanRun *run) {
    for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_FULL; mode++) {
        if (mode == (int)run->layout.recompute) continue;
        PlanRun other = *run;
        other.layout.recompute = (Recompute)mode;
        consider_change(advice, &other, "recompute %s instead of %s", recompute_name((Recompute)mode),
                        recompute_name(run->layout.recompute));
    }
    const Mesh *mesh = &run->layout.mesh;
    for (int zero = 0; zero <= 3 && mesh_data_ranks(mesh) > 1; zero++) {
        if (zero == mesh->zero) continue;
        PlanRun other = *run;
        other.layout.mesh.zero = zero;
        consider_change(advice, &other, "ZeRO %d instead of %d", zero, mesh->zero);
    }
    PlanRun other = *run;
    other.layout.precision = PRECISION_BF16;
    if (run->layout.precision == PRECISION_FP32) consider_change(advice, &other, "precision bf16 instead of fp32");
    other = *run;
    other.layout.reduce = DTYPE_BF16;
    if (run->layout.reduce != DTYPE_BF16 && advice->report->machine.gpus > 1)
        consider_change(advice, &other, "gradients reduced in bf16 instead of fp32");
    other = *run;
    other.eager = false;
    if (run->eager) consider_change(advice, &other, "compilation or recorded graphs switched on");
}

// Moves a factor of two between data parallelism and another axis.
static void consider_axis(Advice *advice, const PlanRun *run, int *(*axis)(Mesh *), const char *name) {
    for (int up = 0; up < 2; up++) {
        PlanRun other = *run;
        int *degree = axis(&other.layout.mesh), *dp = &other.layout.mesh.dp;
        if (up ? *dp % 2 : *degree % 2) continue;
        if (up)
            *degree *= 2, *dp /= 2;
        else
            *degree /= 2, *dp *= 2;
        if (other.layout.mesh.etp > other.layout.mesh.tp) other.layout.mesh.etp = other.layout.mesh.tp;
        bool even = up || run->grad_accum % 2 == 0; // keep the tokens of a step where it divides
        if (up)
            other.grad_accum *= 2;
        else if (even)
            other.grad_accum /= 2;
        consider_change(advice, &other, "%s %d with dp %d%s", name, *degree, *dp, even ? "" : " (twice the batch)");
    }
}

static int *tensor_axis(Mesh *mesh) {
    return &mesh->tp;
}

static int *pipeline_axis(Mesh *mesh) {
    return &mesh->pp;
}

static void consider_mesh(Advice *advice, const PlanRun *run) {
    const Mesh *mesh = &run->layout.mesh;
    consider_axis(advice, run, tensor_axis, "tp");
    consider_axis(advice, run, pipeline_axis, "pp");
    PlanRun other = *run;
    other.virtual_stages = 2 * run->virtual_stages;
    if (mesh->pp > 1) // refused where layers or micro-batches do not allow it
        consider_change(advice, &other, "%d virtual stages per rank (interleaved schedule)", other.virtual_stages);
    if (!model_sparse_layers(&run->layout.config)) return;
    for (int up = 0; up < 2; up++) {
        other = *run;
        if (!up && mesh->ep % 2) continue;
        other.layout.mesh.ep = up ? mesh->ep * 2 : mesh->ep / 2;
        consider_change(advice, &other, "ep %d instead of %d", other.layout.mesh.ep, mesh->ep);
    }
    other = *run;
    other.layout.mesh.etp = 1;
    if (mesh->etp > 1) consider_change(advice, &other, "etp 1 instead of %d", mesh->etp);
}

int plan_changes(PlanTry *best, int most, const PlanReport *report, const PlanRun *run, const PlanPrediction *now) {
    Advice advice = {
        .report = report, .now = now, .fits = now->memory.fraction <= PLAN_MEMORY_FULL, .best = best, .most = most};
    advice.limit = fmax(report->questions.memory_limit, advice.fits ? now->memory.fraction : 0);
    consider_batch(&advice, run);
    consider_memory(&advice, run);
    if (report->machine.gpus > 1) consider_mesh(&advice, run);
    return advice.count;
}

void plan_advise(PlanReport *report) {
    const StepModel *step = &report->prediction.step;
    report->bottleneck = STEP_GEMM;
    for (int i = 0; i < STEP_PART_COUNT; i++)
        if (step->part[i] > step->part[report->bottleneck]) report->bottleneck = (StepPart)i;
    snprintf(report->bottleneck_text, sizeof report->bottleneck_text, "%s: %.0f %% of the step",
             step_part_name(report->bottleneck), 100 * step->part[report->bottleneck] / step->seconds);
    PlanTry best[PLAN_CHANGES_MAX];
    report->change_count = plan_changes(best, PLAN_CHANGES_MAX, report, &report->run, &report->prediction);
    for (int i = 0; i < report->change_count; i++)
        report->changes[i] = best[i].change;
}

// ---- a way that fits ------------------------------------------------------------------------------------------------

static void add_setting(TextBuffer *out, const char *name, int value, int before) {
    if (value != before) text_buffer_format(out, "%s%s %d", out->length ? ", " : "", name, value);
}

// What differs from the run.
static void describe_candidate(PlanChange *change, const SearchCandidate *c, const PlanRun *run) {
    const Mesh *to = &c->mesh, *from = &run->layout.mesh;
    TextBuffer text = {0};
    add_setting(&text, "dp", to->dp, from->dp);
    add_setting(&text, "tp", to->tp, from->tp);
    add_setting(&text, "pp", to->pp, from->pp);
    add_setting(&text, "cp", to->cp, from->cp);
    add_setting(&text, "ep", to->ep, from->ep);
    add_setting(&text, "etp", to->etp, from->etp);
    add_setting(&text, "ZeRO", to->zero, from->zero);
    add_setting(&text, "micro_batch", c->micro_batch, run->layout.micro_batch);
    add_setting(&text, "grad_accum", c->grad_accum, run->grad_accum);
    if (c->recompute != run->layout.recompute)
        text_buffer_format(&text, "%srecompute %s", text.length ? ", " : "", recompute_name(c->recompute));
    snprintf(change->what, sizeof change->what, "%s", text.data ? text.data : "");
    text_buffer_free(&text);
}

enum { FIT_TRIES = 1000 }; // some tenths of a second

bool plan_fastest_fit(PlanTry *found, const PlanMachine *machine, const PlanRun *run, const StepModel *step,
                      double memory_limit) {
    SearchSpace space = {.seqs = {run->layout.seq},
                         .seq_count = 1,
                         .batch_tokens = step->tokens,
                         .memory_limit = memory_limit,
                         .tries_max = FIT_TRIES};
    SearchResult result;
    Status status = search_run(&result, machine, run, &space);
    bool any = !status && result.found_count;
    if (any) {
        const SearchCandidate *best = &result.found[0];
        found->run = search_candidate_run(best, run);
        found->change = (PlanChange){.gain = best->tokens_per_second / step->tokens_per_second - 1,
                                     .tokens_per_second = best->tokens_per_second,
                                     .memory_fraction = best->memory_fraction};
        describe_candidate(&found->change, best, run);
    }
    status_free(status); // one sequence length: the search cannot refuse it
    search_free(&result);
    return any;
}

void plan_fit(PlanReport *report) {
    report->fits = report->prediction.memory.fraction <= 1;
    if (report->fits) return;
    plan_fastest_fit(&report->fitting, &report->machine, &report->run, &report->prediction.step,
                     report->questions.memory_limit);
}

// ---- warnings -------------------------------------------------------------------------------------------------------

static void add_warning(PlanReport *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_warning(PlanReport *report, const char *format, ...) {
    if (report->warning_count == PLAN_WARNINGS_MAX) return;
    va_list args;
    va_start(args, format);
    vsnprintf(report->warnings[report->warning_count++], PLAN_TEXT_MAX, format, args);
    va_end(args);
}

static void warn_memory(PlanReport *r) {
    double used = r->prediction.memory.fraction, limit = r->questions.memory_limit;
    if (used > 1)
        add_warning(r, "does not fit: %.0f %% of the device's memory is needed", 100 * used);
    else if (used > PLAN_MEMORY_FULL)
        add_warning(r, "memory %.1f %%: above %.0f %% a run thrashes or fails; stay below %.0f %%", 100 * used,
                    100 * PLAN_MEMORY_FULL, 100 * PLAN_MEMORY_LIMIT);
    else if (used > limit)
        add_warning(r, "memory %.1f %%: above %.4g %% little room is left for other programs and fragmentation",
                    100 * used, 100 * limit);
}

static void warn_mesh(PlanReport *r) {
    const Mesh *mesh = &r->run.layout.mesh;
    const ModelConfig *c = &r->run.layout.config;
    if (mesh->tp > r->machine.gpus_per_node)
        add_warning(r, "tensor parallelism of %d crosses nodes of %d GPUs: its all-reduces are on the critical path",
                    mesh->tp, r->machine.gpus_per_node);
    if (c->kv_heads % mesh->tp)
        add_warning(r, "%d KV heads do not divide by tp %d: each rank keeps a copy (%d of each head)", c->kv_heads,
                    mesh->tp, mesh->tp / c->kv_heads);
    if (model_sparse_layers(c) && mesh->tp > 1)
        add_warning(r, "tensor parallelism of an MoE model pays all-reduces in every layer; tp = 1 is usually faster");
    if (mesh->ep * mesh->etp > r->machine.gpus_per_node)
        add_warning(r, "experts over %d ranks cross nodes: their exchange runs at network speed", mesh->ep * mesh->etp);
    double bubble = r->prediction.step.part[STEP_BUBBLE] / r->prediction.step.seconds;
    if (bubble > 0.2)
        add_warning(r, "pipeline bubble %.0f %% of the step: more micro-batches or virtual stages would shrink it",
                    100 * bubble);
    const LayoutRequest *layout = &r->run.layout;
    if (layout->precision != PRECISION_FP32 && step_dtype(&r->machine, layout) == HARDWARE_FP32)
        add_warning(r, "%s has no %s units: computed at the fp32 rate", r->machine.gpu.title,
                    layout->precision == PRECISION_FP16 ? "fp16" : "bf16");
    if (layout->precision == PRECISION_FP8 && r->machine.gpu.peak[HARDWARE_FP8] <= 0)
        add_warning(r,
                    layout->device == DEVICE_CPU ? "FP8 on a %s is emulated: slower than computed here"
                                                 : "%s has no FP8 units, and hearth refuses to train in it there",
                    r->machine.gpu.title);
    if (layout->tf32 && r->machine.gpu.peak[HARDWARE_TF32] <= 0)
        add_warning(r, "the catalogue has no TF32 rate of %s: computed at the fp32 rate", r->machine.gpu.title);
}

void plan_warn(PlanReport *r) {
    char text[32], limit[32];
    warn_memory(r);
    warn_mesh(r);
    if (r->prediction.step.tokens > r->critical_batch)
        add_warning(r, "a batch of %s tokens is above the critical batch of about %s: larger ones buy little",
                    text_count(text, r->prediction.step.tokens), text_count(limit, r->critical_batch));
    bool fp8 = r->run.layout.precision == PRECISION_FP8; // whose MFU is of the bf16 peak
    if (r->mfu > 1 && !fp8)
        add_warning(r, "MFU %.0f %% is above the peak: the rate, the peak or the token count is wrong", 100 * r->mfu);
    else if (r->mfu > 0.75 && !fp8)
        add_warning(r, "MFU %.0f %% is more than anybody reaches in training: check the assumption", 100 * r->mfu);
    if (r->budget.tokens < 0.5 * r->budget.chinchilla_tokens)
        add_warning(r, "%.0f %% of the 20 tokens per parameter that Chinchilla suggests",
                    100 * r->budget.tokens / r->budget.chinchilla_tokens);
    if (!r->machine.gpu.measured && r->machine.gpu.gemm_count == 0)
        add_warning(r, "nobody measured this device: default efficiencies are used; `hearth bench` measures them");
    if (r->machine.gpu.outdated)
        add_warning(r, "an older hearth measured this machine, in a way that makes steps look shorter than they are: "
                       "run `hearth bench machine` again");
    if (!r->prediction.memory.exact)
        add_warning(r, "memory and speed are those of %s, fitted to logs; hearth's own come without --software",
                    r->machine.software.title);
}
