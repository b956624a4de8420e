// hearth's own kernels of linear layers, on the GPU: every variant's results against the library's product (and the
// rotary op behind it), then times under sustained load. Run by hand: build/tests/linear_bench [--check | --small]
//
// Outputs hold NaN before each run, two runs must give the same bits, and rows beyond the end must stay as they were.
#include "bench.h"
#include "ops/cuda/linear_sm90.h"

#include <stdio.h>
#include <stdlib.h>

typedef enum Kind { FORWARD, ADD, ROPE, BACKWARD } Kind;

typedef struct Case {
    const char *name;
    Kind kind;
    int64_t rows;
    int n, k;
    int head_dim, seq, first; // ROPE: a fifth of the heads are keys, as many values
    bool timed;
    int stride; // from one row of the input to the next; 0: k
} Case;

typedef struct Problem {
    const Case *shape;
    LinearCall call;
    Rope rope;
    size_t bytes; // of out, with a row behind to see what is written beyond the end
} Problem;

// variant -1: the library's product, and the rotary op.
static bool run(const void *problem, int variant) {
    const LinearCall *c = &((const Problem *)problem)->call;
    if (variant >= 0) return linear_sm90(ops->state, c, variant);
    if (c->backward)
        gemm_linear_backward_input(ops, c->out, c->in, c->weight);
    else if (c->rope) {
        Tensor heads = tensor_cols(c->out, 0, (int64_t)(c->rope->heads + c->rope->kv_heads) * c->rope->head_dim);
        gemm_linear_forward(ops, c->out, c->in, c->weight, TENSOR_NONE);
        ops->qk_rope_forward(ops, heads, TENSOR_NONE, heads, c->rope);
    } else
        gemm_linear_forward(ops, c->out, c->in, c->weight, c->add);
    return true;
}

static bf16 *result(const Problem *p, int variant) { // NULL when it cannot do the shape
    memory_spoil(p->call.out.data, p->bytes);
    return run(p, variant) ? fetch(p->call.out.data, p->bytes) : NULL;
}

static void check(const Problem *p) {
    const Case *s = p->shape;
    int64_t used = s->rows * s->n;
    size_t behind = p->bytes - (size_t)used * sizeof(bf16);
    bf16 *wanted = result(p, -1);
    printf("%-22s", s->name);
    for (int variant = 0; variant < LINEAR_SM90_VARIANTS; variant++) {
        bf16 *got = result(p, variant), *again = got ? result(p, variant) : NULL;
        if (!got) continue;
        double d = difference(got, wanted, used);
        bool same = memcmp(got, again, p->bytes) == 0, edge = spoiled(got + used, behind);
        // Both round the same sums to bf16 (2^-9); the separate ops round twice where heads are rotated.
        bool right = verdict(d < 6e-3 && same && edge);
        printf(" v%d %.1e%s%s%s", variant, d, same ? "" : " two runs differ", edge ? "" : " wrote beyond the end",
               right ? "" : " FAILED");
        free(got), free(again);
    }
    printf("\n");
    free(wanted);
}

static void race(const Problem *p) {
    const Case *s = p->shape;
    double flops = 2.0 * (double)s->rows * s->n * s->k;
    int runs = (int)(24.0e12 / flops) + 1; // some 35 ms
    for (int round = 0; round < 2; round++) {
        printf("%-22s", s->name);
        for (int variant = -1; variant < LINEAR_SM90_VARIANTS; variant++) {
            double ms = timed(run, p, variant, runs);
            if (ms > 0) printf(" %s%d %.4f %.0f", variant < 0 ? "library " : "v", variant, ms, flops / ms / 1e9);
        }
        printf("\n");
    }
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        {"odd forward", FORWARD, 129, 40, 72, .timed = false},
        {"odd add", ADD, 129, 40, 72, .timed = false},
        {"odd backward", BACKWARD, 129, 40, 72, .timed = false},
        {"one row add", ADD, 1, 64, 64, .timed = false},
        {"rows add", ADD, 5000, 200, 1160, .timed = false},
        {"many tiles add", ADD, 16000, 256, 64, .timed = false},
        {"many tiles backward", BACKWARD, 16000, 256, 64, .timed = false},
        {"many tiles rope", ROPE, 10000, 64 * 6, 64, 64, 512, 0, false},
        {"strided add", ADD, 1300, 960, 320, .timed = false, .stride = 640},
        {"odd rope 64", ROPE, 1000, 64 * 12, 136, 64, 130, 5, false},
        {"odd rope 128", ROPE, 1000, 128 * 12, 136, 128, 1000, 0, false},
        {"rope 64", ROPE, 5000, 64 * 24, 960, 64, 512, 0, false},
        {"smollm qkv", ROPE, 32768, 1600, 960, 64, 512, 0, true},
        {"smollm o", ADD, 32768, 960, 960, .timed = true},
        {"smollm down", ADD, 32768, 960, 2560, .timed = true, .stride = 5120},
        {"smollm qkv dgrad", BACKWARD, 32768, 960, 1600, .timed = true},
        {"smollm o dgrad", BACKWARD, 32768, 960, 960, .timed = true},
        {"smollm gate-up dgrad", BACKWARD, 32768, 960, 5120, .timed = true},
        {"llama qkv", ROPE, 32768, 3072, 2048, 64, 2048, 0, true},
        {"llama o", ADD, 32768, 2048, 2048, .timed = true},
        {"llama down", ADD, 16384, 2048, 8192, .timed = true, .stride = 16384},
        {"llama gate-up dgrad", BACKWARD, 16384, 2048, 16384, .timed = true},
    };
    bench_begin(argc, argv, (size_t)64 << 20, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *s = &cases[i];
        if (small_only && s->rows * s->n * s->k > SMALL_SIZE) continue;
        Problem p = {.shape = s, .bytes = (size_t)((s->rows + 1) * s->n) * sizeof(bf16)};
        int64_t stride = s->stride ? s->stride : s->k;
        void *weight = values_make((int64_t)s->n * s->k, 2, 0.05f);
        p.call = (LinearCall){
            .out = bf16_tensor(device_memory(p.bytes), s->rows, s->n),
            .in = tensor_cols(bf16_tensor(values_make(s->rows * stride, 1, 1), s->rows, stride), 0, s->k),
            .weight = s->kind == BACKWARD ? bf16_tensor(weight, s->k, s->n) : bf16_tensor(weight, s->n, s->k),
            .backward = s->kind == BACKWARD};
        if (s->kind == ADD) p.call.add = bf16_tensor(values_make(s->rows * s->n, 3, 1), s->rows, s->n);
        if (s->kind == ROPE) {
            int heads = s->n / s->head_dim, keys = heads / 5;
            p.rope = rope_make(s->seq, s->first, heads - 2 * keys, keys, s->head_dim);
            p.call.rope = &p.rope;
        }
        check(&p);
        if (s->timed && !check_only) race(&p);
        fflush(stdout);
        fail_if(ops->sync(ops));
        void *all[] = {p.call.out.data, p.call.in.data, p.call.weight.data, p.call.add.data};
        for (int k = 0; k < 4; k++)
            ops->free(ops, all[k], 0);
        rope_free(&p.rope);
    }
    return bench_end();
}
