// Attention on the GPU: every kernel of hearth's own against the portable ones, then the Hopper forward pass against
// cuDNN in time under sustained load. Run by hand: build/tests/attention_bench
//
// Outputs hold NaN before each run, runs must give the same bits, and what lies behind the end must stay as it was. The
// backward kernels are run often: training uses the fastest of them, and a race in another would show only by chance.
#include "base/rng.h"
#include "ops/cuda/attention_sm90.h"
#include "ops/cuda/cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Case {
    int batch, seq, heads, kv_heads, head_dim;
    bool timed;
    float deviation; // of q, k and v
    int documents;   // their mean length, or 0
} Case;

typedef struct Problem {
    AttentionShape shape;
    bf16 *qkv, *out; // out with a row of padding behind
    bf16 *dout, *grads;
    float *lse;
    int64_t out_count, lse_count;
    CudnnPlan *plan;
} Problem;

typedef enum Engine { ENGINE_PORTABLE, ENGINE_CUDNN, ENGINE_SM90 } Engine;

static const size_t WORKSPACE = (size_t)1 << 30;
static Ops *ops;
static CudaState *state;
static CudnnLibrary *library;
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

static void *values_make(int64_t count, float deviation) {
    float *host = xmalloc((size_t)count * sizeof(float));
    bf16 *narrow = xmalloc((size_t)count * sizeof(bf16));
    int64_t block = count < 5000011 ? count : 5000011;
    rng_fill_normal(host, block, 7, 1, 0, 0, deviation);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = bf16_from_f32(host[i % block]);
    void *memory = device_memory((size_t)count * sizeof(bf16));
    ops->upload(ops, memory, narrow, (size_t)count * sizeof(bf16));
    free(host);
    free(narrow);
    return memory;
}

static void *fetch(const void *memory, size_t bytes) {
    void *host = xmalloc(bytes);
    ops->download(ops, host, memory, bytes);
    return host;
}

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
                               .scale = 1 / sqrtf((float)c->head_dim)};
    p.qkv = values_make(tokens * width, c->deviation);
    p.out_count = (tokens + 1) * c->heads * c->head_dim;
    p.lse_count = (tokens + 1) * c->heads;
    p.out = device_memory((size_t)p.out_count * sizeof(bf16));
    p.lse = device_memory((size_t)p.lse_count * sizeof(float));
    p.dout = values_make(tokens * c->heads * c->head_dim, 1);
    p.grads = device_memory((size_t)(tokens * width) * sizeof(bf16));
    if (c->documents) p.shape.doc_start = documents_make(c->batch, c->seq, c->documents);
    char *why = NULL;
    if (library && !c->documents) p.plan = cudnn_plan_forward(library, &p.shape, &why);
    free(why);
    return p;
}

static void problem_free(Problem *p) {
    cudnn_plan_free(p->plan);
    ops->free(ops, p->qkv, 0);
    ops->free(ops, p->out, 0);
    ops->free(ops, p->lse, 0);
    ops->free(ops, p->dout, 0);
    ops->free(ops, p->grads, 0);
    if (p->shape.doc_start) ops->free(ops, (void *)p->shape.doc_start, 0);
}

static bool run(const Problem *p, Engine engine) {
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

static double difference(const bf16 *got, const bf16 *wanted, int64_t count) {
    double sum = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = bf16_to_f32(got[i]), y = bf16_to_f32(wanted[i]);
        sum += (x - y) * (x - y);
        size += y * y;
    }
    return sqrt(sum / size);
}

static void outputs_run(const Problem *p, Engine engine, bf16 **out, float **lse) {
    ops->fill_f32(ops, (float *)p->out, NAN, p->out_count / 2);
    ops->fill_f32(ops, p->lse, NAN, p->lse_count);
    if (!run(p, engine)) printf(" not for this shape");
    fail_if(ops->sync(ops));
    *out = fetch(p->out, (size_t)p->out_count * sizeof(bf16));
    *lse = fetch(p->lse, (size_t)p->lse_count * sizeof(float));
}

