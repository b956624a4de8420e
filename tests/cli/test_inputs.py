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

    def test_a_split_that_leaves_nothing_to_train_on_is_refused(self):
        (self.folder / "one.txt").write_text("".join(f"a few words {i}\n" for i in range(40)))
        self.assertIn("nothing to train on", self.prepare("one.txt", "--train-tokens", "0", code=2))
        said = self.prepare("one.txt", "--val-tokens", "1M", code=2)
        self.assertIn("nothing is left to train on", said)
        self.assertFalse((self.folder / "out/dataset.json").exists())
        self.prepare("one.txt", "--lines", "--val-tokens", "20")  # nothing of the refused one is in the way

    def test_numbers_that_are_none_do_not_spoil_a_line(self):
        # As Python's json writes them.
        (self.folder / "odd.jsonl").write_text('{"text": "one", "score": NaN}\n{"text": NaN, "score": 9}\n'
                                               '{"a": [Infinity, -Infinity, {"b": NaN}], "text": "two", "score": Infinity}\n'
                                               '{"text": "three", "score": -Infinity}\n')
        self.assertEqual(self.hearth("data", "cat", "odd.jsonl", stderr=subprocess.DEVNULL).replace("\0", " ").split(),
                         ["one", "two", "three"])
        self.prepare("odd.jsonl", "--min-score", "score:3")
        self.assertEqual(self.documents(), 1)
        for bad in ("Nan", "NaNs", "-NaN", "Inf", "-Infinit"):
            (self.folder / "bad.jsonl").write_text('{"text": "one", "x": %s}\n' % bad)
            self.hearth("data", "cat", "bad.jsonl", code=2)

    def test_a_command_that_fails_leaves_no_folders(self):
        self.train()
        taken = self.folder / "taken"
        taken.write_text("")
        for command in (("data", "synth", "new/deep", "--tokenizer", "/nowhere.json"),
                        ("data", "synth", "new/deep", "--vocab", "3"),
                        ("data", "prepare", "/dev/null", "--tokenizer", "bytes", "--output", "new/deep"),
                        ("export", self.run_folder, "new/deep", "--checkpoint", "99")):
            self.assertIn("error", self.hearth(*command, code=2))
            self.assertFalse((self.folder / "new").exists(), command)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        (self.folder / "words.txt").write_text("one word and another word\n" * 9)
        for command in (("export", self.run_folder, "new/deep"), ("data", "synth", "new/deep", "--tokenizer", "bytes"),
                        ("data", "train-tokenizer", "--input", "words.txt", "--vocab-size", "280", "--output", "new/deep")):
            self.hearth(*command, code=1, preexec_fn=limit)
            self.assertFalse((self.folder / "new").exists(), command)


class Requests(Case):
    def test_a_run_is_not_exported_into_itself(self):
        self.train()
        before = sorted(self.run_folder.rglob("*"))
        self.assertIn("is not empty", self.hearth("export", self.run_folder, self.run_folder, code=2))
        self.assertIn("is not empty", self.hearth("export", self.run_folder, self.run_folder / "checkpoints", code=2))
        self.assertEqual(sorted(self.run_folder.rglob("*")), before)

    def test_two_names_of_one_thing_are_refused(self):
        said = self.train("--set", "model.hidden=64", "--set", "model.dim=32", code=2)
        self.assertIn("model.hidden is given twice, by two of its names", said)
        said = self.hearth("data", "cat", "--column", "a", "--field", "b", "x.jsonl", code=2)
        self.assertIn("--column and --field are two names of one option", said)
        self.hearth("config", self.config, "--set", "model.hidden=64", "--set", "model.hidden=32")

    def test_what_contradicts_itself_is_refused(self):
        cases = ((("--set", "model.top_k=2"), "model.top_k = 2, and the model has no sparse layers"),
                 (("--set", "model.expert_ffn=32"), "model.expert_ffn = 32, and the model has no sparse layers"),
                 (("--set", "train.name=.."), 'train.name = ".." is no name'),
                 (("--set", "train.steps=99999999999999999999"), "must be at most"),
                 (("--set", "optimizer.lr=1e999"), "must be at most"))
        for sets, words in cases:
            self.assertIn(words, self.hearth("train", self.config, *sets, code=2))
        said = self.hearth("plan", "demo-moe", "--set", "model.arch=llama", "--gpu", "h200-sxm", code=2)
        self.assertIn('model.arch = "llama", and demo-moe is of the architecture qwen3_moe', said)

    def test_numbers_that_make_no_sense_are_refused_by_their_own_name(self):
        for command, option in ((("data", "inspect", "data", "--samples", "-1"), "--samples"),
                                (("data", "inspect", "data", "--seq", "0"), "--seq"),
                                (("sample", "run", "--count", "0"), "--count"),
                                (("sample", "run", "--top-k", "-1"), "--top-k"),
                                (("eval", "run", "--windows", "-1"), "--windows"),
                                (("eval", "run", "--seq", "1"), "--seq"),
                                (("data", "synth", "d", "--seed", "-1"), "--seed"),
                                (("data", "synth", "d", "--val-stories", "-2"), "--val-stories"),
                                (("data", "synth", "--print", "-1"), "--print")):
            said = self.hearth(*command, code=2)
            self.assertRegex(said, f"error: {option} must be between")
        said = self.hearth("--version", env={"HEARTH_THREADS": "abc"}, code=2)
        self.assertIn('HEARTH_THREADS is "abc"', said)
        self.hearth("--version", env={"HEARTH_THREADS": ""})

    def test_an_option_is_not_taken_for_the_value_of_another(self):
        said = self.hearth("train", self.config, "--run", "--set", "train.steps=3", code=2)
        self.assertIn("--run needs a value (DIR), and --set is another option", said)
        said = self.hearth("train", self.config, "--run", "--set=train.steps=3", code=2)
        self.assertIn("is another option", said)

    def test_errors_list_what_there_is(self):
        self.train("--set", "checkpoint.every=3")
        for command, words in ((("sample", self.run_folder, "--checkpoint", "5"), "there are those of steps 3, 6"),
                               (("eval", self.run_folder, "--data", "data", "--split", "dev"), "it has: train, val"),
                               (("config", "--help", "nonsense"), "there are model, data, train"),
                               (("config", self.config, "--set", "nonsense.a=1"), "the sections are model, data, train"),
                               (("config", self.config, "--set", "eval.nonsense=1"), "[eval] has every, windows"),
                               (("zzzzzz",), "the commands are bench, plan, calc"),
                               (("train", self.config, "--resume", "--set", f"train.runs={self.folder}"), "there is: data"),
                               (("plan", "demo-llama", "--gpu", "nonsense"), "cpu"),
                               (("plan", "nonsense"), "demo-llama")):
            self.assertIn(words, self.hearth(*command, code=2))

    def test_a_configuration_without_an_end_is_not_read_to_it(self):
        self.assertIn("/dev/zero is larger than 16 MiB", self.hearth("config", "/dev/zero", code=2, timeout=30))

    def test_control_characters_of_names_do_not_reach_the_terminal(self):
        said = self.hearth("config", "no\x1b[31mfile.toml", code=2)
        self.assertIn("no?[31mfile.toml", said)


