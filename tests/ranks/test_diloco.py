"""Islands that train apart and meet: one island with a plain outer step is plain training, two are two separate runs whose
changes are averaged, any mesh may be inside, memory is as planned, and a run that was killed goes on with the same bits."""

import os
import re
import shutil
import subprocess

from jobs import LOSS_BOUND, ONE, Difference, Failure, Mesh, Missed, Run, curve_difference, kill_job, main, until_met, wait_until
from models import MODELS, config_text

STEPS, EVERY = 20, 5
# As in test_equal.py: what the rounding of gradients may make of weights, which is more than the meetings' own.
WEIGHT_BOUND = 2 * STEPS * 2e-3 / 0.06 * 1e-5
PLAIN_OUTER = {"diloco.outer_lr": 1, "diloco.outer_momentum": 0}


class Islands(Mesh):
    """So many, of a mesh each."""

    def __init__(self, count, mesh=ONE, every=EVERY):
        self.__dict__.update(mesh.__dict__)
        self.mesh, self.count, self.every = mesh, count, every
        self.size, self.name = count * mesh.size, f"{count} islands of {mesh.name}"

    def sets(self):
        return {**self.mesh.sets(), "diloco.islands": self.count, "diloco.every": self.every}


def reference(bench):
    """The program of islands_apart.c: the islands as runs of their own."""
    return os.path.join(os.path.dirname(bench.program), "tests", "islands_apart")


def file_name(text):
    return text.replace(" ", "-").replace("+", "-").replace(",", "")


def files_of(checkpoint):
    names = sorted(os.listdir(checkpoint))
    return {name: open(os.path.join(checkpoint, name), "rb").read() for name in names if name != "manifest.json"}


def weights(run, step, name="model.safetensors"):
    return os.path.join(run.checkpoint(step), name)