static void check(const Problem *p, int runs, const bf16 *out, const float *lse) {
    const AttentionShape *s = &p->shape;
    int64_t rows = (int64_t)s->batch * s->seq * s->heads, used = rows * s->head_dim;
    bf16 *got, *again;
    float *got_lse, *again_lse;
    outputs_run(p, ENGINE_SM90, &got, &got_lse);
    bool same = true;
    for (int i = 1; i < runs; i++) {
        outputs_run(p, ENGINE_SM90, &again, &again_lse);
        same &= !memcmp(got, again, (size_t)p->out_count * sizeof(bf16)) &&
                !memcmp(got_lse, again_lse, (size_t)p->lse_count * sizeof(float));
        free(again), free(again_lse);
    }
    bool edge = !memcmp(got + used, out + used, (size_t)(p->out_count - used) * sizeof(bf16)) &&
                !memcmp(got_lse + rows, lse + rows, (size_t)(p->lse_count - rows) * sizeof(float));
    double error = difference(got, out, used), lse_error = 0;
    for (int64_t i = 0; i < rows; i++) {
        double d = fabs((double)got_lse[i] - lse[i]) / (1 + fabs(lse[i]));
        if (!(d <= lse_error)) lse_error = d;
    }
    // Both round probabilities and results to bf16 (2^-9 each); sums of scores and of probabilities are in float.
    bool right = error < 6e-3 && lse_error < 1e-5 && same && edge;
    failures += !right;
    printf(" difference %.1e, of lse %.0e%s%s %s\n", error, lse_error, same ? "" : ", runs differ",
           edge ? "" : ", wrote beyond the end", right ? "ok" : "FAILED");
    fflush(stdout);
    free(got), free(got_lse);
}

enum { BACKWARD_SM90 = FLASH_VARIANTS + HOPPER_VARIANTS, BACKWARD_ENGINES };

// Engines as attention.c counts them; false when this one cannot do the shape.
static bool backward_run(const Problem *p, int engine) {
    const AttentionShape *s = &p->shape;
    const bf16 *q = p->qkv, *k = q + s->heads * s->head_dim, *v = k + s->kv_heads * s->head_dim;
    bf16 *dq = p->grads, *dk = dq + (k - q), *dv = dq + (v - q);
    ops->fill_f32(ops, (float *)p->grads, NAN, (int64_t)s->batch * s->seq * s->q_stride / 2);
    if (engine < FLASH_VARIANTS)
        flash_backward(state, dq, dk, dv, s->q_stride, p->dout, p->out, p->lse, q, k, v, s, DTYPE_BF16, engine);
    else if (engine < BACKWARD_SM90 && hopper_available(state))
        hopper_backward(state, dq, dk, dv, s->q_stride, p->dout, p->out, p->lse, q, k, v, s, engine - FLASH_VARIANTS);
    else
        return engine == BACKWARD_SM90 &&
               attention_sm90_backward(state, dq, dk, dv, s->q_stride, p->dout, p->out, p->lse, q, k, v, s, NULL);
    return true;
}

static void backward_check(const Problem *p, int runs) {
    const AttentionShape *s = &p->shape;
    size_t bytes = (size_t)s->batch * (size_t)s->seq * (size_t)s->q_stride * sizeof(bf16);
    run(p, ENGINE_PORTABLE);
    backward_run(p, 0);
    fail_if(ops->sync(ops));
    bf16 *wanted = fetch(p->grads, bytes);
    printf("    backward:");
    for (int engine = 0; engine < BACKWARD_ENGINES; engine++) {
        if (!backward_run(p, engine)) continue;
        bf16 *first = fetch(p->grads, bytes);
        int differ = 0;
        for (int i = 1; i < runs; i++) {
            backward_run(p, engine);
            bf16 *again = fetch(p->grads, bytes);
            differ += memcmp(first, again, bytes) != 0;
            free(again);
        }
        double error = difference(first, wanted, (int64_t)(bytes / sizeof(bf16)));
        bool right = error < 1e-2 && !differ;
        failures += !right;
        printf(" %d: %.1e%s", engine, error, right ? "" : " FAILED");
        if (differ) printf(" (%d of %d runs differ)", differ, runs - 1);
        free(first);
    }
    printf("\n");
    fflush(stdout);
    free(wanted);
}

