// Ops over a vocabulary that is split over ranks, against float64: each rank holds some rows of the embedding and some
// columns of the logits, the last rank some padding too.
#include "oracle.h"

typedef struct Split {
    int64_t vocab, ranks, width; // width: ids of a rank; ranks * width - vocab are padding
} Split;

static const Split splits[] = {{1, 1, 1},      {37, 1, 37},       {37, 1, 40}, {37, 2, 19}, {37, 3, 13},
                               {64, 2, 32},    {17, 3, 8},        {5, 3, 4},   {5, 2, 5},   {1001, 2, 501},
                               {1001, 3, 336}, {32003, 2, 16008}, {2, 4, 1}};
enum { SPLITS = sizeof splits / sizeof *splits, ROWS = 11 };

// Row `id` of a rank's share, or -1.
static int64_t share_row(const Split *s, int64_t rank, int64_t id) {
    return id / s->width == rank ? id % s->width : -1;
}

// ---- embedding ------------------------------------------------------------------------------------------------------

static void embedding_of_a_share_matches_float64(void **state) {
    (void)state;
    enum { DIM = 19, TOKENS = 131 };
    for (int i = 0; i < 3 * SPLITS; i++) {
        DType dtype = storage_types[i % 3];
        const Split *s = &splits[i / 3];
        if (s->vocab > 2000) continue; // its rows are as good as those of 1001
        Ops *ops = oracle_ops(1, DIM, 0, 1, 8, 0);
        int32_t *tokens = ids(TOKENS, (int)s->vocab);
        tokens[5] = -1; // nobody's
        Tensor t = view_ints(tokens, TOKENS, 1);
        for (int64_t rank = 0; rank < s->ranks; rank++) {
            int64_t first = rank * s->width;
            Values weight = values_normal(dtype, s->width * DIM, 1, 0), out = values_poison(dtype, TOKENS * DIM);
            Values dout = values_normal(dtype, TOKENS * DIM, 1, 0);
            Values dweight = values_normal(DTYPE_F32, s->width * DIM, 1, 0), before = values_copy(&dweight);
            double *want = dweight.value;
            dweight.value = doubles(dweight.count);
            ops->embedding_forward(ops, view(&out, TOKENS, DIM), t, view(&weight, s->width, DIM), first);
            ops->embedding_backward(ops, view(&dweight, s->width, DIM), view(&dout, TOKENS, DIM), t, first);
            values_read(&out);
            bool *met = xcalloc((size_t)s->width, sizeof *met);
            for (int64_t j = 0; j < TOKENS * DIM; j++) {
                int32_t id = tokens[j / DIM];
                int64_t row = id < 0 ? -1 : share_row(s, rank, id);
                assert_true(out.value[j] == (row < 0 ? 0 : weight.value[row * DIM + j % DIM]));
                if (row < 0) continue;
                want[row * DIM + j % DIM] += dout.value[j];
                met[row] = true;
            }
            values_check("dweight of a share", &dweight, want, TOKENS / s->vocab);
            for (int64_t row = 0; row < s->width; row++)
                if (!met[row])
                    assert_memory_equal((float *)dweight.data + row * DIM, (float *)before.data + row * DIM,
                                        DIM * sizeof(float));
            values_free(&weight, &out, &dout, &dweight, &before);
            free(want), free(met);
        }
        free(tokens);
        oracle_ops_free(ops);
    }
}

// ---- cross entropy --------------------------------------------------------------------------------------------------

// Rows of logits over the whole vocabulary, and what is wanted of them.
typedef struct Whole {
    Values logits;
    int32_t *targets;
    double *losses, *gradient;
} Whole;

static const float scale = 0.125f;

