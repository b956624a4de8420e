"""Jobs of hearth on several CPU ranks, and what they leave: curves, checkpoints, memory. Used by the tests beside it."""

import array
import json
import math
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # ranks share few cores: they yield while they wait
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "HEARTH_THREADS": "1",
    "HEARTH_HISTORY": "",
}
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
JOB_SECONDS = 240  # of one job on a loaded machine

# Bounds on what ranks may differ in from one rank with the same batch. Sums are taken in another order, nothing else:
# u = 2^-24 is the rounding of one fp32 addition.
LOSS_BOUND = 1e-6  # of each step's loss: 16 u, over the few roundings of a mean of logarithms
GRADIENT_BOUND = 1e-5  # of each tensor's gradient, ||a - b|| / ||b||: 168 u, sums over thousands of terms, layer by layer
NORM_BOUND = GRADIENT_BOUND  # | ||a|| - ||b|| | <= ||a - b||


class Failure(Exception):
    pass


class Missed(Failure):
    """The job was over before the test could do to it what it is about: to be tried again."""


def until_met(test, *arguments, tries=20):
    for _ in range(tries):
        try:
            return test(*arguments)
        except Missed as missed:
            last = missed
    raise Failure(f"{tries} times: {last}")


class Mesh:
    """schedule: of a pipeline; chunks: of layers on each rank, where it interleaves."""

    def __init__(self, dp=1, tp=1, zero=0, cp=1, ep=1, etp=1, pp=1, schedule="1f1b", chunks=0):
        self.dp, self.tp, self.zero, self.cp, self.ep, self.etp, self.pp = dp, tp, zero, cp, ep, etp, pp
        self.schedule, self.chunks = ("interleaved", chunks) if chunks else (schedule, 0)
        self.size = dp * tp * cp * pp
        degrees = (("dp", dp), ("cp", cp), ("tp", tp), ("ep", ep), ("etp", etp), ("pp", pp))
        words = [f"{axis} {degree}" for axis, degree in degrees if degree > 1] + [f"zero {zero}"] * (zero > 0)
        words += [schedule] * (schedule != "1f1b") + [f"{chunks} chunks"] * (chunks > 0)
        self.name = "+".join(words) or "one"

    def sets(self):
        return {
            "parallelism.data": self.dp,
            "parallelism.tensor": self.tp,
            "parallelism.zero": self.zero,
            "parallelism.context": self.cp,
            "parallelism.expert": self.ep,
            "parallelism.expert_tensor": self.etp,
            "parallelism.pipeline": self.pp,
            "parallelism.schedule": self.schedule,
            "parallelism.virtual_stages": self.chunks,
        }


ONE = Mesh()


