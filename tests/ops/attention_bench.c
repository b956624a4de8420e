// Attention on the GPU: every kernel of hearth's own against the portable ones, then the Hopper forward pass against
// cuDNN in time under sustained load, and the backward kernels. Run by hand: build/tests/attention_bench [--check |
// --small]
//
// Outputs hold NaN before each run, runs must give the same bits, and what lies behind the end must stay as it was. The
// backward kernels are run often: training uses the fastest of them, and a race in another would show only by chance.
#include "bench.h"
#include "ops/cuda/cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Case {
    int batch, seq, heads, kv_heads, head_dim;
    bool timed;
    float deviation; // of q, k and v
    int documents;   // their mean length, or 0
    bool full;       // queries see all keys
} Case;

typedef struct Problem {
    AttentionShape shape;
    Rope rope;
    QkRopeShape rotation; // the same, for the kernels
    bf16 *qkv, *dout;
    bf16 *out, *grads; // and lse: with a row of padding behind
    float *lse;
    size_t out_bytes, lse_bytes, grads_bytes;
    CudnnPlan *plan;
} Problem;

typedef enum Engine { ENGINE_PORTABLE, ENGINE_CUDNN, ENGINE_SM90 } Engine;

static CudaState *state;
static CudnnLibrary *library; // for the times

static int32_t *documents_make(int batch, int seq, int length) {
    int32_t *start = xmalloc((size_t)batch * (size_t)seq * sizeof(int32_t));
    uint64_t random = 1;
    for (int i = 0; i < batch * seq; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        bool begins = i % seq == 0 || (random >> 33) % (uint64_t)length == 0;
        start[i] = begins ? i % seq : start[i - 1];
    }
    int32_t *memory = device_memory((size_t)batch * (size_t)seq * sizeof(int32_t));
    ops->upload(ops, memory, start, (size_t)batch * (size_t)seq * sizeof(int32_t));
    free(start);
    return memory;
}

static Problem problem_make(const Case *c) {
    Problem p = {0};
    int64_t tokens = (int64_t)c->batch * c->seq, width = (int64_t)(c->heads + 2 * c->kv_heads) * c->head_dim;
    p.shape = (AttentionShape){.batch = c->batch,
                               .seq = c->seq,
                               .heads = c->heads,
                               .kv_heads = c->kv_heads,
                               .head_dim = c->head_dim,
                               .q_stride = width,
                               .k_stride = width,
                               .v_stride = width,
                               .o_stride = (int64_t)c->heads * c->head_dim,
                               .scale = 1 / sqrtf((float)c->head_dim),
                               .full = c->full};
    p.rope = rope_make(c->seq, 5, c->heads, c->kv_heads, c->head_dim);
    p.rotation = qk_rope_shape(&p.rope, tokens);
    p.qkv = values_make(tokens * width, 1, c->deviation);
    p.dout = values_make(tokens * p.shape.o_stride, 2, 1);
    p.out_bytes = (size_t)((tokens + 1) * p.shape.o_stride) * sizeof(bf16);
    p.lse_bytes = (size_t)((tokens + 1) * c->heads) * sizeof(float);
    p.grads_bytes = (size_t)((tokens + 1) * width) * sizeof(bf16);
    p.out = device_memory(p.out_bytes);
    p.lse = device_memory(p.lse_bytes);
    p.grads = device_memory(p.grads_bytes);
    if (c->documents) p.shape.doc_start = documents_make(c->batch, c->seq, c->documents);
    char *why = NULL;
    if (library && c->timed && !c->documents) p.plan = cudnn_plan_forward(library, &p.shape, &why);
    free(why);
    return p;
}

static void problem_free(Problem *p) {
    cudnn_plan_free(p->plan);
    rope_free(&p->rope);
    ops->free(ops, p->qkv, 0);
    ops->free(ops, p->out, 0);
    ops->free(ops, p->lse, 0);
    ops->free(ops, p->dout, 0);
    ops->free(ops, p->grads, 0);
    if (p->shape.doc_start) ops->free(ops, (void *)p->shape.doc_start, 0);
}

static bool run(const void *problem, int engine) {
    const Problem *p = problem;
    const AttentionShape *s = &p->shape;
    const bf16 *q = p->qkv, *k = q + s->heads * s->head_dim, *v = k + s->kv_heads * s->head_dim;
    if (engine == ENGINE_PORTABLE)
        flash_forward(state, p->out, p->lse, q, k, v, s, DTYPE_BF16, 0);
    else if (engine == ENGINE_SM90)
        return attention_sm90_forward(state, p->out, p->lse, q, k, v, s);
    else if (p->plan)
        cudnn_run_forward(state, p->plan, p->out, p->lse, q, k, v, s);
    return engine != ENGINE_CUDNN || p->plan;
}

// ---- checks -------------------------------------------------------------------------------------------------------

typedef struct Outputs {
    bf16 *out; // NULL when the engine cannot do the shape
    float *lse;
} Outputs;

