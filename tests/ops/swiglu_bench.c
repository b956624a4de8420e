// SwiGLU fused with the product beside it, on the GPU: every variant's results against the separate ops, then times
// under sustained load. Run by hand: build/tests/swiglu_bench [--check | --small]
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
    Tensor in, weight, saved, scratch;
    Tensor before; // gate and hidden for a backward run: saved, or in place out
    Tensor out;
    size_t bytes; // of out, with a row of padding behind, to see what is written beyond the end
} Problem;

// variant -1: the separate ops.
static bool run(const void *problem, int variant) {
    const Problem *p = problem;
    if (variant >= 0) {
        SwigluCall call = {p->out, p->before, p->scratch, p->in, p->weight, p->backward};
        return swiglu_sm90(ops->state, &call, variant);
    }
    if (p->backward)
        ops_linear_then_swiglu_backward(ops, p->out, p->scratch, p->before, p->in, p->weight);
    else
        ops_linear_then_swiglu_forward(ops, p->out, p->in, p->weight);
    return true;
}

static int64_t used(const Problem *p) { // numbers without the padding
    return p->shape->rows * p->shape->dim * 2;
}

static bf16 *result(const Problem *p, int variant) { // NULL when it cannot do the shape
    memory_spoil(p->out.data, p->bytes);
    if (p->before.data == p->out.data) ops->copy(ops, p->out.data, p->saved.data, (size_t)used(p) * sizeof(bf16));
    return run(p, variant) ? fetch(p->out.data, p->bytes) : NULL;
}

static void check(const Problem *p) {
    const char *direction = p->backward ? "backward" : "forward";
    Problem second = *p;
    if (p->backward) second.before = p->out;
    bf16 *wanted = result(p, -1);
    for (int variant = 0; variant < SWIGLU_SM90_VARIANTS; variant++) {
        bf16 *got = result(p, variant), *again = got ? result(&second, variant) : NULL;
        if (!got) {
            printf("%-24s %-8s variant %d: not for this shape\n", p->shape->name, direction, variant);
            continue;
        }
        const int64_t rows = p->shape->rows, dim = p->shape->dim;
        double gate = difference_rows(got, wanted, rows, dim, 2 * dim); // or its gradient, as what stands beside it
        double hidden = difference_rows(got + dim, wanted + dim, rows, dim, 2 * dim);
        bool same = memcmp(got, again, p->bytes) == 0;
        bool edge = spoiled(got + used(p), p->bytes - (size_t)used(p) * sizeof(bf16));
        // All round their results to bf16 (2^-9); the separate ops also round up, and the gradient of hidden.
        bool right = verdict(gate < 6e-3 && hidden < 6e-3 && same && edge);
        printf("%-24s %-8s variant %d: differences %.2e %.2e%s%s %s\n", p->shape->name, direction, variant, gate,
               hidden, same ? "" : ", two runs differ", edge ? "" : ", wrote beyond the end", right ? "ok" : "FAILED");
        free(got), free(again);
    }
    free(wanted);
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
    void *weight = values_make((backward ? 1 : 2) * (int64_t)s->inner * s->dim, 2, 0.05f);
    p.in = bf16_tensor(values_make(s->rows * s->inner, 1, 1), s->rows, s->inner);
    p.weight = backward ? bf16_tensor(weight, s->inner, s->dim) : bf16_tensor(weight, 2 * s->dim, s->inner);
    p.before = p.saved = bf16_tensor(values_make(used(&p), 3, 1), s->rows, 2 * s->dim);
    ops->swiglu_packed_forward(ops, p.saved);
    p.scratch = bf16_tensor(device_memory((size_t)(s->rows * s->dim) * sizeof(bf16)), s->rows, s->dim);
    p.bytes = (size_t)((s->rows + 1) * 2 * s->dim) * sizeof(bf16);
    p.out = bf16_tensor(device_memory(p.bytes), s->rows, 2 * s->dim);
    if (s->timed)
        race(&p);
    else
        check(&p);
    fflush(stdout);
    fail_if(ops->sync(ops));
    void *all[] = {p.in.data, p.weight.data, p.saved.data, p.scratch.data, p.out.data};
    for (int k = 0; k < 5; k++)
        ops->free(ops, all[k], 0);
}

static int64_t case_size(const Case *s) {
    return s->rows * s->inner * s->dim;
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        {"odd", 129, 72, 40, false},
        {"one row", 1, 64, 32, false},
        {"many small tiles", 1600, 64, 2592, false},
        {"odd rows", 1000, 960, 2560, false},
        {"many tiles", 4200, 960, 2560, false},
        {"smollm-360m", 32768, 960, 2560, true},
        {"llama-3.2-1b", 32768, 2048, 8192, true},
    };
    bench_begin(argc, argv, (size_t)64 << 20, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int backward = 0; backward < 2; backward++)
            if (!(cases[i].timed && check_only) && !(small_only && case_size(&cases[i]) > SMALL_SIZE))
                case_run(&cases[i], backward);
    return bench_end();
}
