"""A job of four ranks in which one is killed, stops, has a full disk or another configuration: it ends within the limit,
names the rank and the cause, leaves no process behind, and goes on afterwards with the curve of the undisturbed run."""

import os
import resource
import signal
import time

from jobs import Failure, Mesh, Run, alive, main, processes_below, rank_processes, wait_until
from models import MODELS, config_text

WATCH_SECONDS = 3
LIMIT_SECONDS = 60  # WATCH_SECONDS and what a loaded machine takes to say so
STEPS = 400
RANKS = 4
MESHES = [Mesh(4), Mesh(4, 1, 3), Mesh(1, 4), Mesh(2, 2)]
SHARE = {mesh.name: {"train.grad_accum": 4 // mesh.dp} for mesh in MESHES}


class Faults:
    def __init__(self, bench):
        self.bench = bench
        text = config_text(MODELS["dense"], bench.data("data", 60), STEPS)
        self.config = bench.config("faults", text)
        self.whole = {}

    def sets(self, mesh):
        return {**mesh.sets(), **SHARE[mesh.name], "checkpoint.every": 20}

    def undisturbed(self, mesh):
        if mesh.name not in self.whole:
            self.whole[mesh.name] = self.bench.train(self.config, mesh, f"whole-{len(self.whole)}", self.sets(mesh))
        return self.whole[mesh.name]

    def start(self, name, mesh, special=None, more=None):
        words = ["train", self.config, "--run", self.bench.path(name)]
        environment = {"HEARTH_WATCH_SECONDS": str(WATCH_SECONDS)}
        return self.bench.start(words, RANKS, {**self.sets(mesh), **(more or {})}, name + ".log", special, environment)

    def ends(self, job, name, processes, texts, code=None):
        """Within the limit, with each of the texts (one of several where it is a tuple), and nothing runs on."""
        begin = time.monotonic()
        found, log = self.bench.wait(job, LIMIT_SECONDS), self.bench.log(name + ".log")
        seconds = time.monotonic() - begin
        wrong = [str(text) for text in texts if not any(t in log for t in (text if isinstance(text, tuple) else [text]))]
        if found == 0 or (code is not None and found != code):
            wrong.append(f"exit code {found}")
        try:
            wait_until(lambda: not any(map(alive, processes)), "an end of all ranks", seconds=10)
        except Failure as left:
            wrong.append(str(left))
        if wrong:
            raise Failure(f"not as it should be: {'; '.join(wrong)}\n{log}")
        return f"ended in {seconds:.1f} s"

    def goes_on(self, name, mesh):
        run, whole = self.bench.resume(name, mesh, SHARE[mesh.name]), self.undisturbed(mesh)
        if run.curve() != whole.curve():
            raise Failure("it went on with another curve")

    def mesh_of(self, number):
        return MESHES[number % len(MESHES)]

    # ---- the faults -------------------------------------------------------------------------------------------------

    def killed_in_a_step(self, number):
        mesh, rank, name = self.mesh_of(number), (number + 1) % RANKS, f"step-{number}"
        self.undisturbed(mesh)
        job, run = self.start(name, mesh), Run(self.bench.path(name))
        wait_until(lambda: run.last_step() >= 25 + 7 * number, "its steps", job)
        processes = rank_processes(job)
        os.kill(processes[rank], signal.SIGKILL)
        # Whoever sees it first: hearth's own watchdog, or the launcher, which then ends all.
        died = (f"rank {rank} of {RANKS} (process {processes[rank]}", f"process rank {rank} with PID")
        found = self.ends(job, name, processes.values(), [died])
        self.goes_on(name, mesh)
        return found

    def killed_in_a_checkpoint(self, number):
        mesh, rank = self.mesh_of(number), number % RANKS
        self.undisturbed(mesh)
        for attempt in range(20):  # the moment is short: one that was missed is tried again
            name = f"checkpoint-{number}-{attempt}"
            job, folder = self.start(name, mesh), os.path.join(self.bench.path(name), "checkpoints")

            def writing():
                return any(entry.startswith(".writing-") for entry in os.listdir(folder))

            wait_until(lambda: os.path.isdir(folder), "checkpoints", job)
            processes = {}
            wait_until(lambda: len(processes) == RANKS or processes.update(rank_processes(job)), "its ranks", job)
            try:
                wait_until(writing, "a checkpoint", job, pause=0)
            except Failure:
                continue  # it ended first
            os.kill(processes[rank], signal.SIGKILL)
            died = (f"rank {rank} of {RANKS} (process {processes[rank]}", f"process rank {rank} with PID")
            found = self.ends(job, name, processes.values(), [died])
            if writing():
                self.goes_on(name, mesh)
                return found
        raise Failure("no attempt met a checkpoint that was being written")

    def stopped(self, number):
        mesh, rank, name = self.mesh_of(number), (number + 2) % RANKS, f"stopped-{number}"
        self.undisturbed(mesh)
        job, run = self.start(name, mesh), Run(self.bench.path(name))
        wait_until(lambda: run.last_step() >= 25, "its steps", job)
        processes = rank_processes(job)
        os.kill(processes[rank], signal.SIGSTOP)
        texts = [f"has not ended within {WATCH_SECONDS} s, at step ", f"rank {rank} of {RANKS} (process {processes[rank]}"]
        found = self.ends(job, name, processes.values(), [*texts, "is stopped (SIGSTOP)"], code=1)
        self.goes_on(name, mesh)
        return found

    def full_disk(self, number):
        """The rank may not write any further into a file: to it, the disk is full. It goes on, and says so at the end."""
        mesh, rank, name = self.mesh_of(number), 1 + number % (RANKS - 1), f"full-{number}"
        self.undisturbed(mesh)
        job, run = self.start(name, mesh), Run(self.bench.path(name))
        wait_until(lambda: run.last_step() >= 25, "its steps", job)
        processes = rank_processes(job)
        resource.prlimit(processes[rank], resource.RLIMIT_FSIZE, (4096, 4096))
        found = self.ends(job, name, processes.values(), [f"rank {rank}: ", "File too large"], code=1)
        if os.path.exists(run.checkpoint(STEPS)):
            raise Failure("a checkpoint was written that misses a part")
        self.goes_on(name, mesh)
        return found

    def full_for_a_moment(self, number):
        """The only checkpoint fails at first. All ranks try again, also those whose part was written."""
        mesh, rank = self.mesh_of(number), 1 + number % (RANKS - 1)
        whole = self.undisturbed(mesh)
        for attempt in range(20):  # the second try comes at once: the disk may not have had room in time
            name = f"moment-{number}-{attempt}"
            job, run = self.start(name, mesh, more={"checkpoint.every": 0}), Run(self.bench.path(name))
            wait_until(lambda: run.last_step() >= 25, "its steps", job)
            process = rank_processes(job)[rank]
            hard = resource.prlimit(process, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(process, resource.RLIMIT_FSIZE, (4096, hard))
            failed = os.path.join(run.path, "checkpoints", f".writing-step-{STEPS}", f"part-{rank}-1.failed")
            try:
                wait_until(lambda: os.path.exists(failed), "its part failed", job, pause=0)
                resource.prlimit(process, resource.RLIMIT_FSIZE, (hard, hard))
            except (Failure, ProcessLookupError):
                pass
            code, log = self.bench.wait(job, LIMIT_SECONDS), self.bench.log(name + ".log")
            if code == 0 and "File too large" in log:
                if f"rank {rank}: " not in log or run.curve() != whole.curve():
                    raise Failure(log)
                return ""
        raise Failure("no second try was in time")

    def other_configuration(self, number):
        mesh, rank, name = self.mesh_of(number), 1 + number % (RANKS - 1), f"config-{number}"
        job = self.start(name, mesh, special={rank: {"optimizer.beta2": 0.9}})
        texts = ["another configuration than rank 0 on ", f": rank {rank} on "]
        return self.ends(job, name, processes_below(job.pid), texts, code=2)


def tests(bench, quick):
    faults = Faults(bench)
    kinds = [
        ("a rank that is killed in a step", faults.killed_in_a_step),
        ("a rank that is killed in a checkpoint", faults.killed_in_a_checkpoint),
        ("a rank that stops", faults.stopped),
        ("a rank whose disk is full", faults.full_disk),
        ("a rank whose disk is full for a moment", faults.full_for_a_moment),
        ("a rank with another configuration", faults.other_configuration),
    ]
    rounds = 1 if quick else 10
    return [(f"{name}, {number + 1}", test, number) for name, test in kinds for number in range(rounds)]


if __name__ == "__main__":
    main(__doc__, tests)