class Diloco:
    def __init__(self, bench, model, precision="fp32"):
        self.bench, self.model, self.precision = bench, model, precision
        data = bench.data("data", 60)
        self.config = bench.config(f"diloco-{model}-{precision}", config_text(MODELS[model], data, STEPS))
        self.base = {"train.precision": precision, "train.grad_accum": 2}

    def train(self, mesh, name, sets=None):
        return self.bench.train(self.config, mesh, file_name(f"{self.model}-{self.precision}-{name}"), {**self.base, **(sets or {})})

    def one_is_plain(self, mesh):
        """lr 1 without momentum, in every step: anchor - (anchor - weights), taken in double, is the weights."""
        plain, run = self.train(mesh, f"plain {mesh.name}"), self.train(Islands(1, mesh, 1), f"one {mesh.name}", PLAIN_OUTER)
        if run.curve() != plain.curve():
            raise Failure("one island has another curve")
        for name in ("model.safetensors", "adam_m.safetensors", "adam_v.safetensors"):
            if not Difference(weights(run, STEPS, name), weights(plain, STEPS, name)).same:
                raise Failure(f"one island has another {name}")
        if not Difference(weights(run, STEPS, "outer_weights.safetensors"), weights(plain, STEPS)).same:
            raise Failure("the anchor is not the weights")

    def two_are_separate_runs(self, every):
        """At the first meeting element by element; after several, as far as trained differences of one rounding go."""
        run = self.train(Islands(2, every=every), f"two {every}")
        sets = {**self.base, "diloco.islands": 2, "diloco.every": every}
        words = [reference(self.bench), self.config, run.checkpoint(STEPS), *(f"{key}={value}" for key, value in sets.items())]
        done = subprocess.run(words, env=self.bench.environment, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"{' '.join(words)}: {done.stderr}")
        element, tensor = map(float, done.stdout.split())
        if every >= STEPS and not element <= 1:
            raise Failure(f"an element is off by {element:.3g} times what may be rounded")
        if not tensor <= WEIGHT_BOUND:
            raise Failure(f"a tensor is off by {tensor:.2g}, and {WEIGHT_BOUND:.2g} is allowed")
        return f"{element:.2g} of an element's bound, {tensor:.1e} of a tensor"

    def mesh_inside(self, mesh):
        """The islands' samples are the same when one rank of each takes as many at once."""
        at_once = {"train.micro_batch": mesh.dp}
        one, run = self.train(Islands(2), f"at once {mesh.dp}", at_once), self.train(Islands(2, mesh), f"inside {mesh.name}")
        loss, norm = curve_difference(run, one)
        end = Difference(weights(run, STEPS), weights(one, STEPS))
        if not (loss <= LOSS_BOUND and end.relative <= WEIGHT_BOUND):
            raise Failure(f"loss differs by {loss:.2g}, {end.tensor} by {end.relative:.2g}")
        planned = self.bench.planned_bytes(self.config, Islands(2, mesh), self.base)
        if run.memory_bytes() != planned:
            raise Failure(f"rank 0 has {run.memory_bytes():.0f} bytes, and {planned} were planned")
        return f"loss {loss:.1e}, norm {norm:.1e}, weights {end.relative:.1e}, {planned} bytes"

    def whole_and_sharded(self):
        """Without ZeRO a meeting gives each rank the others' master weights too. (No clipping: its norm is summed in parts.)"""
        runs = [self.train(Islands(2, Mesh(2, 1, zero)), f"sharded {zero}", {"optimizer.clip": 0}) for zero in (0, 1)]
        end = Difference(weights(runs[0], STEPS), weights(runs[1], STEPS))
        if not end.same:
            raise Failure(f"{end.tensor} differs by {end.relative:.2g}")

    def meets_with_equal_weights(self, mesh):
        """After a meeting all islands have the anchor; between two they do not; moments are their own."""
        run = self.train(Islands(2, mesh), f"equal {mesh.name}", {"checkpoint.every": 8, "checkpoint.keep_last": 9})
        for step, together in ((8, False), (STEPS, True)):
            first = weights(run, step)
            others = [weights(run, step, name) for name in ("island-1-model.safetensors", "outer_weights.safetensors")]
            if any(Difference(first, other).same != together for other in others):
                raise Failure(f"at step {step}, the islands' weights are {'not ' if together else ''}the same")
            if Difference(weights(run, step, "adam_m.safetensors"), weights(run, step, "island-1-adam_m.safetensors")).same:
                raise Failure("both islands have the same moments: do they see the same data?")

    def half_as_many_bytes(self):
        """bf16 changes: each is off by 2^-9 of itself, and so is their sum. And what is printed is what was sent."""
        sets, sent, runs = {"watch.terminal": '"plain"'}, [], []
        for exchange in ("float32", "bfloat16"):
            name = file_name(f"{self.model}-{self.precision}-exchange {exchange}")
            self.bench.finish(["train", self.config, "--run", self.bench.path(name)], Islands(2, every=STEPS), name,
                              {**self.base, **sets, "diloco.exchange": f'"{exchange}"'})  # fmt: skip
            log = self.bench.log(name + ".log")
            told, counted = (re.search(rf"each {word} ([\d.]+) MB, ([\d.e+]+) bytes per token", log) for word in ("sends", "sent"))
            if not told or not counted or told.groups() != counted.groups():
                raise Failure(f"told {told and told[0]}, counted {counted and counted[0]}:\n{log}")
            sent.append(float(counted[1]))
            runs.append(Run(self.bench.path(name)))
        if abs(sent[0] / sent[1] - 2) > 0.01:
            raise Failure(f"{sent[0]} MB as floats and {sent[1]} as bf16")
        end = Difference(weights(runs[1], STEPS), weights(runs[0], STEPS))
        if end.same or not end.relative < 1e-2:
            raise Failure(f"bf16 changes make {end.relative:.2g} of difference")
        return f"{sent[0]} and {sent[1]} MB, weights {end.relative:.1e}"

    def survives_a_kill(self, mesh):
        """Checkpoints in the middle of a round too."""
        sets = {"checkpoint.every": 3, "checkpoint.keep_last": 9}
        whole = self.train(Islands(2, mesh), f"whole {mesh.name}", sets)
        name = file_name(f"{self.model}-{self.precision}-killed {mesh.name}")
        path = self.bench.path(name)
        shutil.rmtree(path, ignore_errors=True)
        islands = Islands(2, mesh)
        job = self.bench.start(["train", self.config, "--run", path], islands.size, {**islands.sets(), **self.base, **sets}, name + ".log")
        wait_until(lambda: Run(path).last_step() >= 8, "its steps", job)
        kill_job(job)
        if Run(path).last_step() >= STEPS:
            raise Missed("it had ended before it could be killed")
        shutil.rmtree(Run(path).checkpoint(9), ignore_errors=True)  # so that it goes on from step 6 or 3, in a round
        for later in range(12, STEPS + 1):
            shutil.rmtree(Run(path).checkpoint(later), ignore_errors=True)
        run = self.bench.resume(name, islands, self.base)
        if run.curve() != whole.curve() or files_of(run.checkpoint(STEPS)) != files_of(whole.checkpoint(STEPS)):
            raise Failure("it went on with other bits")

    def goes_on_with_other_islands(self, source, target):
        """A plain checkpoint gets an anchor, more islands start as the first did, fewer leave theirs behind."""
        name = file_name(f"{self.model}-{self.precision}-{source.name} to {target.name}")
        self.train(source, name.removeprefix(f"{self.model}-{self.precision}-"), {"train.steps": EVERY})
        words, sets = ["train", "--resume", "--run", self.bench.path(name)], {"diloco.islands": 1, "diloco.every": 0, **target.sets()}
        job = self.bench.start(words, target.size, {**sets, "train.steps": STEPS}, name + ".log")
        if self.bench.wait(job):
            raise Failure(self.bench.log(name + ".log"))
        losses = [line["loss"] for line in Run(self.bench.path(name)).steps()]
        if len(losses) != STEPS or not losses[-1] < losses[EVERY]:
            raise Failure(f"it did not learn on: {losses}")

    def refuses(self, sets, ranks, text):
        job = self.bench.start(["train", self.config, "--run", self.bench.path("refused")], ranks, sets, "refused.log")
        code, log = self.bench.wait(job), self.bench.log("refused.log")
        if code != 2 or text not in log:
            raise Failure(f"ended with {code}:\n{log}")


