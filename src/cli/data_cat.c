// hearth data cat: the texts of any readable files, each followed by a NUL byte.
#include "base/text.h"
#include "cli/args.h"
#include "cli/data_commands.h"
#include "data/reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static Status texts_print(Reader *reader, bool newline) {
    Document document;
    bool more;
    for (;;) {
        TRY(reader_next(reader, &document, &more));
        if (!more) return NULL;
        if (fwrite(document.text, 1, document.length, stdout) != document.length || putchar(newline ? '\n' : 0) < 0)
            return status_errno("cannot write to standard output");
    }
}

Status data_cat(int argc, char **argv) {
    ReaderOptions options = {0};
    bool newline = false, helped;
    const Arg args[] = {
        {"--column", ARG_TEXT, &options.field, "NAME", "string column or field to print (default: text)"},
        {"--field", ARG_TEXT, &options.field, "NAME", "the same"},
        {"--lines", ARG_FLAG, &options.lines, "", ".txt: a document a line, not a file"},
        {"--newline", ARG_FLAG, &newline, "", "end each text with a newline, not a NUL byte"},
        {"--skip-bad", ARG_FLAG, &options.skip_bad, "", "count and skip bad records"},
    };
    const ArgCommand command = {
        "hearth data cat [options] INPUT...",
        "Prints the texts of files, directories or globs (.txt, .jsonl, .parquet, also .gz and .zst),\n"
        "each followed by a NUL byte. Null texts are left out.",
        args,
        ARG_COUNT(args),
        1,
        -1};
    ArgList inputs;
    Status status = args_parse(&command, argc, argv, &inputs, &helped);
    if (!status && !helped) {
        Reader *reader;
        status = reader_open(&reader, &options, inputs.items, (size_t)inputs.count);
        if (!status) status = texts_print(reader, newline);
        if (!status) {
            ReaderCounts counts = reader_counts(reader);
            if (counts.bad || counts.nulls || counts.damaged) {
                fprintf(stderr, "%llu documents, %llu null, %llu bad records skipped, %llu damaged files\n",
                        (unsigned long long)counts.documents, (unsigned long long)counts.nulls,
                        (unsigned long long)counts.bad, (unsigned long long)counts.damaged);
            }
        }
        if (!status && fflush(stdout) != 0) status = status_errno("cannot write to standard output");
        reader_close(reader);
    }
    free(inputs.items);
    return status;
}
