#!/usr/bin/env python3
"""What runs of hearth must show, from the files that they leave. The last line printed is the finding; exit code 1 when it is
not as it must be.

  runs.py near REFERENCE RUN STEPS LOSS_BOUND NORM_BOUND   the largest relative differences of loss and gradient norm
  runs.py scale RUN STEPS DOUBLED                          fp16: the loss scale after overflows; doubled after so many steps
  runs.py profile RUN                                      the parts of a profile, and the cost of watching
  runs.py quality FOLDER STEPS                             validation losses of the runs PRECISION-SEED in a folder
"""

import json
import math
import os
import re
import statistics
import sys


def fail(text):
    print(text)
    sys.exit(1)


def read_lines(run):
    with open(os.path.join(run, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def read_steps(run):
    return {line["step"]: line for line in read_lines(run) if "loss" in line}


def number(value):
    """metrics.jsonl has null for what is not finite."""
    return math.nan if value is None else value


def relative(found, wanted):
    found, wanted = number(found), number(wanted)
    return abs(found - wanted) / abs(wanted) if wanted else abs(found)


def worse(a, b):
    """The larger; what is no number is worse than any."""
    return a if math.isnan(a) or a >= b else b


def near(reference, run, steps, loss_bound, norm_bound):
    wanted, found, steps = read_steps(reference), read_steps(run), int(steps)
    if sorted(found) != list(range(1, steps + 1)) or sorted(wanted) != sorted(found):
        fail(f"{len(found)} steps against {len(wanted)}, and {steps} were asked for")
    loss = norm = 0.0
    for step in sorted(found):
        a, b = found[step], wanted[step]
        print(f"step {step}: loss {number(a['loss']):.9g} and {number(b['loss']):.9g}, "
              f"norm {number(a['grad_norm']):.9g} and {number(b['grad_norm']):.9g}")
        for key in ("loss", "loss_aux"):
            loss = worse(relative(a[key], b[key]), loss)
        norm = worse(relative(a["grad_norm"], b["grad_norm"]), norm)
    print(f"loss {loss:.1e} of {float(loss_bound):.1e}, norm {norm:.1e} of {float(norm_bound):.1e} over {steps} steps")
    if not (loss <= float(loss_bound) and norm <= float(norm_bound)):
        fail("the curves are further apart than that")


def scale(run, steps, doubled):
    lines, doubled = read_steps(run), int(doubled)
    if sorted(lines) != list(range(1, int(steps) + 1)):
        fail(f"the run has {len(lines)} steps, not {steps}")
    good, skipped = 0, 0
    for step in range(1, int(steps)):
        line, after = lines[step], lines[step + 1]["loss_scale"]
        skipped += line["skipped"]
        good = 0 if line["skipped"] else good + 1
        wanted = line["loss_scale"] * (0.5 if line["skipped"] else 2 if good == doubled else 1)
        if not math.isclose(after, wanted, rel_tol=1e-6):  # metrics.jsonl has nine digits
            fail(f"after step {step} (skipped: {line['skipped']}) the scale is {after:g}, not {wanted:g}")
        if good == doubled:
            good = 0
    trained = [line for line in lines.values() if not line["skipped"]]
    if not skipped or not trained or trained[-1]["loss"] >= trained[0]["loss"]:
        fail(f"{skipped} steps overflowed and {len(trained)} did not, with losses that fall from the first to the last of these")
    print(f"{skipped} of {steps} steps overflowed, the scale went from {lines[1]['loss_scale']:g} to {lines[int(steps)]['loss_scale']:g}, "
          f"the loss from {trained[0]['loss']:.3f} to {trained[-1]['loss']:.3f}")


def profile(run, wants_gpu):
    with open(os.path.join(run, "profile", "summary.json")) as file:
        summary = json.load(file)
    step, parts = summary["step_seconds"], summary["parts"]
    total, named = sum(parts.values()) / step, 1 - parts["gaps"] / step
    for name, seconds in parts.items():
        print(f"{name:16} {1e3 * seconds:9.3f} ms {100 * seconds / step:6.2f} %")
    print(summary["sentence"])
    if abs(total - 1) > 0.02:
        fail(f"the parts are {100 * total:.1f} % of the step, and may be off by 2 %")
    if named < 0.95:
        fail(f"{100 * named:.1f} % of the step are in named parts, and 95 % must be")
    steps = read_steps(run)
    if wants_gpu == "gpu":
        missing = [key for key in ("gpu_clock", "gpu_power", "gpu_temperature") if not any(key in line for line in steps.values())]
        if missing:
            fail(f"metrics.jsonl has no {', '.join(missing)}: is NVML there?")
        if not summary["graph_recorded"]:
            fail(f"the steps ran without a graph: {summary.get('why_no_graph')}")
    with open(os.path.join(run, "said.log")) as file:
        watching = re.search(r"watching: ([0-9.]+) s of CPU time in the thread of the steps, ([0-9.]+) s in its own", file.read())
    if not watching:
        fail("HEARTH_LOG=debug does not say what watching took")
    seconds = sum(line["seconds"] for line in steps.values())
    cost = [100 * float(value) / seconds for value in watching.groups()]
    if cost[0] > 1:
        fail(f"watching took {cost[0]:.2f} % of the steps' time in their own thread")
    print(f"{1e3 * step:.1f} ms a step, {100 * named:.1f} % of it in named parts, which sum to {100 * total:.2f} %; watching {cost[0]:.3f} % of the "
          f"steps' thread and {cost[1]:.3f} % in its own. {summary['sentence']}")


def quality(folder, steps):
    """Of every seed that bf16 has finished: what the others are off by at the end and at their lowest evaluations (a text that is
    read many times is learnt by heart in the end), and how long they took to bf16's lowest loss."""
    losses, curves = {}, {}
    for name in sorted(os.listdir(folder)):
        matched = re.fullmatch(r"([a-z0-9]+)-(\d+)", name)
        if not matched or not os.path.exists(os.path.join(folder, name, "metrics.jsonl")):
            continue
        lines = read_lines(os.path.join(folder, name))
        ends = [line["val_loss"] for line in lines if line.get("eval") == "full" and line["step"] == int(steps)]
        if not ends:
            continue
        times = {line["step"]: line["seconds"] for line in lines if "loss" in line}
        trained = 0.0
        curve = []
        for line in lines:
            if "loss" in line:
                trained += times[line["step"]]
            elif line.get("eval") == "subset":
                curve.append((trained, line["val_loss"]))
        losses[matched[1], matched[2]], curves[matched[1], matched[2]] = ends[-1], (curve, trained)
    if not losses:
        print("no run has ended yet")
        sys.exit(77)
    found = []
    for precision in sorted({key[0] for key in losses}):
        seeds = sorted(seed for name, seed in losses if name == precision)
        print(f"{precision}: " + ", ".join(f"seed {seed} {losses[precision, seed]:.4f} in {curves[precision, seed][1]:.0f} s" for seed in seeds))
        both = [seed for seed in seeds if ("bf16", seed) in losses and precision != "bf16"]
        if not both:
            continue
        gaps = [percent(losses[precision, seed], losses["bf16", seed]) for seed in both]
        lowest = [percent(lowest_point(curves[precision, seed])[1], lowest_point(curves["bf16", seed])[1]) for seed in both]
        found.append(f"{precision} {mean_and_spread(gaps)} % of bf16's loss over {len(gaps)} order{'s' * (len(gaps) > 1)}, "
                     f"{mean_and_spread(lowest)} % where each is lowest{sooner(curves, precision, both)}")
    print("; ".join(found) or "bf16 alone has ended")


def percent(value, reference):
    return 100 * (value / reference - 1)


def mean_and_spread(values):
    return f"{statistics.mean(values):+.3f}" + (f" +- {statistics.stdev(values):.3f}" if len(values) > 1 else "")


def lowest_point(curve_and_time):
    """Time and loss of the lowest evaluation."""
    return min(curve_and_time[0], key=lambda point: point[1])


def time_to(curve, target):
    """When a curve of evaluations first is as low as that: on the line between two of them. None: never."""
    before = None
    for seconds, loss in curve:
        if loss <= target:
            if before is None or loss == target:
                return seconds
            return before[0] + (seconds - before[0]) * (before[1] - target) / (before[1] - loss)
        before = seconds, loss
    return None


def sooner(curves, precision, seeds):
    """The time until bf16's lowest loss, as a share of bf16's."""
    shares = []
    for seed in seeds:
        seconds, target = lowest_point(curves["bf16", seed])
        reached = time_to(curves[precision, seed][0], target)
        shares += [reached / seconds] if reached is not None and seconds else []
    times = f" in {statistics.mean(shares):.2f} of its time" if shares else ""
    return f", bf16's lowest loss reached by {len(shares)} of {len(seeds)}{times}"


if __name__ == "__main__":
    {"near": near, "scale": scale, "profile": profile, "quality": quality}[sys.argv[1]](*sys.argv[2:])
