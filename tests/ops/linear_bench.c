// hearth's own kernels of linear layers, on the GPU: every variant's results against the library's product (and the
// rotary op behind it), then times under sustained load. Run by hand: build/tests/linear_bench
//
// Outputs hold NaN before each run, two runs must give the same bits, and rows beyond the end must stay as they were.
#include "base/rng.h"
#include "ops/cuda/linear_sm90.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef enum Kind { FORWARD, ADD, ROPE, BACKWARD } Kind;

typedef struct Case {
    const char *name;
    Kind kind;
    int64_t rows;
    int n, k;
    int head_dim, seq, first; // ROPE: a quarter of the heads are keys, as many values
    bool timed;
} Case;

static Ops *ops;
static int failures;

static void fail_if(Status status) {
    if (!status) return;
    fprintf(stderr, "%s\n", status_message(status));
    exit(1);
}

static void *device_memory(size_t bytes) {
    void *memory = NULL;
    fail_if(ops->alloc(ops, &memory, bytes, "the bench"));
    return memory;
}

static void *values_make(int64_t count, uint64_t stream, float deviation) {
    int64_t block = count < 1 << 21 ? count : 1 << 21;
    float *host = xmalloc((size_t)block * sizeof(float));
    bf16 *narrow = xmalloc((size_t)count * sizeof(bf16));
    rng_fill_normal(host, block, 7, stream, 0, 0, deviation);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = bf16_from_f32(host[i % block]);
    void *memory = device_memory((size_t)count * sizeof(bf16));
    ops->upload(ops, memory, narrow, (size_t)count * sizeof(bf16));
    free(host);
    free(narrow);
    return memory;
}

static float *angles_make(int positions, int half, double (*function)(double)) {
    size_t bytes = (size_t)positions * (size_t)half * sizeof(float);
    float *host = xmalloc(bytes), *memory = device_memory(bytes);
    for (int i = 0; i < positions * half; i++)
        host[i] = (float)function((double)(i / half) * pow(10000.0, -(double)(i % half) / half));
    ops->upload(ops, memory, host, bytes);
    free(host);
    return memory;
}

static bf16 *fetch(const void *memory, int64_t count) {
    bf16 *host = xmalloc((size_t)count * sizeof(bf16));
    ops->download(ops, host, memory, (size_t)count * sizeof(bf16));
    return host;
}

typedef struct Problem {
    const Case *shape;
    LinearCall call;
    QkRopeShape rope;
    int64_t count; // of out, with a row behind to see what is written beyond the end
} Problem;

