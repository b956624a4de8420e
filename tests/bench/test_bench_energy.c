// bench energy on the CPU, with a counter and a clock of the test's own: which products are measured in what, and that
// their joules are what the counter says.
#include "bench/bench_energy.h"
#include "model/small_models.h"
#include "ops/record.h"

// A look at the clock is 2^-6 s after the one before; the counter moves every second look. Watts are those of the op
// that runs.
typedef struct FakeWatt {
    double now, joules, seen, watts;
    OpId last;
    int looks, calls, batch; // calls of products since the last look, and between the last two
    long look_ns;            // that reading the counter takes
} FakeWatt;

#define LOOK        0x1p-6
#define SECONDS     (22 * LOOK) // more than METER_MOVES ask for
#define WATTS_FP8   100
#define WATTS_OTHER 200

static double fake_seconds(void *context) {
    FakeWatt *fake = context;
    fake->batch = fake->calls;
    fake->calls = 0;
    fake->now += LOOK;
    fake->joules += fake->watts * LOOK;
    if (++fake->looks % 2 == 0) fake->seen = fake->joules;
    return fake->now;
}

static Status fake_read(void *context, double *joules) {
    const FakeWatt *fake = context;
    if (fake->look_ns) nanosleep(&(struct timespec){.tv_nsec = fake->look_ns}, NULL);
    *joules = fake->seen;
    return NULL;
}

// Random values have mean square 1: of the n of an operand, up to 6 deviations of sqrt(2 / n), and what rounding adds,
// at most (2^-3)^2 / 3 with the two bits of mantissa of e5m2.
static void check_operand(Tensor t, Tensor scale) {
    double sum = 0, count = (double)tensor_count(t);
    for (int64_t i = 0; i < tensor_count(t); i++) {
        const void *at = (const char *)t.data + (size_t)i * dtype_size(t.dtype);
        double value = t.dtype == DTYPE_F32    ? *(const float *)at
                       : t.dtype == DTYPE_BF16 ? bf16_to_f32(*(const bf16 *)at)
                       : t.dtype == DTYPE_F16  ? f16_to_f32(*(const uint16_t *)at)
                                               : fp8_to_f32(*(const uint8_t *)at, t.dtype);
        if (tensor_present(scale)) value *= *(const float *)scale.data;
        sum += value * value;
    }
    double bound = 6 * sqrt(2 / count) + 0x1p-6 / 3;
    if (fabs(sum / count - 1) > bound) fail_msg("an operand's mean square is %g", sum / count);
}

static void note_call(void *context, const OpRecord *record) {
    FakeWatt *fake = context;
    if (op_category(record->op) != CATEGORY_GEMM && op_category(record->op) != CATEGORY_GROUPED) return;
    bool fp8 = record->op == OP_LINEAR_FP8;
    const char *broken = op_check(record);
    if (broken) fail_msg("%s is called against its rule: %s", op_name(record->op), broken);
    fake->watts = fp8 ? WATTS_FP8 : WATTS_OTHER;
    if (fake->last != record->op)
        for (int i = 1; i < 3; i++)
            check_operand(record->tensor[i], fp8 ? record->tensor[i + 2] : TENSOR_NONE);
    fake->last = record->op;
    fake->calls++;
}

enum { ROWS_MAX = 64 };
typedef struct Rows {
    EnergyRow row[ROWS_MAX];
    int batch[ROWS_MAX], count;
    FakeWatt fake;
} Rows;

static void row_keep(void *context, const EnergyRow *row) {
    Rows *rows = context;
    assert_true(rows->count < ROWS_MAX);
    rows->batch[rows->count] = rows->fake.batch;
    rows->row[rows->count++] = *row;
}

static BenchEnergy small_energy(SmallModel which, FakeWatt *fake, const char *formats) {
    BenchEnergy bench = {.request = small_request(which),
                         .source = {fake_read, fake_seconds, fake},
                         .seconds = SECONDS,
                         .warm = 2 * LOOK};
    bench.request.seq = 16; // FP8 wants multiples of 16
    assert_ok(energy_formats_parse(bench.formats, &bench.format_count, formats));
    return bench;
}

