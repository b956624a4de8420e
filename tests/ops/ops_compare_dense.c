// The cases of ops_compare for elements, linear layers, norms, SwiGLU and the optimizer.
#include "ops_compare.h"

#include <math.h>

// ---- elements ------------------------------------------------------------------------------------------------------

void sweep_zero(Compare *run) {
    EACH_DTYPE(dtype) EACH(rows, 1, 7) EACH(dim, 1, 4097) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim}};
        add_out(run, &c, dtype, (int64_t)rows * dim, 0);
        check(run, &c, call_zero, "rows %d dim %d", rows, dim);
    }
}

void sweep_add(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(n, 1, 257, 100003) {
        Case c = {.sizes = {.dtype = dtype, .count = n}};
        add_inout(run, &c, dtype, n, 1);
        add_in(run, &c, dtype, n);
        check(run, &c, call_add, "%s n %d", dtype_name(dtype), n);
    }
}

void sweep_convert(Compare *run) {
    EACH_DTYPE(dtype)
    EACH_DTYPE(second) EACH_SIZE(rows, 1, 13) EACH(dim, 5, 64, 4100) EACH(wider, 0, 3, 8) EACH(added, 0, 1) {
        Case c = {.sizes = {.dtype = dtype,
                            .second = second,
                            .rows = rows,
                            .dim = dim,
                            .out_dim = dim + 2 * wider,
                            .in_dim = dim + 3 * wider,
                            .first = wider,
                            .flag = added}};
        add_inout(run, &c, dtype, (int64_t)rows * c.sizes.out_dim, 1);
        add_in(run, &c, second, (int64_t)rows * c.sizes.in_dim);
        check(run, &c, call_convert, "%s from %s rows %d dim %d of %d added %d", dtype_name(dtype), dtype_name(second),
              rows, dim, c.sizes.out_dim, added);
    }
}

void sweep_sum_f32(Compare *run) {
    EACH(n, 1, 5, 4097, 1000003) EACH(accumulate, 0, 1) {
        Case c = {.sizes = {.count = n, .flag = accumulate}};
        add(run, &c, accumulate ? ROLE_INOUT : ROLE_OUT, DTYPE_F32, 1, n,
            1e-4); // a sum near 0: its terms set the scale
        float *in = add_in(run, &c, DTYPE_F32, n);
        for (int i = 0; i < n; i++)
            in[i] += 0.5f;
        check(run, &c, call_sum_f32, "n %d accumulate %d", n, accumulate);
    }
}

void sweep_norm_f32(Compare *run) {
    EACH(n, 1, 5, 4097, 1000003, 5000000) {
        Case c = {.sizes = {.count = n}};
        add_out(run, &c, DTYPE_F32, 1, 64);
        add_in(run, &c, DTYPE_F32, n);
        check(run, &c, call_norm_f32, "n %d", n);
    }
}

// ---- linear --------------------------------------------------------------------------------------------------------

// 1100 rows in bf16: kernels race, and each is checked against the library's product there.
static void sweep_linear(Compare *run, OpCall *call, bool accumulate) {
    EACH_DTYPE(dtype)
    EACH_SIZE(rows, 1, 1100, 65, 200) EACH_SIZE(in_dim, 8, 56, 96, 257) EACH_SIZE(out_dim, 16, 64, 136) {
        if (rows == 1100 && (dtype == DTYPE_F32 || in_dim == 8 || out_dim == 16)) continue;
        // 200 rows: the second of two matrices side by side, however it is aligned.
        int64_t stride = rows == 200 || (rows == 1100 && in_dim == 96) ? 2 * in_dim : in_dim;
        Case c = {.sizes = {.dtype = dtype,
                            .rows = rows,
                            .in_dim = in_dim,
                            .out_dim = out_dim,
                            .in_stride = stride,
                            .in_first = rows == 200 ? in_dim : 0,
                            .flag = accumulate}};
        int64_t in = (int64_t)rows * (call == call_linear_backward_input ? in_dim : stride),
                out = (int64_t)rows * out_dim, weight = (int64_t)in_dim * out_dim;
        if (call == call_linear_forward) {
            add_out(run, &c, dtype, out, in_dim);
            add_in(run, &c, dtype, in);
            add_in(run, &c, dtype, weight);
            if (rows == 65 || (rows == 1100 && out_dim == 64))
                add_in(run, &c, dtype, out);
            else
                add_null(run, &c);
        } else if (call == call_linear_backward_input) {
            add_out(run, &c, dtype, in, out_dim);
            add_in(run, &c, dtype, out);
            add_in(run, &c, dtype, weight);
        } else {
            add(run, &c, accumulate ? ROLE_INOUT : ROLE_OUT, DTYPE_F32, weight, rows, 0);
            add_in(run, &c, dtype, out);
            add_in(run, &c, dtype, in);
        }
        check(run, &c, call, "%s rows %d in %d out %d add %d", dtype_name(dtype), rows, in_dim, out_dim, accumulate);
    }
}
void sweep_linear_forward(Compare *run) {
    sweep_linear(run, call_linear_forward, false);
}
void sweep_linear_backward_input(Compare *run) {
    sweep_linear(run, call_linear_backward_input, false);
}
void sweep_linear_backward_weight(Compare *run) {
    sweep_linear(run, call_linear_backward_weight, false);
    sweep_linear(run, call_linear_backward_weight, true);
}

