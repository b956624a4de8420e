// Inside of a run: what its files share. The loop is in run.c.
#pragma once

#include "train/checkpoint.h"
#include "train/exposed.h"
#include "train/outcome.h"
#include "train/profiler.h"
#include "train/run.h"
#include "train/trainer.h"
#include "watch/progress.h"
#include "watch/recorder.h"
#include "watch/run_state.h"

#include <signal.h>

typedef struct Run {
    const Config *config;
    World *world; // NULL: one process
    const char *rescue;
    bool first; // rank 0: it alone writes and shows what there is once for all ranks
    char *directory, *checkpoints;
    Trainer trainer;
    Recorder *recorder; // NULL on ranks but the first
    double watch_cpu;   // seconds of this thread, spent on what is written and shown of steps
    Progress progress;
    CheckpointWriter *writer;
    double saved_at;                    // when it was begun, or the run
    double kept_at;                     // when the newest complete one was begun, or the run
    int64_t saved_step;                 // of the last checkpoint that was begun, the same on all ranks; -1: none
    Status save_failure;                // of the newest checkpoint, when it could not be written
    int choices_kept;                   // kernel choices in the run directory
    double speed_tokens, speed_seconds; // after the warm-up steps
    int64_t first_tokens;               // done before this process
    Outcome outcome;
    Exposed exposed;
    Profiler *profiler; // NULL: no profile
    char *profile_directory;
    int64_t profile_steps;
    MachineLoad load; // as it was at the first step
    int stopped_by;   // the signal that ended it before its end
    int lock;         // of the run directory: two processes must not write one run
} Run;

// ---- before the first step (run_open.c) ----------------------------------------------------------------------------

// *checkpoint (malloc'd): that a run with a directory goes on from, NULL when there is none yet.
Status run_read_config(Config *config, const Run *run, char **checkpoint, const RunOptions *options);
Status run_lock(Run *run);
// Everything that there is once for all ranks is made by the first; what it fails in ends the others too.
Status run_open(Run *run, const RunOptions *options, const char *checkpoint);

// ---- going on (run_resume.c) ---------------------------------------------------------------------------------------

Status run_resume_directory(const RunOptions *options, char **directory); // NULL: a new run
// Puts the trainer where the newest good checkpoint left off. A run that has none yet starts over in its directory.
Status run_resume(Run *run, const char *checkpoint);
bool run_has_ended(const Run *run); // all steps are done, and so is what comes after the last one

// ---- checkpoints (run_checkpoints.c) -------------------------------------------------------------------------------

Status run_open_writer(Run *run, const char *folder, bool async);
void run_poll_writer(Run *run, bool wait);
Status run_save_checkpoint(Run *run); // unless this step has one
// Waits for the checkpoint that the run is left with; one that could not be written is tried once more.
Status run_wait_for_last(Run *run);
// What was learned so far is kept, whatever is wrong with the data. Returns the cause.
Status run_save_before_end(Run *run, Status cause);
// The error, with what to go on from. Checkpoints of weights that may be ruined are set aside.
Status run_too_many_skips(Run *run);

// ---- written down (run_recorder.c) ---------------------------------------------------------------------------------

Status run_open_recorder(Run *run, Recorder **recorder);
// What the recorder has to say goes through this thread, which has the terminal.
void run_hear_recorder(Run *run);
void run_close_recorder(Run *run);
void run_note_state(const Run *run, RunState state, const char *message);

// ---- shown (run_show.c) --------------------------------------------------------------------------------------------

void run_show_start(Run *run);
void run_show_summary(Run *run);
// Predicted against measured, for the reader and for the history that the next prediction learns from.
void run_show_outcome(Run *run);

// ---- signals (run_signals.c) ---------------------------------------------------------------------------------------

extern volatile sig_atomic_t run_stop_signal; // that asks this process to stop; 0: none
void run_catch_signals(void);