class Bench:
    """A program, a launcher, and a directory for runs and data that goes when the test passes."""

    def __init__(self, program, launcher):
        self.program, self.launcher = os.path.abspath(program), launcher
        self.root = tempfile.mkdtemp(prefix="hearth-ranks-")
        hardware = os.path.join(ROOT, "configs", "hardware.toml")
        self.environment = {**os.environ, **ENVIRONMENT, "HEARTH_HARDWARE": hardware}

    def close(self):
        shutil.rmtree(self.root)

    def path(self, *names):
        return os.path.join(self.root, *names)

    def data(self, name, stories, tokenizer="bytes"):
        path = self.path(name)
        if not os.path.exists(path):
            command = [self.program, "data", "synth", path, "--stories", str(stories), "--val-stories", "4"]
            subprocess.run([*command, "--tokenizer", tokenizer], check=True, stdout=subprocess.DEVNULL)
        return path

    def config(self, name, text):
        path = self.path(name + ".toml")
        with open(path, "w") as file:
            file.write(text)
        return path

    def command(self, arguments, ranks, sets=None, special=None):
        """The job's words. special: {rank: sets} for ranks that are started with more settings than the others."""
        alone = [self.program, *arguments, *set_words(sets or {})]
        if ranks == 1:
            return alone
        # A file that may not grow further is an error then, as on a full disk, and not the end of the process.
        alone = ["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh", *alone]
        if not special:
            return [self.launcher, "-n", str(ranks), *alone]
        words = [self.launcher]
        for rank in range(ranks):
            words += ([":"] if rank else []) + ["-n", "1", *alone, *set_words(special.get(rank, {}))]
        return words

    def start(self, arguments, ranks, sets=None, log="job.log", special=None, environment=None):
        with open(self.path(log), "w") as output:
            return subprocess.Popen(
                self.command(arguments, ranks, sets, special),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self.environment, **(environment or {})},
                start_new_session=True,
            )

    def wait(self, job, seconds=JOB_SECONDS):
        try:
            return job.wait(seconds)
        except subprocess.TimeoutExpired:
            kill_job(job)
            raise Failure(f"the job did not end within {seconds} s")

    def log(self, name="job.log"):
        with open(self.path(name), errors="replace") as file:
            return file.read()

    def train(self, config, mesh, run, sets=None):
        """Trains into the directory `run` of the bench; the log must have no warning."""
        shutil.rmtree(self.path(run), ignore_errors=True)
        self.finish(["train", config, "--run", self.path(run)], mesh, run, sets)
        return Run(self.path(run))

    def resume(self, run, mesh, sets=None):
        self.finish(["train", "--resume", "--run", self.path(run)], mesh, run, sets)
        return Run(self.path(run))

    def finish(self, arguments, mesh, run, sets):
        job = self.start(arguments, mesh.size, {**mesh.sets(), **(sets or {})}, run + ".log")
        code, text = self.wait(job), self.log(run + ".log")
        if code or "warning" in text:
            raise Failure(f"{' '.join(map(str, job.args))}\nended with {code}:\n{text}")

    def planned_bytes(self, config, mesh, sets=None):
        """Of rank 0."""
        words = [self.program, "plan", config, "--json", "--no-machine", "--gpu", "cpu", *set_words({**mesh.sets(), **(sets or {})})]
        words += ["--gpus", str(mesh.size)] if mesh.size > 1 else []
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr}")
        report = json.loads(done.stdout)
        return report["pipeline"]["stage_bytes"][0] if mesh.pp > 1 else report["memory_bytes"]["total"]


def set_words(sets):
    return [word for key, value in sets.items() for word in ("--set", f"{key}={toml(value)}")]


