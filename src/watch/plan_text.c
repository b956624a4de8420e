// A plan as a page of tables: every number with its unit, and the convention where one is needed.
#include "watch/plan_text.h"

#include "plan/pipeline.h"
#include "watch/plan_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define GIB 1073741824.0

static const char *step_time(char *out, double seconds) {
    if (seconds >= 10)
        snprintf(out, 32, "%.2f s", seconds);
    else
        snprintf(out, 32, "%.2f ms", 1e3 * seconds);
    return out;
}

static void model_section(Document *d, const PlanReport *r) {
    const ModelConfig *c = &r->run.layout.config;
    const ModelParameters *p = &r->parameters;
    const StepModel *s = &r->prediction.step;
    char total[32], active[32], grouped[32];
    document_section(d, "Model", "lrl", "");
    document_row(d, "parameters\t%s\t%s, %s", text_count(total, (double)p->total), text_grouped(grouped, p->total),
                 model_arch_name(c->arch));
    document_row(d, "active per token\t%s\t%s", text_count(active, (double)p->active),
                 model_sparse_layers(c) ? "experts counted top_k of all; time uses this figure" : "dense: all of them");
    document_row(d, "embedding\t%.1f %%\tof all parameters%s, vocabulary %d",
                 100.0 * (double)p->embedding * (c->tied ? 1 : 2) / (double)p->total,
                 c->tied ? " (tied with the LM head)" : " (input and LM head)", c->vocab);
    document_row(d, "FLOPs per token\t%.4g\t6 x matmul parameters + 12 L H hd S (torchtitan; used for MFU)",
                 s->flops_per_token);
    document_row(d, "\t%.4g\tcausal attention: 6 L H hd S", s->flops_per_token_causal);
    document_row(d, "\t%.4g\t6 x active parameters, no attention", s->flops_per_token_6n);
}

static void run_section(Document *d, const PlanReport *r) {
    const LayoutRequest *l = &r->run.layout;
    const Mesh *m = &l->mesh;
    char batch[32];
    document_section(d, "Run", "ll", "");
    document_row(d, "machine\t%d x %s, %d per node, %s %.0f GB/s, network %.1f GB/s per GPU", r->machine.gpus,
                 r->machine.gpu.title, r->machine.gpus_per_node, r->machine.gpu.link, r->machine.link_bandwidth / 1e9,
                 r->machine.nic_bandwidth / 1e9);
    document_row(d, "peak\t%.4g TFLOP/s dense %s per device; rates are %s", r->prediction.step.peak / 1e12,
                 hardware_dtype_name(r->prediction.step.dtype),
                 r->machine.gpu.measured     ? "measured on this machine"
                 : r->machine.gpu.gemm_count ? "measured on such a device"
                                             : "default efficiencies");
    document_row(d, "parallelism\tdp %d, tp %d, pp %d, cp %d, ep %d, etp %d, ZeRO %d", m->dp, m->tp, m->pp, m->cp,
                 m->ep, m->etp, m->zero);
    if (r->run.layout.islands)
        document_row(d, "islands\t%d of this mesh, with an outer step every %.0f steps", r->run.layout.islands,
                     r->run.outer_every);
    document_row(d, "links\ttensor, context, %s: fastest to slowest",
                 m->ep > 1 ? "expert and data, pipeline" : "pipeline, data");
    document_row(d, "precision\t%s%s, recompute %s%s", precision_name(l->precision),
                 l->tf32 ? " with products in TF32" : "", recompute_name(l->recompute),
                 r->run.eager ? ", not compiled" : "");
    document_row(d, "batch\t%s tokens a step = micro_batch %d x seq %d x dp %d x grad_accum %d",
                 text_count(batch, r->prediction.step.tokens), l->micro_batch, l->seq, m->dp * plan_islands(&r->run),
                 r->run.grad_accum);
    document_row(d, "software\t%s", r->machine.software.title);
    if (r->run.calibration != 1)
        document_row(d, "calibration\tstep times x %.3f, learned from earlier runs (--no-calibration switches it off)",
                     r->run.calibration);
}

