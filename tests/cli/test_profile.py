#!/usr/bin/env python3
"""hearth train --profile: a timeline that Perfetto takes, parts that add up, of all ranks, and training as without it.

usage: test_profile.py HEARTH [Profile | Ranks]
"""
import collections
import json

from program import Case, unittest

LARGER = ("--set", "model.hidden=128", "--set", "model.ffn=256", "--set", "train.seq=64")
EXPERTS = ("--set", "model.arch=qwen3_moe", "--set", "model.head_dim=32", "--set", "model.experts=4", "--set",
           "model.top_k=2", "--set", "model.expert_ffn=64")
SOON = ("--set", "profile.wait=1", "--set", "profile.warmup=1")
PLAIN = ("--set", "watch.terminal=plain")


class Timelines(Case):
    def timeline(self, run=None):
        """The events of the one timeline of a run, after a check of their form."""
        files = list(((run or self.run_folder) / "profile").iterdir())
        traces = [file for file in files if file.name != "summary.json"]
        self.assertEqual(len(traces), 1, files)
        document = json.loads(traces[0].read_text())
        events = document["traceEvents"]
        self.check_form(events)
        return traces[0].name, events

    def check_form(self, events):
        names = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
        last = 0
        open_ranges = collections.defaultdict(list)  # of a thread: where those around the next one end
        for event in (e for e in events if e["ph"] != "M"):
            self.assertGreaterEqual(event["ts"], last)
            last = event["ts"]
            self.assertIn(event["pid"], processes)
            if event["ph"] == "C":
                self.assertGreater(event["args"]["value"], 0)
                continue
            self.assertEqual(event["ph"], "X")
            self.assertGreaterEqual(event["dur"], 0)
            thread = (event["pid"], event["tid"])
            self.assertIn(thread, names)
            # To half a nanosecond: the file has whole ones.
            while open_ranges[thread] and open_ranges[thread][-1] <= event["ts"] + 5e-4:
                open_ranges[thread].pop()
            end = event["ts"] + event["dur"]
            if open_ranges[thread]:
                self.assertLessEqual(end, open_ranges[thread][-1] + 5e-4, f"{event} sticks out of the range around it")
            open_ranges[thread].append(end)

    def summary(self):
        return json.loads((self.run_folder / "profile/summary.json").read_text())

    def steps_of(self, events, rank=0):
        return [e["name"] for e in events if e["ph"] == "X" and e["cat"] == "step" and e["pid"] == rank]

    def losses(self, run=None):
        return [(line["step"], line["loss"]) for line in self.lines(run) if "loss" in line]


