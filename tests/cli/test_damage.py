#!/usr/bin/env python3
"""Files that are damaged: named, never taken for good, never the end of the program without a word.

usage: test_damage.py HEARTH
"""
import os
import random
import struct

from program import Case, HEARTH, token_bytes, unittest


class DamagedTokens(Case):
    def shard(self, split="train"):
        return self.folder / "data" / split / "00000.shard"

    def test_a_token_outside_of_the_vocabulary_ends_training_with_shard_and_place(self):
        token_bytes(self.shard(), 5, 60000)
        said = self.train("--set", "data.verify=false", "--set", "train.steps=2000", code=1)
        self.assertIn("00000.shard: token 5 of the shard (at byte 138) is 60000, outside its vocabulary of 257", said)

    def keeps_what_was_learned(self, *sets):
        # The window of the damaged token comes when its turn is: with this seed not in the first step.
        tokens = (os.path.getsize(self.shard()) - 128) // 2
        for at in range(tokens // 2, tokens // 2 + 64):
            token_bytes(self.shard(), at, 60000)
        self.train("--set", "data.verify=false", "--set", "train.steps=20000", "--set", "checkpoint.every=0", *sets, code=1)
        self.assertEqual(self.checkpoints()[-1], self.lines()[-1]["step"])

    def test_what_was_learned_before_damaged_data_is_kept(self):
        self.keeps_what_was_learned()

    def test_it_is_kept_where_a_check_of_the_loss_reads_the_damaged_data_first(self):
        self.keeps_what_was_learned("--set", "train.precision=fp8", "--set", "train.loss_check_every=1")

    def test_a_token_outside_of_the_vocabulary_ends_an_evaluation(self):
        self.train()
        token_bytes(self.shard("val"), 7, 300)
        said = self.hearth("eval", self.run_folder, code=1)
        self.assertIn("token 7 of the shard (at byte 142) is 300", said)

    def test_no_flipped_bit_of_a_token_is_silent(self):
        self.train()
        size = os.path.getsize(self.shard("val"))
        draws = random.Random(5)
        for _ in range(12):
            at, bit = 128 + draws.randrange((size - 128) // 4), 1 << draws.randrange(8)
            for split, arguments in (("val", ("eval", self.run_folder)),
                                     ("train", ("train", self.config, "--run", self.folder / "other"))):
                with open(self.shard(split), "r+b") as file:
                    content = file.read()
                    file.seek(at)
                    file.write(bytes([content[at] ^ bit]))
                    file.flush()
                    self.assertIn("00000.shard: ", self.hearth(*arguments, code=1))
                    file.seek(at)
                    file.write(content[at:at + 1])

    def test_checksums_are_taken_once_and_again_after_a_change(self):
        self.train()
        seen = [p.read_text() for p in (self.folder / "data").glob("*/.verified")]
        self.assertEqual([text.count("00000.shard") for text in seen], [1, 1])
        self.train("--resume")
        self.assertEqual([p.read_text() for p in (self.folder / "data").glob("*/.verified")], seen)
        before = token_bytes(self.shard("val"), 3)
        token_bytes(self.shard("val"), 3, before ^ 1)
        self.hearth("eval", self.run_folder, code=1)
        # A line that says the shard was found whole as it is now is believed: nothing is read through twice.
        memory, info = self.folder / "data/val/.verified", os.stat(self.shard("val"))
        checksum = memory.read_text().split()[-1]
        time = f"{info.st_ctime_ns // 10**9}.{info.st_ctime_ns % 10**9:09}"
        with open(memory, "a") as file:
            file.write(f"\n00000.shard {info.st_size} {info.st_ino} {time} {checksum}\n")
        self.hearth("eval", self.run_folder)
        self.hearth("data", "inspect", "--deep", self.folder / "data", code=1)

    def test_a_dataset_that_cannot_be_written_is_checked_all_the_same(self):
        token_bytes(self.shard(), 3, token_bytes(self.shard(), 3) ^ 1)
        (self.folder / "data/train/.verified").mkdir()  # root writes to folders without permission
        self.assertIn("checksum does not match", self.train(code=1))
        token_bytes(self.shard(), 3, token_bytes(self.shard(), 3) ^ 1)
        self.train()

    def test_a_shard_cut_short_under_a_run_is_named_and_the_checkpoint_kept(self):
        child = self.start("train", self.config, "--run", self.run_folder, "--set", "train.steps=1000000", "--set",
                           "checkpoint.every=5")
        folder = self.run_folder / "checkpoints"
        self.wait_for(lambda: child.poll() is not None or folder.exists() and self.checkpoints())
        content = self.shard().read_bytes()
        os.truncate(self.shard(), 128)
        said = child.communicate(timeout=60)[1]
        self.assertEqual(child.returncode, 1, said)
        self.assertRegex(said, r"train/00000.shard was cut short .* \(byte [0-9]+ of [0-9]+\)")
        self.shard().write_bytes(content)
        step = self.checkpoints()[-1]
        self.train("--resume", "--set", f"train.steps={step + 2}")


class DamagedWeights(Case):
    def test_a_model_with_weights_that_are_not_finite_is_neither_sampled_nor_evaluated(self):
        self.train()
        exported = self.folder / "exported"
        self.hearth("export", self.run_folder, exported, "--dtype", "fp32")
        weights = exported / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-4:] = struct.pack("<f", float("nan"))
        weights.write_bytes(content)
        for command in (("sample", exported, "--tokenizer", "bytes", "--prompt", "a"),
                        ("eval", exported, "--data", self.folder / "data")):
            said = self.hearth(*command, code=1)
            self.assertRegex(said, r'model.safetensors: tensor "[a-z_.0-9]+" holds values that are not finite')


if __name__ == "__main__":
    unittest.main()
