// TensorBoard's files as its reader takes them apart: framing, checksums, events, and what a resumed run supersedes.
// tests/watch/read_tensorboard.py asks the real reader.
#include "testing.h"

#include "watch/tensorboard.h"

#include <unistd.h>

static char *directory, *folder;

static int make_directory(void **state) {
    (void)state;
    directory = text_copy("/tmp/hearth-test-XXXXXX");
    assert_non_null(mkdtemp(directory));
    folder = path_join(directory, "tensorboard");
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory), free(folder);
    return 0;
}

// RFC 3720, B.4.
static void the_checksum_is_crc32c(void **state) {
    (void)state;
    unsigned char zeros[32] = {0}, ones[32], rising[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++)
        rising[i] = (unsigned char)i;
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(crc32c(0, zeros, 32), 0x8a9136aa);
    assert_int_equal(crc32c(0, ones, 32), 0x62a8ab43);
    assert_int_equal(crc32c(0, rising, 32), 0x46dd794e);
    assert_int_equal(crc32c(crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
    uint32_t crc = 0xe3069283; // rotated right by 15 bits, and a constant added
    assert_int_equal(crc32c_masked("123456789", 9), (uint32_t)((crc >> 15 | crc << 17) + 0xa282ead8u));
}

// ---- a reader -------------------------------------------------------------------------------------------------------

typedef struct Field {
    int number, wire;
    uint64_t varint;
    double real;             // of 64 or 32 bits
    const unsigned char *at; // of length-delimited ones
    size_t size;
} Field;

static uint64_t take_varint(const unsigned char **at, const unsigned char *end) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(*at < end && shift < 64);
        unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return value;
    }
}

static Field take_field(const unsigned char **at, const unsigned char *end) {
    uint64_t key = take_varint(at, end);
    Field field = {.number = (int)(key >> 3), .wire = (int)(key & 7)};
    float narrow;
    switch (field.wire) {
    case 0: field.varint = take_varint(at, end); break;
    case 1:
        assert_true(end - *at >= 8);
        memcpy(&field.real, *at, 8), *at += 8;
        break;
    case 5:
        assert_true(end - *at >= 4);
        memcpy(&narrow, *at, 4), *at += 4, field.real = narrow;
        break;
    case 2:
        field.size = take_varint(at, end), field.at = *at;
        assert_true((size_t)(end - *at) >= field.size);
        *at += field.size;
        break;
    default: fail_msg("wire type %d", field.wire);
    }
    return field;
}

// The n-th field of that number in a message; number 0: none.
static Field find_field(const unsigned char *at, size_t size, int number, int index) {
    const unsigned char *end = at + size;
    while (at < end) {
        Field field = take_field(&at, end);
        if (field.number == number && index-- == 0) return field;
    }
    return (Field){0};
}

typedef struct Events { // of one file; every frame and checksum must be right
    char *data;
    size_t size;
    const unsigned char *at[64];
    size_t length[64];
    int count;
} Events;

static void events_read(Events *events, const char *name) {
    char *path = path_join(folder, name);
    *events = (Events){0};
    assert_ok(file_read(&events->data, &events->size, path));
    for (size_t at = 0; at < events->size;) {
        uint64_t length;
        uint32_t crc;
        assert_true(events->size - at >= 12);
        memcpy(&length, events->data + at, 8);
        memcpy(&crc, events->data + at + 8, 4);
        assert_int_equal(crc, crc32c_masked(events->data + at, 8));
        assert_true(events->size - at >= 16 + length);
        memcpy(&crc, events->data + at + 12 + length, 4);
        assert_int_equal(crc, crc32c_masked(events->data + at + 12, length));
        assert_true(events->count < 64);
        events->at[events->count] = (const unsigned char *)events->data + at + 12;
        events->length[events->count++] = length;
        at += 16 + length;
    }
    free(path);
}

static Field event_field(const Events *events, int event, int number) {
    return find_field(events->at[event], events->length[event], number, 0);
}

// The value of a tag in an event's summary; field.number 0 where there is none.
static Field event_value(const Events *events, int event, const char *tag, int number) {
    Field summary = event_field(events, event, 5), none = {0};
    for (int i = 0; summary.number; i++) {
        Field value = find_field(summary.at, summary.size, 1, i);
        if (!value.number) return none;
        Field name = find_field(value.at, value.size, 1, 0);
        if (name.size == strlen(tag) && memcmp(name.at, tag, name.size) == 0)
            return find_field(value.at, value.size, number, 0);
    }
    return none;
}