static Status measure_batches(SmallModel which, const char *formats, const char *only, double batch_ms, long look_ns,
                              Rows *rows) {
    *rows = (Rows){.fake = {.watts = WATTS_OTHER, .last = OP_COUNT, .look_ns = look_ns}};
    BenchEnergy bench = small_energy(which, &rows->fake, formats);
    bench.batch_ms = batch_ms;
    Ops *ops;
    int64_t current, peak;
    assert_ok(ops_cpu_create(&ops));
    ops_observe(ops, note_call, &rows->fake);
    Status status = bench_energy_products(ops, &bench, only, row_keep, rows);
    ops_stop_observing(ops);
    ops_cpu_allocated(ops, &current, &peak);
    assert_int_equal(current, 0); // all operands were given back
    ops_destroy(ops);
    return status;
}

static Status measure(SmallModel which, const char *formats, const char *only, Rows *rows) {
    return measure_batches(which, formats, only, 1, 0, rows);
}

static void expect(const EnergyRow *row, const char *product, const char *direction, const char *format, int64_t m,
                   int64_t n, int64_t k, int groups, double times) {
    if (strcmp(row->product, product) != 0 || strcmp(row->direction, direction) != 0 ||
        strcmp(energy_format_name(row->format), format) != 0 || row->m != m || row->n != n || row->k != k ||
        row->groups != groups || row->times != times)
        fail_msg("%s %s %s is %s %s %s: %lld x %lld x %lld, %d groups, %g times", product, direction, format,
                 row->product, row->direction, energy_format_name(row->format), (long long)row->m, (long long)row->n,
                 (long long)row->k, row->groups, row->times);
}

static void every_product_of_a_dense_model_is_measured_in_all_directions(void **state) {
    (void)state;
    Rows rows;
    assert_ok(measure(SMALL_LLAMA, "bf16", NULL, &rows)); // 32 tokens, hidden 48, qkv 160, 96 of heads, ffn 72
    assert_int_equal(rows.count, 5 * 3);
    const EnergyRow *r = rows.row;
    expect(r++, "qkv", "forward", "bf16", 32, 160, 48, 1, 3);
    expect(r++, "qkv", "input grad", "bf16", 32, 48, 160, 1, 3);
    expect(r++, "qkv", "weight grad", "bf16", 160, 48, 32, 1, 3);
    expect(r++, "o", "forward", "bf16", 32, 48, 96, 1, 3);
    expect(r++, "o", "input grad", "bf16", 32, 96, 48, 1, 3);
    expect(r++, "o", "weight grad", "bf16", 48, 96, 32, 1, 3);
    expect(r++, "gate_up", "forward", "bf16", 32, 144, 48, 1, 3);
    r += 2;
    expect(r++, "down", "forward", "bf16", 32, 48, 72, 1, 3);
    r += 2;
    expect(r++, "LM head", "forward", "bf16", 17, 97, 48, 1, 32.0 / 17); // in chunks of 17 rows
    expect(r++, "LM head", "input grad", "bf16", 17, 48, 97, 1, 32.0 / 17);
    expect(r++, "LM head", "weight grad", "bf16", 97, 48, 17, 1, 32.0 / 17);
}

static void experts_products_are_grouped(void **state) {
    (void)state;
    Rows rows;
    assert_ok(measure(SMALL_MOE, "fp32", "experts", &rows)); // 5 experts, 2 for each of 32 tokens: 13 rows each
    assert_int_equal(rows.count, 2 * 3);
    expect(&rows.row[0], "experts gate_up", "forward", "fp32", 13, 48, 48, 5, 2);
    expect(&rows.row[1], "experts gate_up", "input grad", "fp32", 13, 48, 48, 5, 2);
    expect(&rows.row[2], "experts gate_up", "weight grad", "fp32", 48, 48, 13, 5, 2);
    expect(&rows.row[3], "experts down", "forward", "fp32", 13, 48, 24, 5, 2);
    expect(&rows.row[5], "experts down", "weight grad", "fp32", 48, 24, 13, 5, 2);
    assert_true(rows.row[3].flops == 2.0 * 5 * 13 * 48 * 24);
}

static void joules_of_a_call_are_those_of_the_counter(void **state) {
    (void)state;
    Rows rows;
    assert_ok(measure(SMALL_LLAMA, "bf16,fp8,fp16", "qkv", &rows));
    assert_int_equal(rows.count, 3 * 3);
    for (int i = 0; i < rows.count; i++) {
        const EnergyRow *row = &rows.row[i];
        double watts = i % 3 == 1 ? WATTS_FP8 : WATTS_OTHER, calls = row->measured.seconds / row->seconds;
        assert_string_equal(energy_format_name(row->format), i % 3 == 0 ? "bf16" : i % 3 == 1 ? "fp8" : "fp16");
        assert_true(row->measured.seconds == SECONDS && row->measured.moves == 11);
        assert_true(row->measured.joules == watts * row->measured.seconds);
        assert_true(fabs(row->joules / row->seconds / watts - 1) < 1e-15); // two divisions by the same number
        assert_int_equal(row->measured.batches, 22);
        assert_true(fabs(calls / (22.0 * rows.batch[i]) - 1) < 1e-15); // likewise
        assert_true(row->first_joules == rows.row[i - i % 3].joules);
        assert_true(row->flops == 2.0 * 32 * 160 * 48);
    }
}