static Whole whole_make(DType dtype, int64_t vocab) {
    Whole w = {.logits = values_normal(dtype, ROWS * vocab, 4, 3),
               .targets = ids(ROWS, (int)vocab),
               .losses = doubles(ROWS),
               .gradient = doubles(ROWS * vocab)};
    w.targets[3] = -100, w.targets[4] = -1;
    w.targets[0] = 0, w.targets[1] = (int32_t)vocab - 1;
    for (int64_t row = 0; row < ROWS; row++) {
        const double *x = w.logits.value + row * vocab;
        double highest = -INFINITY, sum = 0;
        if (w.targets[row] < 0) continue;
        for (int64_t j = 0; j < vocab; j++)
            highest = fmax(highest, x[j]);
        for (int64_t j = 0; j < vocab; j++)
            sum += exp(x[j] - highest);
        w.losses[row] = log(sum) + highest - x[w.targets[row]];
        for (int64_t j = 0; j < vocab; j++)
            w.gradient[row * vocab + j] = (double)scale * (exp(x[j] - highest) / sum - (j == w.targets[row]));
    }
    return w;
}

static void whole_free(Whole *w) {
    values_free(&w->logits);
    free(w->targets), free(w->losses), free(w->gradient);
}

// A rank's columns; padding holds what must never count: infinity and NaN by turns.
static Values share_of(const Whole *w, const Split *s, int64_t rank) {
    double *x = doubles(ROWS * s->width);
    for (int64_t i = 0; i < ROWS * s->width; i++) {
        int64_t id = rank * s->width + i % s->width;
        x[i] = id < s->vocab ? w->logits.value[i / s->width * s->vocab + id] : id % 2 ? INFINITY : NAN;
    }
    Values share = values_of(w->logits.dtype, ROWS * s->width, x);
    free(x);
    return share;
}

static void check_stats(const Whole *w, const Split *s, int64_t rank, Values *stats) {
    values_read(stats);
    for (int64_t row = 0; row < ROWS; row++) {
        const double *got = stats->value + (rank * ROWS + row) * SPLIT_STATS, *x = w->logits.value + row * s->vocab;
        int64_t begin = rank * s->width, end = begin + s->width < s->vocab ? begin + s->width : s->vocab;
        double highest = -INFINITY, sum = 0;
        for (int64_t j = begin; j < end; j++)
            highest = fmax(highest, x[j]);
        for (int64_t j = begin; j < end; j++)
            sum += exp(x[j] - highest);
        int32_t target = w->targets[row];
        bool here = target >= begin && target < end;
        assert_true(got[SPLIT_MAX] == highest);
        assert_true(fabs(got[SPLIT_SUM] - sum) <= 4 * 0x1p-23 * sum); // e^x is good to 2 ulp, and so is a sum of such
        assert_true(got[SPLIT_TARGET] == (here ? x[target] : 0));
        assert_true(got[SPLIT_HERE] == here);
    }
}

static void check_gradient(const Whole *w, const Split *s, int64_t rank, Values *share) {
    double unit = share->dtype == DTYPE_F32 ? 0 : share->dtype == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    double least = share->dtype == DTYPE_F16 ? 0x1p-25 : 0x1p-24 * 1e-6; // half a subnormal
    values_read(share);
    for (int64_t i = 0; i < share->count; i++) {
        int64_t id = rank * s->width + i % s->width;
        double want = id < s->vocab ? w->gradient[i / s->width * s->vocab + id] : 0;
        // Relative, as of the whole row: e^x is good to 2 ulp, the sum of the ranks' rounded sums to a few. At the
        // target, p - 1 may be far smaller than the p whose error it has.
        double at_target = id == w->targets[i / s->width] ? 0x1p-22 * (double)scale : 0;
        if (id >= s->vocab || w->targets[i / s->width] < 0)
            assert_true(share->value[i] == 0);
        else
            assert_true(fabs(share->value[i] - want) <= (unit + 8 * 0x1p-23) * fabs(want) + least + at_target);
    }
}