static char *only_file(size_t index, size_t of) { // its name; malloc'd
    char **names;
    size_t count;
    assert_ok(dir_list(&names, &count, folder));
    assert_int_equal(count, of);
    char *name = text_copy(names[index]);
    names_free(names, count);
    return name;
}

// ---- tests ----------------------------------------------------------------------------------------------------------

static void a_run_has_a_version_a_start_and_its_scalars(void **state) {
    (void)state;
    TensorBoard *board;
    static const ExpertLoad loads[] = {{1.5, 0.875, 0}, {1.25, 0.75, 2}};
    assert_ok(dir_remove(folder));
    assert_ok(tensorboard_open(&board, folder, 0, 1000.25));
    MetricsStep step = {.step = 300, .tokens = 6400, .loss = 2.5, .lr = 1e-3, .mfu = 0.5, .time = 1001.5};
    step.split_count = 1, step.split_name[0] = "gemm", step.split_ms[0] = 7;
    step.moe = loads, step.moe_count = 2;
    assert_ok(tensorboard_step(board, &step));
    Evaluation eval = {.loss = 2, .perplexity = 7.5, .targets = 10};
    assert_ok(tensorboard_evaluation(board, 301, 1002, &eval));
    tensorboard_close(board);
    char *name = only_file(0, 1);
    assert_non_null(strstr(name, "events.out.tfevents.0000001000."));
    Events events;
    events_read(&events, name);
    assert_int_equal(events.count, 4);
    Field version = event_field(&events, 0, 3);
    assert_true(version.size == 13 && memcmp(version.at, "brain.Event:2", 13) == 0);
    assert_true(event_field(&events, 0, 1).real == 1000.25);
    Field session = event_field(&events, 1, 7);
    assert_int_equal(find_field(session.at, session.size, 1, 0).varint, 1); // START
    assert_int_equal(event_field(&events, 1, 2).varint, 0);
    assert_int_equal(event_field(&events, 2, 2).varint, 300);
    assert_true(event_field(&events, 2, 1).real == 1001.5);
    assert_true(event_value(&events, 2, "train/loss", 2).real == 2.5);
    assert_true(event_value(&events, 2, "train/tokens", 2).real == 6400);
    assert_true(event_value(&events, 2, "speed/mfu", 2).real == 0.5);
    assert_true(event_value(&events, 2, "step_ms/gemm", 2).real == 7);
    assert_true(event_value(&events, 2, "moe/dead", 2).real == 2);
    assert_int_equal(event_value(&events, 2, "moe/loss_aux", 2).number, 0);      // 0 is no curve
    assert_int_equal(event_value(&events, 2, "machine/gpu_power", 2).number, 0); // no GPU
    assert_true(event_value(&events, 3, "val/loss", 2).real == 2);
    assert_int_equal(event_value(&events, 3, "val/bits_per_byte", 2).number, 0);
    free(name), free(events.data);
}

static void a_resumed_run_supersedes_what_comes_after_its_checkpoint(void **state) {
    (void)state;
    TensorBoard *board;
    assert_ok(dir_remove(folder));
    for (int i = 0; i < 2; i++) { // within one second
        assert_ok(tensorboard_open(&board, folder, i ? 20 : 0, 1000));
        tensorboard_close(board);
    }
    char *first = only_file(0, 2), *second = only_file(1, 2);
    assert_non_null(strstr(first, ".0000001000."));
    assert_non_null(strstr(second, ".0000001001.")); // sorts behind it
    Events events;
    events_read(&events, second);
    Field session = event_field(&events, 1, 7);
    assert_int_equal(find_field(session.at, session.size, 1, 0).varint, 1);
    assert_int_equal(event_field(&events, 1, 2).varint, 21);
    free(first), free(second), free(events.data);
}