static void memory_section(Document *d, const PlanReport *r) {
    const PlanMemory *m = &r->prediction.memory;
    char title[96];
    snprintf(title, sizeof title,
             m->exact ? "Memory of one rank (exact, pipeline stage %d)" : "Memory of one rank (fitted to logs)",
             m->stage);
    document_section(d, title, "lrr", "kind\tGiB\tof device");
    bool host = r->run.layout.device != DEVICE_CPU && m->bytes[LAYOUT_OUTER] > 0;
    for (int kind = 0; m->exact && kind < LAYOUT_KIND_COUNT - (host || !m->bytes[LAYOUT_OUTER]); kind++)
        document_row(d, "%s\t%.3f\t%.1f %%", layout_kind_name((LayoutKind)kind), (double)m->bytes[kind] / GIB,
                     100 * (double)m->bytes[kind] / r->machine.gpu.memory);
    if (!m->exact) {
        document_row(d, "states\t%.3f\t%.1f %%", m->states / GIB, 100 * m->states / r->machine.gpu.memory);
        document_row(d, "activations\t%.3f\t%.1f %%", m->active / GIB, 100 * m->active / r->machine.gpu.memory);
    }
    document_row(d, "total\t%.3f\t%.1f %%", m->total / GIB, 100 * m->fraction);
    document_note(d, "device: %.2f GiB; the comfortable limit here is %.0f %%", r->machine.gpu.memory / GIB,
                  100 * r->questions.memory_limit);
    if (host)
        document_note(d, "outer optimizer: %.3f GiB of host memory for each rank",
                      (double)m->bytes[LAYOUT_OUTER] / GIB);
    if (!m->expert_rows) return;
    char room[32], mean[32];
    document_note(d,
                  "expert buffers: room for %s rows of a micro-batch on one rank, %.2f x the mean of %s; no routing "
                  "sends more than %.3g x",
                  text_grouped(room, m->expert_rows), (double)m->expert_rows / (double)m->expert_rows_mean,
                  text_grouped(mean, m->expert_rows_mean), (double)m->expert_rows_most / (double)m->expert_rows_mean);
}

static void step_section(Document *d, const PlanReport *r) {
    const StepModel *s = &r->prediction.step;
    char text[32];
    document_section(d, "Step time", "lrr", "part\ttime\tof step");
    for (int i = 0; i < STEP_PART_COUNT; i++)
        if (s->part[i] > 0)
            document_row(d, "%s\t%s\t%.1f %%", step_part_name((StepPart)i), step_time(text, s->part[i]),
                         100 * s->part[i] / s->seconds);
    document_row(d, "step\t%s\t100 %%", step_time(text, s->seconds));
    document_note(
        d,
        "a micro-step: %.2f ms forward, %.2f ms backward (busiest stage %d); communication shown is what does "
        "not hide behind compute",
        1e3 * s->forward, 1e3 * s->backward, s->stage);
}

static void ops_section(Document *d, const PlanReport *r) {
    const StepModel *s = &r->prediction.step;
    document_section(d, "Ops of a micro-step", "llrrrrl", "op\tpass\tms\tkernels\tTFLOP/s\tGB/s\tlimit");
    for (int i = 0; i < s->op_count; i++) {
        const StepOp *op = &s->ops[i];
        document_row(d, "%s\t%s\t%.3f\t%.0f\t%.1f\t%.0f\t%s", op->name, step_pass_name(op->pass), 1e3 * op->seconds,
                     op->kernels, op->flops / op->seconds / 1e12, op->bytes / op->seconds / 1e9,
                     op->compute_bound ? "compute" : "memory");
    }
}

