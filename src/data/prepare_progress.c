#include "data/prepare_progress.h"

#include "base/clock.h"
#include "base/text.h"

#include <stdio.h>
#include <unistd.h>

#define TERMINAL_SECONDS 0.2
#define PLAIN_SECONDS    10.0

Progress progress_start(const char *what, bool quiet, double share, uint64_t documents, uint64_t bytes) {
    double now = clock_seconds();
    return (Progress){.what = what,
                      .quiet = quiet,
                      .terminal = isatty(STDERR_FILENO),
                      .start = now,
                      .last = now,
                      .first_share = share,
                      .first_documents = documents,
                      .first_bytes = bytes};
}

static void line_print(const Progress *progress, double share, uint64_t documents, uint64_t bytes, uint64_t tokens) {
    double seconds = clock_seconds() - progress->start + 1e-9;
    char count[32], token_text[32], rate[32], time[32];
    text_count(count, (double)documents);
    text_count(token_text, (double)tokens);
    text_count(rate, (double)(documents - progress->first_documents) / seconds);
    double speed = (double)(bytes - progress->first_bytes) / seconds / 1e6;
    fprintf(stderr, "%s%s: %5.1f %%  %s documents (%s/s)  %.1f MB/s  %s tokens  ", progress->terminal ? "\r\033[K" : "",
            progress->what, 100 * share, count, rate, speed, token_text);
    if (share >= 1) {
        fprintf(stderr, "%s", text_duration(time, seconds));
    } else {
        double gained = share - progress->first_share;
        fprintf(stderr, "%s left", gained > 0 ? text_duration(time, seconds * (1 - share) / gained) : "?");
    }
}

void progress_update(Progress *progress, double share, uint64_t documents, uint64_t bytes, uint64_t tokens) {
    if (progress->quiet) return;
    double now = clock_seconds();
    if (now - progress->last < (progress->terminal ? TERMINAL_SECONDS : PLAIN_SECONDS)) return;
    progress->last = now;
    line_print(progress, share < 0.999 ? share : 0.999, documents, bytes, tokens);
    if (!progress->terminal) fputc('\n', stderr);
    fflush(stderr);
}

void progress_end(Progress *progress, uint64_t documents, uint64_t bytes, uint64_t tokens) {
    if (progress->quiet) return;
    line_print(progress, 1, documents, bytes, tokens);
    fputc('\n', stderr);
}
