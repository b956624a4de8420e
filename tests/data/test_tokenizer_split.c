// The hand-coded scanners against the same patterns in PCRE2, on real text and on random text made to meet their
// corners.
#include "testing.h"

#include "base/rng.h"
#include "data/split.h"
#include "data/unicode.h"

static void assert_same_pieces(SplitKind kind, const SplitRegex *regex, SplitMatcher *matcher, const uint8_t *text,
                               size_t length) {
    size_t at = 0;
    while (at < length) {
        bool found;
        size_t begin, end, stop = (size_t)(split_next(kind, text + at, text + length) - text);
        assert_ok(split_regex_find(regex, matcher, text, length, at, SIZE_MAX, &found, &begin, &end));
        if (!found || begin != at || end != stop) {
            TextBuffer shown = {0};
            for (size_t i = at; i < length && i < at + 40; i++)
                text_buffer_format(&shown, "%02x ", text[i]);
            fail_msg("pattern %d at byte %zu: scanner ends at %zu, PCRE2 has [%zu, %zu) found %d: %s", (int)kind, at,
                     stop, begin, end, found, shown.data);
        }
        at = stop;
    }
}

static SplitRegex *regex_of(SplitKind kind) {
    SplitRegex *regex;
    assert_ok(split_regex_new(&regex, split_pattern(kind)));
    return regex;
}

static void check_corpora(SplitMatcher *matcher, const char *root, const char *const *files) {
    for (; *files; files++) {
        char *path = text_format("%s/corpora/%s", root, *files);
        FileMap map;
        assert_ok(file_map(&map, path));
        free(path);
        TextBuffer text = {0};
        utf8_repair(&text, map.data, map.size);
        for (SplitKind kind = 0; kind < SPLIT_KINDS; kind++) {
            SplitRegex *regex = regex_of(kind);
            assert_same_pieces(kind, regex, matcher, (const uint8_t *)text.data, text.length);
            split_regex_free(regex);
        }
        text_buffer_free(&text);
        file_unmap(&map);
    }
}

static void scanners_cut_corpora_like_pcre2(void **unused) {
    (void)unused;
    static const char *const shipped[] = {"prose.txt",   "scripts.txt",    "code.txt",
                                          "numbers.txt", "whitespace.txt", NULL};
    static const char *const larger[] = {
        "multilingual/blns.txt",     "multilingual/udhr-a.txt",   "code/c-headers.txt",   "prose/Anon_Clara_1864.txt",
        "prose/wikitext2-valid.txt", "prose/tinyshakespeare.txt", "fineweb-sample.jsonl", NULL};
    SplitMatcher *matcher = split_matcher_new();
    if (!matcher) skip();
    check_corpora(matcher, FIXTURES, shipped);
    const char *shared = shared_root("corpora/multilingual");
    if (shared) check_corpora(matcher, shared, larger);
    split_matcher_free(matcher);
}

// Characters by what the patterns see in them; none is newer than the Unicode of older PCRE2 versions.
static const char *const kinds_of_text[] = {
    "a b c Z Q é ß ж Ж 中 か ア ن ह ǅ ʰ ª ﬁ",
    "0 9 ٣ ५ Ⅷ ½ ² ㊿",
    "! ? . , - _ / \\ ( [ { < | @ # $ % ^ & * ~ ` \" “ 。 € ☃ 😀 👍🏽 ❤️",
    "' ' ' ’",
    "s S t T re RE Ve m M ll LL lL d D ſ x",
    "\u0301 \u0323 \u094d \u20dd \u200d",
};
static const char *const spaces[] = {" ",      " ",      " ",        "\n",     "\r",     "\r\n", "\t", "\u00a0",
                                     "\u3000", "\u2028", "\xc2\x85", "\u180e", "\u200b", "\v",   "\f"};

static void add_random_character(TextBuffer *text, uint64_t seed, uint64_t *draw) {
    size_t kinds = sizeof kinds_of_text / sizeof kinds_of_text[0];
    uint64_t kind = rng_below(seed, RNG_STREAM_TEST, (*draw)++, kinds + 2);
    if (kind >= kinds) {
        const char *space = spaces[rng_below(seed, RNG_STREAM_TEST, (*draw)++, sizeof spaces / sizeof spaces[0])];
        text_buffer_add(text, space, strlen(space));
        return;
    }
    const char *list = kinds_of_text[kind];
    int words = 1;
    for (const char *at = list; *at; at++)
        words += *at == ' ';
    uint64_t chosen = rng_below(seed, RNG_STREAM_TEST, (*draw)++, (uint64_t)words);
    while (chosen-- > 0)
        list = strchr(list, ' ') + 1;
    size_t length = strcspn(list, " ");
    for (uint64_t times = 1 + rng_below(seed, RNG_STREAM_TEST, (*draw)++, 3); times > 0; times--)
        text_buffer_add(text, list, length);
}

static void scanners_cut_random_text_like_pcre2(void **unused) {
    (void)unused;
    SplitMatcher *matcher = split_matcher_new();
    if (!matcher) skip();
    SplitRegex *regexes[SPLIT_KINDS];
    for (SplitKind kind = 0; kind < SPLIT_KINDS; kind++)
        regexes[kind] = regex_of(kind);
    TextBuffer text = {0};
    for (uint64_t seed = 0; seed < 20000; seed++) {
        uint64_t draw = 0, length = 1 + rng_below(seed, RNG_STREAM_TEST, draw++, 24);
        text.length = 0;
        while (length-- > 0)
            add_random_character(&text, seed, &draw);
        for (SplitKind kind = 0; kind < SPLIT_KINDS; kind++)
            assert_same_pieces(kind, regexes[kind], matcher, (const uint8_t *)text.data, text.length);
    }
    text_buffer_free(&text);
    for (SplitKind kind = 0; kind < SPLIT_KINDS; kind++)
        split_regex_free(regexes[kind]);
    split_matcher_free(matcher);
}

static void known_patterns_are_known_by_their_text(void **unused) {
    (void)unused;
    for (SplitKind kind = 0; kind < SPLIT_KINDS; kind++)
        assert_int_equal(split_kind_of(split_pattern(kind)), kind);
    assert_int_equal(split_kind_of("\\s+"), SPLIT_UNKNOWN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scanners_cut_corpora_like_pcre2),
        cmocka_unit_test(scanners_cut_random_text_like_pcre2),
        cmocka_unit_test(known_patterns_are_known_by_their_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