def toml(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- processes ------------------------------------------------------------------------------------------------------


def processes_below(parent):
    """All descendants, zombies left out."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(name))
    found, open_ones = [], [parent]
    while open_ones:
        below = children.get(open_ones.pop(), [])
        found += below
        open_ones += below
    return found


def rank_processes(job):
    """{rank: process} of a job that mpirun has started."""
    ranks = {}
    for process in processes_below(job.pid):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                words = dict(word.partition(b"=")[::2] for word in file.read().split(b"\0"))
        except OSError:
            continue
        if b"OMPI_COMM_WORLD_RANK" in words:
            ranks[int(words[b"OMPI_COMM_WORLD_RANK"])] = process
    return ranks


def alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_job(job):
    for process in [*processes_below(job.pid), job.pid]:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    job.wait()


def send_signal(process, number):
    try:
        os.kill(process, number)
    except ProcessLookupError:
        raise Missed(f"process {process} was gone before it got signal {number}")


def set_file_limit(process, soft, kind=resource.RLIMIT_FSIZE):
    """No file of the process may grow beyond so many bytes; None: as many as it likes. kind: another limit than that."""
    try:
        hard = resource.prlimit(process, kind)[1]
        resource.prlimit(process, kind, (hard if soft is None else soft, hard))
    except ProcessLookupError:
        raise Missed(f"process {process} was gone before its limit was set")


def wait_until(condition, what, job=None, seconds=60, pause=0.005):
    until = time.monotonic() + seconds
    while not condition():
        if job is not None and job.poll() is not None:
            raise (Failure if job.returncode else Missed)(f"the job ended with {job.returncode} before {what}")
        if time.monotonic() > until:
            raise Failure(f"{what}: not within {seconds} s")
        time.sleep(pause)


# ---- what a run leaves ----------------------------------------------------------------------------------------------


class Run:
    def __init__(self, path):
        self.path = path

    def lines(self):
        try:
            with open(os.path.join(self.path, "metrics.jsonl")) as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except OSError:
            return []

    def steps(self):
        return [line for line in self.lines() if "loss" in line]

    def last_step(self):
        steps = self.steps()
        return steps[-1]["step"] if steps else 0

    def curve(self):
        """What must be the same bits when the same mesh runs again: the steps and the validation losses."""
        keys = ("step", "tokens", "loss", "loss_aux", "grad_norm", "lr", "val_loss", "targets", "moe_layers")
        return [{key: line[key] for key in keys if key in line} for line in self.lines()]

    def memory_bytes(self):
        return self.steps()[-1]["memory_bytes"]

    def checkpoint(self, step):
        return os.path.join(self.path, "checkpoints", f"step-{step}")


def relative(a, b):
    return abs(a - b) / abs(b) if b else abs(a)


def curve_difference(run, reference, losses=("loss", "loss_aux", "val_loss")):
    """The largest relative difference of loss and norm over all steps, and of the validation losses as a loss."""
    mine, theirs = run.curve(), reference.curve()
    if [(line["step"], line["tokens"]) for line in mine] != [(line["step"], line["tokens"]) for line in theirs]:
        raise Failure(f"{run.path} has other steps than {reference.path}:\n{mine}\n{theirs}")
    loss = norm = 0.0
    for one, other in zip(mine, theirs):
        for key in losses:
            if other.get(key):
                loss = max(loss, relative(one[key], other[key]))
        if "grad_norm" in other:
            norm = max(norm, relative(one["grad_norm"], other["grad_norm"]))
    return loss, norm


def read_tensors(path):
    """{name: array of floats} of a safetensors file that holds fp32."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        body = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", name
        begin, end = entry["data_offsets"]
        tensors[name] = array.array("f", body[begin:end])
    return tensors


class Difference:
    """Of two sets of tensors: the worst tensor by ||a - b|| / ||b||, the largest |a - b|, and whether all bits agree."""

    def __init__(self, path, reference):
        mine, theirs = read_tensors(path), read_tensors(reference)
        if mine.keys() != theirs.keys():
            raise Failure(f"{path} has other tensors than {reference}: {mine.keys() ^ theirs.keys()}")
        self.relative, self.tensor, self.largest, self.same = 0.0, "", 0.0, True
        for name, a in mine.items():
            b = theirs[name]
            if len(a) != len(b):
                raise Failure(f"{path}: {name} has {len(a)} elements, not {len(b)}")
            if a.tobytes() == b.tobytes():
                continue
            self.same = False
            apart = [x - y for x, y in zip(a, b)]
            norm = math.sqrt(math.fsum(y * y for y in b))
            l2 = math.sqrt(math.fsum(d * d for d in apart)) / norm if norm else math.inf
            self.largest = max(self.largest, max(map(abs, apart)))
            if not l2 <= self.relative:  # NaN is worse than anything
                self.relative, self.tensor = l2, name


def same_files(checkpoint, other):
    for name in ("model.safetensors", "adam_m.safetensors", "adam_v.safetensors", "state.json"):
        with open(os.path.join(checkpoint, name), "rb") as a, open(os.path.join(other, name), "rb") as b:
            if a.read() != b.read():
                return False
    return True


# ---- a list of tests ------------------------------------------------------------------------------------------------


class Tests:
    """Runs each by name, says what it found, and goes on after one that failed."""

    def __init__(self, bench):
        self.bench, self.count, self.failed = bench, 0, []

    def run(self, name, test, *arguments):
        begin = time.monotonic()
        self.count += 1
        try:
            found, word = test(*arguments) or "", "ok    "
        except Failure as failure:
            found, word = str(failure), "FAILED"
            self.failed.append(name)
        print(f"{word} {name} ({time.monotonic() - begin:.1f} s){': ' if found else ''}{found}", flush=True)

    def end(self):
        print(f"{self.count - len(self.failed)} of {self.count} passed", flush=True)
        if self.failed:
            print("failed: " + ", ".join(self.failed) + f"; their runs are in {self.bench.root}", flush=True)
            return 1
        self.bench.close()
        return 0


def main(describe, tests, make=Bench):
    """usage: NAME.py HEARTH [--quick] [--only TEXT]; MPIRUN names the launcher."""
    words = [word for word in sys.argv[1:] if not word.startswith("--only=")]
    only = [word[len("--only=") :] for word in sys.argv[1:] if word.startswith("--only=")]
    quick = "--quick" in words
    words = [word for word in words if word != "--quick"]
    if len(words) != 1:
        sys.exit(f"usage: {sys.argv[0]} HEARTH [--quick] [--only=TEXT]\n{describe}")
    bench = make(words[0], os.environ.get("MPIRUN", "mpirun"))
    list_of_tests = Tests(bench)
    for name, test, *arguments in tests(bench, quick):
        if not only or any(text in name for text in only):
            list_of_tests.run(name, test, *arguments)
    sys.exit(list_of_tests.end())
