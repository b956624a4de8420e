"""DiLoCo against data parallelism on two hosts with a slow link between them: tokens/s by the link's rate, and the validation
loss over tokens and over time. usage: diloco_against_dp.py HEARTH|draw RESULT.json [SVG]; runs that RESULT.json has are not made
again. The model is that of configs/demo.toml."""

import json
import math
import os
import subprocess
import sys

from hosts import Cluster, enter_own_namespaces
from jobs import ROOT, Mesh

RATE = 20  # Mbit/s of the long runs
RATES = (20, 100, 500)  # of the short ones
STEPS, SHORT = 126, 14
EVAL = 21  # also a multiple of the rounds below, so that islands have just met
MEAN = {"diloco.outer_lr": 1, "diloco.outer_momentum": 0}  # the mean of the islands' weights
WAYS = {"dp 2": (0, {}), "islands, every 7": (7, {}), "islands, every 21": (21, {}), "every 7, plain mean": (7, MEAN)}


class Patient(Cluster):
    def wait(self, job, seconds=7200):
        return super().wait(job, seconds)


class Way(Mesh):
    def __init__(self, every):
        super().__init__(1 if every else 2)
        self.every, self.size = every, 2

    def sets(self):
        return {**super().sets(), **({"diloco.islands": 2, "diloco.every": self.every} if self.every else {})}


def train(cluster, name, way, steps, rate, more):
    every, outer = WAYS[way]
    cluster.limit_link(f"{rate}mbit")
    cluster.environment["HEARTH_WATCH_SECONDS"] = "600"
    sets = {"train.steps": steps, "train.tokens": 0, "train.hours": 0, "eval.at_end": False, "eval.windows": 128, "schedule.warmup_steps": min(20, steps // 2),
            "checkpoint.every": 0, "checkpoint.at_end": False, "watch.terminal": '"off"', "data.train": f'["{cluster.path("data")}"]', **outer, **more}  # fmt: skip
    before = sum(host.sent_bytes() for host in cluster.hosts)
    run = cluster.train(os.path.join(ROOT, "configs", "demo.toml"), Way(every), name, sets)
    return run, sum(host.sent_bytes() for host in cluster.hosts) - before


def long_run(cluster, way, rate):
    run, sent = train(cluster, "long", way, STEPS, rate, {"eval.every": EVAL, "eval.at_start": True})
    points, seconds = [], 0.0
    for line in run.lines():
        if "val_loss" in line:
            points.append({"tokens": line["tokens"], "seconds": seconds, "val_loss": line["val_loss"]})
        else:
            seconds += line["seconds"]
    found = {"way": way, "rate": rate, "sent_bytes": sent, "tokens": run.steps()[-1]["tokens"], "seconds": seconds, "points": points}
    print(json.dumps({key: value for key, value in found.items() if key != "points"}), points[-1], flush=True)
    return found


def short_run(cluster, way, rate):
    every = WAYS[way][0]
    steps = SHORT if not every else 2 * every
    run, _ = train(cluster, "short", way, steps, rate, {"eval.every": 0})
    lines = run.steps()[(every or 5) :]  # the first round, or the first steps, are a warm-up
    tokens, seconds = lines[0]["tokens"] / lines[0]["step"] * len(lines), sum(line["seconds"] for line in lines)
    print(way, rate, round(tokens / seconds), flush=True)
    return {"way": way, "rate": rate, "tokens_per_second": tokens / seconds}


def measure(program, path):
    cluster = Patient(program, os.environ.get("MPIRUN", "mpirun"))
    words = [cluster.program, "data", "synth", cluster.path("data"), "--stories", "8000", "--val-stories", "100"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    result = {"rate": RATE, "long": [], "short": []}
    if os.path.exists(path):  # what is there already is not measured again
        with open(path) as file:
            result = json.load(file)
    wanted = [("short", short_run, way, rate) for way in WAYS for rate in RATES if WAYS[way][1] != MEAN]  # as fast as the others
    wanted += [("long", long_run, way, RATE) for way in WAYS]
    for kind, measure_one, way, rate in wanted:
        if any(run["way"] == way and run["rate"] == rate for run in result[kind]):
            continue
        result[kind].append(measure_one(cluster, way, rate))
        with open(path, "w") as file:
            json.dump(result, file, indent=1)
    cluster.close()


# ---- the figure -----------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP = 300, 220, 60, 44  # of a panel, and what is beside and above it
COLORS = ("a", "b", "c", "d")
STYLE = """  text { font: 12px system-ui, sans-serif; fill: #1f2328; } .soft { fill: #59636e; font-size: 11px; } .name { font-weight: 600; }
  .paper { fill: #ffffff; } .grid { stroke: #d0d7de; } .line { fill: none; stroke-width: 2; }
  .a { stroke: #b35900; } .b { stroke: #1a7f37; } .c { stroke: #0969da; } .d { stroke: #8250df; } .fa { fill: #b35900; } .fb { fill: #1a7f37; } .fc { fill: #0969da; }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .soft { fill: #9da7b3; } .paper { fill: #0d1117; } .grid { stroke: #3d444d; }
    .a { stroke: #f0883e; } .b { stroke: #3fb950; } .c { stroke: #58a6ff; } .d { stroke: #bc8cff; } .fa { fill: #f0883e; } .fb { fill: #3fb950; } .fc { fill: #58a6ff; } }"""


class Panel:
    """One set of axes. ticks: [(value, text)]; log: of both axes' scales, (x, y)."""

    def __init__(self, number, title, x_label, x_ticks, y_ticks, log=(False, False)):
        self.left, self.log = LEFT + number * (WIDTH + LEFT), log
        self.x_range, self.y_range = ((ticks[0][0], ticks[-1][0]) for ticks in (x_ticks, y_ticks))
        self.out = [f'<text class="name" x="{self.left}" y="24">{title}</text>']
        for value, text in y_ticks:
            y = self.y(value)
            self.out.append(f'<path class="grid" d="M{self.left} {y:.1f}h{WIDTH}"/>')
            self.out.append(f'<text class="soft" x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        for value, text in x_ticks:
            self.out.append(f'<text class="soft" x="{self.x(value):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{text}</text>')
        self.out.append(f'<text class="soft" x="{self.left + WIDTH / 2}" y="{TOP + HEIGHT + 33}" text-anchor="middle">{x_label}</text>')

    def place(self, value, bounds, log):
        low, high, value = (math.log(v) if log else v for v in (*bounds, value))
        return (value - low) / (high - low)

    def x(self, value):
        return self.left + WIDTH * self.place(value, self.x_range, self.log[0])

    def y(self, value):
        return TOP + HEIGHT * (1 - self.place(value, self.y_range, self.log[1]))

    def curve(self, color, points):
        self.out.append(f'<path class="line {color}" d="M' + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points) + '"/>')
        if len(points) < 5:
            self.out += [f'<circle class="f{color}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3.5"/>' for x, y in points]


def ticks(most, count, unit=1.0):
    """From 0 up, in round steps, to at least `most`."""
    step = 10 ** math.floor(math.log10(most / count))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10) if step * factor * count >= most)
    return [(i * step, f"{i * step / unit:g}") for i in range(math.ceil(most / step) + 1)]


