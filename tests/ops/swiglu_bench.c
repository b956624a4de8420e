// SwiGLU fused with the product beside it, on the GPU: every variant's results against the separate ops, then times
// under sustained load. Run by hand: build/tests/swiglu_bench
//
// Outputs hold NaN before each run, two runs (backward one of them in place) must give the same bits, and rows beyond
// the end must stay as they were.
#include "base/rng.h"
#include "ops/cuda/swiglu_gemm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Case {
    const char *name;
    int64_t rows;
    int inner, dim;
    bool timed;
} Case;

static Ops *ops;
static int failures;

static void fail_if(Status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", status_message(status));
    exit(1);
}

static void *device_memory(int64_t count) {
    void *memory = NULL;
    fail_if(ops->alloc(ops, &memory, (size_t)count * sizeof(bf16), "the bench"));
    return memory;
}

static void *values_make(int64_t count, uint64_t stream, float deviation) {
    enum { BLOCK = 1 << 21 }; // repeated
    float *host = xmalloc(BLOCK * sizeof(float));
    bf16 *narrow = xmalloc(BLOCK * sizeof(bf16));
    rng_fill_normal(host, BLOCK, 7, stream, 0, 0, deviation);
    for (int i = 0; i < BLOCK; i++)
        narrow[i] = bf16_from_f32(host[i]);
    bf16 *memory = device_memory(count);
    for (int64_t at = 0; at < count; at += BLOCK)
        ops->upload(ops, memory + at, narrow, (size_t)(count - at < BLOCK ? count - at : BLOCK) * sizeof(bf16));
    free(host);
    free(narrow);
    return memory;
}

static bf16 *fetch(const void *memory, int64_t count) {
    bf16 *host = xmalloc((size_t)count * sizeof(bf16));
    ops->download(ops, host, memory, (size_t)count * sizeof(bf16));
    return host;
}

typedef struct Problem {
    const Case *shape;
    void *in, *weight, *saved; // saved: gate and up for backward runs
    void *gate_up, *hidden;
    int64_t gate_up_count, hidden_count; // with a row of padding behind, to see what is written beyond the end
} Problem;

// variant -1: the separate ops. before: gate and up for a backward run.
static bool run(const Problem *p, bool backward, int variant, const void *before) {
    const Case *s = p->shape;
    if (variant >= 0) {
        SwigluCall call = {p->gate_up, p->hidden, before, p->in, p->weight, s->rows, s->dim, s->inner, backward};
        return swiglu_sm90(ops->state, &call, variant);
    }
    if (backward) {
        ops->linear_backward_input(ops, p->hidden, p->in, p->weight, s->rows, s->dim, s->inner, DTYPE_BF16);
        ops->swiglu_backward(ops, p->gate_up, p->hidden, NULL, before, p->hidden, NULL, NULL, s->rows, s->dim,
                             DTYPE_BF16);
    } else {
        ops->linear_forward(ops, p->gate_up, p->in, p->weight, NULL, s->rows, s->inner, 2 * s->dim, DTYPE_BF16);
        ops->swiglu_forward(ops, p->hidden, p->gate_up, NULL, NULL, s->rows, s->dim, DTYPE_BF16);
    }
    return true;
}

static void prepare(const Problem *p) {
    ops->fill_f32(ops, p->gate_up, NAN, p->gate_up_count / 2);
    ops->fill_f32(ops, p->hidden, NAN, p->hidden_count / 2);
}

static double difference(const bf16 *got, const bf16 *wanted, int64_t count) {
    double sum = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = bf16_to_f32(got[i]), y = bf16_to_f32(wanted[i]);
        sum += (x - y) * (x - y);
        size += y * y;
    }
    return sqrt(sum / size);
}