static void a_text_is_a_tensor_for_the_text_plugin(void **state) {
    (void)state;
    TensorBoard *board;
    assert_ok(dir_remove(folder));
    assert_ok(tensorboard_open(&board, folder, 0, 1000));
    assert_ok(tensorboard_text(board, "config", "    seq = 32\n", 0, 1000));
    tensorboard_close(board);
    char *name = only_file(0, 1);
    Events events;
    events_read(&events, name);
    Field tensor = event_value(&events, 2, "config", 8), metadata = event_value(&events, 2, "config", 9);
    assert_int_equal(find_field(tensor.at, tensor.size, 1, 0).varint, 7); // DT_STRING
    Field text = find_field(tensor.at, tensor.size, 8, 0), plugin = find_field(metadata.at, metadata.size, 1, 0);
    assert_true(text.size == 13 && memcmp(text.at, "    seq = 32\n", 13) == 0);
    Field kind = find_field(plugin.at, plugin.size, 1, 0);
    assert_true(kind.size == 4 && memcmp(kind.at, "text", 4) == 0);
    free(name), free(events.data);
}

static void every_value_lies_below_its_buckets_limit_and_not_below_the_one_before(void **state) {
    (void)state;
    static const float values[] = {-3e38f, -2, -1.3f, -1e-30f, -0.0f,   0,   1e-40f,  0.25f,
                                   0.3f,   1,  1.75f, 1.9f,    3.3e38f, NAN, INFINITY};
    enum { COUNT = sizeof values / sizeof *values, FINITE = COUNT - 2 };
    Histogram histogram = {0};
    histogram_add(&histogram, values, COUNT);
    assert_int_equal(histogram.count, FINITE);
    assert_int_equal(histogram.not_finite, 2);
    assert_true(histogram.min == values[0] && histogram.max == values[FINITE - 1]);
    double *limits, *counts;
    int buckets = histogram_buckets(&histogram, &limits, &counts);
    for (int b = 0; b < buckets; b++) {
        double inside = 0;
        for (int i = 0; i < FINITE; i++) { // zeros of both signs are one value and lie in two buckets
            bool negative = signbit(values[i]);
            bool above = b == 0 || values[i] > limits[b - 1] || (!negative && values[i] == limits[b - 1]);
            bool below = values[i] < limits[b] || (negative && values[i] == limits[b]);
            inside += above && below && !(values[i] == 0 && negative != (limits[b] <= 0));
        }
        if (inside != counts[b]) fail_msg("bucket %d to %g has %g, not %g", b, limits[b], counts[b], inside);
        assert_true(b == 0 || limits[b] > limits[b - 1]);
        assert_true(b == 0 || counts[b] > 0 || counts[b - 1] > 0); // neighbours that are empty are one
    }
    assert_true(counts[buckets - 1] > 0);
    free(limits), free(counts);
}

static void a_histogram_is_written_with_its_sums_and_buckets(void **state) {
    (void)state;
    TensorBoard *board;
    static const float values[] = {-1, 0.5f, 0.5f, 4};
    Histogram histogram = {0};
    histogram_add(&histogram, values, 4);
    assert_ok(dir_remove(folder));
    assert_ok(tensorboard_open(&board, folder, 0, 1000));
    assert_ok(tensorboard_histogram(board, "weights/o", &histogram, 5, 1000));
    tensorboard_close(board);
    char *name = only_file(0, 1);
    Events events;
    events_read(&events, name);
    Field histo = event_value(&events, 2, "weights/o", 5);
    static const double expected[] = {-1, 4, 4, 4, 17.5}; // min, max, count, sum, sum of squares
    for (int i = 0; i < 5; i++)
        assert_true(find_field(histo.at, histo.size, i + 1, 0).real == expected[i]);
    Field limits = find_field(histo.at, histo.size, 6, 0), counts = find_field(histo.at, histo.size, 7, 0);
    assert_true(limits.size == counts.size && limits.size % sizeof(double) == 0);
    double sum = 0, count;
    for (size_t i = 0; i < counts.size; i += sizeof count)
        memcpy(&count, counts.at + i, sizeof count), sum += count;
    assert_true(sum == 4);
    free(name), free(events.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_checksum_is_crc32c),
        cmocka_unit_test(a_run_has_a_version_a_start_and_its_scalars),
        cmocka_unit_test(a_resumed_run_supersedes_what_comes_after_its_checkpoint),
        cmocka_unit_test(a_text_is_a_tensor_for_the_text_plugin),
        cmocka_unit_test(every_value_lies_below_its_buckets_limit_and_not_below_the_one_before),
        cmocka_unit_test(a_histogram_is_written_with_its_sums_and_buckets),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
