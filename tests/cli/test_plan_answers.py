#!/usr/bin/env python3
"""Answers of `hearth plan` as a user types them: bare numbers, nodes, crashes, storage, a checklist, a config from a search.

usage: test_plan_answers.py HEARTH
"""
import json
import os
import subprocess
import tempfile

from program import HEARTH, unittest

EIGHT_B = ("plan", "--params", "8B", "--tokens", "15T", "--gpus", "64", "--gpu", "h100-sxm")


class PlanAnswers(unittest.TestCase):
    def hearth(self, *arguments, code=0):
        done = subprocess.run([HEARTH, *arguments], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout, done.stderr

    def plan(self, *arguments, code=0):
        return json.loads(self.hearth("plan", *arguments, "--no-machine", "--no-calibration", "--json", code=code)[0])

    def test_8b_on_15t_with_64_h100_is_answered_from_numbers_alone(self):
        out, _ = self.hearth(*EIGHT_B, "--mfu", "0.4")
        # 6 x 8e9 x 15e12 / (64 x 989.4e12 x 0.4) = 2.843e7 s
        self.assertIn("7896 hours = 329 days = 10.97 months", out)
        self.assertIn("94 x Chinchilla: far overtrained", out)
        for section in ("Speed, time and cost", "Checkpoints", "Storage", "Nodes of the catalogue"):
            self.assertIn("\n" + section, out)
        self.assertRegex(out, r"crashes expected +10 +over the run; together \$")
        self.assertNotIn("time range", out)
        out, _ = self.hearth(*EIGHT_B)
        self.assertRegex(out, r"MFU +36.0 % +6N of that peak, the middle of what is typical")
        self.assertRegex(out, r"typical MFU +32 to 40 %")
        self.assertIn("source: torchtitan", out)
        self.assertRegex(out, r"time range +329.0 days to 411.3 days")
        self.assertRegex(out, r"with fp8 +285.6 days +1.28 x the speed: torchtitan")

    def test_the_calculators_answers_come_as_json_and_as_a_page(self):
        home = ("--params", "8B", "--tokens", "160B", "--gpus", "4", "--gpu", "rtx-pro-6000-maxq", "--mfu", "0.35")
        budget = self.plan(*home)["budget"]
        self.assertAlmostEqual(budget["hours"], 3472, delta=0.5)  # as the calculator prints them
        self.assertAlmostEqual(budget["days"], 144.7, delta=0.05)
        self.assertAlmostEqual(budget["months"], 4.82, delta=0.005)
        self.assertAlmostEqual(budget["chinchilla_ratio"], 1)
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "plan.html")
            self.hearth("plan", *home, "--html", page)
            with open(page, encoding="utf-8") as written:
                text = written.read()
            self.assertIn("4.82 months", text)
            self.assertNotIn("<script", text)

    def test_twenty_per_parameter_are_the_default_and_a_multiple_can_be_typed(self):
        self.assertEqual(self.plan("--params", "1B")["budget"]["tokens"], 20e9)
        self.assertEqual(self.plan("--params", "1B", "--tokens", "100x")["budget"]["tokens"], 100e9)

    def test_active_parameters_decide_the_time_of_a_moe(self):
        dense = self.plan("--params", "3.35B", "--tokens", "1T", "--gpus", "8", "--mfu", "0.2")
        moe = self.plan("--params", "30.5B", "--active-params", "3.35B", "--tokens", "1T", "--gpus", "8", "--mfu", "0.2")
        self.assertEqual(moe["budget"]["seconds"], dense["budget"]["seconds"])
        self.assertEqual(moe["state_bytes"], 16 * 30.5e9)
        self.assertEqual(moe["typical_mfu"]["class"], "nvlink-moe")
        self.assertEqual(dense["typical_mfu"]["class"], "nvlink-dense")

    def test_a_measured_rate_and_another_peak_are_taken(self):
        rate = self.plan("--params", "500M", "--tokens", "10B", "--gpus", "4", "--gpu", "rtx-pro-6000-maxq", "--tok-s", "210377")
        self.assertAlmostEqual(rate["budget"]["hours"], 13.2, delta=0.05)  # the slides' last step
        self.assertAlmostEqual(rate["budget"]["mfu"], 0.3595, delta=0.00005)  # 6 x 500M x 210,377 / (4 x 438.9e12)
        peak = self.plan("--params", "8B", "--gpus", "8", "--mfu", "0.55", "--peak-tflops", "1000")
        self.assertAlmostEqual(peak["budget"]["days"], 20.20, delta=0.005)

    def test_prices_and_failures_are_options(self):
        answer = self.plan("--params", "8B", "--gpus", "8", "--keep", "10", "--storage-price", "0.1", "--mtbf-hours", "24", "--price", "3", "--mfu", "0.5")
        self.assertEqual(answer["storage"]["checkpoints"], 10)
        self.assertAlmostEqual(answer["storage"]["usd_per_month"], (640 + 10 * 96) * 0.1)
        self.assertAlmostEqual(answer["checkpoint"]["crashes"], answer["checkpoint"]["calendar_seconds"] / 86400)
        self.assertAlmostEqual(answer["checkpoint"]["calendar_usd"], answer["checkpoint"]["calendar_seconds"] / 3600 * 24)
        out, _ = self.hearth("plan", "--params", "8B", "--gpus", "8", "--storage-price", "0.1")
        self.assertIn("at $0.100 per GB-month\n", out)  # no source of ours for the user's own price
        never = self.plan("--params", "8B", "--gpus", "8", "--mtbf-hours", "0.1")
        self.assertIsNone(never["checkpoint"]["calendar_seconds"])
        self.assertRegex(self.hearth("plan", "--params", "8B", "--gpus", "8", "--mtbf-hours", "0.1")[0], r"calendar time +never")

    def test_a_config_says_how_many_checkpoints_are_stored(self):
        run = ("smollm-360m", "--seq", "2048", "--set", "train.steps=1000")
        self.assertEqual(self.plan(*run)["storage"]["checkpoints"], 3)  # the last two and the best
        self.assertEqual(self.plan(*run, "--set", "checkpoint.keep_best=false", "--set", "checkpoint.keep_every=300")["storage"]["checkpoints"], 5)
        self.assertEqual(self.plan(*run, "--keep", "7")["storage"]["checkpoints"], 7)

    def test_what_cannot_be_is_refused_with_what_to_do(self):
        for arguments, message in (
            ((), "plan needs a config, a preset or --params"),
            (("--params", "0"), "--params must be between 1 and 1e+16, not 0"),
            (("--params", "-3B"), "--params must be between"),
            (("--params", "nan"), "--params must be between"),
            (("--params", "many"), '--params takes a number, not "many"'),
            (("--params", "8B", "--tokens", "-1"), "train.tokens must be at least 0"),
            (("--params", "8B", "--gpus", "0"), "--gpus must be between 1"),
            (("--params", "8B", "--mfu", "0"), "--mfu must be between"),
            (("--params", "8B", "--mfu", "1.2"), "--mfu must be between"),
            (("--params", "8B", "--gpu", "h1000"), 'no gpu "h1000"'),
            (("--params", "8B", "--active-params", "9B"), "more than the 8e+09 that there are"),
            (("--params", "8B", "--peak-tflops", "0"), "--peak-tflops must be between"),
            (("--params", "8B", "--active-params", "0"), "--active-params must be between"),
            (("--params", "8B", "--software", "torchtitan"), "--software needs a model"),
            (("--params", "8B", "--tp", "8"), "--tp needs a model"),
            (("--params", "8B", "--search"), "--search needs a model"),
            (("--params", "8B", "--set", "train.seq=512"), "--set needs a model"),
            (("--params", "8B", "--gpu", "a100-sxm", "--precision", "fp8"), "no FP8 units"),
            (("llama-3-8b", "--params", "8B"), "llama-3-8b is a model of its own size"),
            (("llama-3-8b", "--active-params", "8B"), "--active-params goes with --params"),
            (("llama-3-8b", "--peak-tflops", "8"), "--peak-tflops goes with --params"),
            (("llama-3-8b", "--keep", "0"), "--keep must be between 1"),
            (("llama-3-8b", "--storage-price", "-1"), "--storage-price must be between 0"),
            (("llama-3-8b", "--write", "x.toml"), "--write needs --search"),
            (("llama-3-8b", "--search", "--compare-nodes"), "--compare-nodes does not go with --search"),
        ):
            with self.subTest(arguments=arguments):
                out, err = self.hearth("plan", *arguments, code=2)
                self.assertIn(message, err)
                self.assertEqual(out, "")

    def test_numbers_that_do_not_fit_fail_after_they_were_shown(self):
        out, err = self.hearth("plan", "--params", "405B", "--gpus", "8", code=1)
        self.assertIn("Speed, time and cost", out)
        self.assertIn("the plan does not fit", err)

    def test_a_model_is_compared_on_the_nodes_of_the_catalogue(self):
        run = ("llama-3.2-1b", "--gpu", "h100-sxm", "--gpus", "8", "--seq", "4096", "--micro-batch", "4")
        answer = self.plan(*run, "--compare-nodes")
        rows = {row["name"]: row for row in answer["nodes"]}
        fit = [row for row in rows.values() if row["fits"]]
        self.assertEqual(rows[answer["cheapest"]]["cost_usd"], min(row["cost_usd"] for row in fit))
        self.assertEqual(rows[answer["fastest"]]["seconds"], min(row["seconds"] for row in fit))
        self.assertAlmostEqual(rows["dgx-h100"]["seconds"], answer["budget"]["seconds"], delta=1e-6 * answer["budget"]["seconds"])
        b200 = self.plan("llama-3.2-1b", "--node", "dgx-b200", *run[5:])
        self.assertAlmostEqual(rows["dgx-b200"]["tokens_per_second"], b200["tokens_per_second"], delta=1)
        self.assertNotIn("nodes", self.plan(*run))

    def test_the_checklist_stands_in_the_plan(self):
        run = ("qwen3-30b-a3b", "--node", "hgx-h200", "--software", "torchtitan", "--tp", "4", "--ep", "2", "--etp", "4", "--eager",
               "--recompute", "full", "--seq", "4096", "--micro-batch", "2")
        out, _ = self.hearth("plan", *run)
        self.assertRegex(out, r"Checklist: in this order\n.*\n +1. compilation or recorded graphs switched on")
        steps = self.plan(*run)["advice"]["checklist"]
        rate = self.plan(*run)["tokens_per_second"]
        for step in steps:
            self.assertAlmostEqual(step["gain"], step["tokens_per_second"] / rate - 1)
            rate = step["tokens_per_second"]

    def test_the_search_writes_a_config_whose_plan_is_its_row(self):
        machine = ("--gpu", "h100-sxm", "--gpus", "32")
        for run in (
            ("llama-3.2-1b", "--seq", "4096", "--tokens", "20B"),
            ("qwen3-moe-500m", "--seq", "4096", "--batch-tokens", "1M", "--precision", "bf16"),
            ("llama-3-70b", "--seq", "4096", "--batch-tokens", "4M", "--set", "parallelism.schedule=interleaved",
             "--set", "parallelism.virtual_stages=2"),
        ):
            with self.subTest(run=run), tempfile.TemporaryDirectory() as folder:
                file = os.path.join(folder, "best.toml")
                row = next(way for way in self.plan(*run, *machine, "--search", "--write", file)["top"] if way["runs"])
                plan = self.plan(file, *machine)
                self.assertAlmostEqual(plan["tokens_per_second"], row["tokens_per_second"], delta=1e-9 * row["tokens_per_second"])
                self.assertEqual(plan["memory_bytes"]["fraction"], row["memory_fraction"])
                for key in ("micro_batch", "seq", "grad_accum", "recompute"):
                    self.assertEqual(plan[key], row[key])
                self.assertEqual(plan["mesh"], {axis: row[axis] for axis in plan["mesh"]})
                self.hearth("config", file)
                if "--tokens" in run:
                    self.assertGreaterEqual(plan["budget"]["tokens"], 20e9)
                    self.assertLess(plan["budget"]["tokens"], 20e9 + row["batch_tokens"])

    def test_the_search_that_writes_says_where_and_fails_where_it_cannot(self):
        search = ("plan", "llama-3.2-1b", "--gpu", "h100-sxm", "--seq", "2048", "--search", "--write")
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "best.toml")
            _, err = self.hearth(*search, file)
            self.assertRegex(err, r"wrote .*best.toml: \d+ tokens/s")
            with open(file, encoding="utf-8") as written:
                self.assertTrue(written.read().startswith("# The fastest way that `hearth plan llama-3.2-1b --search`"))
            self.hearth(*search, os.path.join(folder, "no", "such", "folder.toml"), code=1)
            none = os.path.join(folder, "none.toml")
            self.hearth("plan", "qwen3-30b-a3b", "--gpu", "h100-sxm", "--search", "--write", none, code=1)
            self.assertFalse(os.path.exists(none))


if __name__ == "__main__":
    unittest.main()