static void check(const Problem *p, bool backward) {
    const Case *s = p->shape;
    int64_t used[2] = {2 * s->rows * s->dim, s->rows * s->dim};
    const void *memory[2] = {p->gate_up, p->hidden};
    int64_t counts[2] = {p->gate_up_count, p->hidden_count};
    prepare(p);
    run(p, backward, -1, p->saved);
    bf16 *wanted[2] = {fetch(memory[0], counts[0]), fetch(memory[1], counts[1])};
    for (int variant = 0; variant < SWIGLU_SM90_VARIANTS; variant++) {
        bf16 *got[2][2];
        for (int time = 0; time < 2; time++) {
            const bool in_place = backward && time == 1;
            prepare(p);
            if (in_place) ops->copy(ops, p->gate_up, p->saved, (size_t)used[0] * sizeof(bf16));
            if (!run(p, backward, variant, in_place ? p->gate_up : p->saved)) {
                printf("%-24s %s variant %d: not for this shape\n", s->name, backward ? "backward" : "forward",
                       variant);
                free(wanted[0]), free(wanted[1]);
                return;
            }
            fail_if(ops->sync(ops));
            for (int i = 0; i < 2; i++)
                got[time][i] = fetch(memory[i], counts[i]);
        }
        double worst = 0;
        bool same = true, edge = true;
        for (int i = 0; i < 2; i++) {
            double d = difference(got[0][i], wanted[i], used[i]);
            if (!(d <= worst)) worst = d;
            same &= memcmp(got[0][i], got[1][i], (size_t)counts[i] * sizeof(bf16)) == 0;
            edge &= memcmp(got[0][i] + used[i], wanted[i] + used[i], (size_t)(counts[i] - used[i]) * sizeof(bf16)) == 0;
            free(got[0][i]), free(got[1][i]);
        }
        // Both round the same sums to bf16 (2^-9); backward the separate ops round the gradient of hidden once more.
        bool right = worst < 6e-3 && same && edge;
        failures += !right;
        printf("%-24s %-8s variant %d: difference %.2e%s%s %s\n", s->name, backward ? "backward" : "forward", variant,
               worst, same ? "" : ", two runs differ", edge ? "" : ", wrote beyond the end", right ? "ok" : "FAILED");
    }
    free(wanted[0]), free(wanted[1]);
}

// Milliseconds of one run, hot: the clock settles under load first.
static double timed(const Problem *p, bool backward, int variant, int runs) {
    for (int i = 0; i < runs; i++)
        run(p, backward, variant, p->saved);
    ops->mark(ops, 0);
    for (int i = 0; i < runs; i++)
        run(p, backward, variant, p->saved);
    ops->mark(ops, 1);
    return ops->mark_elapsed(ops, 0, 1) / runs;
}

static void race(const Problem *p, bool backward) {
    const Case *s = p->shape;
    double flops = 2.0 * (double)s->rows * s->inner * s->dim * (backward ? 1 : 2);
    printf("%-24s %-8s", s->name, backward ? "backward" : "forward");
    for (int round = 0; round < 2; round++)
        for (int variant = -1; variant < SWIGLU_SM90_VARIANTS; variant++) {
            double ms = timed(p, backward, variant, (int)(60.0e12 / flops) + 1);
            printf("  %s%d %.3f ms %.0f", variant < 0 ? "separate " : "v", variant, ms, flops / ms / 1e9);
        }
    printf("\n");
}

int main(void) {
    static const Case cases[] = {
        {"odd", 129, 72, 40, false},
        {"one row", 1, 64, 32, false},
        {"odd rows", 1000, 960, 2560, false},
        {"many tiles", 4200, 960, 2560, false},
        {"smollm-360m", 32768, 960, 2560, true},
        {"llama-3.2-1b", 32768, 2048, 8192, true},
    };
    fail_if(ops_cuda_create(&ops, 0, NULL));
    void *workspace = NULL;
    size_t bytes = (size_t)64 << 20;
    fail_if(ops->alloc(ops, &workspace, bytes, "the bench"));
    ops->bind_workspace(ops, workspace, bytes);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *s = &cases[i];
        for (int backward = 0; backward < 2; backward++) {
            Problem p = {.shape = s};
            p.gate_up_count = (s->rows + 1) * 2 * s->dim;
            p.hidden_count = (s->rows + 1) * s->dim;
            p.in = values_make(s->rows * s->inner, 1, 1);
            p.weight = values_make((backward ? 1 : 2) * (int64_t)s->inner * s->dim, 2, 0.05f);
            p.saved = values_make(p.gate_up_count, 3, 1);
            p.gate_up = device_memory(p.gate_up_count);
            p.hidden = device_memory(p.hidden_count);
            if (!s->timed) check(&p, backward);
            fflush(stdout);
            if (s->timed) {
                prepare(&p);
                race(&p, backward);
            }
            fail_if(ops->sync(ops));
            void *all[] = {p.in, p.weight, p.saved, p.gate_up, p.hidden};
            for (int k = 0; k < 5; k++)
                ops->free(ops, all[k], 0);
        }
    }
    ops->free(ops, workspace, bytes);
    ops_cuda_destroy(ops);
    printf("%s\n", failures ? "FAILED" : "all right");
    return failures != 0;
}