static void communication_section(Document *d, const PlanReport *r) {
    static const StepPart axes[] = {STEP_TENSOR,   STEP_CONTEXT,       STEP_EXPERT,
                                    STEP_PIPELINE, STEP_DATA_PARALLEL, STEP_OUTER};
    const StepModel *s = &r->prediction.step;
    if (r->machine.gpus == 1) return;
    document_section(d, "Communication of one rank in one step", "lrlrrrr",
                     "axis\tranks\tlink\tGB sent\ton links\thidden\texposed");
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        const StepAxis *a = &s->axis[axes[i]];
        char on[32], hidden[32], exposed[32];
        if (a->ranks <= 1 && a->bytes <= 0) continue;
        document_row(d, "%s\t%d\t%s\t%.2f\t%s\t%s\t%s", step_part_name(axes[i]), a->ranks,
                     a->between_nodes ? "network" : "inside a node", a->bytes / 1e9, step_time(on, a->seconds),
                     step_time(hidden, fmax(0, a->seconds - a->exposed)), step_time(exposed, a->exposed));
    }
    document_note(d, "bandwidth is one direction at %.0f %% utilisation; gradients travel with %zu bytes each",
                  100 * r->machine.gpu.efficiency.link, dtype_size(r->run.layout.reduce));
}

static void pipeline_section(Document *d, const PlanReport *r) {
    const LayoutRequest *l = &r->run.layout;
    int pp = l->mesh.pp;
    if (pp == 1) return;
    PlanLayerSplit split = plan_layer_split(l->config.layers, pp);
    document_section(d, "Pipeline", "lr", "");
    document_row(d, "stages x virtual stages\t%d x %d", pp, r->run.virtual_stages);
    if (split.longer > 0)
        document_row(d, "layers\t%.0f stages of %.0f, %.0f of %.0f", split.longer, split.most, split.shorter,
                     split.least);
    else
        document_row(d, "layers\t%.0f per stage", split.least);
    document_row(d, "bubble of equal stages\t%.1f %% of wall time (%.1f %% of ideal)", 100 * r->bubble_of_wall,
                 100 * r->bubble_of_ideal);
    PlanRun twice = r->run;
    twice.virtual_stages *= 2;
    plan_limit_virtual_stages(&twice);
    if (twice.virtual_stages > r->run.virtual_stages)
        document_row(d, "with 2 x the virtual stages\t%.1f %% (%.1f %%)",
                     100 * plan_bubble_of_wall(pp, r->run.grad_accum, twice.virtual_stages),
                     100 * plan_bubble_of_ideal(pp, r->run.grad_accum, twice.virtual_stages));
    document_row(d, "micro-batches for a bubble below 5 %%\t%.0f",
                 plan_min_microbatches(pp, r->run.virtual_stages, 0.05, PLAN_BUBBLE_OF_WALL));
    for (int i = 0; i < r->stash_count; i++)
        if (i < 2 || i == r->stash_count - 1)
            document_row(d, "activations of stage %d (%.4g in flight)\t%.2f GiB", i, r->in_flight[i],
                         r->stash[i] / GIB);
}

