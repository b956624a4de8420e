"""A job of four ranks in which one is killed, stops, has a full disk or another configuration: it ends within the limit,
names the rank and the cause, leaves no process behind, and goes on afterwards with the curve of the undisturbed run."""

import os
import resource
import shutil
import signal
import time

from jobs import Failure, Mesh, Missed, Run, alive, main, processes_below, rank_processes
from jobs import send_signal, set_file_limit, until_met, wait_until
from models import MODELS, config_text

WATCH_SECONDS = 3
LIMIT_SECONDS = 60  # WATCH_SECONDS and what a loaded machine takes to say so
STEPS = 400
RANKS = 4
MESHES = [Mesh(4), Mesh(4, 1, 3), Mesh(1, 4), Mesh(2, 2), Mesh(2, pp=2)]
SHARE = {mesh.name: {"train.grad_accum": 4 // mesh.dp} for mesh in MESHES}


def named(rank, processes):
    return f"rank {rank} of {RANKS} (process {processes[rank]}"


def died(rank, processes):
    """Whoever sees it first: hearth's own watchdog, or the launcher, which then ends all."""
    return named(rank, processes), f"process rank {rank} with PID"


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
        """The job, when it has made its run directory; its ranks' processes; and the run."""
        run = Run(self.bench.path(name))
        shutil.rmtree(run.path, ignore_errors=True)
        words, sets = ["train", self.config, "--run", run.path], {**self.sets(mesh), **(more or {})}
        environment = {"HEARTH_WATCH_SECONDS": str(WATCH_SECONDS)}
        job, processes = self.bench.start(words, RANKS, sets, name + ".log", special, environment), {}
        if not special:
            wait_until(lambda: os.path.isdir(os.path.join(run.path, "checkpoints")), "its directory", job)
            wait_until(lambda: processes.update(rank_processes(job)) or len(processes) == RANKS, "its ranks", job)
        return job, processes, run

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
        job, processes, run = self.start(name, mesh)
        wait_until(lambda: run.last_step() >= 25 + 7 * number, "its steps", job)
        send_signal(processes[rank], signal.SIGKILL)
        found = self.ends(job, name, processes.values(), [died(rank, processes)])
        self.goes_on(name, mesh)
        return found

    def killed_in_a_checkpoint(self, number):
        mesh, rank, name = self.mesh_of(number), number % RANKS, f"checkpoint-{number}"
        self.undisturbed(mesh)
        job, processes, run = self.start(name, mesh)
        folder = os.path.join(run.path, "checkpoints")

        def writing():
            return any(entry.startswith(".writing-") for entry in os.listdir(folder))

        wait_until(writing, "a checkpoint", job, pause=0)
        send_signal(processes[rank], signal.SIGKILL)
        found = self.ends(job, name, processes.values(), [died(rank, processes)])
        if not writing():
            raise Missed("the checkpoint was written before the signal came")
        self.goes_on(name, mesh)
        return found

    def stopped(self, number):
        mesh, rank, name = self.mesh_of(number), (number + 2) % RANKS, f"stopped-{number}"
        self.undisturbed(mesh)
        job, processes, run = self.start(name, mesh)
        wait_until(lambda: run.last_step() >= 25, "its steps", job)
        send_signal(processes[rank], signal.SIGSTOP)
        texts = [f"has not ended within {WATCH_SECONDS} s, at step ", named(rank, processes), "is stopped (SIGSTOP)"]
        found = self.ends(job, name, processes.values(), texts, code=1)
        self.goes_on(name, mesh)
        return found

    def full_disk(self, number):
        """The rank may not write any further into a file: to it, the disk is full. It goes on, and says so at the end."""
        mesh, rank, name = self.mesh_of(number), 1 + number % (RANKS - 1), f"full-{number}"
        self.undisturbed(mesh)
        job, processes, run = self.start(name, mesh)
        wait_until(lambda: run.last_step() >= 25, "its steps", job)
        set_file_limit(processes[rank], 4096)
        found = self.ends(job, name, processes.values(), [f"rank {rank}: ", "File too large"], code=1)
        if os.path.exists(run.checkpoint(STEPS)):
            raise Failure("a checkpoint was written that misses a part")
        self.goes_on(name, mesh)
        return found

    def speechless(self, number):
        """The rank cannot open any file, nor write down that it failed. The others do not wait for it, nor end it."""
        mesh, rank, name = self.mesh_of(number), 1 + number % (RANKS - 1), f"speechless-{number}"
        self.undisturbed(mesh)
        job, processes, run = self.start(name, mesh)
        wait_until(lambda: run.last_step() >= 25, "its steps", job)
        set_file_limit(processes[rank], 3, resource.RLIMIT_NOFILE)
        found = self.ends(job, name, processes.values(), ["Too many open files", f"rank {rank} did not write its part"], code=1)
        if "has not ended within" in self.bench.log(name + ".log") or run.last_step() != STEPS:
            raise Failure(f"it ended before its last step:\n{self.bench.log(name + '.log')}")
        self.goes_on(name, mesh)
        return found

    def full_for_a_moment(self, number):
        """The only checkpoint fails at first. All ranks try again, also those whose part was written."""
        mesh, rank, name = self.mesh_of(number), 1 + number % (RANKS - 1), f"moment-{number}"
        whole = self.undisturbed(mesh)
        job, processes, run = self.start(name, mesh, more={"checkpoint.every": 0})
        set_file_limit(processes[rank], 4096)
        failed = os.path.join(run.path, "checkpoints", f".writing-step-{STEPS}", f"part-{rank}-1.failed")
        wait_until(lambda: os.path.exists(failed) or job.poll() is not None, "its part failed", pause=0)
        try:
            set_file_limit(processes[rank], None)
        except Missed:
            pass
        code, log = self.bench.wait(job, LIMIT_SECONDS), self.bench.log(name + ".log")
        if f"rank {rank}: " not in log or "File too large" not in log:
            raise Failure(f"ended with {code}:\n{log}")
        if code:
            raise Missed("the second try came before there was room")
        if run.curve() != whole.curve() or not os.path.exists(run.checkpoint(STEPS)):
            raise Failure(f"not the run that it should be:\n{log}")
        return ""

    def other_configuration(self, number):
        mesh, rank, name = self.mesh_of(number), 1 + number % (RANKS - 1), f"config-{number}"
        job, _, _ = self.start(name, mesh, special={rank: {"optimizer.beta2": 0.9}})
        texts = ["another configuration than rank 0 on ", f": rank {rank} on "]
        return self.ends(job, name, processes_below(job.pid), texts, code=2)


def tests(bench, quick):
    faults = Faults(bench)
    kinds = [
        ("a rank that is killed in a step", faults.killed_in_a_step),
        ("a rank that is killed in a checkpoint", faults.killed_in_a_checkpoint),
        ("a rank that stops", faults.stopped),
        ("a rank whose disk is full", faults.full_disk),
        ("a rank that cannot even say that it failed", faults.speechless),
        ("a rank whose disk is full for a moment", faults.full_for_a_moment),
        ("a rank with another configuration", faults.other_configuration),
    ]
    rounds = 1 if quick else 10
    return [(f"{name}, {number + 1}", until_met, test, number) for name, test in kinds for number in range(rounds)]


if __name__ == "__main__":
    main(__doc__, tests)