// ---- norms ---------------------------------------------------------------------------------------------------------

void sweep_add_rmsnorm_forward(Compare *run) {
    EACH_DTYPE(dtype)
    EACH_SIZE(rows, 1, 65, 129) EACH(dim, 8, 56, 64, 96, 257, 896, 960, 2048, 4096, 8192) EACH(branch, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim}};
        int64_t n = (int64_t)rows * dim;
        add_out(run, &c, dtype, n, dim);
        if (branch)
            add_out(run, &c, dtype, n, 1);
        else
            add_null(run, &c);
        add_out(run, &c, DTYPE_F32, rows, dim);
        add_in(run, &c, dtype, n);
        if (branch)
            add_in(run, &c, dtype, n);
        else
            add_null(run, &c);
        add_in(run, &c, dtype, dim);
        check(run, &c, call_add_rmsnorm_forward, "%s rows %d dim %d branch %d", dtype_name(dtype), rows, dim, branch);
    }
}

// Makes normed rows the result of the weights that it chooses: around 1, as they are trained, and one that is zero.
static void through_norm(void *normed, void *weights, DType dtype, int64_t rows, int dim) {
    for (int64_t i = 0; i < rows * dim; i++) {
        int column = (int)(i % dim);
        float weight = column == 5 ? 0 : 0.5f + (float)(column * 7 % 16) / 16, factor = weight ? weight : OPS_NONZERO;
        value_set(weights, dtype, column, weight);
        value_set(normed, dtype, i, value_at(normed, dtype, i) * factor);
    }
}

void sweep_add_rmsnorm_backward(Compare *run) {
    // The last widths, each with so many rows that a group of threads meets at least three of them.
    EACH_DTYPE(dtype)
    EACH_SIZE(rows, 1, 65, 900, 4300, 2200, 1100, 300)
    EACH(dim, 8, 56, 96, 257, 960, 2048, 4096, 8192, 1032, 2056, 4104) EACH(first, 0, 1) {
        int many = dim == 56 ? 4300 : dim == 1032 ? 2200 : dim == 2056 ? 1100 : dim == 4104 ? 300 : 900;
        if (rows > 65 && rows != many) continue;
        if (rows == 900 && dim > 2048) continue; // the CPU side would take most of the time
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim, .flag = first}};
        int64_t n = (int64_t)rows * dim;
        if (first)
            add_out(run, &c, dtype, n, dim);
        else
            add_inout(run, &c, dtype, n, dim);
        add_inout(run, &c, DTYPE_F32, dim, rows);
        add_in(run, &c, dtype, n);
        void *out = add_in(run, &c, dtype, n);
        positive(add_in(run, &c, DTYPE_F32, rows), rows);
        through_norm(out, add_in(run, &c, dtype, dim), dtype, rows, dim);
        check(run, &c, call_add_rmsnorm_backward, "%s rows %d dim %d first %d", dtype_name(dtype), rows, dim, first);
    }
}

// ---- SwiGLU --------------------------------------------------------------------------------------------------------

void sweep_swiglu_forward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 65, 129) EACH(dim, 8, 57, 96, 704) EACH(weighted, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim}};
        add(run, &c, ROLE_OUT, dtype, (int64_t)rows * dim, 1, 0x1p-20);
        add_in(run, &c, dtype, (int64_t)rows * dim * 2);
        if (weighted) {
            add_in(run, &c, DTYPE_F32, rows);
            *(int32_t *)add_in(run, &c, DTYPE_I32, 1) = rows * 2 / 3;
        } else {
            add_null(run, &c);
            add_null(run, &c);
        }
        check(run, &c, call_swiglu_forward, "%s rows %d dim %d weighted %d", dtype_name(dtype), rows, dim, weighted);
    }
}

