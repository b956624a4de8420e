"""hearth bench energy with a CPU's energy counter that the test moves: what is printed, and what is said without one."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time
import unittest

from program import HEARTH

WATTS = 40
SHORT = ["--device", "cpu", "--model", "demo-llama", "--seq", "32", "--micro-batch", "1", "--layers", "1", "--seconds",
         "0.1"]


class Counter(threading.Thread):
    """A package that takes WATTS, as Linux would show it; its counter begins again every 3 J."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.ends = threading.Event()
        zone = folder / "intel-rapl:0"
        zone.mkdir()
        (zone / "name").write_text("package-0\n")
        (zone / "max_energy_range_uj").write_text("3000000\n")
        self.file = os.open(zone / "energy_uj", os.O_RDWR | os.O_CREAT)
        self.began = time.monotonic()
        self.put()

    def put(self):
        microjoules = int((time.monotonic() - self.began) * WATTS * 1e6)
        os.pwrite(self.file, b"%07d\n" % (microjoules % 3000000), 0)

    def run(self):
        while not self.ends.wait(0.002):
            self.put()


class Energy(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hearth-test-"))
        self.counter = None

    def tearDown(self):
        if self.counter:
            self.counter.ends.set()
            self.counter.join()
            os.close(self.counter.file)
        shutil.rmtree(self.folder)

    def count(self):
        self.counter = Counter(self.folder)
        self.counter.start()

    def bench(self, *arguments, code=0):
        done = subprocess.run([HEARTH, "bench", "energy", "--powercap", self.folder, *arguments], capture_output=True,
                              text=True, timeout=120, env={**os.environ, "HEARTH_THREADS": "1"})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr if code else done.stdout

    def near(self, value, expected):
        self.assertAlmostEqual(value / expected, 1, delta=2e-5)  # six digits each, of two or three factors

    def test_figures_of_products_agree(self):
        self.count()
        machine, *rows, saving = map(json.loads, self.bench(*SHORT, "--precision", "bf16,fp8", "--json", "down").split("\n")[:-1])
        self.assertEqual((machine["counter"], machine["counts"]), ("RAPL", "package-0"))
        self.assertGreater(machine["rest_w"], 0)
        self.assertEqual([(r["direction"], r["precision"]) for r in rows],
                         [(d, p) for d in ("forward", "input grad", "weight grad") for p in ("bf16", "fp8")])
        totals = {"bf16": 0, "fp8": 0}
        for r in rows:
            flops = 2 * r["m"] * r["n"] * r["k"]
            self.near(r["joules"], r["watts"] * r["ms"] / 1e3)
            self.near(r["pj_per_flop"], 1e12 * r["joules"] / flops)
            self.near(r["tflops"], flops / (r["ms"] / 1e3) / 1e12)
            self.assertGreaterEqual(r["counter_moves"], 10)
            totals[r["precision"]] += r["calls"] * r["joules"]
        for base, other in zip(rows[::2], rows[1::2]):
            self.assertNotIn("ratio", base)
            self.near(other["ratio"], other["joules"] / base["joules"])
        self.assertEqual((saving["precision"], saving["against"], saving["share"]), ("fp8", "bf16", 1))
        self.near(1 - saving["saved"], totals["fp8"] / totals["bf16"])

    def test_figures_of_steps_agree_and_are_put_into_words(self):
        self.count()
        options = SHORT + ["--step", "--accum", "2", "--precision", "fp32,bf16"]
        _, first, second, saving = map(json.loads, self.bench(*options, "--json").split("\n")[:-1])
        for r in first, second:
            self.assertEqual(r["tokens"], 64)
            self.near(r["joules"], r["watts"] * r["step_ms"] / 1e3)
            self.near(r["joules_per_token"], r["joules"] / 64)
            self.near(r["kwh_per_1e9_tokens"], r["joules_per_token"] * 1e9 / 3.6e6)
            self.near(r["tok_s"], 64 / (r["step_ms"] / 1e3))
        self.near(1 - saving["saved"], second["joules"] / first["joules"])
        text = self.bench(*options)
        self.assertRegex(text, r"^demo-llama on cpu(-amx)?: [\d.]+ W at rest, by RAPL \(package-0\)\n")
        self.assertRegex(text, r"\nbf16 takes [\d.]+ J where fp32 takes [\d.]+ J for a step: [\d.]+ % (less|more)\.\n$")

    def test_fp8_is_said_to_be_of_a_part_of_the_products(self):
        self.count()
        text = self.bench(*SHORT, "--precision", "bf16,fp8", "--model", "demo-moe") # experts stay in bf16
        self.assertRegex(text, r"J for the products of a micro-step: [\d.]+ % (less|more) "
                               r"\(products that fp8 has; they are \d+ % of bf16's joules\)\.\n"
                               r"Rounding to FP8 is not in it; --step has everything\.\n$")

    def test_a_counter_that_stands_still_is_no_figure(self):
        self.counter = Counter(self.folder)
        self.counter.run = lambda: None
        self.counter.start()
        self.assertIn("at rest: the energy counter has not moved", self.bench(*SHORT, code=1))

    def test_a_machine_without_a_counter_says_so(self):
        said = self.bench(*SHORT, code=1)
        self.assertIn("has no energy counter", said)
        self.assertIn("hint: ", said)

    def test_a_gpu_is_set_against_its_power_limit(self):
        """The library that test_machine has: 700 W at most, and always held back by that."""
        gpu = SHORT + ["--nvml", os.environ["HEARTH_FAKE_NVML"], "--precision", "fp32"]
        machine, step = map(json.loads, self.bench(*gpu, "--step", "--json").split("\n")[:-1])
        self.assertEqual((machine["counter"], machine["limit_w"]), ("NVML", 700))
        self.assertEqual(step["power_capped"], 1)
        self.near(step["of_limit"], step["watts"] / 700)
        text = self.bench(*gpu, "--step")
        self.assertRegex(text, r" W at rest, by NVML \(board\), 700 W at most\n")
        self.assertRegex(text, r"\nfp32 .* 100%  .*\n +held back by its power limit\n$")
        self.assertRegex(self.bench(*gpu, "down"), r"\ndown +forward .* 100% ")

    def test_a_gpu_without_a_counter_says_so(self):
        said = self.bench(*SHORT, "--nvml", "/nowhere.so", code=1)
        self.assertIn("GPU 0 has no energy counter that NVML can read", said)

    def test_wrong_requests_are_refused(self):
        for words, message in ((["--precision", "int4"], 'not "int4"'), (["--precision", "tf32"], "tf32 is of GPUs"),
                               (["--seconds", "0"], "--seconds must be between"), (["--layers", "-1"], "--layers"),
                               (["--accum", "2"], "add --step"), (["--recompute", "full"], "add --step"),
                               (["--step", "--accum", "0"], "--accum must be between"),
                               (["--step", "qkv"], '"qkv" names a product'), (["--model", "nosuch"], "nosuch"),
                               (["--seq", "-1"], "--seq must be between")):
            self.assertIn(message, self.bench("--device", "cpu", *words, code=2))


if __name__ == "__main__":
    unittest.main()
