"""Commands on several ranks: preflight on a mesh, the figures of bench step, operations between ranks beside the backward
pass, logs of single ranks."""

import json
import os
import re

from jobs import Failure, Mesh, main
from models import FIXTURES, MODELS, SEQ, config_text

LAYERS = 4  # of demo-llama


def require(condition, what):
    if not condition:
        raise Failure(what)


def run(bench, name, arguments, ranks, sets=None, code=0):
    job = bench.start(arguments, ranks, sets, log=name + ".log")
    ended, text = bench.wait(job), bench.log(name + ".log")
    require(ended == code, f"{arguments} ended with {ended}:\n{text}")
    return text


def preflight_works_on(bench, mesh):
    config = bench.config("preflight", config_text(MODELS["dense"], bench.data("data", 60), 5))
    sets = {**mesh.sets(), "train.micro_batch": 2, "train.grad_accum": 2}
    saved = bench.path(f"best-{mesh.size}-{mesh.zero}.toml")
    text = run(bench, "preflight", ["preflight", config, "--tokens", "2k", "--write", saved], mesh.size, sets)
    require(f"seq {SEQ}, {4 * mesh.dp} sequences a step" in text, f"the batch is not that of all ranks:\n{text}")
    tried = re.findall(r"^ +(\d+) +(\d+) +[\d.]+ MiB +[\d.]+ % +(\d+)$", text, re.M)
    require([int(a) * int(b) for a, b, _ in tried] == [4, 4, 4], f"not three tries of one batch:\n{text}")
    memory = re.search(r"memory +([\d.e+-]+) +([\d.e+-]+) GiB", text)
    require(memory and memory[1] == memory[2], f"memory is not as planned:\n{text}")
    with open(saved) as file:
        require(f"tensor = {mesh.tp}\n" in file.read(), "the written config has another mesh")
    return ", ".join(f"micro_batch {a}: {c} tok/s" for a, b, c in tried)


def bench_step(bench, mesh, *more, model="demo-llama"):
    words = ["bench", "step", "--model", model, "--seq", "64", "--micro-batch", "2", "--accum", "2", "--steps", "2"]
    words += ["--device", "cpu", "--precision", "fp32", "--tp", str(mesh.tp), "--zero", str(mesh.zero), *more]
    return json.loads(run(bench, "bench", words, mesh.size).splitlines()[-1])


def mfu_is_of_all_ranks(bench, mesh):
    peak = 2.0
    line = bench_step(bench, mesh, "--peak-tflops", str(peak), model=os.path.join(FIXTURES, "qwen3-moe-step"))
    # Of six digits in each figure: 1e-5 of their quotients.
    tokens = 2 * 2 * 64 * mesh.dp
    require(abs(line["tok_s"] * line["step_ms"] / 1e3 / tokens - 1) < 1e-5, f"{tokens} tokens in a step: {line}")
    require(abs(line["tflops"] / (peak * mesh.size) / line["mfu"] - 1) < 1e-5, f"{mesh.size} ranks: {line}")
    require(line["mfu_6n"] < line["mfu_causal"] < line["mfu"], f"{line}")
    return f"mfu {line['mfu']:.3g} of {mesh.size} x {peak:.0f} TFLOP/s"


def sums_travel_behind_the_backward_pass(bench, mesh):
    path = bench.path("events.json")
    line = bench_step(bench, mesh, "--events", path)
    with open(path) as file:
        events = json.load(file)
    done = {mark["layer"]: mark["ms"] for mark in events["marks"] if "layer" in mark}
    end = next(mark["ms"] for mark in events["marks"] if mark["what"] == "the backward pass ends")
    require(sorted(done) == list(range(LAYERS)), f"not a mark of every layer: {events['marks']}")
    sums = [event for event in events["events"] if event["started_ms"] > done[LAYERS - 1] and event["bytes"] > 1000]
    # A layer's sum is handed over when its backward pass is done, before that of the next layer is.
    for layer, event in zip(range(LAYERS - 1, 0, -1), sums):
        require(event["op"] == ("reduce_scatter" if mesh.zero else "all_reduce"), f"{event}")
        require(done[layer] <= event["started_ms"] <= done[layer - 1], f"layer {layer}: {event} and {done}")
        require(event["started_ms"] <= event["begun_ms"] <= event["ended_ms"], f"{event}")
    require(sums[0]["begun_ms"] < end, f"the first sum waits for the end of the backward pass: {sums[0]}, {end}")
    figures = line["comm"]
    require(0 <= figures["exposed_share"] < 1 and 0 < figures["behind_backward_ms"] <= figures["running_ms"], f"{figures}")
    return f"{figures['behind_backward_ms']:.1f} of {figures['running_ms']:.1f} ms behind the backward pass"