void sweep_swiglu_backward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 65, 129) EACH(dim, 8, 57, 96, 704) EACH(counted, 0, 1) EACH(in_place, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim, .flag = in_place}};
        int64_t n = (int64_t)rows * dim;
        Role role = in_place ? ROLE_INOUT : ROLE_OUT;
        add(run, &c, role, dtype, 2 * n, 1, 0x1p-20);
        add(run, &c, role, dtype, n, 1, 0x1p-20);
        add(run, &c, ROLE_OUT, DTYPE_F32, rows, dim, 0x1p-20);
        if (in_place) {
            add_null(run, &c);
            add_null(run, &c);
        } else {
            add_in(run, &c, dtype, 2 * n);
            add_in(run, &c, dtype, n);
        }
        add_in(run, &c, DTYPE_F32, rows);
        if (counted)
            *(int32_t *)add_in(run, &c, DTYPE_I32, 1) = rows * 2 / 3;
        else
            add_null(run, &c);
        check(run, &c, call_swiglu_backward, "%s rows %d dim %d counted %d in place %d", dtype_name(dtype), rows, dim,
              counted, in_place);
    }
}

// Gates at zero, near it and so far left that their sigmoid is zero too.
static void gates_plant(void *gate_up, int64_t rows, int dim, DType dtype) {
    static const float special[] = {0, -1e-25f, 1e-30f, -60, -100};
    for (int64_t i = 0; i < rows * dim; i += 7)
        value_set(gate_up, dtype, i / dim * 2 * dim + i % dim, special[i % 5]);
}

void sweep_swiglu_packed_forward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 65, 129) EACH(dim, 8, 57, 96, 704) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim}};
        gates_plant(add(run, &c, ROLE_INOUT, dtype, (int64_t)rows * dim * 2, 1, 0), rows, dim, dtype);
        halves(&c, dim, 0x1p-20);
        check(run, &c, call_swiglu_packed_forward, "%s rows %d dim %d", dtype_name(dtype), rows, dim);
    }
}

// Gate and hidden as a forward pass leaves them, on the host, where the CPU's table works too.
static void packed_make(Compare *run, void *gate_up, int64_t rows, int dim, DType dtype) {
    gates_plant(gate_up, rows, dim, dtype);
    CallSizes sizes = {.dtype = dtype, .rows = rows, .dim = dim};
    call_swiglu_packed_forward(run->cpu, &gate_up, &sizes);
}

void sweep_swiglu_packed_backward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 65, 129) EACH(dim, 8, 57, 96, 704) EACH(in_place, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .dim = dim, .flag = in_place}};
        int64_t n = (int64_t)rows * dim;
        void *packed = add(run, &c, in_place ? ROLE_INOUT : ROLE_OUT, dtype, 2 * n, 1, 0x1p-20);
        halves(&c, dim, 0x1p-20);
        if (in_place)
            add_null(run, &c);
        else
            packed = add_in(run, &c, dtype, 2 * n);
        packed_make(run, packed, rows, dim, dtype);
        add_in(run, &c, dtype, n);
        check(run, &c, call_swiglu_packed_backward, "%s rows %d dim %d in place %d", dtype_name(dtype), rows, dim,
              in_place);
    }
}

// 1100 rows with aligned dims: the kernels for one op race, and each is checked against the two separate ones there. A
// bf16 gate may fall on the other side of a rounding (2^-8 of it) and up is rounded or not (2^-9), and |gate * up|
// reaches some twice its rms: 2 * 2 * 2^-8. Backward the CPU rounds the gradient of hidden (2^-9) before it is used,
// one kernel does not.
void sweep_linear_swiglu_forward(Compare *run) {
    EACH_DTYPE(dtype) EACH_SIZE(rows, 1, 1100, 65) EACH(in_dim, 8, 57, 136) EACH_SIZE(dim, 57, 224, 8, 96) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .in_dim = in_dim, .dim = dim}};
        int64_t n = (int64_t)rows * dim;
        add_out(run, &c, dtype, 2 * n, in_dim);
        halves(&c, dim, rounding_inside(dtype));
        // One rounds gate and up before it multiplies, half a step each, where the other may not.
        c.buffers[c.count - 1].steps_second = dtype != DTYPE_F32;
        add_in(run, &c, dtype, (int64_t)rows * in_dim);
        add_in(run, &c, dtype, (int64_t)2 * dim * in_dim);
        check(run, &c, call_linear_swiglu_forward, "%s rows %d in %d dim %d", dtype_name(dtype), rows, in_dim, dim);
    }
}

