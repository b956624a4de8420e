#!/usr/bin/env python3
"""What a run keeps when it is ended, when nobody listens any more, when a disk is full or a folder is gone.

usage: test_endings.py HEARTH
"""
import os
import resource
import shutil
import signal
import subprocess
import time

from program import Case, unittest

LONG = ("--set", "train.steps=1000000", "--set", "checkpoint.every=0")


class Running(Case):
    def started(self, *more, **options):
        """A run that is in its steps."""
        child = self.start("train", self.config, "--run", self.run_folder, *LONG, *more, **options)
        metrics = self.run_folder / "metrics.jsonl"
        self.wait_for(lambda: child.poll() is not None or metrics.exists() and metrics.stat().st_size > 1000)
        self.assertIsNone(child.poll())
        return child

    def ended(self, child, code):
        out, err = child.communicate(timeout=60)
        self.assertEqual(child.returncode, code, err)
        return out + err


class Signals(Running):
    def test_a_closed_terminal_ends_a_run_with_a_checkpoint(self):
        child = self.started()
        while child.poll() is None:  # the system says it, and the shell, and neither at a known moment
            child.send_signal(signal.SIGHUP)
            time.sleep(0.001)
        self.ended(child, 129)
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


class MissingFolders(Running):
    def test_a_checkpoints_folder_that_was_removed_is_made_again(self):
        child = self.started()
        shutil.rmtree(self.run_folder / "checkpoints")
        child.terminate()
        self.ended(child, 143)
        self.assertEqual(self.checkpoints(), [self.lines()[-1]["step"]])

    def test_a_run_directory_that_was_removed_is_made_again_and_resumes(self):
        child = self.started()
        shutil.rmtree(self.run_folder)
        child.terminate()
        self.assertIn("are gone: they are made again", self.ended(child, 143))
        step = self.checkpoints()[-1]
        self.hearth("train", "--resume", "--run", self.run_folder, "--set", f"train.steps={step + 2}")
        self.assertEqual(self.checkpoints()[-1], step + 2)

    def rescue(self, *more, **options):
        child = self.started(*more, **options)
        shutil.rmtree(self.run_folder / "checkpoints")
        (self.run_folder / "checkpoints").write_text("in the way")
        child.terminate()
        said = self.ended(child, 1)
        self.assertNotIn("earlier checkpoints are intact", said)
        return said

    def test_a_last_checkpoint_that_cannot_be_written_is_rescued_and_resumed_from(self):
        spare = self.folder / "spare"
        said = self.rescue("--rescue", spare)
        found = list(spare.glob("hearth-rescue-run-*/step-*"))
        self.assertEqual(len(found), 1)
        self.assertIn(f"it was written to {found[0]} instead", said)
        (self.run_folder / "checkpoints").unlink()
        (self.run_folder / "checkpoints").mkdir()
        found[0].rename(self.run_folder / "checkpoints" / found[0].name)
        step = self.checkpoints()[-1]
        self.assertEqual(step, self.lines()[-1]["step"])
        self.hearth("train", "--resume", "--run", self.run_folder, "--set", f"train.steps={step + 1}")

    def test_the_temporary_folder_is_where_a_checkpoint_is_rescued_to(self):
        self.rescue(env={"TMPDIR": str(self.folder)})
        self.assertEqual(len(list(self.folder.glob("hearth-rescue-run-*/step-*"))), 1)

    def test_a_rescue_that_fails_too_says_why_the_first_did(self):
        said = self.rescue("--rescue", "/dev/null/nowhere")
        self.assertIn("the checkpoint of step", said)
        self.assertIn("there is no earlier checkpoint", said)
        self.assertIn("could not be written to /dev/null/nowhere", said)


class FullDisks(Running):
    def test_metrics_that_a_full_disk_did_not_take_are_written_when_there_is_room(self):
        limit = (20000, resource.RLIM_INFINITY)  # of any file, also below all checkpoints
        child = self.start("train", self.config, "--run", self.run_folder, *LONG,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
        metrics = self.run_folder / "metrics.jsonl"
        self.wait_for(lambda: child.poll() is not None or metrics.exists() and metrics.stat().st_size > 19000)
        time.sleep(0.2)  # more steps that find no room; none are needed for the test to hold
        self.assertIsNone(child.poll())
        self.assertLessEqual(metrics.stat().st_size, 20000)
        self.lines()
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        child.terminate()
        self.ended(child, 143)
        steps = [line["step"] for line in self.lines() if "loss" in line]
        self.assertEqual(steps, list(range(1, self.checkpoints()[-1] + 1)))

    def test_a_run_says_which_metrics_are_missing(self):
        limit = (8000, 8000)  # more than the run's other files have
        said = self.train("--set", "checkpoint.at_end=false", "--set", "train.steps=100",
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
        last = self.lines()[-1]["step"]
        self.assertIn(f"{100 - last} lines of metrics, of steps {last + 1} to 100, could not be written", said)

    def test_an_output_that_cannot_be_written_is_an_error(self):
        self.train()
        commands = (("config", self.config), ("config", "--help"), ("calc", "--list"), ("--version",), ("--help",),
                    ("plan", "smollm-360m", "--gpu", "h200-sxm", "--json"), ("plan", "smollm-360m", "--gpu", "h200-sxm"),
                    ("eval", self.run_folder), ("sample", self.run_folder, "--prompt", "a", "--tokens", "9"),
                    ("data", "inspect", self.folder / "data"), ("data", "synth", "--print", "1"))
        for command in commands:
            with self.subTest(command=command), open("/dev/full", "w") as full:
                self.assertIn(" to standard output", self.hearth(*command, code=1, stdout=full))

    def test_a_run_does_not_need_its_output(self):
        with open("/dev/full", "w") as full:
            self.train("--set", "watch.terminal=plain", stdout=full)
        self.assertEqual(self.checkpoints()[-1], 6)


class Resuming(Case):
    def test_a_run_that_was_started_with_relative_paths_goes_on_from_any_folder(self):
        text = self.config.read_text().replace(str(self.folder / "data"), "data")
        self.config.write_text(text.replace("[train]", 'val = ["./data"]\n[train]'))
        self.hearth("train", "tiny.toml", "--run", "run")
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        self.hearth("eval", "../run", cwd=elsewhere)
        self.hearth("sample", "../run", "--prompt", "a", "--tokens", "3", cwd=elsewhere)
        said = self.hearth("train", "--resume", "--run", "../run", "--set", "train.steps=9", cwd=elsewhere)
        self.assertNotIn("was written with other settings: data", said)
        self.assertEqual(self.lines()[-1]["step"], 9)
        self.hearth("train", "--resume", "--run", self.run_folder, "--set", "train.steps=12", cwd="/")

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
