// The commands of hearth. Each lives in its own file cmd_<name>.c and returns a Status; main.c turns it into an exit
// code.
#pragma once

#include "base/status.h"

typedef struct Command {
    const char *name;
    const char *summary;                  // one line for `hearth --help`; NULL: for programs, not listed
    Status (*run)(int argc, char **argv); // argv[0] is the command's own name
} Command;

extern const Command hearth_commands[];
extern const int hearth_command_count;

Status cmd_bench(int argc, char **argv);
Status cmd_calc(int argc, char **argv);
Status cmd_complete(int argc, char **argv);
Status cmd_completion(int argc, char **argv);
Status cmd_config(int argc, char **argv);
Status cmd_data(int argc, char **argv);
Status cmd_eval(int argc, char **argv);
Status cmd_export(int argc, char **argv);
Status cmd_man(int argc, char **argv);
Status cmd_plan(int argc, char **argv);
Status cmd_preflight(int argc, char **argv);
Status cmd_report(int argc, char **argv);
Status cmd_runs(int argc, char **argv);
Status cmd_sample(int argc, char **argv);
Status cmd_serve(int argc, char **argv);
Status cmd_train(int argc, char **argv);

// Runs the command of `table` that argv[1] names, or prints the table for --help. `program` is "hearth" or "hearth
// data".
Status commands_run(const char *program, const char *summary, const Command *table, int count, int argc, char **argv);
// Has the command asked for --help, for the visitor of args.h.
void command_describe(const Command *command);
