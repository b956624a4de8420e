#!/usr/bin/env python3
"""What a run keeps when it is ended, when nobody listens any more, when a disk is full or a folder is gone.

usage: test_endings.py HEARTH
"""
import os
import resource
import signal
import subprocess

from program import Case, unittest

LONG = ("--set", "train.steps=1000000", "--set", "checkpoint.every=0")


class Signals(Case):
    def started(self, *more, **options):
        """A run that is in its steps."""
        child = self.start("train", self.config, "--run", self.run_folder, *LONG, *more, **options)
        metrics = self.run_folder / "metrics.jsonl"
        self.wait_for(lambda: child.poll() is not None or metrics.exists() and metrics.stat().st_size > 1000)
        self.assertIsNone(child.poll())
        return child

    def test_a_closed_terminal_ends_a_run_with_a_checkpoint(self):
        child = self.started()
        for _ in range(2):  # the system says it, and the shell
            child.send_signal(signal.SIGHUP)
        child.communicate(timeout=60)
        self.assertEqual(child.returncode, 129)
        self.assertEqual(self.checkpoints()[-1], self.lines()[-1]["step"])

    def test_nohup_keeps_a_run_going(self):
        child = self.started(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        child.send_signal(signal.SIGHUP)
        reached = len(self.lines())
        self.wait_for(lambda: child.poll() is not None or len(self.lines()) > reached + 10)
        self.assertIsNone(child.poll())
        child.terminate()
        child.communicate(timeout=60)
        self.assertEqual(child.returncode, 143)

    def test_a_reader_that_goes_away_does_not_end_a_run(self):
        child = self.start("train", self.config, "--run", self.run_folder, "--set", "watch.terminal=plain", "--set",
                           "train.steps=300", "--set", "watch.print_every=1", stderr=subprocess.DEVNULL)
        child.stdout.readline()
        child.stdout.close()
        self.assertEqual(child.wait(timeout=60), 0)
        self.assertEqual(self.checkpoints()[-1], 300)

    def test_checkpoints_are_due_by_time(self):
        self.train("--set", "checkpoint.every=0", "--set", "checkpoint.minutes=1e-9", "--set", "checkpoint.keep_last=9",
                   "--set", "checkpoint.at_end=false", "--set", "checkpoint.async=false")
        self.assertEqual(self.checkpoints(), [1, 2, 3, 4, 5, 6])
        shown = self.hearth("config", self.config)
        self.assertIn("minutes = 10", shown)


class Resuming(Case):
    def test_data_of_another_tokenizer_of_the_same_size_is_refused(self):
        for seed in (1, 2):
            self.hearth("data", "synth", self.folder / f"words{seed}", "--stories", "200", "--val-stories", "20", "--vocab",
                        "300", "--seed", seed)
        self.train("--set", f"data.train={self.folder}/words1")
        said = self.train("--resume", "--set", f"data.train={self.folder}/words2", "--set", "train.steps=9", code=2)
        self.assertIn("the data was made with another tokenizer than that of", said)
        self.train("--resume", "--set", f"data.train={self.folder}/words1", "--set", "train.steps=9")


if __name__ == "__main__":
    unittest.main()
