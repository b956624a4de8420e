// What is written down of a run while it goes: the recorder of its steps, and how it stands.
#include "base/log.h"
#include "plan/checkpointing.h"
#include "train/prediction.h"
#include "train/run_internal.h"

#include <stdlib.h>
#include <string.h>

// Seconds between checkpoints that cost the least (Young); 0: nobody knows the machine.
static double best_interval(const Prediction *prediction, double bytes) {
    if (!prediction) return 0;
    const PlanMachine *machine = &prediction->machine;
    return plan_young_interval(machine->defaults.gpu_mtbf / machine->gpus, plan_machine_write_seconds(machine, bytes));
}

Status run_open_recorder(Run *run, Recorder **recorder) {
    const Trainer *trainer = &run->trainer;
    double bytes = plan_checkpoint_parameter_bytes(trainer->diloco.every ? trainer->ranks.islands : 0) *
                   (double)trainer->parameters.total;
    TextBuffer config = {0};
    config_write(&trainer->resolved, &config);
    RecorderOptions options = {
        .directory = run->directory,
        .last_step = trainer->step > 0 ? trainer->step : -1, // else the validation before it is taken again
        .tensorboard = run->config->watch.tensorboard,
        .config_text = config.data,
        .machine.gpu = trainer->ops->gpu,
        .alarms = {.young_seconds = best_interval(trainer->prediction, bytes),
                   .checkpoint_bytes = bytes,
                   .loss_gap_bound = run->config->train.loss_check_bound},
    };
    Status status = recorder_open(recorder, &options);
    text_buffer_free(&config);
    return status;
}

void run_hear_recorder(Run *run) {
    for (char *said; run->recorder && (said = recorder_said(run->recorder)); free(said)) {
        progress_clear(&run->progress);
        log_warn("%s", said);
    }
}

void run_close_recorder(Run *run) {
    if (!run->recorder) return;
    AppendMissing missing = recorder_missing(run->recorder);
    run_hear_recorder(run);
    if (missing.records)
        log_warn("%lld lines of metrics, of steps %lld to %lld, could not be written to %s/metrics.jsonl",
                 (long long)missing.records, (long long)missing.first_step, (long long)missing.last_step,
                 run->directory);
    log_debug("watching: %.4f s of CPU time in the thread of the steps, %.4f s in its own", run->watch_cpu,
              recorder_cpu_seconds(run->recorder));
    recorder_close(run->recorder);
}

void run_note_state(const Run *run, RunState state, const char *message) {
    if (!run->first) return;
    Status status = run_state_write(run->directory, state, run->trainer.step, message);
    if (status) log_warn("how the run stands is not noted: %s", status_message(status));
    status_free(status);
}
