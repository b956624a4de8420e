#!/usr/bin/env python3
"""hearth runs: lists, comparisons, CSV, and freeing disk.

usage: test_runs.py HEARTH
"""
import csv
import io
import json
import re
import shutil
import time

from program import Case, unittest


class Written(Case):
    """What a run leaves for those who look at it later; tests/watch/read_tensorboard.py reads it as TensorBoard does."""

    def events(self):
        return b"".join(path.read_bytes() for path in (self.run_folder / "tensorboard").iterdir())

    def test_histograms_are_taken_when_they_are_due(self):
        self.train("--set", "watch.histograms=4")
        for tag in (b"weights/embedding", b"gradients/embedding", b"weights/layer_01_qkv", b"gradients/final_norm"):
            self.assertEqual(self.events().count(tag), 1)

    def test_a_run_without_tensorboard_has_no_such_folder_and_no_histograms(self):
        self.train("--set", "watch.tensorboard=false")
        self.assertFalse((self.run_folder / "tensorboard").exists())
        said = self.hearth("train", self.config, "--run", self.folder / "other", "--set", "watch.tensorboard=false", "--set",
                           "watch.histograms=4", code=2)
        self.assertIn("watch.histograms", said)

    def test_lines_have_wall_clock_memory_and_age_of_the_checkpoint(self):
        before = time.time()
        self.train()
        for line in self.lines():
            self.assertLess(before - 1, line["time"])
            self.assertLess(line["time"], time.time() + 1)
            self.assertEqual(line["memory_peak_bytes"], line["memory_bytes"])  # all of it is allocated at the start
            self.assertLess(line["checkpoint_age"], time.time() - before)


