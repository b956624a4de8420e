// A job whose ranks work in steps, until one of them does what its mode says. tests/dist/test_faults.sh starts it under
// mpirun and looks at how the job ends.
//   fault_ranks MODE [RANK]
#include "base/file.h"
#include "dist/comm.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 6, FAULT_STEP = 3 };

static void run_steps(World *world, Comm *all, const char *mode, bool chosen) {
    float values[1000];
    for (int i = 0; i < 1000; i++)
        values[i] = 1;
    Tensor tensor = tensor_make(values, DTYPE_F32, 1, 1000, "values");
    for (int step = 0; step < STEPS; step++) {
        world_set_step(world, step);
        if (step == FAULT_STEP && chosen) {
            if (strcmp(mode, "kill") == 0) raise(SIGKILL);
            if (strcmp(mode, "stop") == 0) raise(SIGSTOP);
            if (strcmp(mode, "absent") == 0) sleep(600);
            if (strcmp(mode, "exit") == 0) exit(0);
            if (strcmp(mode, "error") == 0)
                world_abort(world, status_hint(status_runtime("the disk is full"), "make room"));
            if (strcmp(mode, "usage") == 0) world_abort(world, status_usage("no such key"));
        }
        if (step == FAULT_STEP && strcmp(mode, "all") == 0) world_abort(world, status_usage("wrong for all"));
        if (step == FAULT_STEP && strcmp(mode, "send") == 0) {
            if (chosen) comm_wait(all, comm_receive(all, tensor, (all->rank + 1) % all->size)); // nobody sends
            sleep(600);
        }
        if (step == FAULT_STEP && strcmp(mode, "enter") == 0) {
            if (chosen) sleep(600);
            world_enter(world, "graph");
            sleep(600);
        }
        comm_wait(all, comm_all_reduce(all, tensor));
    }
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "fine", *own = getenv("OMPI_COMM_WORLD_RANK");
    int fault_rank = argc > 2 ? atoi(argv[2]) : 1;
    bool chosen = own && atoi(own) == fault_rank;
    if (strcmp(mode, "late") == 0 && chosen) sleep(600);
    if (strcmp(mode, "contradiction") == 0 && chosen) setenv("RANK", "7", 1);
    World *world;
    Status status = world_open(&world, &(WorldOptions){.start_seconds = 2, .watch_seconds = 2});
    if (status) {
        status_print(status, stderr);
        return (int)status_code(status);
    }
    Ops *ops;
    Comm *all = NULL;
    status = ops_cpu_create(&ops);
    if (!status) status = comm_create_world(&all, world, ops, "dp");
    bool differ = strcmp(mode, "differ") == 0 && chosen;
    if (!status) status = world_agree(world, "configuration", differ ? "a" : "b", 1);
    if (status) world_abort(world, status);
    run_steps(world, all, mode, chosen);
    comm_destroy(all);
    if (world->rank == 0) printf("fine\n");
    world_close(world);
    ops_cpu_destroy(ops);
    return 0;
}
