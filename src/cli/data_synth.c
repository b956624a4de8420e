// hearth data synth: a corpus of made-up stories.
#include "base/range.h"
#include "cli/args.h"
#include "cli/data_commands.h"
#include "data/synth.h"

#include <math.h>
#include <stdlib.h>

static Status print_stories(uint64_t seed, int64_t count) {
    TextBuffer text = {0};
    for (int64_t i = 0; i < count; i++) {
        text.length = 0;
        synth_story(&text, seed, (uint64_t)i);
        printf("%s\n\n", text.data);
    }
    text_buffer_free(&text);
    return NULL;
}

Status data_synth(int argc, char **argv) {
    int64_t stories = 20000, val_stories = -1, seed = 1, vocab = 1024, print = 0;
    const char *tokenizer = NULL;
    ArgList words;
    bool overwrite = false, helped;
    const Arg args[] = {
        {"--stories", ARG_INT, &stories, "N", "stories to train on (default 20,000: about 14 MB of text)"},
        {"--val-stories", ARG_INT, &val_stories, "N", "stories to validate with (default: a fiftieth)"},
        {"--seed", ARG_INT, &seed, "N", "another seed gives other stories (default 1)"},
        {"--vocab", ARG_INT, &vocab, "N", "entries of the vocabulary that is learned (default 1024)"},
        {"--tokenizer", ARG_TEXT, &tokenizer, "PATH", "use this tokenizer.json, or \"bytes\", instead of learning one"},
        {"--overwrite", ARG_FLAG, &overwrite, "", "replace the dataset that OUT_DIR holds"},
        {"--print", ARG_INT, &print, "N", "print N stories and write nothing"},
    };
    const ArgCommand command = {
        "hearth data synth OUT_DIR [--stories N] [options] | hearth data synth --print 3",
        "Writes simple English stories, made by a grammar from a seed, as a dataset to train on.",
        args,
        ARG_COUNT(args),
        0,
        1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        SynthRequest request = {words.count ? words.items[0] : NULL,
                                tokenizer,
                                vocab,
                                (uint64_t)seed,
                                (uint64_t)stories,
                                (uint64_t)(val_stories != -1 ? val_stories : (stories + 49) / 50),
                                overwrite};
        SynthResult result;
        char a[32], b[32], c[32];
        TRY_GOTO(check_number("--stories", (double)stories, 1, 1e12), done);
        TRY_GOTO(check_number("--val-stories", (double)request.val_stories, 1, 1e12), done);
        TRY_GOTO(check_number("--seed", (double)seed, 0, 9e18), done);
        TRY_GOTO(check_number("--print", (double)print, 0, 1e12), done);
        if (print > 0)
            status = print_stories((uint64_t)seed, print);
        else if (!request.directory)
            status = status_usage("hearth data synth needs a directory to write to");
        else if (!(status = synth_write(&request, &result)))
            printf("%s: %s training tokens, %s validation tokens, %s bytes of text, vocabulary %lld\n"
                   "unigram entropy %.4f nats per token: a model that only knows how often tokens occur scores this\n",
                   request.directory, text_grouped(a, (int64_t)result.train_tokens),
                   text_grouped(b, (int64_t)result.val_tokens), text_grouped(c, (int64_t)result.text_bytes),
                   (long long)result.vocab, result.unigram_entropy);
    }
done:
    free(words.items);
    return status;
}