// variant -1: the library's product, and the rotary op.
static bool run(const Problem *p, int variant) {
    const LinearCall *c = &p->call;
    if (variant >= 0) return linear_sm90(ops->state, c, variant);
    if (c->backward)
        gemm_linear_backward_input(ops, c->out, c->in, c->weight, c->rows, c->n, c->k, DTYPE_BF16);
    else if (c->rope) {
        gemm_linear_forward(ops, c->out, c->in, c->weight, NULL, c->rows, c->k, c->n, DTYPE_BF16);
        ops->qk_rope_forward(ops, c->out, c->n, c->out, c->n, NULL, c->rope, DTYPE_BF16);
    } else
        gemm_linear_forward(ops, c->out, c->in, c->weight, c->add, c->rows, c->k, c->n, DTYPE_BF16);
    return true;
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

static void check(const Problem *p) {
    const Case *s = p->shape;
    int64_t used = s->rows * s->n;
    ops->fill_f32(ops, p->call.out, NAN, p->count / 2);
    run(p, -1);
    bf16 *wanted = fetch(p->call.out, p->count);
    printf("%-22s", s->name);
    for (int variant = 0; variant < LINEAR_SM90_VARIANTS; variant++) {
        bf16 *got[2];
        bool can = true;
        for (int time = 0; time < 2; time++) {
            ops->fill_f32(ops, p->call.out, NAN, p->count / 2);
            can = run(p, variant);
            fail_if(ops->sync(ops));
            got[time] = fetch(p->call.out, p->count);
        }
        double d = difference(got[0], wanted, used);
        bool same = memcmp(got[0], got[1], (size_t)p->count * sizeof(bf16)) == 0;
        bool edge = memcmp(got[0] + used, wanted + used, (size_t)(p->count - used) * sizeof(bf16)) == 0;
        // Both round the same sums to bf16 (2^-9); the separate ops round twice where heads are rotated.
        bool right = !can || (d < 6e-3 && same && edge);
        failures += !right;
        if (can)
            printf(" v%d %.1e%s%s%s", variant, d, same ? "" : " two runs differ", edge ? "" : " wrote beyond the end",
                   right ? "" : " FAILED");
        free(got[0]), free(got[1]);
    }
    printf("\n");
    free(wanted);
}

// Milliseconds of one run, hot: the clock settles under load first.
static double timed(const Problem *p, int variant, int runs) {
    for (int i = 0; i < runs; i++)
        if (!run(p, variant)) return 0;
    ops->mark(ops, 0);
    for (int i = 0; i < runs; i++)
        run(p, variant);
    ops->mark(ops, 1);
    return ops->mark_elapsed(ops, 0, 1) / runs;
}

static void race(const Problem *p) {
    const Case *s = p->shape;
    double flops = 2.0 * (double)s->rows * s->n * s->k;
    int runs = (int)(24.0e12 / flops) + 1; // some 35 ms
    for (int round = 0; round < 2; round++) {
        printf("%-22s", s->name);
        for (int variant = -1; variant < LINEAR_SM90_VARIANTS; variant++) {
            double ms = timed(p, variant, runs);
            if (ms > 0) printf(" %s%d %.4f %.0f", variant < 0 ? "library " : "v", variant, ms, flops / ms / 1e9);
        }
        printf("\n");
    }
}

int main(void) {
    static const Case cases[] = {
        {"odd forward", FORWARD, 129, 40, 72, .timed = false},
        {"odd add", ADD, 129, 40, 72, .timed = false},
        {"odd backward", BACKWARD, 129, 40, 72, .timed = false},
        {"one row add", ADD, 1, 64, 64, .timed = false},
        {"rows add", ADD, 5000, 200, 1160, .timed = false},
        {"odd rope 64", ROPE, 1000, 64 * 12, 136, 64, 130, 5, false},
        {"odd rope 128", ROPE, 1000, 128 * 12, 136, 128, 1000, 0, false},
        {"rope 64", ROPE, 5000, 64 * 24, 960, 64, 512, 0, false},
        {"smollm qkv", ROPE, 32768, 1600, 960, 64, 512, 0, true},
        {"smollm o", ADD, 32768, 960, 960, .timed = true},
        {"smollm down", ADD, 32768, 960, 2560, .timed = true},
        {"smollm qkv dgrad", BACKWARD, 32768, 960, 1600, .timed = true},
        {"smollm o dgrad", BACKWARD, 32768, 960, 960, .timed = true},
        {"smollm gate-up dgrad", BACKWARD, 32768, 960, 5120, .timed = true},
        {"llama qkv", ROPE, 32768, 3072, 2048, 64, 2048, 0, true},
        {"llama o", ADD, 32768, 2048, 2048, .timed = true},
        {"llama down", ADD, 16384, 2048, 8192, .timed = true},
        {"llama gate-up dgrad", BACKWARD, 16384, 2048, 16384, .timed = true},
    };
    fail_if(ops_cuda_create(&ops, 0, NULL));
    size_t bytes = (size_t)64 << 20;
    void *workspace = device_memory(bytes);
    ops->bind_workspace(ops, workspace, bytes);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *s = &cases[i];
        Problem p = {.shape = s, .count = (s->rows + 1) * s->n};
        p.call = (LinearCall){.out = device_memory((size_t)p.count * sizeof(bf16)),
                              .in = values_make(s->rows * s->k, 1, 1),
                              .weight = values_make((int64_t)s->n * s->k, 2, 0.05f),
                              .rows = s->rows,
                              .n = s->n,
                              .k = s->k,
                              .backward = s->kind == BACKWARD};
        if (s->kind == ADD) p.call.add = values_make(s->rows * s->n, 3, 1);
        if (s->kind == ROPE) {
            int heads = s->n / s->head_dim, keys = heads / 5;
            p.rope = (QkRopeShape){.tokens = s->rows,
                                   .seq = s->seq,
                                   .first_position = s->first,
                                   .heads = heads - 2 * keys,
                                   .kv_heads = keys,
                                   .head_dim = s->head_dim,
                                   .cos = angles_make(s->first + s->seq, s->head_dim / 2, cos),
                                   .sin = angles_make(s->first + s->seq, s->head_dim / 2, sin)};
            p.call.rope = &p.rope;
        }
        if (!s->timed || s->k < 1000) check(&p);
        if (s->timed) race(&p);
        fflush(stdout);
        fail_if(ops->sync(ops));
        const void *all[] = {p.call.out, p.call.in, p.call.weight, p.call.add, p.rope.cos, p.rope.sin};
        for (int k = 0; k < 6; k++)
            if (all[k]) ops->free(ops, (void *)all[k], 0);
    }
    ops->free(ops, workspace, bytes);
    ops_cuda_destroy(ops);
    printf("%s\n", failures ? "FAILED" : "all right");
    return failures != 0;
}
