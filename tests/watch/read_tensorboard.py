#!/usr/bin/env python3
"""The real TensorBoard's reader on a run's event files: while the run is writing them, and after a resume.

usage: read_tensorboard.py HEARTH   (skipped where python3 has no tensorboard)
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../cli"))
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    print("SKIPPED tensorboard: python3 has no tensorboard; pip install tensorboard")
    sys.exit(0)
from program import Case, unittest

ALL = {"scalars": 0, "histograms": 0, "tensors": 0}


class Reader(Case):
    def read(self):
        events = EventAccumulator(str(self.run_folder / "tensorboard"), size_guidance=ALL)
        events.Reload()
        return events

    def assert_as_metrics(self, events, count):
        """The first `count` steps of the event files say what metrics.jsonl says, each once."""
        lines = [line for line in self.lines() if "loss" in line][:count]
        for tag, key in (("train/loss", "loss"), ("train/grad_norm", "grad_norm"), ("speed/tok_s", "tok_s")):
            points = events.Scalars(tag)[:count]
            self.assertEqual([point.step for point in points], [line["step"] for line in lines])
            for point, line in zip(points, lines):
                self.assertAlmostEqual(point.value, line[key], delta=1e-6 * abs(line[key]))  # a float, of nine digits
                self.assertAlmostEqual(point.wall_time, line["time"], delta=1e-3)

    def test_a_run_that_is_still_writing_can_be_read(self):
        child = self.start("train", self.config, "--run", self.run_folder, "--set", "train.steps=1000000",
                           "--set", "watch.histograms=10")
        self.wait_for(lambda: (self.run_folder / "metrics.jsonl").exists() and len(self.lines()) > 30)
        events = self.read()
        self.assertIsNone(child.poll())
        before = len(events.Scalars("train/loss"))
        self.assertGreaterEqual(before, 20)
        self.wait_for(lambda: len(self.lines()) > before + 30)
        events.Reload()  # goes on where it was
        self.assertGreater(len(events.Scalars("train/loss")), before)
        self.assertIsNone(child.poll())
        child.kill()
        child.communicate()
        self.assert_as_metrics(events, before)
        self.assertIn(b"micro_batch = 2", events.Tensors("config")[0].tensor_proto.string_val[0])
        histogram = events.Histograms("weights/layer_00_qkv")[0]
        self.assertEqual(histogram.step, 10)
        value = histogram.histogram_value
        self.assertEqual(value.num, 32 * (32 + 2 * 16))
        self.assertEqual(sum(value.bucket), value.num)
        self.assertLess(value.min, 0)
        self.assertIn("gradients/embedding", events.Tags()["histograms"])

    def test_steps_after_a_checkpoint_are_superseded_by_the_resumed_run(self):
        self.train("--set", "train.steps=20", "--set", "checkpoint.every=8", "--set", "checkpoint.keep_last=9",
                   "--set", "checkpoint.at_end=false")
        self.hearth("train", "--resume", "--run", self.run_folder, "--set", "train.steps=24",
                    "--set", "checkpoint.at_end=false")
        self.assertEqual(len(list((self.run_folder / "tensorboard").iterdir())), 2)
        events = self.read()
        self.assertEqual(len(events.Scalars("train/loss")), 24)
        self.assert_as_metrics(events, 24)


if __name__ == "__main__":
    unittest.main()
