// Signals that ask a run to stop after its step.
#include "train/run_internal.h"

volatile sig_atomic_t run_stop_signal;

static void on_signal(int number) {
    run_stop_signal = number;
}

void run_catch_signals(void) {
    // The handler resets itself: a second Ctrl-C ends the program at once. A terminal that closes says so twice, by the
    // system and by the shell.
    struct sigaction action = {.sa_handler = on_signal};
    run_stop_signal = 0;
    static const int stopping[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < sizeof stopping / sizeof *stopping; i++) {
        struct sigaction before;
        sigaction(stopping[i], NULL, &before);
        action.sa_flags = stopping[i] == SIGHUP ? 0 : (int)SA_RESETHAND;
        if (before.sa_handler != SIG_IGN) sigaction(stopping[i], &action, NULL); // nohup wants to hear of none
    }
    signal(SIGPIPE, SIG_IGN); // nobody reads the progress any more: the training goes on
}
