"""The hearth program as a child process, in a folder of its own: for tests that look at whole commands."""
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HEARTH = os.path.abspath(sys.argv.pop(1))

CONFIG = """[model]
hidden = 32
layers = 2
heads = 4
kv_heads = 2
ffn = 64
[data]
train = ["{data}"]
[train]
seq = 32
micro_batch = 2
grad_accum = 2
steps = {steps}
precision = "fp32"
device = "cpu"
threads = 1
[optimizer]
lr = 1e-2
[schedule]
warmup_steps = 3
[eval]
windows = 8
at_end = false
[watch]
terminal = "off"
"""


class Case(unittest.TestCase):
    """A folder with a dataset `data` (synthetic stories as bytes) and a config of a run that takes a second."""

    @classmethod
    def setUpClass(cls):
        cls.stock = pathlib.Path(tempfile.mkdtemp(prefix="hearth-test-"))
        subprocess.run([HEARTH, "data", "synth", cls.stock / "data", "--stories", "200", "--val-stories", "20",
                        "--tokenizer", "bytes"],
                       check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.stock)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hearth-test-"))
        shutil.copytree(self.stock / "data", self.folder / "data")
        self.config = self.folder / "tiny.toml"
        self.config.write_text(CONFIG.format(data=self.folder / "data", steps=6))
        self.run_folder = self.folder / "run"

    def tearDown(self):
        subprocess.run(["chmod", "-R", "u+w", self.folder])
        shutil.rmtree(self.folder)

    def start(self, *arguments, **options):
        environment = {**os.environ, "HEARTH_HISTORY": "", **options.pop("env", {})}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": self.folder, **options}
        return subprocess.Popen([HEARTH, *map(str, arguments)], env=environment, text=True, errors="replace", **options)

    def hearth(self, *arguments, code=0, **options):
        """Runs hearth; it must end with `code`. What it wrote to both ends, joined."""
        timeout = options.pop("timeout", 120)
        child = self.start(*arguments, **options)
        try:
            out, err = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            self.fail(f"hearth {' '.join(map(str, arguments))} did not end")
        said = (out or "") + (err or "")
        if child.returncode < 0 or child.returncode != code:
            self.fail(f"hearth {' '.join(map(str, arguments))} ended with {child.returncode}, not {code}: {said}")
        return said

    def train(self, *more, code=0, **options):
        return self.hearth("train", self.config, "--run", self.run_folder, *more, code=code, **options)

    def lines(self, run=None):
        """The lines of metrics.jsonl; every one must be whole."""
        return [json.loads(line) for line in ((run or self.run_folder) / "metrics.jsonl").read_text().splitlines()]

    def checkpoints(self):
        return sorted(int(p.name[5:]) for p in (self.run_folder / "checkpoints").glob("step-*"))

    def wait_for(self, what, seconds=60):
        until = time.monotonic() + seconds
        while not what():
            self.assertLess(time.monotonic(), until, "what was waited for did not come")
            time.sleep(0.005)


def token_bytes(shard, index, value=None):
    """Token `index` of a shard of two-byte tokens, or writes it."""
    with open(shard, "r+b") as file:
        file.seek(128 + 2 * index)
        if value is None:
            return struct.unpack("<H", file.read(2))[0]
        file.write(struct.pack("<H", value))
