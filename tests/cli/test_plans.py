#!/usr/bin/env python3
"""What `hearth plan` says of a plan that cannot be: its exit code, its contradictions, what this build can train.

usage: test_plans.py HEARTH
"""
import json
import subprocess

from program import HEARTH, unittest

SMALL = ("plan", "llama-3.2-1b", "--gpu", "h100-sxm", "--seq", "8192", "--micro-batch", "1")


class Plans(unittest.TestCase):
    def hearth(self, *arguments, code=0):
        done = subprocess.run([HEARTH, *arguments], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout, done.stderr

    def test_context_traffic_grows_where_attention_is_computed_again(self):
        rings = {}
        for mode in ("none", "selective", "full"):
            out, _ = self.hearth(*SMALL, "--gpus", "8", "--cp", "2", "--recompute", mode, "--json")
            rings[mode] = json.loads(out)["communication"]["context-parallel ring"]["bytes"]
        self.assertEqual(rings["selective"], rings["none"])  # attention's output is kept
        # keys and values (bf16) in both passes, sums of their gradients (fp32) one hop further: 2 + 2 x 2 of a hop, here one
        self.assertAlmostEqual(rings["full"] / rings["none"], 7 / 6)

    def test_a_gpu_that_the_node_does_not_have_is_refused(self):
        out, _ = self.hearth("plan", "llama-3.2-1b", "--node", "dgx-h100", "--json")
        _, err = self.hearth("plan", "llama-3.2-1b", "--node", "dgx-h100", "--gpu", "b200-sxm", code=2)
        self.assertIn("the node dgx-h100 has h100-sxm", err)
        self.hearth("plan", "llama-3.2-1b", "--node", "dgx-h100", "--gpu", "h100-sxm")

    def test_sizes_that_do_not_go_together_are_refused_without_a_config_too(self):
        _, err = self.hearth("plan", "llama-3.2-1b", "--set", "model.heads=6", code=2)
        self.assertIn("heads", err)

    def test_a_plan_that_does_not_fit_fails_after_it_was_shown(self):
        large = ("plan", "qwen3-30b-a3b", "--gpu", "h100-sxm")
        out, err = self.hearth(*large, code=1)
        self.assertIn("Does not fit", out)
        self.assertIn("the plan does not fit", err)
        out, _ = self.hearth(*large, "--json", code=1)
        self.assertFalse(json.loads(out)["fits"])

    def test_a_search_that_finds_nothing_fails(self):
        out, err = self.hearth("plan", "qwen3-30b-a3b", "--gpu", "h100-sxm", "--search", "--json", code=1)
        self.assertEqual(json.loads(out)["top"], [])
        self.assertIn("nothing fits below 85 % of memory", err)

    def test_a_plan_of_several_gpus_says_what_this_build_can_train(self):
        out, _ = self.hearth(*SMALL, "--gpus", "8")
        self.assertRegex(out, r"This build\n +hearth trains on this mesh: hearth train --ranks 8")
        out, _ = self.hearth(*SMALL, "--gpus", "8", "--cp", "64", "--gpus", "64", "--json")
        self.assertIn("trains_here", json.loads(out))
        self.assertNotIn("This build", self.hearth(*SMALL)[0])

    def test_a_search_shows_the_tokens_of_a_step_and_says_where_they_differ(self):
        search = ("plan", "llama-3.2-1b", "--gpu", "h100-sxm", "--seq", "2048", "--gpus", "8", "--search")
        out, _ = self.hearth(*search)
        self.assertIn("tokens a step", out)
        self.assertIn("the ways take steps of different sizes", out)
        self.assertIn("runs: hearth trains on such a mesh", out)
        rows = json.loads(self.hearth(*search, "--json")[0])["top"]
        for row in rows:
            self.assertEqual(row["batch_tokens"], row["micro_batch"] * row["seq"] * row["grad_accum"] * row["dp"])
        out, _ = self.hearth(*search, "--batch-tokens", "524288")
        self.assertNotIn("the ways take steps of different sizes", out)


if __name__ == "__main__":
    unittest.main()