def bf16_halves_what_travels(bench, mesh):
    sent = []
    for dtype in ("float32", "bfloat16"):
        path = bench.path(f"events-{dtype}.json")
        bench_step(bench, mesh, "--reduce-dtype", dtype, "--events", path)
        with open(path) as file:
            events = [event for event in json.load(file)["events"] if "reduce" in event["op"]]  # weights stay as they are
            sent.append([event["bytes"] for event in events if event["bytes"] > 1000])
    require(sent[0] and sent[0] == [2 * count for count in sent[1]], f"{sent}")
    return f"{sum(sent[0])} and {sum(sent[1])} bytes"


def ranks_write_logs_on_demand(bench, mesh):
    config = bench.config("logs", config_text(MODELS["dense"], bench.data("data", 60), 4))
    sets = {**mesh.sets(), "watch.log_ranks": True}
    run(bench, "logs", ["train", config, "--run", bench.path("logged")], mesh.size, sets)
    names = sorted(os.listdir(bench.path("logged", "logs")))
    require(names == [f"rank-{rank}.log" for rank in range(1, mesh.size)], f"{names}")
    with open(bench.path("logged", "logs", "rank-1.log")) as file:
        lines = file.read().splitlines()
    require("rank 1 of " in lines[0] and "ended after step 4" in lines[-1], f"{lines}")
    require([line.split("step ")[1][0] for line in lines[1:-1]] == list("1234"), f"{lines}")
    run(bench, "silent", ["train", config, "--run", bench.path("silent")], mesh.size, mesh.sets())
    require(not os.path.exists(bench.path("silent", "logs")), "logs that nobody asked for")


def a_failing_rank_says_so_in_both_places(bench, mesh):
    config = bench.config("failing", config_text(MODELS["dense"], bench.data("data", 60), 8))
    sets = {**mesh.sets(), "watch.log_ranks": True, "optimizer.lr": 100, "optimizer.clip": 0, "train.spike_factor": 1.01}
    sets.update({"train.max_skips": 1, "train.spike_window": 4, "schedule.warmup_steps": 0, "train.steps": 60})
    text = run(bench, "failing", ["train", config, "--run", bench.path("failed")], mesh.size, sets, code=1)
    require("steps in a row were skipped" in text, text)
    with open(bench.path("failed", "logs", "rank-1.log")) as file:
        log = file.read()
    require("failed: " in log and "steps in a row were skipped" in log, log)


def tests(bench, quick):
    found = [
        ("preflight works on dp 2 x tp 2 with ZeRO 3", preflight_works_on, bench, Mesh(2, 2, 3)),
        ("the MFU of a step is of all ranks: dp 2", mfu_is_of_all_ranks, bench, Mesh(2)),
        ("the MFU of a step is of all ranks: tp 2", mfu_is_of_all_ranks, bench, Mesh(1, 2)),
        ("sums travel behind the backward pass", sums_travel_behind_the_backward_pass, bench, Mesh(2)),
        ("bf16 halves what travels", bf16_halves_what_travels, bench, Mesh(2)),
        ("ranks write logs on demand", ranks_write_logs_on_demand, bench, Mesh(3)),
        ("a failing rank says so in both places", a_failing_rank_says_so_in_both_places, bench, Mesh(2)),
    ]
    if not quick:
        found += [
            ("preflight works on dp 2", preflight_works_on, bench, Mesh(2)),
            ("preflight works on tp 4", preflight_works_on, bench, Mesh(1, 4)),
            ("bf16 halves what travels under ZeRO 2", bf16_halves_what_travels, bench, Mesh(2, 1, 2)),
            ("ZeRO 2's sums travel behind the backward pass", sums_travel_behind_the_backward_pass, bench, Mesh(2, 1, 2)),
        ]
    return found


if __name__ == "__main__":
    main(__doc__, tests)