class Runs(Case):
    def setUp(self):
        super().setUp()
        self.runs = self.folder / "runs"
        self.run_folder = self.runs / "one"

    def second(self, *more):
        self.hearth("train", self.config, "--run", self.runs / "two", *more)

    def listed(self, *where):
        return {run["run"].rsplit("/", 1)[-1]: run for run in json.loads(self.hearth("runs", *where, "--json"))}

    def test_a_list_has_state_tokens_loss_and_size(self):
        self.train()
        self.hearth("train", self.config, "--run", self.runs / "bad", "--set", "optimizer.lr=100", "--set",
                    "train.steps=60", "--set", "train.spike_factor=1.01", "--set", "train.spike_window=4", "--set",
                    "train.max_skips=1", code=1)
        (self.runs / "no-run").mkdir()
        runs = self.listed()
        self.assertEqual(set(runs), {"one", "bad"})
        self.assertEqual([runs["one"]["state"], runs["bad"]["state"]], ["finished", "failed"])
        self.assertIn("skipped", runs["bad"]["message"])
        steps = [line for line in self.lines() if "loss" in line]
        self.assertEqual(runs["one"]["tokens"], steps[-1]["tokens"])
        self.assertAlmostEqual(runs["one"]["loss"], sum(line["loss"] for line in steps) / len(steps))
        self.assertGreater(runs["one"]["checkpoint_bytes"], 0)
        self.assertGreater(runs["one"]["size_bytes"], runs["one"]["checkpoint_bytes"])
        shown = self.hearth("runs")
        self.assertRegex(shown, r"one +finished +768 ")
        self.assertRegex(shown, r"bad +failed ")
        self.assertEqual(set(self.listed(self.run_folder)), {"one"})  # a run itself

    def test_a_run_that_trains_is_running_and_is_not_removed(self):
        child = self.start("train", self.config, "--run", self.run_folder, "--set", "train.steps=1000000")
        self.wait_for(lambda: (self.run_folder / "metrics.jsonl").exists() and len(self.lines()) > 3)
        self.assertEqual(self.listed()["one"]["state"], "running")
        for keep in ((), ("--keep", "last")):
            self.assertIn("in use", self.hearth("runs", "rm", self.run_folder, *keep, "--yes", code=2))
        child.terminate()
        child.communicate()
        self.assertEqual(self.listed()["one"]["state"], "stopped")

    def test_a_killed_run_has_failed(self):
        child = self.start("train", self.config, "--run", self.run_folder, "--set", "train.steps=1000000")
        self.wait_for(lambda: (self.run_folder / "metrics.jsonl").exists() and len(self.lines()) > 3)
        child.kill()
        child.communicate()
        with open(self.run_folder / "metrics.jsonl", "a") as file:
            file.write('{"step":')  # as a crash may leave it
        run = self.listed()["one"]
        self.assertEqual(run["state"], "failed")
        self.assertIn("without a word", run["message"])

    def test_a_run_of_an_earlier_version_is_finished_when_its_steps_are_done(self):
        self.train()
        (self.run_folder / "state.json").unlink()
        self.assertEqual(self.listed()["one"]["state"], "finished")
        metrics = self.run_folder / "metrics.jsonl"
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:4]))
        self.assertEqual(self.listed()["one"]["state"], "stopped")

    def test_a_comparison_shows_what_differs_and_losses_at_equal_tokens(self):
        self.train()
        self.second("--set", "optimizer.lr=1e-3", "--set", "train.steps=9")
        said = self.hearth("runs", "compare", self.run_folder, self.runs / "two")
        self.assertRegex(said, r"optimizer\.lr +0\.01 +0\.001\n")
        self.assertRegex(said, r"train\.steps +6 +9\n")
        self.assertNotIn("train.seq", said)
        one, two = (self.lines(run) for run in (self.run_folder, self.runs / "two"))
        first, second = (sum(line["loss"] for line in lines[:6]) / 6 for lines in (one, two))
        self.assertIn("loss at 768 tokens", said)
        self.assertRegex(said, rf"loss at 768 tokens +{first:.4f} +{second:.4f} \({re.escape(f'{second - first:+.4f}')}\)")
        self.assertIn("not a run directory", self.hearth("runs", "compare", self.run_folder, self.folder, code=2))

    def test_a_comparison_has_the_energy_of_a_gpu_where_one_was_measured(self):
        self.train()
        self.second()
        self.assertNotIn("energy", self.hearth("runs", "compare", self.run_folder, self.runs / "two"))
        metrics = self.run_folder / "metrics.jsonl"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        for line in lines[1:]:  # a line whose counter has not moved has none
            line["gpu_energy"] = 3600
        metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        joules = 3600 * sum("gpu_energy" in line and "loss" in line for line in lines)
        said = self.hearth("runs", "compare", self.run_folder, self.runs / "two")
        self.assertRegex(said, rf"energy, GPU of rank 0 +{joules / 3600:.3g} Wh +-\n")
        self.assertEqual(self.listed()["one"]["gpu_joules"], joules)

    def test_a_compared_value_stays_in_its_cell(self):
        for name, value in (("one", "a\\tb\\nc"), ("two", "d")):
            (self.runs / name).mkdir(parents=True)
            (self.runs / name / "config.toml").write_text(f'[train]\nname = "{value}"\n')
        self.assertRegex(self.hearth("runs", "compare", self.runs / "one", self.runs / "two"), r"train\.name +a b c +d\n")

    def test_csv_has_a_row_for_every_line_and_all_digits(self):
        self.train("--set", f'data.val=["{self.folder / "data"}"]', "--set", "eval.every=2")
        rows = list(csv.DictReader(io.StringIO(self.hearth("runs", "csv", self.run_folder))))
        lines = self.lines()
        self.assertEqual(len(rows), len(lines))
        for row, line in zip(rows, lines):
            for key, value in line.items():
                if key == "eval":
                    self.assertEqual(row[key], value)
                elif not isinstance(value, dict):
                    self.assertEqual(float(row[key]), value)
            self.assertEqual(row["val_loss"] != "", "eval" in line)
        chosen = self.hearth("runs", "csv", self.run_folder, "--keys", "step,loss").splitlines()
        self.assertEqual(chosen[0], "step,loss")
        self.assertEqual(chosen[1], f"1,{lines[0]['loss']:.15g}")
        self.assertIn("did you mean loss", self.hearth("runs", "csv", self.run_folder, "--keys", "los", code=2))

    def test_csv_skips_what_is_no_line_of_metrics_and_says_so(self):
        run = self.runs / "one"
        run.mkdir(parents=True)
        (run / "config.toml").write_text("")
        (run / "metrics.jsonl").write_text('[1]\n{"step":1,"loss":2.5}\n{"step":\n{}\n{"step":2,"loss":null}\n')
        child = self.start("runs", "csv", run, "--keys", "step,loss")
        out, err = child.communicate(timeout=60)
        self.assertEqual((child.returncode, out), (0, "step,loss\n1,2.5\n2,\n"))
        self.assertEqual(err, f"3 lines of {run}/metrics.jsonl skipped: neither a step nor a validation\n")

    def checkpoint_names(self):
        return sorted(path.name for path in (self.run_folder / "checkpoints").iterdir())

    def test_rm_says_first_and_removes_only_with_yes(self):
        self.train()
        said = self.hearth("runs", "rm", self.run_folder)
        self.assertIn("would be freed; --yes", said)
        self.assertIn(str(self.run_folder), said)
        self.assertEqual(self.checkpoints(), [6])
        self.assertIn("freed", self.hearth("runs", "rm", f"{self.run_folder}/", "--yes"))
        self.assertFalse(self.run_folder.exists())
        self.assertEqual(list(self.runs.iterdir()), [])

    def test_rm_keeps_the_checkpoints_that_were_asked_for(self):
        data = self.folder / "data"
        self.train("--set", "checkpoint.every=1", "--set", "checkpoint.keep_last=9", "--set", f'data.val=["{data}"]',
                   "--set", "eval.every=1", "--set", "optimizer.lr=0.3")
        folder = self.run_folder / "checkpoints"
        losses = {step: json.loads((folder / f"step-{step}" / "state.json").read_text()).get("val_loss")
                  for step in self.checkpoints()}
        self.assertEqual(len(losses), 6)
        shutil.copytree(folder / "step-2", folder / "damaged-step-2")
        stock = self.folder / "stock"
        shutil.copytree(self.run_folder, stock)
        best = min((loss, step) for step, loss in losses.items() if loss is not None)[1]
        for keep, left in (("last", [6]), ("best", [best]), ("3", [4, 5, 6]), ("0", [])):
            with self.subTest(keep=keep):
                shutil.rmtree(self.run_folder)
                shutil.copytree(stock, self.run_folder)
                self.hearth("runs", "rm", self.run_folder, "--keep", keep)
                self.assertEqual(len(self.checkpoint_names()), 7)
                self.hearth("runs", "rm", self.run_folder, "--keep", keep, "--yes")
                self.assertEqual(self.checkpoint_names(), [f"step-{step}" for step in left])
                self.assertEqual(len(self.lines()), 12)
        self.assertIn("--keep is", self.hearth("runs", "rm", self.run_folder, "--keep", "some", code=2))

    def test_rm_refuses_what_is_no_run(self):
        self.assertIn("not a run directory", self.hearth("runs", "rm", self.folder / "data", "--yes", code=2))
        self.assertTrue((self.folder / "data").exists())
        self.train()  # one that is, before one that is not: neither goes
        self.hearth("runs", "rm", self.run_folder, self.folder / "nowhere", "--yes", code=2)
        self.assertTrue(self.run_folder.exists())


if __name__ == "__main__":
    unittest.main()