void sweep_linear_swiglu_backward(Compare *run) {
    EACH_DTYPE(dtype)
    EACH_SIZE(rows, 1, 1100, 65) EACH(next, 8, 57, 136) EACH_SIZE(dim, 57, 104, 8, 200) EACH(in_place, 0, 1) {
        Case c = {.sizes = {.dtype = dtype, .rows = rows, .out_dim = next, .dim = dim, .flag = in_place}};
        int64_t n = (int64_t)rows * dim;
        double inner = rounding_inside(dtype);
        void *packed = add(run, &c, in_place ? ROLE_INOUT : ROLE_OUT, dtype, 2 * n, next, inner);
        halves(&c, dim, inner);
        // The product may be stored before SwiGLU reads it, here and there: half a step of the result each.
        c.buffers[c.count - 1].steps = c.buffers[c.count - 1].steps_second = dtype != DTYPE_F32;
        add(run, &c, ROLE_SCRATCH, dtype, n, 0, 0);
        if (in_place)
            add_null(run, &c);
        else
            packed = add_in(run, &c, dtype, 2 * n);
        packed_make(run, packed, rows, dim, dtype);
        add_in(run, &c, dtype, (int64_t)rows * next);
        add_in(run, &c, dtype, (int64_t)next * dim);
        check(run, &c, call_linear_swiglu_backward, "%s rows %d next %d dim %d in place %d", dtype_name(dtype), rows,
              next, dim, in_place);
    }
}

// ---- optimizer -----------------------------------------------------------------------------------------------------

void sweep_guard(Compare *run) {
    const float values[] = {1.0f, 5.0f, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++)
            EACH(refuse, -1, 0, 700) { // -1: absent
                Case c = {.sizes.value = 2.0f};
                add_out(run, &c, DTYPE_I32, 1, 0);
                *(float *)add_in(run, &c, DTYPE_F32, 1) = values[i];
                *(float *)add_in(run, &c, DTYPE_F32, 1) = values[j];
                if (refuse < 0)
                    add_null(run, &c);
                else
                    *(int32_t *)add_in(run, &c, DTYPE_I32, 1) = refuse;
                check(run, &c, call_guard, "loss %g norm %g refuse %d", (double)values[i], (double)values[j], refuse);
            }
}

void sweep_adamw(Compare *run) {
    EACH(kind, 0, 1, 2, 3) // float, bf16 + master, bf16 alone, f16 + master with a loss scale
    EACH(n, 1, 8, 1003, 40000) EACH_SIZE(skip, 1, 0) EACH(clip, 0, 1) {
        DType dtype = kind == 3 ? DTYPE_F16 : kind ? DTYPE_BF16 : DTYPE_F32;
        Case c = {.sizes = {.dtype = dtype, .count = n}, .master = kind == 1};
        c.sizes.adamw = (AdamwArgs){.lr = 1e-2f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .bias1 = 0.19f,
                                    .bias2 = 0.0975f,
                                    .max_norm = clip ? 1.0f : 0.0f,
                                    .unscale = kind == 3 ? 0x1p-2f : 0,
                                    .seed = 42,
                                    .first = 1000};
        void *weight = add(run, &c, ROLE_INOUT, dtype, n, 4, 0);
        if (kind == 1) {
            for (int i = 0; i < n; i++)
                if (((bf16 *)weight)[i] << 1 == 0) ((bf16 *)weight)[i] = 0x3c00; // a rest beside 0 would wrap around
            int16_t *low = add(run, &c, ROLE_INOUT, DTYPE_U16, n, 0, 0);
            uint64_t state = run->seed++;
            for (int i = 0; i < n; i++)
                low[i] = (int16_t)random_next(&state);
        } else if (kind == 3) {
            add(run, &c, ROLE_INOUT, DTYPE_F32, n, 4, 0);
        } else {
            add_null(run, &c);
        }
        add_inout(run, &c, DTYPE_F32, n, 4);
        positive(add_inout(run, &c, DTYPE_F32, n, 4), n);
        add_in(run, &c, DTYPE_F32, n);
        *(float *)add_in(run, &c, DTYPE_F32, 1) = 3.7f;
        *(int32_t *)add_in(run, &c, DTYPE_I32, 1) = skip;
        check(run, &c, call_adamw, "kind %d n %d skip %d clip %d", kind, n, skip, clip);
    }
}