static void budget_section(Document *d, const PlanReport *r) {
    static const char *const sources[] = {"modelled", "assumed MFU", "measured"};
    char a[32];
    document_section(d, "Speed, time and cost", "lrl", "");
    document_row(d, "tokens/s\t%.0f\tall devices, %s", r->rate, sources[r->rate_source]);
    document_row(d, "tokens/s per device\t%.0f\t", r->rate / r->machine.gpus);
    if (r->rate_source != PLAN_RATE_MODEL)
        document_row(d, "  as modelled\t%.0f\tall devices, MFU %.1f %%", r->prediction.step.tokens_per_second,
                     100 * r->prediction.step.mfu);
    document_row(d, "MFU\t%.1f %%\ttorchtitan; causal %.1f %%, 6N %.1f %%; hardware FLOPs with recompute %.1f %%",
                 100 * r->mfu,
                 100 * r->mfu * r->prediction.step.flops_per_token_causal / r->prediction.step.flops_per_token,
                 100 * r->mfu * r->prediction.step.flops_per_token_6n / r->prediction.step.flops_per_token,
                 100 * r->prediction.step.hfu * r->rate / r->prediction.step.tokens_per_second);
    plan_typical_row(d, &r->machine.typical[model_sparse_layers(&r->run.layout.config) > 0]);
    plan_tokens_rows(d, &r->budget, (double)r->parameters.total);
    document_row(d, "compute\t%.4g\tFLOPs = %.4g petaFLOP-days (6 x active parameters x tokens)",
                 r->budget.petaflop_days * 8.64e19, r->budget.petaflop_days);
    document_row(d, "steps\t%.0f\t", r->steps);
    plan_time_row(d, &r->budget);
    plan_cost_rows(d, &r->budget, &r->machine);
    if (r->fp8.what[0])
        document_row(d, "with fp8\t%.0f\ttokens/s modelled, %+.1f %%, memory %.0f %%: --precision fp8",
                     r->fp8.tokens_per_second, 100 * r->fp8.gain, 100 * r->fp8.memory_fraction);
    if (r->questions.hours > 0)
        document_row(d, "in %.4g hours\t%s\ttokens, %.0f %% of Chinchilla", r->questions.hours,
                     text_count(a, r->hours_tokens), 100 * r->hours_tokens / r->budget.chinchilla_tokens);
}

static void inverse_section(Document *d, const PlanReport *r) {
    char a[32], b[32], c[32], e[32];
    if (r->questions.vocab > 0) {
        document_section(d, "Vocabulary", "lrrrrrr",
                         "entries\tparameters\tactive\tGFLOP/token\ttokens/s\tmemory GiB\ttime to target");
        for (int i = 0; i < 2; i++) {
            const PlanVocab *v = &r->vocab[i];
            document_row(d, "%d\t%s\t%s\t%.3f\t%.0f\t%.2f\t%s", v->vocab, text_count(a, (double)v->parameters.total),
                         text_count(b, (double)v->parameters.active), v->flops_per_token / 1e9, v->tokens_per_second,
                         v->memory_total / GIB, plan_time_text(c, v->seconds));
        }
    }
    if (r->questions.target_hours <= 0) return;
    const PlanLargest *m = &r->largest;
    snprintf(e, sizeof e, "%.4g hours", r->questions.target_hours);
    document_section(d, "Largest model", "lrl", "");
    if (!m->found) {
        document_note(d, "no size of this family reaches 20 tokens per parameter in %s on this machine", e);
        return;
    }
    document_row(d, "in %s\t%s\tparameters, %s active, trained on %s tokens (20 per parameter)", e,
                 text_count(a, (double)m->parameters.total), text_count(b, (double)m->parameters.active),
                 text_count(c, m->tokens));
    document_row(d, "shape\t%d x %d\tlayers x width, %d heads of %d, MLP %d", m->config.layers, m->config.hidden,
                 m->config.heads, m->config.head_dim,
                 model_sparse_layers(&m->config) ? m->config.moe_ffn : m->config.ffn);
    document_row(d, "speed\t%.0f\ttokens/s with micro_batch %d, memory %.0f %%", m->tokens_per_second, m->micro_batch,
                 100 * m->memory_fraction);
    document_row(d, "time\t%s\t", plan_time_text(a, m->seconds));
}

static void advice_section(Document *d, const PlanReport *r) {
    document_section(d, "Bottleneck", "lrr", "");
    document_note(d, "%s", r->bottleneck_text);
    for (int i = 0; i < r->change_count; i++)
        document_row(d, "%d. %s\t%+.1f %% tokens/s\tmemory %.0f %%", i + 1, r->changes[i].what,
                     100 * r->changes[i].gain, 100 * r->changes[i].memory_fraction);
    if (!r->change_count && r->fits)
        document_note(d, "no single change that fits gains more than 0.5 %%");
    else if (!r->change_count)
        document_note(d, "no single change brings memory below %.0f %%", 100 * r->questions.memory_limit);
}