// Milliseconds of one run, hot: the clock settles under load first.
static double timed(const Problem *p, Engine engine, int runs) {
    for (int i = 0; i < runs; i++)
        if (!run(p, engine)) return NAN;
    ops->mark(ops, 0);
    for (int i = 0; i < runs; i++)
        run(p, engine);
    ops->mark(ops, 1);
    return ops->mark_elapsed(ops, 0, 1) / runs;
}

// Against cuDNN, or where there are documents against the portable kernel.
static void race(const Problem *p) {
    const AttentionShape *s = &p->shape;
    double flops = 2.0 * s->seq * s->seq * s->head_dim * s->heads * s->batch; // below the diagonal
    int runs = (int)(12.0e12 / flops) + 1;
    for (int round = 0; round < 3; round++) {
        double other = timed(p, s->doc_start ? ENGINE_PORTABLE : ENGINE_CUDNN, runs), own = timed(p, ENGINE_SM90, runs);
        printf("    %s %.4f ms %.0f TFLOP/s   hearth %.4f ms %.0f TFLOP/s\n", s->doc_start ? "portable" : "cuDNN",
               other, flops / other / 1e9, own, flops / own / 1e9);
        fflush(stdout);
    }
}

int main(void) {
    static const Case cases[] = {
        {2, 1, 3, 1, 64, false, 1.5f, 0},
        {2, 64, 3, 1, 64, false, 1.5f, 0},
        {1, 77, 6, 2, 64, false, 1.5f, 0},
        {3, 200, 4, 4, 56, false, 1.5f, 0},
        {2, 513, 8, 2, 64, false, 1.5f, 0},
        {2, 385, 9, 1, 64, false, 1.5f, 0},
        {5, 513, 16, 2, 64, false, 1.5f, 0},
        {2, 1000, 5, 5, 8, false, 1.5f, 0},
        {7, 192, 6, 3, 32, false, 1.5f, 0},
        {2, 1100, 6, 2, 64, false, 12, 0}, // scores so far apart that the maximum must be taken anew
        {3, 200, 4, 4, 56, false, 1.5f, 30},
        {2, 513, 8, 2, 64, false, 1.5f, 100},
        {2, 1000, 5, 5, 64, false, 1.5f, 400},
        {4, 1500, 6, 2, 64, false, 3, 7},
        {64, 512, 15, 5, 64, true, 1.5f, 0},
        {16, 2048, 15, 5, 64, true, 1.5f, 0},
        {8, 4096, 32, 8, 64, true, 1.5f, 0},
        {16, 2048, 15, 5, 64, true, 1.5f, 600},
    };
    fail_if(ops_cuda_create(&ops, 0, NULL));
    state = ops->state;
    library = cudnn_open(state);
    void *workspace = device_memory(WORKSPACE);
    ops->bind_workspace(ops, workspace, WORKSPACE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        Problem p = problem_make(c);
        bf16 *out;
        float *lse;
        printf("batch %d seq %d heads %d+%d dim %d documents %d:", c->batch, c->seq, c->heads, c->kv_heads, c->head_dim,
               c->documents);
        outputs_run(&p, ENGINE_PORTABLE, &out, &lse);
        check(&p, c->timed ? 1 : 3, out, lse);
        free(out), free(lse);
        backward_check(&p, c->timed ? 10 : 3);
        if (c->timed) race(&p);
        problem_free(&p);
    }
    ops->free(ops, workspace, WORKSPACE);
    cudnn_close(library);
    ops_cuda_destroy(ops);
    printf("%s\n", failures ? "FAILED" : "all right");
    return failures != 0;
}