static Outputs outputs(const Problem *p, Engine engine) {
    memory_spoil(p->out, p->out_bytes);
    memory_spoil(p->lse, p->lse_bytes);
    if (!run(p, engine)) return (Outputs){NULL, NULL};
    return (Outputs){fetch(p->out, p->out_bytes), fetch(p->lse, p->lse_bytes)};
}

static double lse_difference(const float *got, const float *wanted, int64_t count) {
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = fabs((double)got[i] - wanted[i]) / (1 + fabs(wanted[i]));
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static void forward_check(const Problem *p, int runs) {
    const AttentionShape *s = &p->shape;
    int64_t rows = (int64_t)s->batch * s->seq * s->heads, used = rows * s->head_dim;
    Outputs got = outputs(p, ENGINE_SM90);
    if (!got.out) {
        printf(" forward not for this shape\n");
        return;
    }
    bool same = true;
    for (int i = 1; i < runs; i++) {
        Outputs again = outputs(p, ENGINE_SM90);
        same = same && !memcmp(got.out, again.out, p->out_bytes) && !memcmp(got.lse, again.lse, p->lse_bytes);
        free(again.out), free(again.lse);
    }
    Outputs wanted = outputs(p, ENGINE_PORTABLE);
    bool edge = spoiled(got.out + used, p->out_bytes - (size_t)used * sizeof(bf16)) &&
                spoiled(got.lse + rows, p->lse_bytes - (size_t)rows * sizeof(float));
    double error = difference(got.out, wanted.out, used), lse_error = lse_difference(got.lse, wanted.lse, rows);
    // Both round probabilities and results to bf16 (2^-9 each); sums of scores and of probabilities are in float.
    bool right = verdict(error < 6e-3 && lse_error < 1e-5 && same && edge);
    printf(" difference %.1e, of lse %.0e%s%s %s\n", error, lse_error, same ? "" : ", runs differ",
           edge ? "" : ", wrote beyond the end", right ? "ok" : "FAILED");
    free(got.out), free(got.lse), free(wanted.out), free(wanted.lse);
}

enum { BACKWARD_SM90 = FLASH_VARIANTS + HOPPER_VARIANTS, BACKWARD_ENGINES };

// Engines as attention.c counts them; false when this one cannot do the shape. rotated: dQ and dK also go back through
// the rotation, inside the one-pass kernel or behind the others.
static bool backward_run(const Problem *p, int engine, bool rotated) {
    const AttentionShape *s = &p->shape;
    const bf16 *q = p->qkv, *k = q + s->heads * s->head_dim, *v = k + s->kv_heads * s->head_dim;
    bf16 *dq = p->grads, *dk = dq + (k - q), *dv = dq + (v - q);
    if (engine == BACKWARD_SM90)
        return attention_sm90_backward(state, dq, dk, dv, s->q_stride, p->dout, p->out, p->lse, q, k, v, s,
                                       rotated ? &p->rotation : NULL);
    if (engine >= FLASH_VARIANTS && !hopper_available(state)) return false;
    if (engine >= FLASH_VARIANTS)
        hopper_backward(state, dq, dk, dv, s->q_stride, p->dout, p->out, p->lse, q, k, v, s, engine - FLASH_VARIANTS);
    else
        flash_backward(state, dq, dk, dv, s->q_stride, p->dout, p->out, p->lse, q, k, v, s, DTYPE_BF16, engine);
    if (rotated) {
        Tensor grads = bf16_tensor(dq, p->rotation.tokens, s->q_stride);
        ops->qk_rope_backward(ops, tensor_cols(grads, 0, v - q), TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE,
                              &p->rope);
    }
    return true;
}

static bf16 *gradients(const Problem *p, int engine, bool rotated) { // NULL when this engine cannot do the shape
    memory_spoil(p->grads, p->grads_bytes);
    return backward_run(p, engine, rotated) ? fetch(p->grads, p->grads_bytes) : NULL;
}

static void gradients_check(const Problem *p, int engine, bool rotated, int runs, const bf16 *wanted) {
    const AttentionShape *s = &p->shape;
    int64_t used = (int64_t)s->batch * s->seq * s->q_stride;
    bf16 *first = gradients(p, engine, rotated);
    if (!first) return;
    int differ = 0;
    for (int i = 1; i < runs; i++) {
        bf16 *again = gradients(p, engine, rotated);
        differ += memcmp(first, again, p->grads_bytes) != 0;
        free(again);
    }
    bool edge = spoiled(first + used, p->grads_bytes - (size_t)used * sizeof(bf16));
    double error = difference(first, wanted, used);
    bool right = verdict(error < 6e-3 && !differ && edge);
    printf(" %d%s: %.1e%s%s", engine, rotated ? " rotated" : "", error, edge ? "" : " wrote beyond the end",
           right ? "" : " FAILED");
    if (differ) printf(" (%d of %d runs differ)", differ, runs - 1);
    free(first);
}

static void backward_check(const Problem *p, int runs) {
    run(p, ENGINE_PORTABLE);
    printf("    backward:");
    bf16 *wanted = gradients(p, 0, false);
    for (int engine = 0; engine < BACKWARD_ENGINES; engine++)
        gradients_check(p, engine, false, runs, wanted);
    free(wanted);
    if (attention_sm90_rotates(&p->shape, &p->rotation) && !p->shape.doc_start) {
        wanted = gradients(p, 0, true);
        gradients_check(p, BACKWARD_SM90, true, runs, wanted);
        free(wanted);
    }
    printf("\n");
    fflush(stdout);
}

// ---- times --------------------------------------------------------------------------------------------------------

static bool backward_timed(const void *problem, int engine) {
    return backward_run(problem, engine, false);
}

// Against cuDNN, or where there are documents against the portable kernel.
static void race(const Problem *p) {
    const AttentionShape *s = &p->shape;
    double flops = 2.0 * s->seq * s->seq * s->head_dim * s->heads * s->batch * (s->full ? 2 : 1); // below the diagonal
    int runs = (int)(12.0e12 / flops) + 1;
    for (int engine = 0; engine < BACKWARD_ENGINES; engine++)
        if (backward_run(p, engine, false)) {
            double time = timed(backward_timed, p, engine, runs / 3 + 1);
            printf("    backward %d %.4f ms %.0f TFLOP/s\n", engine, time, 2.5 * flops / time / 1e9);
        }
    if (!attention_sm90_forward_supported(state, s)) return;
    for (int round = 0; round < 3; round++) {
        double other = timed(run, p, s->doc_start ? ENGINE_PORTABLE : ENGINE_CUDNN, runs);
        double own = timed(run, p, ENGINE_SM90, runs);
        printf("    %s %.4f ms %.0f TFLOP/s   hearth %.4f ms %.0f TFLOP/s\n", s->doc_start ? "portable" : "cuDNN",
               other, flops / other / 1e9, own, flops / own / 1e9);
        fflush(stdout);
    }
}

static int64_t case_size(const Case *c) {
    return (int64_t)c->batch * c->heads * c->seq * c->seq * c->head_dim;
}

int main(int argc, char **argv) {
    static const Case cases[] = {
        {2, 1, 3, 1, 64, false, 1.5f, 0, false},
        {2, 64, 3, 1, 64, false, 1.5f, 0, false},
        {1, 77, 6, 2, 64, false, 1.5f, 0, false},
        {3, 200, 4, 4, 56, false, 1.5f, 0, false},
        {2, 513, 8, 2, 64, false, 1.5f, 0, false},
        {2, 385, 9, 1, 64, false, 1.5f, 0, false},
        {5, 513, 16, 2, 64, false, 1.5f, 0, false},
        {2, 1000, 5, 5, 8, false, 1.5f, 0, false},
        {7, 192, 6, 3, 32, false, 1.5f, 0, false},
        {24, 150, 4, 4, 64, false, 1.5f, 0, false}, // more work items than multiprocessors
        {2, 1100, 6, 2, 64, false, 12, 0, false},   // scores so far apart that the maximum must be taken anew
        {2, 300, 4, 2, 96, false, 1.5f, 0, false},
        {2, 450, 6, 2, 128, false, 1.5f, 0, false},
        {3, 200, 4, 4, 56, false, 1.5f, 30, false},
        {2, 513, 8, 2, 64, false, 1.5f, 100, false},
        {2, 1000, 5, 5, 64, false, 1.5f, 400, false},
        {4, 1500, 6, 2, 64, false, 3, 7, false},
        {2, 128, 3, 1, 64, false, 1.5f, 0, true},
        {3, 384, 4, 4, 56, false, 1.5f, 0, true},
        {2, 640, 9, 1, 64, false, 1.5f, 0, true},
        {24, 256, 4, 4, 64, false, 1.5f, 0, true},
        {2, 1152, 6, 2, 64, false, 12, 0, true},
        {2, 256, 6, 2, 128, false, 1.5f, 0, true},
        {3, 333, 6, 2, 128, false, 1.5f, 0, true},
        {64, 512, 15, 5, 64, true, 1.5f, 0, false},
        {16, 2048, 15, 5, 64, true, 1.5f, 0, false},
        {8, 4096, 32, 8, 64, true, 1.5f, 0, false},
        {16, 2048, 15, 5, 64, true, 1.5f, 600, false},
        {2, 4096, 32, 8, 128, true, 1.5f, 0, false},
        {4, 4096, 32, 8, 64, true, 1.5f, 0, true},
        {2, 4096, 32, 8, 128, true, 1.5f, 0, true},
    };
    bench_begin(argc, argv, (size_t)1 << 30, NULL);
    state = ops->state;
    if (!check_only) library = cudnn_open(state);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        if (small_only && case_size(c) > SMALL_SIZE) continue;
        Problem p = problem_make(c);
        printf("batch %d seq %d heads %d+%d dim %d documents %d:", c->batch, c->seq, c->heads, c->kv_heads, c->head_dim,
               c->documents);
        forward_check(&p, c->timed ? 2 : 3);
        backward_check(&p, !c->timed ? 3 : check_only ? 4 : 10);
        if (c->timed && !check_only) race(&p);
        problem_free(&p);
    }
    cudnn_close(library);
    return bench_end();
}
