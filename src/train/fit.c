// The largest micro-batch and the lightest recompute that fit, found by building their layouts.
#include "train/fit.h"

int64_t fit_reserve(DeviceKind device) {
    return device == DEVICE_CUDA ? FIT_CUDA_RESERVE : 0;
}

static Status need_bytes(int64_t *bytes, const LayoutRequest *request) {
    Layout layout;
    TRY(layout_build(&layout, request));
    *bytes = layout.total_bytes + fit_reserve(request->device);
    layout_free(&layout);
    return NULL;
}

// The largest micro-batch below the request's own whose layout fits, by bisection: memory grows with the micro-batch.
static Status largest_micro_batch(int *micro_batch, const LayoutRequest *request, Recompute recompute, int most,
                                  int64_t free_bytes) {
    LayoutRequest probe = *request;
    probe.recompute = recompute;
    int fits = 0, fails = most + 1;
    while (fails - fits > 1) {
        int64_t need = 0;
        probe.micro_batch = fits + (fails - fits) / 2;
        TRY(need_bytes(&need, &probe));
        if (need <= free_bytes)
            fits = probe.micro_batch;
        else
            fails = probe.micro_batch;
    }
    *micro_batch = fits;
    return NULL;
}

static Status lightest_recompute(int *recompute, const LayoutRequest *request, int64_t free_bytes) {
    LayoutRequest probe = *request;
    *recompute = -1;
    for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_FULL && *recompute < 0; mode++) {
        int64_t need = 0;
        probe.recompute = (Recompute)mode;
        TRY(need_bytes(&need, &probe));
        if (need <= free_bytes) *recompute = mode;
    }
    return NULL;
}

Status fit_check(Fit *fit, const LayoutRequest *request, int64_t free_bytes) {
    *fit = (Fit){.recompute = -1};
    TRY(need_bytes(&fit->need, request));
    fit->fits = free_bytes <= 0 || fit->need <= free_bytes;
    if (fit->fits) return NULL;
    int most = request->micro_batch - 1;
    TRY(largest_micro_batch(&fit->micro_batch, request, request->recompute, most, free_bytes));
    TRY(lightest_recompute(&fit->recompute, request, free_bytes));
    if (!fit->micro_batch && fit->recompute < 0)
        TRY(largest_micro_batch(&fit->full_micro_batch, request, RECOMPUTE_FULL, most, free_bytes));
    return NULL;
}

// The lines that keep the tokens of a step: batch_tokens does so by itself, grad_accum where it divides.
static void add_micro_batch(TextBuffer *out, const Config *config, int micro_batch) {
    text_buffer_format(out, "[train] micro_batch = %d", micro_batch);
    int64_t sequences = config->train.micro_batch * config->train.grad_accum;
    if (!config->train.batch_tokens && sequences % micro_batch == 0)
        text_buffer_format(out, ", grad_accum = %lld", (long long)(sequences / micro_batch));
}

static void add_suggestions(TextBuffer *out, const Config *config, const Fit *fit) {
    if (fit->micro_batch) {
        text_buffer_format(out, "this fits: ");
        add_micro_batch(out, config, fit->micro_batch);
    }
    if (fit->recompute >= 0)
        text_buffer_format(out, "%s[recompute] mode = \"%s\"", fit->micro_batch ? "\n        or this: " : "this fits: ",
                           recompute_name((Recompute)fit->recompute));
    if (fit->full_micro_batch) {
        text_buffer_format(out, "this fits: ");
        add_micro_batch(out, config, fit->full_micro_batch);
        text_buffer_format(out, " with [recompute] mode = \"full\"");
    }
    if (!out->length)
        text_buffer_format(out, "not even one sequence with full recompute fits: a shorter train.seq, a lighter "
                                "train.precision or a smaller model may");
}

Status fit_require(const Config *config, const LayoutRequest *request, FitMemory memory) {
    Fit fit;
    TRY(fit_check(&fit, request, memory.free));
    if (fit.fits) return NULL;
    TextBuffer text = {0};
    add_suggestions(&text, config, &fit);
    if (memory.total >= fit.need)
        text_buffer_format(&text, "\n    other programs hold %.2f GiB of this device",
                           (double)(memory.total - memory.free) / 0x1p30);
    char reserve[64] = "";
    if (fit_reserve(request->device))
        snprintf(reserve, sizeof reserve, " (%.2f GiB of it for libraries)",
                 (double)fit_reserve(request->device) / 0x1p30);
    Status status =
        status_usage("micro_batch %d x seq %d with recompute \"%s\" needs %.2f GiB%s, and %.2f of the "
                     "device's %.2f GiB are free",
                     request->micro_batch, request->seq, recompute_name(request->recompute), (double)fit.need / 0x1p30,
                     reserve, (double)memory.free / 0x1p30, (double)memory.total / 0x1p30);
    status = status_hint(status, "%s", text.data);
    text_buffer_free(&text);
    return config_blame(config, "train.micro_batch", status);
}
