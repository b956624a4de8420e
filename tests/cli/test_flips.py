#!/usr/bin/env python3
"""Single bits that a disk or a cable has changed, forty of each kind of file: what is damaged is named, or the result is that of
whole files, bit for bit. None is silent.

usage: test_flips.py HEARTH
"""
import os
import random
import shutil
import subprocess

from program import CONFIG, Case, HEARTH, unittest

FLIPS = int(os.environ.get("HEARTH_FLIPS", 40))


class Flips(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        subprocess.run([HEARTH, "data", "synth", cls.stock / "words", "--stories", "200", "--val-stories", "20", "--vocab",
                        "300"], check=True, stdout=subprocess.DEVNULL)

    def setUp(self):
        super().setUp()
        self.draws, self.about = random.Random(self.id()), "nothing is changed"
        shutil.copytree(self.stock / "words", self.folder / "words")
        self.words = self.folder / "words.toml"
        text = CONFIG.format(data=self.folder / "words", steps=6) + "[checkpoint]\nevery = 3\n"
        self.words.write_text(text.replace("[schedule]\n", '[schedule]\nkind = "constant"\n'))

    def flip(self, path, first=0, last=None):
        """Changes one bit; returns what gives it back."""
        content = path.read_bytes()
        at, bit = self.draws.randrange(first, last or len(content)), 1 << self.draws.randrange(8)
        info = os.stat(path)
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([content[at] ^ bit]))

        def put_back():
            path.write_bytes(content)
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        self.about = f"bit {bit} of byte {at} of {path.relative_to(self.folder)}"
        return put_back

    def outcome(self, *arguments):
        """Exit code and all that was said; never a signal."""
        child = self.start(*arguments)
        out, err = child.communicate(timeout=120)
        self.assertIn(child.returncode, (0, 1, 2), f"{self.about}: {out}{err}")
        return child.returncode, out, err

    def test_tokens(self):
        self.train()
        for number in range(FLIPS):
            split = ("train", "val")[number % 2]
            shard = self.folder / "data" / split / "00000.shard"
            put_back = self.flip(shard, 128, 128 + (os.path.getsize(shard) - 128) * 9 // 10)
            command = ("train", self.config, "--run", self.folder / "other") if split == "train" else ("eval", self.run_folder)
            code, out, err = self.outcome(*command)
            self.assertTrue(code == 1 and "00000.shard: " in err, f"{self.about}: {code} {out}{err}")
            put_back()

    def resumed(self, run):
        """The last checkpoint after three more steps, all its bytes, and what was said."""
        code, out, err = self.outcome("train", "--resume", "--run", run, "--set", "train.steps=9")
        last = run / "checkpoints" / "step-9"
        return code, {p.name: p.read_bytes() for p in last.iterdir()} if last.is_dir() else {}, out + err

    def figures(self, said):
        return [line for line in said.splitlines() if line.split()[0] in ("targets", "loss", "perplexity")]

    def test_checkpoints(self):
        self.hearth("train", self.words, "--run", self.run_folder)
        shutil.copytree(self.run_folder, self.folder / "run-0")
        code, expected, _ = self.resumed(self.folder / "run-0")
        self.assertEqual(code, 0)
        shown = self.figures(self.hearth("eval", self.run_folder / "checkpoints/step-6"))
        names = sorted(os.listdir(self.run_folder / "checkpoints/step-6"))
        for number in range(FLIPS):
            run = self.folder / "run-1"
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(self.run_folder, run)
            self.flip(run / "checkpoints/step-6" / names[number % len(names)])
            code, out, err = self.outcome("eval", run / "checkpoints/step-6")
            self.assertTrue("step-6" in err if code else self.figures(out) == shown, f"{self.about}: {code} {out}{err}")
            code, found, said = self.resumed(run)
            self.assertEqual((code, found == expected), (0, True), f"{self.about}: {said}")

    def test_tokenizers(self):
        self.hearth("train", self.words, "--run", self.run_folder)
        sample = ("sample", self.run_folder, "--prompt", "Once there", "--tokens", "20", "--seed", "1")
        self.hearth(*sample)
        for number in range(FLIPS):
            whose = (self.run_folder, self.folder / "words")[number % 2]
            put_back = self.flip(whose / "tokenizer.json")
            if number % 2:
                code, out, err = self.outcome("train", self.words, "--run", self.folder / "other")
                self.assertTrue(code and "tokenizer" in err, f"{self.about}: {code} {out}{err}")
            else:
                code, out, err = self.outcome(*sample)
                self.assertTrue(code and "tokenizer" in err, f"{self.about}: {code} {out}{err}")
            put_back()

    def test_configs(self):
        self.hearth("train", self.words, "--run", self.run_folder)
        shutil.copytree(self.run_folder, self.folder / "run-0")
        _, expected, said = self.resumed(self.folder / "run-0")
        self.assertNotIn("config.toml", said)
        for _ in range(FLIPS):
            run = self.folder / "run-1"
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(self.run_folder, run)
            self.flip(run / "config.toml")
            code, found, said = self.resumed(run)
            harmless = (code, found) == (0, expected)  # in a comment, or in the line of the checksum itself
            self.assertTrue("config.toml" in said or harmless, f"{self.about}: {code} {said}")


    def test_a_bit_that_only_makes_the_run_longer_is_said_too(self):
        self.hearth("train", self.words, "--run", self.run_folder)
        path = self.run_folder / "config.toml"
        self.assertEqual(path.read_text().count("\nsteps = 6\n"), 1)
        path.write_text(path.read_text().replace("\nsteps = 6\n", "\nsteps = 7\n"))
        said = self.hearth("train", "--resume", "--run", self.run_folder)
        self.assertIn(f"{path} is not as hearth wrote it", said)
        self.assertNotIn("as hearth wrote it", self.hearth("train", "--resume", "--run", self.run_folder))


if __name__ == "__main__":
    unittest.main()
