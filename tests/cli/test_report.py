#!/usr/bin/env python3
"""hearth report: the page of real runs is whole, keeps to itself and stays small; what a run notes of its environment.

usage: test_report.py HEARTH
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree

from program import HEARTH, Case, unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROFILED = ("--set", "profile.every=4", "--set", "train.steps=12", "--set", "eval.every=4")


class Report(Case):
    def page(self, *runs):
        out = self.folder / "page.html"
        self.assertIn(f"wrote {out}", self.hearth("report", *runs, "-o", out))
        return out.read_text()

    def assert_whole(self, page):
        """Well-formed as XML, which HTML need not be, and without anything from elsewhere."""
        self.assertTrue(page.startswith("<!DOCTYPE html>"))
        root = xml.etree.ElementTree.fromstring(page)
        self.assertEqual(root.tag, "html")
        self.assertNotRegex(page, r"https?:|//[a-z]|url\(|@import|<script|<link|<img|<iframe|javascript:")
        for element in root.iter():
            self.assertFalse({"href", "src", "onload", "onclick"} & set(element.attrib), element.attrib)
        return root

    def headings(self, root):
        return [e.text for e in root.iter("h2")]

    def test_the_page_of_a_run_has_its_sections_and_is_whole(self):
        demo = (ROOT / "configs/demo.toml").read_text().replace("runs/demo-data", str(self.folder / "data"))
        self.config.write_text(re.sub("seq = 256", "seq = 32", demo))
        self.train("--set", "schedule.warmup_steps=2", "--set", "watch.terminal=off", "--set", "checkpoint.every=6",
                   *PROFILED)
        self.hearth("sample", self.run_folder, "--prompt", "Once <b>", "--tokens", "5", "--keep")
        page = self.page(self.run_folder)
        root = self.assert_whole(page)
        self.assertEqual(self.headings(root), ["Loss", "Course", "Where the time of a step goes",
                                               "Predicted against measured", "Samples", "Configuration", "Environment"])
        self.assertIn("The biggest loss of time is", page)
        self.assertIn("Once &lt;b&gt;", page)
        self.assertIn("bits per byte", page)
        for line in root.iter("polyline"):
            self.assertGreaterEqual(len(line.get("points").split()), 3)

    def test_experts_have_a_heat_map_of_layers_and_steps(self):
        self.train("--set", "model.arch=qwen3_moe", "--set", "model.experts=4", "--set", "model.top_k=2", "--set",
                   "model.expert_ffn=32", "--set", "watch.print_every=2")
        root = self.assert_whole(self.page(self.run_folder))
        self.assertIn("Experts", self.headings(root))
        lines = [line for line in self.lines() if "moe_layers" in line]
        cells = [e for e in root.iter("rect") if e.get("class") == "cell"]
        self.assertEqual(len(cells), 2 * len(lines))

    def test_several_runs_with_hostile_names_make_one_whole_page(self):
        for name, lr in (("one", "1e-2"), ("<script>alert(1)<&'\"", "2e-2")):
            self.run_folder = self.folder / name
            self.train("--set", f"optimizer.lr={lr}", *PROFILED)
        page = self.page(self.folder / "one", self.run_folder)
        root = self.assert_whole(page)
        self.assertEqual(self.headings(root)[:2], ["What each change brought", "Side by side"])
        self.assertIn("<code>optimizer.lr</code> 0.01 → <b>0.02</b>", page)

    def test_a_hundred_thousand_steps_stay_below_two_megabytes(self):
        run = self.folder / "long"
        run.mkdir()
        with open(run / "metrics.jsonl", "w") as file:
            for i in range(1, 100001):
                more = ', "moe_layers": {"load_max": %s, "dead": [0]}' % [1 + i % 7 / 3] * 1 if i % 10 else ""
                file.write('{"step": %d, "tokens": %d, "loss": %.4f, "lr": %.6f, "grad_norm": %.3f, "tok_s": %d, "mfu": '
                           '0.4%d, "memory_bytes": %d, "seconds": 0.5, "elapsed": %.1f, "data_wait": 0.0%d%s}\n'
                           % (i, i * 4096, 10 / i ** 0.2 + i % 13 / 50, 1e-3 / i, 1 + i % 17, 8000 + i % 501, i % 10,
                              1 << 30, i / 2, i % 9, more))
        self.assert_whole(self.page(run))
        self.assertLess((self.folder / "page.html").stat().st_size, 2 << 20)

    def test_without_a_name_the_page_lies_in_the_run(self):
        self.train()
        self.hearth("report", self.run_folder)
        self.assert_whole((self.run_folder / "report.html").read_text())

    def test_a_run_that_is_still_written_and_one_from_another_world_have_pages(self):
        self.train()
        with open(self.run_folder / "metrics.jsonl", "a") as file:
            file.write('{"step":7,"lo')
        (self.run_folder / "config.toml").write_text("[nobody]\nknows = 1\n")
        (self.run_folder / "plan.json").unlink()
        self.assert_whole(self.page(self.run_folder))

    def test_what_is_no_run_is_a_usage_error(self):
        self.assertIn("there is no run directory", self.hearth("report", self.folder / "none", code=2))
        self.assertIn("has no metrics.jsonl", self.hearth("report", self.folder / "data", code=2))
        self.assertIn("cannot", self.hearth_after_training("report", self.run_folder, "-o", "/nowhere/page.html", code=1))

    def hearth_after_training(self, *arguments, code):
        self.train()
        return self.hearth(*arguments, code=code)

    def test_only_samples_of_a_run_can_be_kept(self):
        self.train()
        self.hearth("export", self.run_folder, self.folder / "hf")
        self.assertIn("--keep needs a run", self.hearth("sample", self.folder / "hf", "--prompt", "a", "--tokens", "2",
                                                        "--keep", code=2))
        self.hearth("sample", self.run_folder, "--prompt", "a", "--tokens", "2", "--keep", "--count", "2")
        kept = [json.loads(line) for line in (self.run_folder / "samples.jsonl").read_text().splitlines()]
        self.assertEqual([(s["step"], s["prompt"]) for s in kept], [(6, "a")] * 2)


class Environment(Case):
    def test_every_process_of_a_run_is_listed_with_its_libraries_and_commit(self):
        self.train()
        first = json.loads((self.run_folder / "environment.json").read_text())
        self.train("--resume", "--set", "train.steps=9")
        both = json.loads((self.run_folder / "environment.json").read_text())
        self.assertEqual(both[0], first[0])
        self.assertEqual([p["first_step"] for p in both], [1, 7])
        for process in both:
            self.assertRegex(process["commit"], r"^(unknown|.*[0-9a-f]{7,})$")
            self.assertEqual("clean" in process, process["commit"] != "unknown")
            self.assertEqual(process["ranks"], 1)
            # Asking those of a GPU loads what a run on the CPU may have no room for.
            self.assertFalse({"CUDA", "cuBLAS", "cuDNN", "NCCL"} & set(process["libraries"]))
        features = (pathlib.Path(HEARTH).parent / "features.txt").read_text()
        for feature, library in (("BLAS", "OpenBLAS"), ("MPI", "MPI")):
            if re.search(rf"^  {feature} +in ", features, re.M):
                self.assertIn(library, both[0]["libraries"][feature])

    def test_an_environment_of_an_earlier_version_becomes_a_list(self):
        self.train()
        path = self.run_folder / "environment.json"
        path.write_text('{"host": "then"}')
        self.train("--resume", "--set", "train.steps=9")
        listed = json.loads(path.read_text())
        self.assertEqual(listed[0], {"host": "then"})
        self.assertEqual(len(listed), 2)


class Commit(unittest.TestCase):
    def described(self, source):
        out = self.folder / "commit.h"
        subprocess.run(["cmake", f"-DSOURCE={source}", f"-DOUTPUT={out}", "-P", ROOT / "cmake/HearthCommit.cmake"],
                       check=True)
        return re.fullmatch('#define HEARTH_COMMIT "(.*)"\n', out.read_text()).group(1)

    def test_the_header_says_the_commit_and_whether_files_have_changed(self):
        if not shutil.which("git") or not shutil.which("cmake"):
            self.skipTest("needs git and cmake")
        import tempfile
        with tempfile.TemporaryDirectory() as name:
            self.folder = pathlib.Path(name).resolve()
            source = self.folder / "source"
            source.mkdir()
            self.assertEqual(self.described(source), "unknown")

            def git(*arguments):
                return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=source,
                                      check=True, capture_output=True, text=True).stdout.strip()

            git("init", "-q")
            (source / "file").write_text("1")
            git("add", "file")
            git("commit", "-qm", "one")
            commit = git("rev-parse", "--short", "HEAD")
            self.assertEqual(self.described(source), commit)
            (source / "file").write_text("2")
            self.assertEqual(self.described(source), commit + "-dirty")
            inside = source / "archive"
            inside.mkdir()
            self.assertEqual(self.described(inside), "unknown")
            before = os.stat(self.folder / "commit.h").st_mtime_ns
            self.described(inside)
            self.assertEqual(os.stat(self.folder / "commit.h").st_mtime_ns, before)


if __name__ == "__main__":
    unittest.main()
