// Token embedding, of all ids or of a rank's share of them. The backward pass is cut by columns, so that rows of the
// same token are added in order by one thread.
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

typedef struct Embedding {
    void *out;
    float *dweight;
    const void *weight, *dout;
    const int32_t *ids;
    int64_t rows;
    int64_t first, held; // ids [first, first + held) have a row in weight
    int dim;
    DType dtype;
} Embedding;

// The id's row in weight, or -1.
static inline int64_t weight_row(const Embedding *e, int32_t id) {
    int64_t row = id - e->first;
    return row >= 0 && row < e->held ? row : -1;
}

static void forward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Embedding *e = context;
    size_t bytes = (size_t)e->dim * dtype_size(e->dtype);
    for (int64_t row = begin; row < end; row++) {
        int64_t from = weight_row(e, e->ids[row]);
        char *out = (char *)e->out + (size_t)row * bytes;
        if (from >= 0)
            memcpy(out, (const char *)e->weight + (size_t)from * bytes, bytes);
        else
            memset(out, 0, bytes);
    }
}

static void cpu_embedding_forward(Ops *ops, Tensor out, Tensor ids, Tensor weight, int64_t first) {
    CPU_TIMED(ops, OP_EMBEDDING_FORWARD);
    Embedding e = {.out = out.data,
                   .weight = weight.data,
                   .ids = ids.data,
                   .rows = out.rows,
                   .first = first,
                   .held = weight.rows,
                   .dim = (int)out.cols,
                   .dtype = out.dtype};
    threads_for(e.rows, cpu_row_chunk(e.dim), forward_task, &e);
}

VEC_INLINE void backward_columns(const Embedding *e, int64_t begin, int64_t end, DType dtype) {
    for (int64_t row = 0; row < e->rows; row++) {
        int64_t to = weight_row(e, e->ids[row]);
        if (to < 0) continue;
        float *sum = e->dweight + to * e->dim + begin;
        const void *dout = cpu_at(e->dout, row * e->dim + begin, dtype);
        VEC_FOR(i, n, end - begin)
        vec_put(sum, i, n, DTYPE_F32, vec_get(sum, i, n, DTYPE_F32) + vec_get(dout, i, n, dtype));
    }
}

static void backward_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Embedding *e = context;
    VEC_BY_STORAGE(e->dtype, backward_columns, e, begin, end);
}

static void cpu_embedding_backward(Ops *ops, Tensor dweight, Tensor dout, Tensor ids, int64_t first) {
    CPU_TIMED(ops, OP_EMBEDDING_BACKWARD);
    Embedding e = {.dweight = dweight.data,
                   .dout = dout.data,
                   .ids = ids.data,
                   .rows = dout.rows,
                   .first = first,
                   .held = dweight.rows,
                   .dim = (int)dout.cols,
                   .dtype = dout.dtype};
    threads_for(e.dim, 64, backward_task, &e);
}

void cpu_install_embedding(Ops *ops) {
    ops->embedding_forward = cpu_embedding_forward;
    ops->embedding_backward = cpu_embedding_backward;
}
