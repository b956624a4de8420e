#!/usr/bin/env python3
"""scripts/gpu-check without a GPU: its parts with tiny models on the CPU, its rows when programs fail, hang or are slow, and
what it reads out of runs.

usage: test_gpu_check.py BUILD [Rehearsal | Rows | Findings | Ranks]
"""
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
NAME_WIDTH = 44  # of scripts/gpu-check.d/common.sh


class Checks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hearth-gpu-check-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check(self, *words, code=0, bin_dir=BUILD, **environment):
        """Runs it; {name: (verdict, detail)} of the table at the end."""
        done = subprocess.run([ROOT / "scripts/gpu-check", *map(str, words)], capture_output=True, text=True,
                              env={**os.environ, "HEARTH_CHECK_DEVICE": "cpu", "HEARTH_BIN_DIR": str(bin_dir), "TMPDIR": str(self.folder),
                                   "HEARTH_SHARED": "nowhere", **environment})
        self.said = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, self.said)
        table = self.said.partition("== in short")[2].splitlines()[1:]
        rows = [(line[:NAME_WIDTH].rstrip(), *line[NAME_WIDTH + 1:].split(None, 1)) for line in table
                if line[NAME_WIDTH + 1:].startswith(("ok", "FAILED", "SKIPPED"))]
        return {name: (verdict, detail) for name, verdict, detail in rows}

    def expect_ok(self, rows, *names):
        self.assertLessEqual(set(names), set(rows))
        for name in names:
            self.assertEqual(rows[name][0], "ok", self.said)

    def stand_in(self, script):
        """A folder of programs whose hearth is a shell script; $hearth is the real one."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "hearth"
        program.write_text(f"#!/bin/sh\nhearth={BUILD}/hearth\n{script}\n")
        program.chmod(0o755)
        return folder


class Rehearsal(Checks):
    def test_parity_and_training(self):
        rows = self.check("parity", "training", "--out", self.folder / "out")
        self.expect_ok(rows, "hf_parity bf16", "hf_parity fp16", *(f"hf_parity fp32, recompute {r}" for r in ("none", "selective", "full")))
        labels = ("fp32", "bf16", "fp16", "fp8", "overflow")
        self.expect_ok(rows, *(f"{what}, {label}" for label in labels for what in ("trained twice", "killed and resumed")))
        self.expect_ok(rows, "fp16 scale after overflows", "CPU against GPU, fp32", "TF32 beside fp32")
        kept = {path.name for path in (self.folder / "out").rglob("*")}
        self.assertLessEqual({"table.txt", "machine.txt", "metrics.jsonl", "trained-twice--fp8.log"}, kept)
        self.assertNotIn("model.safetensors", kept)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["out"])  # nothing else is left

    def test_torture_profile_and_speed(self):
        peer = self.folder / "peer.py"
        peer.write_text("import json, os\nprint(json.dumps({'tok_s': 7, 'fp8': os.environ['FP8']}))\n")
        rows = self.check("torture", "profile", "speed", "--kills", 3, "--out", self.folder / "out", HEARTH_PEER=str(peer))
        self.expect_ok(rows, "killed at random", "profile, dense", "profile, experts", "speed, demo-llama TF32",
                       *(f"speed, demo-llama 64/1/1 {precision}{which}" for precision in ("bf16", "fp8") for which in ("", ", peer")))
        self.assertRegex(rows["killed at random"][1], r"^([3-9]|\d\d) kills")
        self.assertIn("The biggest loss of time is", rows["profile, dense"][1])
        self.assertIn("demo-llama-64-1-1-fp8", self.said)
        self.assertGreater((self.folder / "out/profile-experts/report.html").stat().st_size, 10000)

    def test_quality_goes_on_in_the_next_call(self):
        subprocess.run([BUILD / "hearth", "data", "synth", self.folder / "data", "--stories", "60", "--val-stories", "4", "--tokenizer", "bytes"],
                       check=True, capture_output=True)
        given = {"HEARTH_DATA": str(self.folder / "data"), "HEARTH_WORK": str(self.folder / "work")}
        brief = self.stand_in('[ "$1" = train ] && set -- "$@" --set train.steps=5\nexec $hearth "$@"')
        rows = self.check("quality", bin_dir=brief, **given)
        self.assertRegex(rows["quality, dense, fp8, order 2"][1], r"^\(time\) stopped at step 5 of 12")
        self.assertRegex(rows["quality, experts, fp8, order 1"][1], r"^\(time\) stopped at step 5 of 8")
        self.assertEqual(rows["quality, dense"], ("SKIPPED", "no run has ended yet"))
        whole = self.stand_in('if [ "$1" = train ]; then case "$*" in *experts*) set -- "$@" --set train.steps=8 ;; *) '
                              'set -- "$@" --set train.steps=12 ;; esac; fi\nexec $hearth "$@"')
        rows = self.check("quality", bin_dir=whole, **given)
        self.assertIn("was 5", (self.folder / "work/quality--dense--bf16--order-1.log").read_text())
        wanted = {*(f"dense, {precision}, order {seed}" for precision in ("bf16", "fp8") for seed in (1, 2, 3)), "dense, fp16, order 1",
                  "experts, bf16, order 1", "experts, fp8, order 1", "dense", "experts"}
        self.assertEqual(set(rows), {f"quality, {name}" for name in wanted})
        self.expect_ok(rows, *rows)
        self.assertRegex(rows["quality, dense"][1], "fp16 .* % of bf16's loss over 1 order,.*fp8 .* over 3 orders")
        self.assertRegex(rows["quality, experts"][1], "fp8 .* % of bf16's loss over 1 order,")
        again = self.check("quality", **given)
        self.assertIn("in an earlier call", again["quality, dense, fp8, order 3"][1])


class Ranks(Checks):
    def test_ranks_train_as_one(self):
        rows = self.check("ranks")
        self.expect_ok(rows, *(f"{mesh} over mpi" for mesh in ("dp 2", "dp 4", "ZeRO 3 x 2", "ZeRO 3 x 4", "tp 2", "tp 4", "pp 2", "pp 4",
                                                             "pp 2 interleaved", "pp 4 interleaved", "ep 2", "ep 4", "cp 2 fp32",
                                                             "cp 2 bf16", "dp 2 fp16")))


class Rows(Checks):
    def test_a_program_that_fails_is_a_row_and_the_rest_goes_on(self):
        broken = self.stand_in('[ "$1" = train ] && { echo "it broke"; exit 3; }\nexec $hearth "$@"')
        rows = self.check("parity", "profile", "torture", "speed", code=1, bin_dir=broken)
        self.assertEqual(rows["profile, dense"][0], "FAILED")
        self.assertIn("    it broke", self.said)
        self.assertEqual(rows["hf_parity"], ("FAILED", f"it is not in {broken}"))
        self.assertEqual(rows["killed at random"][0], "FAILED")
        self.expect_ok(rows, "speed, demo-llama 64/1/1 bf16")
        self.assertIn("\nFAILED\n", self.said)

    def test_what_does_not_fit_is_skipped_for_time(self):
        rows = self.check("torture", "profile", "speed", "--limit", 1)
        self.assertGreaterEqual(len(rows), 6)
        for verdict, detail in rows.values():
            self.assertEqual(verdict, "SKIPPED")
            self.assertTrue(detail.startswith("(time) "), detail)

    def test_what_hangs_is_cut_off_with_its_children(self):
        word = str(10**6 + os.getpid())  # no other test's
        hanging = self.stand_in(f'[ "$1" = train ] && {{ sleep {word} & sleep {word}; }}\nexec $hearth "$@"')
        begin = time.monotonic()
        rows = self.check("profile", "--limit", 9, code=1, bin_dir=hanging)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertRegex(rows["profile, dense"][1], "^cut off after [5-9] s")
        self.assertEqual(rows["profile, experts"][0], "SKIPPED")
        self.assertNotIn(f"sleep\0{word}", "".join(self.command_lines()))

    def command_lines(self):
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                yield path.read_text(errors="replace")
            except OSError:
                pass

    def test_a_hearth_that_became_slower_fails(self):
        old = self.folder / "old"
        for factor, verdict in ((1.02, "FAILED"), (1.005, "ok")):
            new = self.stand_in('[ "$1" = bench ] && { echo "{\\"tok_s\\": 1000, \\"step_ms\\": 1, \\"mfu\\": 0.5}"; exit; }\nexec $hearth "$@"')
            old.write_text(f'#!/bin/sh\necho "{{\\"tok_s\\": {1000 * factor}, \\"step_ms\\": 1}}"\n')
            old.chmod(0o755)
            rows = self.check("speed", code=verdict == "FAILED", bin_dir=new, HEARTH_OLD=str(old))
            self.assertIn("medians of 3", self.said)
            self.assertEqual(rows["speed, demo-llama 64/1/1 bf16"][0], verdict, self.said)

    def test_a_peer_is_not_timed_against_nothing(self):
        mute = self.stand_in('[ "$1" = bench ] && exit 1\nexec $hearth "$@"')
        rows = self.check("speed", code=1, bin_dir=mute, HEARTH_PEER="nowhere")
        self.assertEqual(rows["speed, demo-llama 64/1/1 bf16"][0], "FAILED")
        self.assertEqual(rows["speed, demo-llama 64/1/1 bf16, peer"], ("SKIPPED", "hearth has no speed to compare with"))

    def test_packed_programs_are_unpacked(self):
        pack = self.folder / "pack"
        pack.mkdir()
        with tarfile.open(pack / "programs.tar.xz", "w:xz", preset=0) as file:
            file.add(BUILD / "hearth", "./hearth")
        self.expect_ok(self.check("profile", bin_dir=pack), "profile, dense")
        (pack / "programs.tar.xz").write_bytes(b"no archive")
        self.check("profile", code=1, bin_dir=pack)
        self.assertIn("cannot be unpacked", self.said)

    def test_words_that_are_not_known_are_refused(self):
        for words in (["nonsense"], ["--limit"], ["--limit", "soon"], ["--kills", "0"], ["--out"]):
            self.check(*words, code=2)
            self.assertIn("usage: scripts/gpu-check", self.said)
        self.check("--help")
        for part in ("ops", "parity", "training", "ranks", "torture", "profile", "speed", "sanitizer", "quality"):
            self.assertRegex(self.said, f"(?m)^  {part} +[0-9]+  ")


class Findings(Checks):
    """scripts/gpu-check.d/runs.py on runs that are made up."""

    def runs(self, *words, code=0):
        done = subprocess.run([sys.executable, ROOT / "scripts/gpu-check.d/runs.py", *map(str, words)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout.splitlines()[-1]

    def run_of(self, name, lines):
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    def curve(self, name, losses, norm=1.0):
        return self.run_of(name, [{"step": i + 1, "loss": loss, "loss_aux": 0, "grad_norm": norm} for i, loss in enumerate(losses)])

    def test_curves_are_near_within_their_bounds_alone(self):
        one = self.curve("one", [4, 3, 2])
        self.assertIn("loss 1.0e-03 of 2.0e-03", self.runs("near", one, self.curve("near", [4, 3.003, 2]), 3, 2e-3, 1e-3))
        self.runs("near", one, self.curve("far", [4, 3.009, 2]), 3, 2e-3, 1e-3, code=1)
        self.runs("near", one, self.curve("norm", [4, 3, 2], 1.002), 3, 2e-3, 1e-3, code=1)
        self.runs("near", one, self.curve("short", [4, 3]), 3, 2e-3, 1e-3, code=1)
        self.runs("near", one, self.curve("NaN", [4, None, 2]), 3, 2e-3, 1e-3, code=1)

    def scaled(self, name, steps):
        return self.run_of(name, [{"step": i + 1, "loss": 9 - i, "skipped": skipped, "loss_scale": scale}
                                  for i, (scale, skipped) in enumerate(steps)])

    def test_a_scale_halves_after_overflows_and_doubles_after_good_steps(self):
        good = [(8, True), (4, True), (2, False), (2, False), (4, True), (2, False)]
        self.assertIn("3 of 6 steps overflowed", self.runs("scale", self.scaled("good", good), 6, 2))
        for at, scale in ((1, 8), (4, 2), (5, 4)):
            wrong = [*good[:at], (scale, good[at][1]), *good[at + 1:]]
            self.runs("scale", self.scaled("wrong", wrong), 6, 2, code=1)
        self.runs("scale", self.scaled("never", [(8, False)] * 2), 2, 3, code=1)

    def profiled(self, gaps, more=0.0, watching="0.0010", **extra):
        run = self.run_of("profiled", [{"step": 1, "loss": 1, "seconds": 1.0, **extra}])
        parts = {"gemm": 1 - gaps + more, "gaps": gaps}
        (run / "profile").mkdir(exist_ok=True)
        (run / "profile/summary.json").write_text(json.dumps({"step_seconds": 1.0, "parts": parts, "sentence": "All is well.", "graph_recorded": True}))
        (run / "said.log").write_text(f"debug watching: {watching} s of CPU time in the thread of the steps, 0.0020 s in its own\n")
        return run

    def test_a_profile_names_the_step(self):
        gpu = {"gpu_clock": 1, "gpu_power": 1, "gpu_temperature": 1}
        said = self.runs("profile", self.profiled(0.04), "cpu")
        self.assertIn("96.0 % of it in named parts", said)
        self.assertIn("watching 0.100 %", said)
        self.assertIn("All is well.", said)
        self.runs("profile", self.profiled(0.04, **gpu), "gpu")
        self.assertIn("gpu_power", self.runs("profile", self.profiled(0.04, gpu_clock=1, gpu_temperature=1), "gpu", code=1))
        self.runs("profile", self.profiled(0.06), "cpu", code=1)
        self.runs("profile", self.profiled(0.01, 0.03), "cpu", code=1)
        self.runs("profile", self.profiled(0.01, watching="0.0200"), "cpu", code=1)

    def test_quality_is_the_gap_to_bf16_by_order(self):
        def trained(name, curve, end):
            lines = [line for step, loss in enumerate(curve, 1)
                     for line in ({"step": step, "loss": 5, "seconds": 2.0}, {"step": step, "eval": "subset", "val_loss": loss})]
            self.run_of("all/" + name, [*lines, {"step": len(curve), "eval": "full", "val_loss": end}])
        trained("bf16-1", [4, 2, 3], 2)  # lowest in the middle: learnt by heart after that
        trained("bf16-2", [4, 3, 2], 4)
        trained("fp8-1", [4, 2.5, 1.5], 2.02)  # as low at 5 s, between two evaluations
        trained("fp8-2", [4, 3, 2.1], 4.12)
        trained("fp16-3", [4, 3, 2], 2)
        said = self.runs("quality", self.folder / "all", 3)
        self.assertEqual(said, "fp8 +2.000 +- 1.414 % of bf16's loss over 2 orders, -10.000 +- 21.213 % where each is lowest, "
                               "bf16's lowest loss reached by 1 of 2 in 1.25 of its time")


if __name__ == "__main__":
    unittest.main()
