// Conversions of and sums over plain arrays.
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec.h"

#include <math.h>

// ---- conversions ---------------------------------------------------------------------------------------------------

VEC_INLINE void widen_range(float *out, const void *in, int64_t count, DType dtype) {
    VEC_FOR(i, n, count) vec_put(out, i, n, DTYPE_F32, vec_get(in, i, n, dtype));
}

VEC_INLINE void narrow_range(void *out, const float *in, int64_t count, DType dtype) {
    VEC_FOR(i, n, count) vec_put(out, i, n, dtype, vec_get(in, i, n, DTYPE_F32));
}

void cpu_to_floats(float *out, const void *in, DType dtype, int64_t count) {
    if (dtype == DTYPE_F32)
        memcpy(out, in, (size_t)count * sizeof(float));
    else
        VEC_BY_STORAGE(dtype, widen_range, out, in, count);
}

void cpu_from_floats(void *out, DType dtype, const float *in, int64_t count) {
    if (dtype == DTYPE_F32)
        memcpy(out, in, (size_t)count * sizeof(float));
    else
        VEC_BY_STORAGE(dtype, narrow_range, out, in, count);
}

// ---- sums: at most SUM_PARTS parts, whose number depends on the count only ---------------------------------------

enum { SUM_PARTS = 1024, SUM_PART_LEAST = 4096 };

typedef struct Sum {
    const float *in;
    double *partial;
    int64_t part; // elements
    bool squared;
} Sum;

static void sum_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Sum *sum = context;
    const float *in = sum->in + begin;
    double total = 0;
    if (sum->squared) { // squares of floats are exact in double, and cannot overflow there
        VecDouble lanes = {0};
        VEC_FOR(i, n, end - begin) {
            VecDouble x = __builtin_convertvector(vec_get(in, i, n, DTYPE_F32), VecDouble);
            lanes += x * x;
        }
        for (int lane = 0; lane < VEC_LANES; lane++)
            total += lanes[lane];
    } else {
        VecSum lanes = {0};
        VEC_FOR(i, n, end - begin) vec_sum_add(&lanes, vec_get(in, i, n, DTYPE_F32));
        total = vec_sum_total(&lanes);
    }
    sum->partial[begin / sum->part] = total;
}

size_t cpu_sum_scratch_bytes(void) {
    return SUM_PARTS * sizeof(double);
}

static double sum_all(Ops *ops, Tensor in, bool squared) {
    int64_t count = tensor_count(in);
    CpuScratch scratch = cpu_scratch(cpu_of(ops), cpu_sum_scratch_bytes(), 0);
    int64_t part = (count + SUM_PARTS - 1) / SUM_PARTS;
    if (part < SUM_PART_LEAST) part = SUM_PART_LEAST;
    Sum sum = {in.data, (double *)scratch.shared, part, squared};
    threads_for(count, part, sum_task, &sum);
    double total = 0;
    for (int64_t i = 0; i * part < count; i++)
        total += sum.partial[i];
    return total;
}

static void cpu_sum_f32(Ops *ops, Tensor out, Tensor in, bool accumulate) {
    CPU_TIMED(ops, OP_SUM_F32);
    double total = sum_all(ops, in, false);
    float *sum = out.data;
    *sum = (float)(accumulate ? (double)*sum + total : total);
}

static void cpu_norm_f32(Ops *ops, Tensor out, Tensor in) {
    CPU_TIMED(ops, OP_NORM_F32);
    *(float *)out.data = (float)sqrt(sum_all(ops, in, true));
}

void cpu_add_parts(float *out, const double *partial, int64_t parts, int64_t stride, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int64_t part = 0; part < parts; part++)
            sum += partial[part * stride + i];
        out[i] = (float)((double)out[i] + sum);
    }
}

typedef struct Add {
    void *out;
    const void *in;
    DType dtype;
} Add;

VEC_INLINE void add_range(void *out, const void *in, int64_t count, DType dtype) {
    VEC_FOR(i, n, count) vec_put(out, i, n, dtype, vec_get(out, i, n, dtype) + vec_get(in, i, n, dtype));
}

static void add_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Add *add = context;
    void *out = cpu_at_mut(add->out, begin, add->dtype);
    const void *in = cpu_at(add->in, begin, add->dtype);
    VEC_BY_STORAGE(add->dtype, add_range, out, in, end - begin);
}

static void cpu_add(Ops *ops, Tensor out, Tensor in) {
    CPU_TIMED(ops, OP_ADD);
    threads_for(tensor_count(out), 1 << 16, add_task, &(Add){out.data, in.data, out.dtype});
}

enum { CONVERT_STRETCH = 1 << 14 };

typedef struct Convert {
    Tensor out, in;
    bool accumulate;
} Convert;

VEC_INLINE void convert_row(const Convert *convert, int64_t row, DType from, DType to) {
    void *out = tensor_at(convert->out, row, 0);
    const void *in = tensor_at(convert->in, row, 0);
    VEC_FOR(i, n, convert->out.cols) {
        Vec value = vec_get(in, i, n, from);
        vec_put(out, i, n, to, convert->accumulate ? vec_get(out, i, n, to) + value : value);
    }
}

static void convert_task(void *context, int64_t begin, int64_t end, int worker) {
    (void)worker;
    const Convert *convert = context;
    for (int64_t row = begin; row < end; row++)
        if (convert->in.dtype == DTYPE_F32)
            VEC_BY_STORAGE(convert->out.dtype, convert_row, convert, row, DTYPE_F32);
        else if (convert->in.dtype == DTYPE_BF16)
            VEC_BY_STORAGE(convert->out.dtype, convert_row, convert, row, DTYPE_BF16);
        else
            VEC_BY_STORAGE(convert->out.dtype, convert_row, convert, row, DTYPE_F16);
}

static void cpu_convert(Ops *ops, Tensor out, Tensor in, bool accumulate) {
    CPU_TIMED(ops, OP_CONVERT);
    if (out.rows == 1) { // one long row: threads take stretches of it
        int64_t whole = out.cols / CONVERT_STRETCH * CONVERT_STRETCH;
        Convert stretches = {tensor_cols(out, 0, whole), tensor_cols(in, 0, whole), accumulate};
        stretches.out = tensor_reshape(stretches.out, whole / CONVERT_STRETCH, CONVERT_STRETCH);
        stretches.in = tensor_reshape(stretches.in, whole / CONVERT_STRETCH, CONVERT_STRETCH);
        threads_for(stretches.out.rows, 1, convert_task, &stretches);
        out = tensor_cols(out, whole, out.cols - whole);
        in = tensor_cols(in, whole, in.cols - whole);
    }
    threads_for(out.rows, cpu_row_chunk(out.cols), convert_task, &(Convert){out, in, accumulate});
}

void cpu_install_elements(Ops *ops) {
    ops->add = cpu_add;
    ops->convert = cpu_convert;
    ops->sum_f32 = cpu_sum_f32;
    ops->norm_f32 = cpu_norm_f32;
}