class Profile(Timelines):
    def expect_parts(self, *more):
        said = self.train(*LARGER, *SOON, *PLAIN, "--profile=2", *more)
        name, events = self.timeline()
        self.assertEqual(name, "step-3.json")
        self.assertEqual(self.steps_of(events), ["step 3", "step 4"])
        summary = self.summary()
        parts, step = summary["parts"], summary["step_seconds"]
        self.assertAlmostEqual(sum(parts.values()) / step, 1, delta=0.02)
        # The same from the timeline: what is in ranges of ops and waits, of what is in steps.
        steps = [e for e in events if e["ph"] == "X" and e["cat"] == "step"]
        leaves = [e for e in events if e["ph"] == "X" and e["tid"] == steps[0]["tid"] and
                  ("op" in e.get("args", {}) or e["cat"] in ("data", "communication"))]
        inside = sum(e["dur"] for e in leaves
                     for s in steps if s["ts"] <= e["ts"] and e["ts"] + e["dur"] <= s["ts"] + s["dur"] + 1e-3)
        whole = sum(s["dur"] for s in steps)
        self.assertAlmostEqual(inside / whole, 1 - parts["gaps"] / step, delta=0.01)
        self.assertEqual(summary["trace"], name)
        self.assertFalse(summary["graph_recorded"])
        self.assertIn("CPU", summary["why_no_graph"])
        self.assertEqual(len(summary["ops"]), 10)
        self.assertTrue(all(op["floor_seconds"] > 0 for op in summary["ops"]))
        self.assertIn(summary["sentence"], said)
        self.assertIn("profile of 2 steps from step 3 on", said)
        return events, summary

    def test_a_dense_step_is_in_its_parts(self):
        events, summary = self.expect_parts()
        self.assertEqual(summary["parts"]["grouped"], 0)
        named = collections.Counter(e["name"] for e in events)
        # 2 steps of 2 micro-batches through 2 layers.
        self.assertEqual([named[f"{way}, layer {i}"] for way in ("forward", "backward") for i in (0, 1)], [4] * 4)
        self.assertEqual(named["micro-batch 0"], 2)
        layers = collections.Counter(e["args"].get("layer") for e in events if e.get("args", {}).get("op") ==
                                     "attention_forward")
        self.assertEqual(layers, {0: 4, 1: 4})
        threads = {e["args"]["name"].split()[0] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        self.assertLessEqual({"steps", "loader", "metrics"}, threads)
        counters = {e["name"] for e in events if e["ph"] == "C"}
        self.assertIn("memory of the model (MiB)", counters)

    def test_a_step_with_experts_is_in_its_parts(self):
        _, summary = self.expect_parts(*EXPERTS)
        self.assertGreater(summary["parts"]["grouped"], 0)
        self.assertGreater(summary["parts"]["routing"], 0)

    def test_training_is_the_same_with_a_profile(self):
        self.train("--set", "profile.active=2", *SOON)
        other = self.folder / "other"
        self.hearth("train", self.config, "--run", other)
        self.assertEqual(self.losses(), self.losses(other))
        self.assertFalse((other / "profile").exists())

    def test_a_run_that_is_resumed_is_profiled_from_there(self):
        self.train("--set", "checkpoint.every=3", "--set", "train.steps=3")
        said = self.hearth("train", "--resume", "--run", self.run_folder, "--profile=1", "--set", "train.steps=7",
                           *SOON, *PLAIN)
        self.assertIn("profile of 1 step from step 6 on", said)
        name, events = self.timeline()
        self.assertEqual((name, self.steps_of(events)), ("step-6.json", ["step 6"]))
        # The option is of that process alone.
        self.assertIn("active = 0", (self.run_folder / "config.toml").read_text())

    def test_a_folder_that_cannot_be_written_does_not_stop_training(self):
        self.train("--set", "checkpoint.every=3", "--set", "train.steps=3")
        (self.run_folder / "profile").write_text("in the way")
        said = self.hearth("train", "--resume", "--run", self.run_folder, "--profile=1", "--set", "train.steps=7",
                           *SOON, *PLAIN)
        self.assertIn("the profile is not kept", said)
        self.assertEqual(self.losses()[-1][0], 7)

    def test_a_number_of_steps_that_makes_no_sense_is_refused(self):
        for steps in ("-1", "-3", "1001", "99999999999"):
            said = self.hearth("train", self.config, "--run", self.run_folder, f"--profile={steps}", code=2)
            self.assertIn("--profile must be between 0 and 1000", said)
        self.assertFalse(self.run_folder.exists())

    def test_a_run_that_ends_early_says_so(self):
        said = self.train("--profile", "--set", "train.steps=4")
        self.assertIn("the run ended before its profile began: that is 7 steps after its start", said)
        self.assertFalse((self.run_folder / "profile").exists())

    def test_a_count_of_steps_must_be_one(self):
        self.assertIn("--profile takes a whole number", self.train("--profile=many", code=2))

    def test_the_report_shows_it(self):
        self.train("--profile=1", *SOON)
        page = self.folder / "page.html"
        self.hearth("report", self.run_folder, "-o", page)
        text = page.read_text()
        self.assertIn("<h2>Profile</h2>", text)
        self.assertIn("most expensive ops", text)
        self.assertIn("profile/step-3.json", text)


class Ranks(Timelines):
    ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "HEARTH_THREADS": "1",
                   "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
                   "OMPI_MCA_hwloc_base_binding_policy": "none"}

    def profiled(self, *more):
        said = self.train("--ranks", "2", "--profile=2", *SOON, *PLAIN, *more, env=self.ENVIRONMENT)
        self.assertIn("parts of rank 0", said)
        _, events = self.timeline()
        for rank in (0, 1):
            self.assertEqual(self.steps_of(events, rank), ["step 3", "step 4"])
        return events

    def test_both_ranks_are_in_one_file_on_one_clock(self):
        events = self.profiled()
        sums = [[e for e in events if e["ph"] == "X" and e["name"] == "all_reduce" and e["pid"] == rank and
                 "bytes" in e.get("args", {})] for rank in (0, 1)]
        self.assertGreater(len(sums[0]), 3)
        self.assertEqual(len(sums[0]), len(sums[1]))
        for a, b in zip(*sums):  # of one exchange: it ends on neither rank before it began on the other
            self.assertGreater(a["ts"] + a["dur"], b["ts"] - 1000)
            self.assertGreater(b["ts"] + b["dur"], a["ts"] - 1000)
        parts = self.summary()["rank_parts"]
        self.assertEqual([p["rank"] for p in parts], [0, 1])
        for rank in parts:
            whole = sum(value for key, value in rank.items() if key not in ("rank", "step_seconds"))
            self.assertAlmostEqual(whole / rank["step_seconds"], 1, delta=0.02)

    def test_the_passes_of_a_pipeline_are_ranges(self):
        events = self.profiled("--set", "parallelism.pipeline=2")
        for rank in (0, 1):
            named = collections.Counter(e["name"] for e in events if e["pid"] == rank)
            passes = [named[f"{way} pass {i}"] for way in ("forward", "backward") for i in (0, 1)]
            self.assertEqual(passes, [2] * 4)  # two micro-batches in each of two steps


if __name__ == "__main__":
    unittest.main()
