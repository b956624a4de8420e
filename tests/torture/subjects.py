"""What is tortured: a training, a preparation of data, an export. Each can be started any number of times on one folder,
knows what it leaves when nothing disturbs it, and compares."""

import hashlib
import json
import math
import os
import random
import shutil

CONFIG = """
[model]
hidden = 16
layers = 1
heads = 2
kv_heads = 1
ffn = 32
{model}
[data]
train = ["{data}"]
[train]
seq = 32
micro_batch = 2
grad_accum = 2
steps = {steps}
precision = "fp32"
device = "{device}"
threads = 1
[optimizer]
lr = 1e-2
[schedule]
warmup_steps = 3
[checkpoint]
every = {every}
keep_last = {keep}
keep_every = {keep_every}
async = {asynchronous}
[eval]
every = {eval_every}
windows = 4
[watch]
terminal = "off"
"""


class Wrong(Exception):
    pass


def checksum(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def tree(folder):
    """Path and checksum of every file below a folder."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            found[os.path.relpath(path, folder)] = checksum(path)
    return found


def differences(found, expected):
    names = sorted(set(found) | set(expected))
    return [f"{name}: {'missing' if name not in found else 'not expected' if name not in expected else 'differs'}"
            for name in names if found.get(name) != expected.get(name)]


class Training:
    """A run of a second or less; bit for bit: the checkpoints that are left, and every line of metrics but for times."""

    name = "train"
    VARIANTS = [
        {"every": 1, "keep": 2, "asynchronous": "true", "steps": 60, "eval_every": 10},
        {"every": 7, "keep": 3, "asynchronous": "false", "steps": 150, "eval_every": 20},
        {"every": 10, "keep": 1, "asynchronous": "true", "steps": 250, "eval_every": 0, "keep_every": 100},
        {"every": 5, "keep": 2, "asynchronous": "true", "steps": 100, "eval_every": 5,
         "model": 'arch = "qwen3_moe"\nexperts = 4\ntop_k = 2\nexpert_ffn = 16'},
    ]
    EXACT = ("step", "tokens", "loss", "loss_aux", "lr", "grad_norm", "grad_accum", "skipped", "skipped_total", "eval",
             "val_loss", "perplexity", "bits_per_byte", "targets")

    def __init__(self, bench, folder, choose):
        self.variant = choose.randrange(len(self.VARIANTS))
        self.bench, self.run = bench, os.path.join(folder, "run")
        self.config = os.path.join(folder, "config.toml")
        self.robbed = set()  # checkpoints that something was taken from
        self.data = os.path.join(bench.folder, "data-in-use")  # one place for all: a checkpoint's state knows it
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.copytree(bench.data, self.data)
        self.values = {"model": "", "keep_every": 0, **self.VARIANTS[self.variant], "data": self.data, "device": bench.device}
        self.values["steps"] *= bench.stretch
        with open(self.config, "w") as file:
            file.write(CONFIG.format(**self.values))

    @property
    def key(self):
        return f"train-{self.variant}"

    def command(self):
        if os.path.exists(os.path.join(self.run, "config.toml")):
            return ["train", "--resume", "--run", self.run]
        return ["train", self.config, "--run", self.run]

    def lines(self):
        """What every step and evaluation gave, without times."""
        found = []
        with open(os.path.join(self.run, "metrics.jsonl")) as file:
            for line in file:
                values = json.loads(line)
                found.append(tuple((key, values[key]) for key in self.EXACT if key in values))
        return found

    def result(self):
        # config.toml holds the folder, environment.json the time, plan.json what history says.
        files = tree(os.path.join(self.run, "checkpoints"))
        files = {name: sum for name, sum in files.items() if not name.startswith("damaged-")}
        # What there may be more of: copies of cut metrics, and alarms, which tell of what was done to it.
        more = ("metrics-before-", "alarms.jsonl")
        names = sorted(name for name in os.listdir(self.run) if not name.startswith(more))
        return {"files": files, "names": names, "beside": self.beside(), "lines": self.lines()}

    def beside(self):
        return sorted(name for name in os.listdir(os.path.dirname(self.run)) if name.startswith("run"))

    def compare(self, expected, tolerant):
        """tolerant: writes failed, so that lines may be missing; none may differ."""
        found = self.result()
        last = os.path.basename(self.checkpoints()[-1])  # hearth cannot give back what is gone of the others
        skipped = {name for name in set(found["files"]) | set(expected["files"])
                   if name.split("/")[0] in (self.robbed | self.exchanged(found, expected, tolerant)) - {last}}
        wrong = [text for text in differences(found["files"], expected["files"]) if text.split(":")[0] not in skipped]
        wrong += [f"{os.path.basename(path)}: more than are kept" for path in self.superfluous()]
        for key in ("names", "beside"):
            if found[key] != expected[key]:
                wrong.append(f"{key}: {found[key]} instead of {expected[key]}")
        if tolerant:
            wrong += [f"a line that is not in the undisturbed run: {line}" for line in found["lines"]
                      if line not in expected["lines"]][:3]
        elif found["lines"] != expected["lines"]:
            pairs = zip(found["lines"] + [None], expected["lines"] + [None])
            first = next((pair for pair in pairs if pair[0] != pair[1]), None)
            wrong.append(f"metrics.jsonl: {len(found['lines'])} lines instead of {len(expected['lines'])}; {first}")
        if wrong:
            raise Wrong("; ".join(wrong[:6]))

    @staticmethod
    def exchanged(found, expected, tolerant):
        """Checkpoints that only one of the two kept. A stop writes one at a step of its own, and one that could not be written
        leaves its place to an older one. With failed writes one that is kept for good may be missing."""
        found, expected = ({name.split("/")[0] for name in files["files"]} for files in (found, expected))
        return found ^ expected if tolerant or len(found) >= len(expected) else set()

    def superfluous(self):
        """Checkpoints that are neither among the newest nor the best nor kept for good."""
        def loss(path):
            try:
                with open(os.path.join(path, "state.json")) as file:
                    return json.load(file)["val_loss"] or math.inf
            except FileNotFoundError:
                return math.inf
        older, every = self.checkpoints()[:-self.values["keep"]], self.values["keep_every"]
        best = min(self.checkpoints(), key=loss)
        return [path for path in older if not (path == best and loss(path) < math.inf)
                and not (every and int(path.rpartition("-")[2]) % every == 0)]

    def finished(self, code, said):
        return code == 0

    # ---- files that come and go

    def checkpoints(self):
        folder = os.path.join(self.run, "checkpoints")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        steps = sorted(int(name[5:]) for name in names if name.startswith("step-"))
        return [os.path.join(folder, f"step-{step}") for step in steps]

    def vanish(self, choose, running):
        """Takes something away while it runs, or between two starts. Returns what must be put back, by a function."""
        checkpoints = self.checkpoints()
        kinds = ["newest", "part"] if len(checkpoints) > 1 else []
        kinds += ["folder"] if running and checkpoints else []
        kinds += ["shard"] if running else ["bit"] if len(checkpoints) > 1 else []
        if not kinds:
            return None, None
        kind = choose.choice(kinds)
        self.robbed.update(os.path.basename(path) for path in (checkpoints if kind == "folder" else checkpoints[-1:]))
        if kind == "newest":
            shutil.rmtree(checkpoints[-1], ignore_errors=True)
            return "the newest checkpoint is removed", None
        if kind == "folder":
            shutil.rmtree(os.path.join(self.run, "checkpoints"), ignore_errors=True)
            return "the folder of checkpoints is removed", None
        if kind == "part":
            self.bench.quiet_remove(os.path.join(checkpoints[-1], choose.choice(["state.json", "adam_v.safetensors"])))
            return "a file of the newest checkpoint is removed", None
        if kind == "bit":
            path = os.path.join(checkpoints[-1], choose.choice(["model.safetensors", "adam_m.safetensors"]))
            flip_bit(path, choose)
            return "a bit of the newest checkpoint is changed", None
        path = os.path.join(self.data, "train", "00000.shard")
        os.truncate(path, os.path.getsize(path) // 2)

        def put_back():
            shutil.copy2(os.path.join(self.bench.data, "train", "00000.shard"), path)
        return "a shard is cut short", put_back


class Preparation:
    name = "prepare"
    VARIANTS = [
        ["--dedup", "exact", "--val-tokens", "200K", "--shard-tokens", "1M"],
        ["--train-tokens", "1M", "--val-tokens", "200K", "--test-tokens", "100K", "--shard-tokens", "500K"],
    ]

    def __init__(self, bench, folder, choose):
        self.variant = choose.randrange(len(self.VARIANTS))
        self.bench, self.out = bench, os.path.join(folder, "out")
        self.source = os.path.join(folder, "corpus.jsonl")
        shutil.copy2(bench.corpus, self.source)

    @property
    def key(self):
        return f"prepare-{self.variant}"

    def command(self):
        return ["data", "prepare", "--tokenizer", self.bench.tokenizer, "--output", self.out, "--unit-mb", "1", "--quiet",
                "--threads", "2", *self.VARIANTS[self.variant], self.source]

    def result(self):
        found = tree(self.out)
        with open(os.path.join(self.out, "dataset.json")) as file:
            root = json.load(file)
        for key in ("sources", "plan_hash", "hash"):  # the folder is another one
            root.pop(key, None)
        found["dataset.json"] = json.dumps(root, sort_keys=True)
        return found

    def compare(self, expected, tolerant):
        wrong = differences(self.result(), expected)
        if wrong:
            raise Wrong("; ".join(wrong[:6]))

    def finished(self, code, said):
        return code == 0

    def vanish(self, choose, running):
        if choose.randrange(2):
            self.bench.quiet_remove(self.source)
            what = "the source is removed"
        else:
            with open(self.source, "a") as file:
                file.write('{"text": "one more"}\n')
            what = "the source is changed"

        def put_back():
            shutil.copy2(self.bench.corpus, self.source)
            if os.path.exists(os.path.join(self.out, "dataset.json")):  # whole, perhaps of the other source: not gone on with
                shutil.rmtree(self.out)
        return what, put_back


class Export:
    name = "export"

    def __init__(self, bench, folder, choose):
        self.variant = choose.choice(["bf16", "fp32"])
        self.bench, self.out = bench, os.path.join(folder, "out")

    @property
    def key(self):
        return f"export-{self.variant}"

    def command(self):
        return ["export", self.bench.finished_run, self.out, "--dtype", self.variant]

    def result(self):
        return tree(self.out)

    def compare(self, expected, tolerant):
        wrong = differences(self.result(), expected)
        if wrong:
            raise Wrong("; ".join(wrong[:6]))

    def vanish(self, choose, running):
        return None, None

    def finished(self, code, said):
        """A kill may come between its last rename and its end."""
        return code == 0 or "holds a model already" in said


def flip_bit(path, choose):
    with open(path, "r+b") as file:
        size = os.path.getsize(path)
        offset = choose.randrange(size // 2, size)  # in the values, not in the header
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << choose.randrange(8))]))


def write_corpus(path, documents):
    choose = random.Random(3)
    words = [f"w{i}" for i in range(3000)]
    with open(path, "w") as file:
        last = ""
        for number in range(documents):
            if number % 11 != 10:
                last = " ".join(choose.choices(words, k=choose.randrange(10, 80)))
            file.write(json.dumps({"text": last}) + "\n")