static void warnings_section(Document *d, const PlanReport *r) {
    if (!r->warning_count) return;
    document_section(d, "Warnings", "l", "");
    for (int i = 0; i < r->warning_count; i++)
        document_note(d, "! %s", r->warnings[i]);
}

static void checklist_section(Document *d, const PlanReport *r) {
    char time[32];
    if (r->checklist_count < 2) return;
    double rate = r->prediction.step.tokens_per_second;
    document_section(d, "Checklist: in this order", "lrrrr", "\tgain\ttokens/s\tmemory\ttime to target");
    for (int i = 0; i < r->checklist_count; i++) {
        const PlanChange *c = &r->checklist[i];
        document_row(d, "%d. %s\t%+.1f %%\t%.0f\t%.0f %%\t%s", i + 1, c->what, 100 * c->gain, c->tokens_per_second,
                     100 * c->memory_fraction, plan_time_text(time, r->budget.seconds * rate / c->tokens_per_second));
    }
    document_note(d, "each gain comes on top of the lines above it, by the same model; together %.2f x",
                  r->checklist[r->checklist_count - 1].tokens_per_second / rate);
}

static void verdict_section(Document *d, const PlanReport *r) {
    const PlanMemory *m = &r->prediction.memory;
    if (r->fits) return;
    document_section(d, "Does not fit", "l", "");
    document_note(d, "%.2f GiB are needed on a device of %.2f GiB: %.0f %%", m->total / GIB,
                  r->machine.gpu.memory / GIB, 100 * m->fraction);
    if (r->fitting.change.what[0])
        document_note(d, "fits: %s; %.0f tokens/s, memory %.0f %%", r->fitting.change.what,
                      r->fitting.change.tokens_per_second, 100 * r->fitting.change.memory_fraction);
    else
        document_note(d, NOTHING_FITS, 100 * r->questions.memory_limit);
}

Document *plan_document(const PlanReport *report, bool with_ops) {
    char *title = text_format("Plan of %s on %d x %s", report->name, report->machine.gpus, report->machine.gpu.title);
    Document *d = document_create(title);
    free(title);
    verdict_section(d, report);
    model_section(d, report);
    run_section(d, report);
    budget_section(d, report);
    memory_section(d, report);
    step_section(d, report);
    communication_section(d, report);
    pipeline_section(d, report);
    plan_checkpoint_section(d, &report->budget, &report->machine, (double)report->parameters.total, report->rate,
                            report->prediction.step.tokens);
    plan_storage_section(d, &report->budget, &report->machine);
    inverse_section(d, report);
    advice_section(d, report);
    checklist_section(d, report);
    warnings_section(d, report);
    if (with_ops) ops_section(d, report);
    return d;
}

static void outcome_line(TextBuffer *out, const char *name, const char *unit, double scale, PlanOutcome outcome) {
    if (outcome.measured <= 0) return;
    text_buffer_format(out, "  %-12s predicted %10.4g %-8s measured %10.4g %-8s error %+.1f %%\n", name,
                       outcome.predicted / scale, unit, outcome.measured / scale, unit, plan_error_percent(outcome));
}

void plan_outcome_text(const PlanPrediction *prediction, const PlanMeasured *measured, TextBuffer *out) {
    outcome_line(out, "memory", "GiB", GIB, (PlanOutcome){prediction->memory.total, measured->memory});
    if (measured->memory_beside > 0) {
        char text[32];
        text_buffer_format(out,
                           "  %-12s %s more are in use: CUDA's context and kernels, its libraries, other programs\n",
                           "", text_gib(text, measured->memory_beside));
    }
    outcome_line(out, "step", "ms", 1e-3, (PlanOutcome){prediction->step.seconds, measured->step_seconds});
    outcome_line(out, "throughput", "tokens/s", 1,
                 (PlanOutcome){prediction->step.tokens_per_second, measured->tokens_per_second});
}