// A product of this model takes some 10 us, and batches of no time are one call. A process that is put aside for 20 ms
// while it times a call would get one call too: not three times.
static void batches_are_longer_than_a_look_at_the_counter(void **state) {
    (void)state;
    Rows rows;
    int longest = 0;
    assert_ok(measure_batches(SMALL_LLAMA, "bf16", "qkv", 0, 5000000, &rows));
    for (int i = 0; i < rows.count; i++)
        if (rows.batch[i] > longest) longest = rows.batch[i];
    assert_in_range(longest, 4, 1000);
}

static void products_that_training_does_not_run_in_fp8_have_no_fp8(void **state) {
    (void)state;
    Rows rows;
    assert_ok(measure(SMALL_LLAMA, "fp8,bf16", NULL, &rows)); // ffn 72 and vocab 97 are no multiples of 16
    int fp8 = 0;
    for (int i = 0; i < rows.count; i++) {
        const EnergyRow *row = &rows.row[i];
        bool attention = strcmp(row->product, "qkv") == 0 || strcmp(row->product, "o") == 0;
        fp8 += row->format.precision == PRECISION_FP8;
        if (row->format.precision == PRECISION_FP8) assert_true(attention);
        assert_true((row->first_joules > 0) == attention);
    }
    assert_int_equal(fp8, 2 * 3);
    assert_int_equal(rows.count, 5 * 3 + fp8);
}

static void a_name_without_products_is_refused(void **state) {
    (void)state;
    Rows rows;
    assert_error(measure(SMALL_LLAMA, "bf16", "experts", &rows), "no product of this model is called like \"experts\"");
}

static void a_step_has_joules_by_token(void **state) {
    (void)state;
    FakeWatt fake = {.watts = WATTS_OTHER};
    BenchEnergy bench = small_energy(SMALL_LLAMA, &fake, "fp32");
    EnergyStep step;
    Ops *ops;
    assert_ok(ops_cpu_create(&ops));
    assert_ok(bench_energy_step(ops, &bench, bench.formats[0], 3, &step));
    ops_destroy(ops);
    assert_true(step.tokens == 2 * 16 * 3);
    assert_true(step.measured.joules == WATTS_OTHER * step.measured.seconds);
    assert_true(step.seconds == LOOK && step.joules == WATTS_OTHER * LOOK); // a step between two looks
    assert_true(energy_kwh_per_billion(3.6, 1000) == 1);
}

static void precisions_are_a_list_without_repetition(void **state) {
    (void)state;
    EnergyFormat formats[ENERGY_FORMATS_MAX];
    int count;
    assert_ok(energy_formats_parse(formats, &count, "fp32,tf32,bf16,bf16-pure,fp8,fp16"));
    assert_int_equal(count, ENERGY_FORMATS_MAX);
    assert_true(formats[1].tf32 && formats[1].precision == PRECISION_FP32 && !formats[0].tf32);
    assert_error(energy_formats_parse(formats, &count, "bf16,fp8,bf16"), "--precision names bf16 twice");
    assert_error(energy_formats_parse(formats, &count, "tf32,fp32,tf32"), "--precision names tf32 twice");
    assert_error(energy_formats_parse(formats, &count, "bf16,"), "--precision takes");
    assert_error(energy_formats_parse(formats, &count, ""), "--precision takes");
    assert_error(energy_formats_parse(formats, &count, "bf16,int4"), "not \"int4\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_product_of_a_dense_model_is_measured_in_all_directions),
        cmocka_unit_test(experts_products_are_grouped),
        cmocka_unit_test(joules_of_a_call_are_those_of_the_counter),
        cmocka_unit_test(batches_are_longer_than_a_look_at_the_counter),
        cmocka_unit_test(products_that_training_does_not_run_in_fp8_have_no_fp8),
        cmocka_unit_test(a_name_without_products_is_refused),
        cmocka_unit_test(a_step_has_joules_by_token),
        cmocka_unit_test(precisions_are_a_list_without_repetition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