class Leftovers(Case):
    def test_a_run_killed_before_its_first_checkpoint_has_its_first_validation_once(self):
        sets = ("--set", "eval.at_start=true", "--set", "train.steps=1000000", "--set", "checkpoint.every=0")
        child = self.start("train", self.config, "--run", self.run_folder, *sets)
        metrics = self.run_folder / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.stat().st_size > 20)
        child.kill()
        child.communicate()
        for line in metrics.read_text().splitlines(keepends=True)[:1]:
            metrics.write_text(line)  # as if the kill had come before the first step
        self.train("--resume", *sets[:2], "--set", "train.steps=6")
        self.assertEqual([line["step"] for line in self.lines() if "eval" in line], [0])

    def test_what_a_start_that_was_killed_left_is_removed_by_the_next(self):
        gone = subprocess.Popen(["true"])
        gone.wait()
        host, runs = os.uname().nodename, self.folder / "runs"
        dead, alive, other = (runs / f"x.creating-{name}" for name in
                              (f"{host}-{gone.pid}", f"{host}-{os.getpid()}", f"elsewhere-{gone.pid}"))
        for folder in (dead, alive, other):
            folder.mkdir(parents=True)
            (folder / "config.toml").write_text("")
        self.hearth("train", self.config, "--run", runs / "new")
        self.assertEqual([p.exists() for p in (dead, alive, other)], [False, True, True])
        dead.mkdir()  # and by one that goes on with a run
        self.hearth("train", "--resume", "--run", runs / "new", "--set", "train.steps=9")
        self.assertFalse(dead.exists())


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

    def libraries(self):
        """MiB that the loader needs at least: much more where there is CUDA."""
        mebibytes = 60
        while self.ends(mebibytes, "--version") == 127:
            mebibytes += 40 + mebibytes // 8
        return mebibytes

    def test_a_command_that_computes_no_product_needs_no_memory_for_one(self):
        least = self.libraries()
        for mebibytes in range(least, least + 240, 40):
            self.assertEqual(self.ends(mebibytes, "--version"), 0)

    def test_preparing_data_ends_whatever_the_memory_and_leaves_no_half_dataset(self):
        with open(self.folder / "texts.jsonl", "w") as file:
            for i in range(20000):
                file.write(json.dumps({"text": f"document {i} " + f"w{i} " * 40}) + "\n")
        codes, least = set(), self.libraries()
        for mebibytes in range(least, least + 360, 40):
            codes.add(self.ends(mebibytes, "data", "prepare", "texts.jsonl", "--tokenizer", "bytes", "--output", "out"))
            made = (self.folder / "out/dataset.json").exists()
            if made:
                self.hearth("data", "inspect", "--deep", "out")
        self.assertLessEqual({0, 1}, codes)

    def test_training_ends_whatever_the_memory(self):
        codes, least = set(), self.libraries()
        for mebibytes in range(least, least + 480, 80):
            shutil.rmtree(self.run_folder, ignore_errors=True)
            codes.add(self.ends(mebibytes, "train", self.config, "--run", self.run_folder))
        self.assertLessEqual({0, 1}, codes)


if __name__ == "__main__":
    unittest.main()