static void split_cross_entropy_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 3 * SPLITS; i++) {
        const Split *s = &splits[i / 3];
        Whole w = whole_make(storage_types[i % 3], s->vocab);
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
        Values stats = values_poison(DTYPE_F32, s->ranks * ROWS * SPLIT_STATS), first_losses = {0};
        Tensor all = view(&stats, s->ranks * ROWS, SPLIT_STATS), t = view_ints(w.targets, ROWS, 1);
        Values share[4];
        for (int64_t rank = 0; rank < s->ranks; rank++) {
            share[rank] = share_of(&w, s, rank);
            ops->cross_entropy_stats(ops, tensor_rows(all, rank * ROWS, ROWS), view(&share[rank], ROWS, s->width), t,
                                     rank * s->width, s->vocab);
            check_stats(&w, s, rank, &stats);
        }
        for (int64_t rank = 0; rank < s->ranks; rank++) {
            Values losses = values_poison(DTYPE_F32, ROWS), evaluated = values_poison(DTYPE_F32, ROWS);
            Values kept = values_copy(&share[rank]);
            Tensor x = view(&share[rank], ROWS, s->width);
            int64_t first = rank * s->width;
            ops->cross_entropy_apply(ops, view(&evaluated, ROWS, 1), x, t, all, TENSOR_NONE, first, s->vocab);
            assert_memory_equal(kept.data, share[rank].data, (size_t)kept.count * dtype_size(kept.dtype));
            ops->cross_entropy_apply(ops, view(&losses, ROWS, 1), x, t, all, view_floats(&scale, 1, 1), first,
                                     s->vocab);
            values_check("loss", &losses, w.losses, 8);
            check_gradient(&w, s, rank, &share[rank]);
            assert_memory_equal(evaluated.data, losses.data, ROWS * sizeof(float));
            if (rank == 0)
                first_losses = values_copy(&losses);
            else // every rank's are the same bits
                assert_memory_equal(first_losses.data, losses.data, ROWS * sizeof(float));
            values_free(&losses, &evaluated, &kept);
        }
        for (int64_t rank = 0; rank < s->ranks; rank++)
            values_free(&share[rank]);
        values_free(&stats, &first_losses);
        whole_free(&w);
        oracle_ops_free(ops);
    }
}

// What one rank alone makes of its own stats is what cross_entropy makes of the row, but for the rounding of the sum
// to a float on the way: 2^-24 of a probability, and of the argument of the loss's logarithm.
static void one_rank_agrees_with_the_whole_op(void **state) {
    (void)state;
    const int vocabs[] = {1, 17, 64, 1001};
    for (int i = 0; i < 12; i++) {
        DType dtype = storage_types[i % 3];
        int64_t vocab = vocabs[i / 3];
        Whole w = whole_make(dtype, vocab);
        Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
        Values same = values_copy(&w.logits), stats = values_poison(DTYPE_F32, ROWS * SPLIT_STATS);
        Values losses = values_poison(DTYPE_F32, ROWS), split_losses = values_poison(DTYPE_F32, ROWS);
        Tensor x = view(&w.logits, ROWS, vocab), y = view(&same, ROWS, vocab), t = view_ints(w.targets, ROWS, 1);
        Tensor s = view(&stats, ROWS, SPLIT_STATS), factor = view_floats(&scale, 1, 1);
        ops->cross_entropy(ops, view(&losses, ROWS, 1), x, t, factor);
        ops->cross_entropy_stats(ops, s, y, t, 0, vocab);
        ops->cross_entropy_apply(ops, view(&split_losses, ROWS, 1), y, t, s, factor, 0, vocab);
        values_read(&w.logits), values_read(&same), values_read(&losses), values_read(&split_losses);
        for (int row = 0; row < ROWS; row++)
            assert_true(fabs(losses.value[row] - split_losses.value[row]) <= 0x1p-23 * (1 + losses.value[row]));
        double unit = dtype == DTYPE_F32   ? 4 * 0x1p-24
                      : dtype == DTYPE_F16 ? 0x1p-10
                                           : 0x1p-7; // to the other side of a rounding
        for (int64_t j = 0; j < same.count; j++) {
            double at_target = j % vocab == w.targets[j / vocab] ? 0x1p-23 * (double)scale : 0; // p's error, in p - 1
            assert_true(fabs(w.logits.value[j] - same.value[j]) <= unit * fabs(w.logits.value[j]) + at_target);
        }
        values_free(&same, &stats, &losses, &split_losses);
        whole_free(&w);
        oracle_ops_free(ops);
    }
}

