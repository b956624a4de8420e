// hearth runs compare: the settings in which runs differ, and what came of them.
#include "base/text.h"
#include "cli/args.h"
#include "cli/runs_commands.h"
#include "watch/run_compare.h"

#include <stdlib.h>

Status runs_compare(int argc, char **argv) {
    ArgList words;
    bool helped;
    const ArgCommand command = {
        "hearth runs compare A B...",
        "Shows the settings in which runs differ, and what came of them: loss at the end and after "
        "the same number of tokens, speed, memory, time.",
        NULL,
        0,
        2,
        -1};
    Status status = args_parse(&command, argc, argv, &words, &helped);
    if (!status && !helped) {
        RunCompared *runs = xcalloc((size_t)words.count, sizeof *runs);
        int read = 0;
        while (!status && read < words.count) {
            status = run_compared_read(&runs[read], words.items[read]);
            read += !status;
        }
        if (!status) {
            Document *document = run_compare(runs, read);
            TextBuffer text = {0};
            document_text(document, &text);
            fputs(text.data, stdout);
            text_buffer_free(&text);
            document_free(document);
        }
        for (int i = 0; i < read; i++)
            run_compared_free(&runs[i]);
        free(runs);
    }
    free(words.items);
    return status;
}
