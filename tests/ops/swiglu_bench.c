// SwiGLU fused with the product beside it, on the GPU: every variant's results against the separate ops, then times
// under sustained load. Run by hand: build/tests/swiglu_bench [--check]
//
// Outputs hold NaN before each run, two runs (backward one of them in place) must give the same bits, and rows beyond
// the end must stay as they were.
#include "bench.h"
#include "ops/cuda/swiglu_gemm.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct Case {
    const char *name;
    int64_t rows;
    int inner, dim;
    bool timed;
} Case;

typedef struct Problem {
    const Case *shape;
    bool backward;
    void *in, *weight, *saved;
    const void *before; // gate and up for a backward run: saved, or in place gate_up
    void *out[2];       // gate_up and hidden
    size_t bytes[2];    // of each, with a row of padding behind, to see what is written beyond the end
} Problem;

// variant -1: the separate ops.
static bool run(const void *problem, int variant) {
    const Problem *p = problem;
    const Case *s = p->shape;
    void *gate_up = p->out[0], *hidden = p->out[1];
    if (variant >= 0) {
        SwigluCall call = {gate_up, hidden, p->before, p->in, p->weight, s->rows, s->dim, s->inner, p->backward};
        return swiglu_sm90(ops->state, &call, variant);
    }
    if (p->backward) {
        ops->linear_backward_input(ops, hidden, p->in, p->weight, s->rows, s->dim, s->inner, DTYPE_BF16);
        ops->swiglu_backward(ops, gate_up, hidden, NULL, p->before, hidden, NULL, NULL, s->rows, s->dim, DTYPE_BF16);
    } else {
        ops->linear_forward(ops, gate_up, p->in, p->weight, NULL, s->rows, s->inner, 2 * s->dim, DTYPE_BF16);
        ops->swiglu_forward(ops, hidden, gate_up, NULL, NULL, s->rows, s->dim, DTYPE_BF16);
    }
    return true;
}

static int64_t used(const Problem *p, int part) { // numbers without the padding
    return p->shape->rows * p->shape->dim * (part == 0 ? 2 : 1);
}

static bool results(bf16 *got[2], const Problem *p, int variant) {
    for (int part = 0; part < 2; part++)
        memory_spoil(p->out[part], p->bytes[part]);
    if (p->before == p->out[0]) ops->copy(ops, p->out[0], p->saved, (size_t)used(p, 0) * sizeof(bf16));
    if (!run(p, variant)) return false;
    for (int part = 0; part < 2; part++)
        got[part] = fetch(p->out[part], p->bytes[part]);
    return true;
}

static void check(const Problem *p) {
    const char *direction = p->backward ? "backward" : "forward";
    Problem second = *p;
    if (p->backward) second.before = p->out[0];
    bf16 *wanted[2];
    results(wanted, p, -1);
    for (int variant = 0; variant < SWIGLU_SM90_VARIANTS; variant++) {
        bf16 *got[2], *again[2] = {NULL, NULL};
        if (!results(got, p, variant)) {
            printf("%-24s %-8s variant %d: not for this shape\n", p->shape->name, direction, variant);
            continue;
        }
        bool same = results(again, &second, variant), edge = true;
        double worst = 0;
        for (int part = 0; part < 2; part++) {
            int64_t count = used(p, part);
            double d = difference(got[part], wanted[part], count);
            if (!(d <= worst)) worst = d;
            same = same && memcmp(got[part], again[part], p->bytes[part]) == 0;
            edge = edge && spoiled(got[part] + count, p->bytes[part] - (size_t)count * sizeof(bf16));
            free(got[part]), free(again[part]);
        }
        // Both round the same sums to bf16 (2^-9); backward the separate ops round the gradient of hidden once more.
        bool right = verdict(worst < 6e-3 && same && edge);
        printf("%-24s %-8s variant %d: difference %.2e%s%s %s\n", p->shape->name, direction, variant, worst,
               same ? "" : ", two runs differ", edge ? "" : ", wrote beyond the end", right ? "ok" : "FAILED");
    }
    free(wanted[0]), free(wanted[1]);
}

static void race(const Problem *p) {
    const Case *s = p->shape;
    double flops = 2.0 * (double)s->rows * s->inner * s->dim * (p->backward ? 1 : 2);
    printf("%-24s %-8s", s->name, p->backward ? "backward" : "forward");
    for (int round = 0; round < 2; round++)
        for (int variant = -1; variant < SWIGLU_SM90_VARIANTS; variant++) {
            double ms = timed(run, p, variant, (int)(60.0e12 / flops) + 1);
            if (ms > 0) printf("  %s%d %.3f ms %.0f", variant < 0 ? "separate " : "v", variant, ms, flops / ms / 1e9);
        }
    printf("\n");
}

static void case_run(const Case *s, bool backward) {
    Problem p = {.shape = s, .backward = backward};
    p.in = values_make(s->rows * s->inner, 1, 1);
    p.weight = values_make((backward ? 1 : 2) * (int64_t)s->inner * s->dim, 2, 0.05f);
    p.before = p.saved = values_make(used(&p, 0), 3, 1);
    for (int part = 0; part < 2; part++) {
        p.bytes[part] = (size_t)(used(&p, part) / s->rows * (s->rows + 1)) * sizeof(bf16);
        p.out[part] = device_memory(p.bytes[part]);
    }
    if (s->timed)
        race(&p);
    else
        check(&p);
    fflush(stdout);
    fail_if(ops->sync(ops));
    void *all[] = {p.in, p.weight, p.saved, p.out[0], p.out[1]};
    for (int k = 0; k < 5; k++)
        ops->free(ops, all[k], 0);
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        {"odd", 129, 72, 40, false},
        {"one row", 1, 64, 32, false},
        {"odd rows", 1000, 960, 2560, false},
        {"many tiles", 4200, 960, 2560, false},
        {"smollm-360m", 32768, 960, 2560, true},
        {"llama-3.2-1b", 32768, 2048, 8192, true},
    };
    bench_begin(argc, argv, (size_t)64 << 20, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int backward = 0; backward < 2; backward++)
            if (!cases[i].timed || !check_only) case_run(&cases[i], backward);
    return bench_end();
}