def draw(result, path):
    fastest = max(point["tokens_per_second"] for point in result["short"])
    speed = Panel(0, "tokens/s", "Mbit/s of the link", [(rate, str(rate)) for rate in RATES], ticks(fastest, 5), (True, False))
    losses = [point["val_loss"] for run in result["long"] for point in run["points"][1:]]
    low, high = math.floor(min(losses) * 2) / 2, math.ceil(max(losses) * 2) / 2
    loss_ticks = [(low + i / 2, f"{low + i / 2:.1f}") for i in range(round((high - low) * 2) + 1)]
    tokens = max(run["tokens"] for run in result["long"])
    by_tokens = Panel(1, "validation loss over tokens", "thousand tokens", ticks(tokens, 6, 1e3), loss_ticks)
    seconds = max(run["seconds"] for run in result["long"])
    by_time = Panel(2, f"over time, at {result['rate']} Mbit/s", "seconds", ticks(seconds, 6), loss_ticks)
    legend = []
    for number, (color, run) in enumerate(zip(COLORS, result["long"])):
        speeds = sorted((p["rate"], p["tokens_per_second"]) for p in result["short"] if p["way"] == run["way"])
        if speeds:
            speed.curve(color, speeds)
        by_tokens.curve(color, [(p["tokens"], p["val_loss"]) for p in run["points"][1:]])
        by_time.curve(color, [(p["seconds"], p["val_loss"]) for p in run["points"][1:]])
        x, y = LEFT + number * 170, TOP + HEIGHT + 58
        legend.append(f'<path class="line {color}" d="M{x} {y - 4}h24"/><text x="{x + 30}" y="{y}">{run["way"]}</text>')
    width, height = 3 * (WIDTH + LEFT) + 24, TOP + HEIGHT + 72
    with open(path, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" ')
        file.write('aria-label="DiLoCo and data parallelism over a slow link">\n<style>\n' + STYLE + "\n</style>\n")
        parts = [line for panel in (speed, by_tokens, by_time) for line in panel.out] + legend
        file.write('<rect class="paper" width="100%" height="100%"/>\n' + "\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    if sys.argv[1] != "draw":
        enter_own_namespaces()
        measure(sys.argv[1], sys.argv[2])
    with open(sys.argv[2]) as source:
        found = json.load(source)
    if len(sys.argv) == 4:
        draw(found, sys.argv[3])
