// Options, words and their errors, as a command sees them.
#include "testing.h"

#include "cli/args.h"

typedef struct Parsed {
    bool verbose, helped;
    const char *model;
    int64_t seq, profile;
    double lr;
    ArgList set, words;
} Parsed;

// Parses the words of a NULL-ended list for one fixed command.
static Status parse(Parsed *parsed, int words_min, int words_max, const char **argv) {
    *parsed = (Parsed){.model = "smollm-360m", .seq = 512, .lr = 0.5};
    const Arg args[] = {
        {"--verbose", ARG_FLAG, &parsed->verbose, NULL, "say more"},
        {"--model", ARG_TEXT, &parsed->model, "NAME", "the model"},
        {"--seq", ARG_INT, &parsed->seq, "S", "tokens in a sequence"},
        {"--profile", ARG_INT_IF_GIVEN, &parsed->profile, "STEPS", "look at steps"},
        {"--lr", ARG_DOUBLE, &parsed->lr, "X", "learning rate"},
        {"--set", ARG_LIST, &parsed->set, "KEY=VALUE", "one setting; may be given again"},
    };
    ArgCommand command = {"hearth test FILE [options]", "Tests.", args, ARG_COUNT(args), words_min, words_max};
    int argc = 0;
    while (argv[argc])
        argc++;
    return args_parse(&command, argc, (char **)argv, &parsed->words, &parsed->helped);
}

static void parsed_free(Parsed *parsed) {
    free(parsed->words.items);
    free(parsed->set.items);
}

#define WORDS(...) ((const char *[]){"test", __VA_ARGS__, NULL})

static void a_value_that_may_be_left_out_is_given_with_an_equals_sign(void **state) {
    (void)state;
    Parsed parsed;
    assert_ok(parse(&parsed, 0, 1, WORDS("--profile", "7"))); // the word is no value
    assert_true(parsed.profile == ARG_NO_VALUE && parsed.words.count == 1);
    parsed_free(&parsed);
    assert_ok(parse(&parsed, 0, 1, WORDS("--profile=7")));
    assert_true(parsed.profile == 7 && parsed.words.count == 0);
    parsed_free(&parsed);
    assert_error(parse(&parsed, 0, 1, WORDS("--profile=x")), "--profile takes a whole number, not \"x\"");
    assert_error(parse(&parsed, 0, 1, WORDS("--profile=")), "--profile takes a whole number");
}

static void both_spellings_of_a_value_work(void **state) {
    (void)state;
    Parsed parsed;
    assert_ok(parse(&parsed, 0, -1, WORDS("--seq", "1_024", "--lr=3e-4", "--model=a=b", "--verbose")));
    assert_int_equal(parsed.seq, 1024);
    assert_true(parsed.lr == 3e-4);
    assert_string_equal(parsed.model, "a=b");
    assert_true(parsed.verbose);
    parsed_free(&parsed);
}

static void what_is_not_given_keeps_its_default(void **state) {
    (void)state;
    Parsed parsed;
    assert_ok(parse(&parsed, 0, -1, WORDS("word")));
    assert_int_equal(parsed.seq, 512);
    assert_string_equal(parsed.model, "smollm-360m");
    assert_false(parsed.verbose);
    assert_false(parsed.helped);
    parsed_free(&parsed);
}

static void lists_and_words_keep_their_order(void **state) {
    (void)state;
    Parsed parsed;
    assert_ok(parse(&parsed, 0, -1, WORDS("one", "--set", "a=1", "-", "--set=b=2", "--", "--seq", "two")));
    assert_int_equal(parsed.set.count, 2);
    assert_string_equal(parsed.set.items[0], "a=1");
    assert_string_equal(parsed.set.items[1], "b=2");
    assert_int_equal(parsed.words.count, 4);
    assert_string_equal(parsed.words.items[0], "one");
    assert_string_equal(parsed.words.items[1], "-");
    assert_string_equal(parsed.words.items[2], "--seq"); // after "--" everything is a word
    assert_string_equal(parsed.words.items[3], "two");
    parsed_free(&parsed);
}

static void a_value_may_be_negative(void **state) {
    (void)state;
    Parsed parsed;
    assert_ok(parse(&parsed, 0, -1, WORDS("--seq", "-5", "--lr=-1")));
    assert_int_equal(parsed.seq, -5);
    assert_true(parsed.lr == -1);
    parsed_free(&parsed);
}

static void wrong_requests_are_usage_errors_that_say_what_to_do(void **state) {
    (void)state;
    Parsed parsed;
    static const struct {
        const char *word[3];
        const char *expected;
    } wrong[] = {
        {{"--sek"}, "unknown option --sek\n  hint: did you mean --seq?"},
        {{"--what-is-this"}, "unknown option --what-is-this\n  hint: usage: hearth test"},
        {{"-x"}, "unknown option -x"},
        {{"--se", "5"}, "unknown option --se"}, // options are not shortened
        {{"--seq"}, "--seq needs a value (S)"},
        {{"--seq", "many"}, "--seq takes a whole number, not \"many\""},
        {{"--seq=1.5"}, "--seq takes a whole number, not \"1.5\""},
        {{"--lr", "fast"}, "--lr takes a number, not \"fast\""},
        {{"--verbose=yes"}, "--verbose takes no value"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        Status status = parse(&parsed, 0, -1, WORDS(wrong[i].word[0], wrong[i].word[1]));
        assert_non_null(status);
        assert_int_equal(status_code(status), STATUS_USAGE);
        assert_null(parsed.words.items); // nothing is left to free
        assert_error(status, wrong[i].expected);
    }
}

static void the_number_of_words_is_checked(void **state) {
    (void)state;
    Parsed parsed;
    assert_error(parse(&parsed, 1, 1, WORDS("--verbose")), "too few arguments\n  hint: usage: hearth test FILE");
    assert_error(parse(&parsed, 1, 1, WORDS("a", "b")), "too many arguments");
    assert_ok(parse(&parsed, 1, 1, WORDS("a")));
    parsed_free(&parsed);
}

static void help_wins_over_missing_words(void **state) {
    (void)state;
    Parsed parsed;
    assert_ok(parse(&parsed, 1, 1, WORDS("--help")));
    assert_true(parsed.helped);
    parsed_free(&parsed);
    assert_ok(parse(&parsed, 1, 1, WORDS("-h")));
    assert_true(parsed.helped);
    parsed_free(&parsed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_spellings_of_a_value_work),
        cmocka_unit_test(a_value_that_may_be_left_out_is_given_with_an_equals_sign),
        cmocka_unit_test(what_is_not_given_keeps_its_default),
        cmocka_unit_test(lists_and_words_keep_their_order),
        cmocka_unit_test(a_value_may_be_negative),
        cmocka_unit_test(wrong_requests_are_usage_errors_that_say_what_to_do),
        cmocka_unit_test(the_number_of_words_is_checked),
        cmocka_unit_test(help_wins_over_missing_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
