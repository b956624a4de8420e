#!/usr/bin/env python3
"""Odd inputs: folders that lead to themselves, files without an end, requests that contradict themselves.

usage: test_inputs.py HEARTH
"""
import json
import os
import resource
import shutil
import subprocess

from program import Case, HEARTH, unittest


class Folders(Case):
    def prepare(self, source, *more, code=0, **options):
        return self.hearth("data", "prepare", source, "--tokenizer", "bytes", "--output", self.folder / "out", *more,
                           code=code, **options)

    def documents(self):
        return json.loads((self.folder / "out/dataset.json").read_text())["splits"]["train"]["documents"]

    def test_a_loop_of_links_is_walked_once(self):
        texts = self.folder / "texts"
        (texts / "inner").mkdir(parents=True)
        (texts / "inner/one.txt").write_text("one document\n")
        (texts / "inner/loop").symlink_to(texts)
        (texts / "again").symlink_to(texts / "inner")
        self.prepare(texts, "--val-tokens", "0", timeout=20)
        self.assertEqual(self.documents(), 1)


def memory_limit(mebibytes):
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (mebibytes << 20, mebibytes << 20))


@unittest.skipIf("asan" in HEARTH or "tsan" in HEARTH, "sanitizers reserve all address space there is")
class LittleMemory(Case):
    """Below some limit the loader of libraries itself gives up, with 127; above it hearth must end, one way or other."""

    def ends(self, mebibytes, *command):
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        child = self.start(*command, preexec_fn=memory_limit(mebibytes))
        try:
            said = child.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            self.fail(f"{command} does not end with {mebibytes} MiB")
        if child.returncode == 127 and "shared" in said:
            return 127
        self.assertIn(child.returncode, (0, 1), f"{command} with {mebibytes} MiB: {said}")
        return child.returncode

    def test_a_command_that_computes_no_product_needs_no_memory_for_one(self):
        for mebibytes in range(60, 300, 40):
            self.assertIn(self.ends(mebibytes, "--version"), (0, 127))

    def test_preparing_data_ends_whatever_the_memory_and_leaves_no_half_dataset(self):
        with open(self.folder / "texts.jsonl", "w") as file:
            for i in range(20000):
                file.write(json.dumps({"text": f"document {i} " + f"w{i} " * 40}) + "\n")
        codes = set()
        for mebibytes in range(60, 420, 40):
            codes.add(self.ends(mebibytes, "data", "prepare", "texts.jsonl", "--tokenizer", "bytes", "--output", "out"))
            made = (self.folder / "out/dataset.json").exists()
            if made:
                self.hearth("data", "inspect", "--deep", "out")
        self.assertLessEqual({0, 1}, codes)

    def test_training_ends_whatever_the_memory(self):
        codes = set()
        for mebibytes in range(100, 500, 80):
            shutil.rmtree(self.run_folder, ignore_errors=True)
            codes.add(self.ends(mebibytes, "train", self.config, "--run", self.run_folder))
        self.assertLessEqual({0, 1}, codes)


if __name__ == "__main__":
    unittest.main()
