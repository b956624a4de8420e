"""Loads a directory that `hearth export --dtype fp32` wrote in Hugging Face transformers (needs torch and transformers) and
compares logits and tokens with hearth's own.

    python3 compare_export.py HF_DIR BUILD_DIR [TEXT]

Prints the largest absolute difference of the logits and fails beyond 1e-4 of their largest value: fp32 sums of a few
hundred terms in another order.
"""
import os
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = ("Once upon a time, there was a brave girl named Mia. She had a red kite. One windy day, Mia went to the hill "
        "with her kite. Suddenly she saw that her kite was gone!")


def main():
    directory, build = sys.argv[1], sys.argv[2]
    text = sys.argv[3] if len(sys.argv) > 3 else TEXT
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text, "the tokenizer does not give the text back"

    print(f"{type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters, {len(ids)} tokens")

    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "logits")
        subprocess.run([os.path.join(build, "tests", "dump_logits"), directory, out] + [str(i) for i in ids], check=True)
        with open(out, "rb") as file:
            actual = torch.frombuffer(bytearray(file.read()), dtype=torch.float32).view(len(ids), -1)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    difference = (actual - expected).abs().max().item()
    largest = expected.abs().max().item()
    same = (actual.argmax(-1) == expected.argmax(-1)).float().mean().item()
    print(f"largest logit {largest:.4f}, largest difference {difference:.3e}, same most likely token {100 * same:.1f} %")
    if difference > 1e-4 * largest or same < 1:
        sys.exit("FAILED: the logits differ")
    generated = model.generate(torch.tensor([ids[:8]]), max_new_tokens=60, do_sample=False)
    print(tokenizer.decode(generated[0]))
    print("OK")


if __name__ == "__main__":
    main()
