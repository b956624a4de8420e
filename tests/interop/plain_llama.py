"""A second implementation of Llama, in plain Python and double precision, without any library: reads a directory that
`hearth export` wrote and compares its logits with hearth's. Slow; a few tokens of a demo-sized model take seconds.

    python3 plain_llama.py HF_DIR BUILD_DIR ID ID...
"""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile


class Weights:
    def __init__(self, path):
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            self.header = json.loads(file.read(length))
            self.data = file.read()

    def vector(self, name):
        entry = self.header[name]
        first, end = entry["data_offsets"]
        raw = self.data[first:end]
        if entry["dtype"] == "F32":
            return list(struct.unpack(f"<{len(raw) // 4}f", raw))
        assert entry["dtype"] == "BF16", entry["dtype"]
        words = struct.unpack(f"<{len(raw) // 2}H", raw)
        return [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words]

    def matrix(self, name):
        flat, columns = self.vector(name), self.header[name]["shape"][1]
        return [flat[at:at + columns] for at in range(0, len(flat), columns)]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def linear(matrix, vector):
    return [dot(row, vector) for row in matrix]


def norm(vector, weight, eps):
    scale = 1 / math.sqrt(dot(vector, vector) / len(vector) + eps)
    return [x * scale * w for x, w in zip(vector, weight)]


def rotate(vector, position, head_dim, theta):
    out, half = [], head_dim // 2
    for at in range(0, len(vector), head_dim):
        angles = [position * theta ** (-2 * i / head_dim) for i in range(half)]
        first, second = vector[at:at + half], vector[at + half:at + head_dim]
        out += [x * math.cos(a) - y * math.sin(a) for x, y, a in zip(first, second, angles)]
        out += [y * math.cos(a) + x * math.sin(a) for x, y, a in zip(first, second, angles)]
    return out


def attend(queries, keys, values, t, heads, kv_heads, head_dim):
    out = []
    for head in range(heads):
        kv = slice(head // (heads // kv_heads) * head_dim, (head // (heads // kv_heads) + 1) * head_dim)
        query = queries[t][head * head_dim:(head + 1) * head_dim]
        scores = [dot(query, keys[j][kv]) / math.sqrt(head_dim) for j in range(t + 1)]
        shares = [math.exp(s - max(scores)) for s in scores]
        out += [sum(p * values[j][kv][i] for j, p in enumerate(shares)) / sum(shares) for i in range(head_dim)]
    return out


def logits(directory, ids):
    with open(os.path.join(directory, "config.json")) as file:
        config = json.load(file)
    assert config["model_type"] == "llama", "only Llama is written out here"
    rope = config.get("rope_parameters") or {"rope_type": "default", "rope_theta": config["rope_theta"]}
    assert rope.get("rope_type", "default") == "default", "only plain rotary embedding is written out here"
    heads, kv_heads, head_dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    eps, weights = config["rms_norm_eps"], Weights(os.path.join(directory, "model.safetensors"))
    embedding = weights.matrix("model.embed_tokens.weight")
    stream = [list(embedding[i]) for i in ids]
    for layer in range(config["num_hidden_layers"]):
        def name(part):
            return f"model.layers.{layer}.{part}.weight"
        q, k, v, o = (weights.matrix(name(f"self_attn.{p}_proj")) for p in "qkvo")
        gate, up, down = (weights.matrix(name(f"mlp.{p}_proj")) for p in ("gate", "up", "down"))
        attention_norm, mlp_norm = (weights.vector(name(p)) for p in ("input_layernorm", "post_attention_layernorm"))
        normed = [norm(x, attention_norm, eps) for x in stream]
        queries = [rotate(linear(q, x), t, head_dim, rope["rope_theta"]) for t, x in enumerate(normed)]
        keys = [rotate(linear(k, x), t, head_dim, rope["rope_theta"]) for t, x in enumerate(normed)]
        values = [linear(v, x) for x in normed]
        for t in range(len(ids)):
            branch = linear(o, attend(queries, keys, values, t, heads, kv_heads, head_dim))
            stream[t] = [x + y for x, y in zip(stream[t], branch)]
        for t in range(len(ids)):
            x = norm(stream[t], mlp_norm, eps)
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(linear(gate, x), linear(up, x))]
            stream[t] = [a + b for a, b in zip(stream[t], linear(down, inner))]
    final = weights.vector("model.norm.weight")
    head = embedding if config["tie_word_embeddings"] else weights.matrix("lm_head.weight")
    return [value for x in stream for value in linear(head, norm(x, final, eps))]


def main():
    directory, build, ids = sys.argv[1], sys.argv[2], [int(i) for i in sys.argv[3:]]
    expected = logits(directory, ids)
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "logits")
        subprocess.run([os.path.join(build, "tests", "dump_logits"), directory, out] + sys.argv[3:], check=True)
        with open(out, "rb") as file:
            actual = struct.unpack(f"<{len(expected)}f", file.read())
    difference = max(abs(a - b) for a, b in zip(expected, actual))
    largest = max(abs(a) for a in expected)
    print(f"{len(ids)} tokens, largest logit {largest:.4f}, largest difference {difference:.3e}")
    if difference > 1e-4 * largest:
        sys.exit("FAILED: the logits differ")


if __name__ == "__main__":
    main()
