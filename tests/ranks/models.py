"""The models that the tests of ranks train: small ones of every kind, and the Hugging Face fixtures."""

import json
import os

SEQ = 32
FIXTURES = os.path.join(os.path.dirname(__file__), "..", "fixtures", "models")

# KV heads are fewer than four tensor-parallel ranks; 263 rows of a vocabulary cut unevenly.
DENSE = {"arch": "llama", "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 64, "tie_embeddings": True}
MODELS = {
    "dense": DENSE,
    "untied": {**DENSE, "tie_embeddings": False, "vocab": 263, "layers": 3, "ffn": 72},
    "qk-norm": {**DENSE, "arch": "qwen3", "head_dim": 12},
    "moe": {
        **DENSE,
        "arch": "qwen3_moe",
        "head_dim": 8,
        "experts": 6,
        "top_k": 2,
        "expert_ffn": 20,
        "z_coef": 0.001,
        "aux_coef": 0.02,
        "router_bias_rate": 0.001,
    },
}
# More layers than stages, and not as many in each.
DEEP = {name: {**model, "layers": 7} for name, model in MODELS.items()}
DEEP["moe together"] = {**DEEP["moe"], "balance": "together"}
# Enough experts for four ranks, and more than a micro-batch has tokens for: some get none.
MODELS["many-experts"] = {**MODELS["moe"], "experts": 48, "expert_ffn": 8, "aux_coef": 0.001, "router_bias_rate": 0}
FIXTURE_NAMES = sorted(os.listdir(FIXTURES))


def fixture_sizes(name):
    with open(os.path.join(FIXTURES, name, "config.json")) as file:
        return json.load(file)


def value(item):
    return f'"{item}"' if isinstance(item, str) else str(item).lower()


def config_text(model, data, steps, more=""):
    """model: keys of [model]."""
    keys = "\n".join(f"{key} = {value(item)}" for key, item in model.items())
    return f"""[model]
{keys}
init_std = 0.06
[data]
train = ["{data}"]
[train]
seq = {SEQ}
micro_batch = 1
steps = {steps}
precision = "fp32"
device = "cpu"
[optimizer]
lr = 2e-3
clip = 0.5
[schedule]
warmup_steps = 3
[eval]
every = 0
windows = 6
at_end = false
[checkpoint]
every = 0
[watch]
terminal = "off"
print_every = 1
{more}
"""


def small_tokenizer(path):
    """Letters and little else, for fixtures with few rows. What it lacks is <unk>."""
    letters = "\u0120\u010a.," + "".join(map(chr, range(ord("a"), ord("z") + 1)))
    tokens = ["<unk>", "<|endoftext|>", *letters]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    with open(path, "w") as file:
        json.dump(
            {
                "version": "1.0",
                "added_tokens": [{"id": i, "content": tokens[i], **special} for i in range(2)],
                "normalizer": None,
                "pre_tokenizer": byte_level,
                "post_processor": None,
                "decoder": byte_level,
                "model": {
                    "type": "BPE",
                    "unk_token": "<unk>",
                    "fuse_unk": False,
                    "vocab": {token: i for i, token in enumerate(tokens)},
                    "merges": [],
                },
            },
            file,
        )
    return path