def tests(bench, quick):
    dense, moe, bf16 = Diloco(bench, "dense"), Diloco(bench, "moe"), Diloco(bench, "dense", '"bf16"')
    found = [
        ("one island with a plain outer step is plain training", dense.one_is_plain, ONE),
        ("one island of bf16, dp 2, likewise", bf16.one_is_plain, Mesh(2)),
        ("one island of fp16, likewise", Diloco(bench, "dense", '"fp16"').one_is_plain, ONE),
        ("one island of FP8, likewise", Diloco(bench, "dense", '"fp8"').one_is_plain, ONE),
        ("dp 2 x tp 2 x ZeRO 3 inside of two islands is as one rank", dense.mesh_inside, Mesh(2, 2, 3)) if not quick else
        ("dp 2 inside of two islands is as one rank", dense.mesh_inside, Mesh(2)),
        ("bf16: dp 2 and ZeRO inside of two islands have the same bits", bf16.whole_and_sharded),
        ("bf16: islands meet with equal weights", bf16.meets_with_equal_weights, Mesh(2)),
        ("changes as bf16 are half as many bytes", dense.half_as_many_bytes),
        ("FP8: a killed run goes on with the scales of each island", until_met, Diloco(bench, "dense", '"fp8"').survives_a_kill, ONE),
        ("experts: a killed run goes on in the middle of a round", until_met, moe.survives_a_kill, ONE),
        ("a plain run goes on with two islands", dense.goes_on_with_other_islands, ONE, Islands(2)),
        ("islands without a meeting are refused", dense.refuses, {"diloco.islands": 2}, 2, "nothing says when they meet"),
        ("processes that islands cannot share are refused", dense.refuses, Islands(2).sets(), 3, "the number of processes is 3"),
    ]  # fmt: skip
    for every in (STEPS, EVERY):
        found.append((f"two islands are two runs that are averaged every {every} steps", dense.two_are_separate_runs, every))
    if quick:
        return found
    for mesh in (Mesh(1, 2), Mesh(2, 1, 1), Mesh(2, 1, 2), Mesh(2, 1, 3), Mesh(1, cp=2), Mesh(1, pp=2)):
        found.append((f"{mesh.name} inside of two islands is as one rank", dense.mesh_inside, mesh))
    found.append(("experts, ep 2: islands meet with equal weights", moe.meets_with_equal_weights, Mesh(2, ep=2)))
    for mesh in (Mesh(2), Mesh(2, 1, 3), Mesh(1, 2)):
        found.append((f"{mesh.name}: a killed run of islands goes on", until_met, dense.survives_a_kill, mesh))
        found.append((f"experts, {mesh.name}: islands meet with equal weights", moe.meets_with_equal_weights, mesh))
    found.append(("two islands go on as one", dense.goes_on_with_other_islands, Islands(2), Islands(1)))
    found.append(("two islands go on as four", dense.goes_on_with_other_islands, Islands(2), Islands(4)))
    found.append(("two islands go on as a plain run", dense.goes_on_with_other_islands, Islands(2), ONE))
    return found


if __name__ == "__main__":
    main(__doc__, tests)