// The largest logits of two ranks are further apart than e^x reaches, in either order.
static void ranks_far_apart_do_not_overflow(void **state) {
    (void)state;
    float logits[2][2][3] = {{{0, 1, 2}, {2000, 2001, 2002}}, {{2000, 2001, 2002}, {0, 1, 2}}}; // by rank, by row
    int32_t targets[2] = {0, 1}; // of the first rank: a low logit, and a high one
    const double sum = 1 + exp(-1) + exp(-2), losses_wanted[2] = {2002 + log(sum), 1 + log(sum)};
    float stats[2][2][SPLIT_STATS], factor = 1;
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    Tensor t = view_ints(targets, 2, 1), all = view_floats(&stats[0][0][0], 4, SPLIT_STATS);
    for (int rank = 0; rank < 2; rank++)
        ops->cross_entropy_stats(ops, tensor_rows(all, 2 * rank, 2), view_floats(&logits[rank][0][0], 2, 3), t,
                                 3 * rank, 6);
    for (int rank = 0; rank < 2; rank++) {
        Values losses = values_poison(DTYPE_F32, 2);
        ops->cross_entropy_apply(ops, view(&losses, 2, 1), view_floats(&logits[rank][0][0], 2, 3), t, all,
                                 view_floats(&factor, 1, 1), 3 * rank, 6);
        values_read(&losses);
        for (int row = 0; row < 2; row++) {
            assert_true(fabs(losses.value[row] - losses_wanted[row]) <= 2 * 0x1p-24 * losses_wanted[row]);
            for (int j = 0; j < 3; j++) {
                double want =
                    rank != row ? exp(j - 2) / sum : 0; // the high logits are those of the other rank in row 0
                if (rank == 0 && j == targets[row]) want -= 1;
                assert_true(fabs((double)logits[rank][row][j] - want) <= 4 * 0x1p-24);
            }
        }
        values_free(&losses);
    }
    oracle_ops_free(ops);
}

// A logit that is not a number must not get lost on the way to the loss, wherever it stands.
static void a_rank_that_is_not_a_number_makes_every_loss_so(void **state) {
    (void)state;
    enum { WIDTH = 20 };
    Ops *ops = oracle_ops(1, 8, 0, 1, 8, 0);
    Values good = values_normal(DTYPE_F32, ROWS * WIDTH, 1, 0), bad = values_poison(DTYPE_F32, ROWS * WIDTH);
    Values stats = values_poison(DTYPE_F32, 2 * ROWS * SPLIT_STATS), losses = values_zero(DTYPE_F32, ROWS);
    int32_t *targets = ids(ROWS, WIDTH); // all of them the good rank's
    Tensor all = view(&stats, 2 * ROWS, SPLIT_STATS), t = view_ints(targets, ROWS, 1);
    ops->cross_entropy_stats(ops, tensor_rows(all, 0, ROWS), view(&good, ROWS, WIDTH), t, 0, 2 * WIDTH);
    ops->cross_entropy_stats(ops, tensor_rows(all, ROWS, ROWS), view(&bad, ROWS, WIDTH), t, WIDTH, 2 * WIDTH);
    ops->cross_entropy_apply(ops, view(&losses, ROWS, 1), view(&good, ROWS, WIDTH), t, all, TENSOR_NONE, 0, 2 * WIDTH);
    for (int row = 0; row < ROWS; row++)
        assert_true(isnan(((float *)losses.data)[row]));
    values_free(&good, &bad, &stats, &losses);
    free(targets);
    oracle_ops_free(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_of_a_share_matches_float64),
        cmocka_unit_test(split_cross_entropy_matches_float64),
        cmocka_unit_test(one_rank_agrees_with_the_whole_op),
        cmocka_unit_test(ranks_far_apart_do_not_overflow),
        cmocka_unit_test(a_rank_that_is_not_a_number_makes_every_loss_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
