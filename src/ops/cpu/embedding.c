// Token embedding. The backward pass is cut by columns, so that rows of the same token are added in order by one
// thread.
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

#include <assert.h>

typedef struct Embedding {
    void *out;
    float *dweight;
    const void *weight, *dout;
    const int32_t *ids;
    int64_t rows;
    int dim, vocab;
    DType dtype;
} Embedding;

static void forward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Embedding *e = context;
    size_t bytes = (size_t)e->dim * dtype_size(e->dtype);
    for (int64_t row = begin; row < end; row++)
        memcpy((char *)e->out + (size_t)row * bytes, (const char *)e->weight + (size_t)e->ids[row] * bytes, bytes);
}

static void cpu_embedding_forward(Ops *ops, void *out, const int32_t *ids, const void *weight, int64_t rows, int dim,
                                  DType dtype) {
    CPU_TIMED(ops, OP_ELEMENTWISE);
    Embedding e = {.out = out, .weight = weight, .ids = ids, .rows = rows, .dim = dim, .dtype = dtype};
    threads_for(rows, cpu_row_chunk(dim), forward_task, &e);
}

VEC_INLINE void backward_columns(const Embedding *e, int64_t begin, int64_t end, DType dtype) {
    for (int64_t row = 0; row < e->rows; row++) {
        int32_t id = e->ids[row];
        assert(id >= 0 && id < e->vocab);
        float *sum = e->dweight + (int64_t)id * e->dim + begin;
        const void *dout = cpu_at(e->dout, row * e->dim + begin, dtype);
        VEC_FOR(i, n, end - begin)
        vec_put(sum, i, n, DTYPE_F32, vec_get(sum, i, n, DTYPE_F32) + vec_get(dout, i, n, dtype));
    }
}

static void backward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Embedding *e = context;
    if (e->dtype == DTYPE_F32)
        backward_columns(e, begin, end, DTYPE_F32);
    else
        backward_columns(e, begin, end, DTYPE_BF16);
}

static void cpu_embedding_backward(Ops *ops, float *dweight, const void *dout, const int32_t *ids, int64_t rows,
                                   int dim, int vocab, DType dtype) {
    CPU_TIMED(ops, OP_ELEMENTWISE);
    Embedding e = {
        .dweight = dweight, .dout = dout, .ids = ids, .rows = rows, .dim = dim, .vocab = vocab, .dtype = dtype};
    threads_for(dim, 64, backward_task, &e);
}

void cpu_install_embedding(Ops *ops) {
    ops->embedding_forward = cpu_embedding_forward;
    ops->embedding_backward = cpu_embedding_backward;
}
