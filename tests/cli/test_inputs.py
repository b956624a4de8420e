#!/usr/bin/env python3
"""Odd inputs: folders that lead to themselves, files without an end, requests that contradict themselves.

usage: test_inputs.py HEARTH
"""
import json
import os

from program import Case, unittest


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


if __name__ == "__main__":
    unittest.main()
