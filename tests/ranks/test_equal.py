"""Many ranks train as one does: the same losses, norms, gradients and weights for the same batch, the same bits when run
again, the same initial weights, and as much memory as planned."""

import os

from jobs import GRADIENT_BOUND, LOSS_BOUND, NORM_BOUND, ONE, Difference, Failure, Mesh, Run, curve_difference, main, same_files
from models import DEEP, FIXTURE_NAMES, FIXTURES, MODELS, config_text, fixture_sizes, small_tokenizer

STEPS = 20
# AdamW moves an element by about lr m / sqrt(v). Both are off by at most the share that the gradient is off by, so a step
# is by twice as much of lr, and the steps add up; 0.06 is the deviation of the initial weights, 2e-3 the rate.
WEIGHT_BOUND = 2 * STEPS * 2e-3 / 0.06 * GRADIENT_BOUND  # of each tensor at the end, ||a - b|| / ||b||


def require(found, bound, what):
    if not found <= bound:
        raise Failure(f"{what} differs by {found:.2g}, and {bound:.2g} is allowed")


class Case:
    def __init__(self, bench, name, model, data, batch, sets=None, grow="accum"):
        """batch: micro-batches of a step over all ranks. grow: how one rank takes as many sequences: it accumulates, or
        its micro-batches are larger."""
        self.bench, self.name, self.batch, self.sets, self.grow = bench, name, batch, sets or {}, grow
        self.config = bench.config(name, config_text(model, data, STEPS))
        self.references = {}
        self.wire = False  # gradients travel as bf16

    def gradient_bounds(self, mesh):
        """The least and the most that a gradient may differ by. bf16 on the wire rounds, with u = 2^-9, every part (of a rank,
        under ZeRO 2 and 3 of one of its micro-batches) and every sum of them. Parts of other samples do not cancel each
        other: of n parts each has about ||g|| / sqrt(n), so their errors are at most u sqrt(n) ||g|| together."""
        if not self.wire:
            return 0, GRADIENT_BOUND
        sums = self.batch // mesh.dp if mesh.zero >= 2 else 1
        return GRADIENT_BOUND, 2.0**-9 * ((sums * mesh.dp) ** 0.5 + sums**0.5)

    def mesh_sets(self, mesh):
        if self.grow == "accum":
            return {"train.grad_accum": self.batch // mesh.dp, **self.sets}
        return {"train.grad_accum": 3, "train.micro_batch": self.batch // mesh.dp, **self.sets}

    def train(self, mesh, kind, run):
        # "start": one step that moves nothing, so that its checkpoint has the initial weights, and in adam_m the gradient
        # (clipped) times 1 - beta1.
        sets = {"eval.every": 5, "eval.at_end": True}
        if kind == "start":
            sets = {"train.steps": 1, "optimizer.lr": 0, "schedule.warmup_steps": 0}
        return self.bench.train(self.config, mesh, run, {**self.mesh_sets(mesh), **sets})

    def reference(self, kind):
        if kind not in self.references:
            self.references[kind] = self.train(ONE, kind, f"{self.name}-{kind}-one".replace(" ", "-"))
        return self.references[kind]

    def run_name(self, mesh, kind):
        return f"{self.name}-{kind}-{mesh.name}".replace(" ", "-").replace("+", "-")

    def starts_equal(self, mesh):
        one, run = self.reference("start"), self.train(mesh, "start", self.run_name(mesh, "start"))
        weights = Difference(run.checkpoint(1) + "/model.safetensors", one.checkpoint(1) + "/model.safetensors")
        if not weights.same:
            raise Failure(f"the initial weights are not one rank's: {weights.tensor} differs by {weights.largest:.2g}")
        gradient = Difference(run.checkpoint(1) + "/adam_m.safetensors", one.checkpoint(1) + "/adam_m.safetensors")
        loss, norm = curve_difference(run, one)
        require(loss, LOSS_BOUND, "the first loss")
        least, most = self.gradient_bounds(mesh)
        require(gradient.relative, most, f"the gradient of {gradient.tensor}")
        if gradient.relative < least:
            raise Failure(f"gradients differ by {gradient.relative:.1e}: nothing was rounded")
        planned = self.bench.planned_bytes(self.config, mesh, self.mesh_sets(mesh))
        if run.memory_bytes() != planned:
            raise Failure(f"rank 0 has {run.memory_bytes():.0f} bytes, and {planned} were planned")
        return f"gradient {gradient.relative:.1e}, loss {loss:.1e}, norm {norm:.1e}, {planned} bytes"

    def trains_equal(self, mesh):
        one, run = self.reference("curve"), self.train(mesh, "curve", self.run_name(mesh, "curve"))
        loss, norm = curve_difference(run, one)
        end = Difference(run.checkpoint(STEPS) + "/model.safetensors", one.checkpoint(STEPS) + "/model.safetensors")
        found = f"loss {loss:.1e}, norm {norm:.1e}, weights {end.relative:.1e} ({end.tensor}, {end.largest:.1e})"
        require(loss, LOSS_BOUND, f"{found}: a loss")
        require(norm, NORM_BOUND, f"{found}: a norm")
        require(end.relative, WEIGHT_BOUND, f"{found}: {end.tensor}")
        return found

    def grows(self, mesh):
        """With room for the mean alone, a step or an evaluation needs more, and runs again; the curve is that of one rank."""
        found = self.trains_equal(mesh)
        steps = self.bench_run(mesh, "curve").steps()
        grown = [f"step {step['step']}" for step in steps if step.get("expert_rows_grown")]
        if self.sets.get("eval.at_start"):
            grown = ["an evaluation"] + grown
        log = self.bench.log(self.run_name(mesh, "curve") + ".log")
        if not grown or any(f"{what} needs" not in log for what in grown) or any(step["skipped"] for step in steps):
            raise Failure(f"nothing ran again with more room, or without a word, or a step was skipped: {grown}")
        return f"{found}; more room for {', '.join(grown)}"

    def leaves_experts_idle(self, mesh):
        found = self.trains_equal(mesh)
        dead = [step["moe_dead"] for step in self.bench_run(mesh, "curve").steps()]
        one = [step["moe_dead"] for step in self.reference("curve").steps()]
        if not max(dead) or dead != one:
            raise Failure(f"experts without a token: {dead}, and {one} on one rank")
        return f"{found}; {min(dead)} to {max(dead)} experts without a token"

    def bench_run(self, mesh, kind):
        return Run(self.bench.path(self.run_name(mesh, kind)))

    def repeats(self, mesh):
        first = self.bench.path(self.run_name(mesh, "curve"))
        if not os.path.exists(first):
            self.train(mesh, "curve", self.run_name(mesh, "curve"))
        run = self.train(mesh, "curve", self.run_name(mesh, "again"))
        other = type(run)(first)
        if run.curve() != other.curve() or not same_files(run.checkpoint(STEPS), other.checkpoint(STEPS)):
            raise Failure("the second run has other bits than the first")
        return ""


def fixture_meshes(name):
    """Those whose heads divide: what is not a power of two is cut in three."""
    sizes = fixture_sizes(name)
    heads, kv, ffn = sizes["num_attention_heads"], sizes["num_key_value_heads"], sizes["intermediate_size"]
    meshes = [Mesh(2), Mesh(2, 1, 3)]
    if "num_experts_per_tok" in sizes:
        even = sizes.get("num_experts", sizes.get("num_local_experts")) % 2 == 0
        meshes += [Mesh(2, ep=2), Mesh(2, 1, 3, ep=2)] if even else [Mesh(2, etp=2)]
    meshes += [Mesh(pp=2)] if sizes["num_hidden_layers"] > 1 else []
    for tp in (2, 3, 4):
        if heads % tp == 0 and ffn % tp == 0 and (kv % tp == 0 or tp % kv == 0):
            meshes += [Mesh(1, tp)] + ([Mesh(2, tp, 3)] if tp == 2 else [])
    return meshes


def checks(case, mesh, *kinds):
    known = {
        "start": ("starts as one rank does", case.starts_equal),
        "curve": ("trains as one rank does", case.trains_equal),
        "again": ("repeats itself to the bit", case.repeats),
        "grow": ("gets more room for its experts and trains as one rank does", case.grows),
        "idle": ("has experts without a token and trains as one rank does", case.leaves_experts_idle),
    }
    return [(f"{case.name}, {mesh.name}: {known[kind][0]}", known[kind][1], mesh) for kind in kinds]


MESHES = [
    Mesh(2),
    Mesh(4),
    *(Mesh(dp, 1, zero) for zero in (1, 2, 3) for dp in (2, 4)),
    Mesh(1, 2),
    Mesh(1, 4),
    Mesh(2, 2),
    *(Mesh(2, 2, zero) for zero in (1, 2, 3)),
]


# Experts over all ranks, over a part of them, over the ranks of a tensor group, and their widths cut too.
EXPERT_MESHES = [
    Mesh(2, ep=2),
    Mesh(4, ep=2),
    Mesh(1, 2, ep=2),
    Mesh(2, 2, ep=2),
    Mesh(1, 2, etp=2),
    Mesh(2, 2, ep=2, etp=2),
    Mesh(2, etp=2),
    *(Mesh(2, 1, zero, ep=2) for zero in (1, 2, 3)),
    *(Mesh(4, 1, zero, ep=2) for zero in (1, 2, 3)),
    *(Mesh(2, 2, zero, ep=2, etp=2) for zero in (1, 3)),
]
FOUR_SHARES = [Mesh(4, ep=4), Mesh(2, 2, ep=4), Mesh(4, 1, 1, ep=4), Mesh(4, 1, 2, ep=4), Mesh(4, 1, 3, ep=4)]
# Those whose mesh takes as many micro-batches as there are: an interleaved schedule has whole rounds of them.
PIPELINES = [
    Mesh(pp=2),
    Mesh(pp=4),
    Mesh(pp=2, schedule="gpipe"),
    Mesh(pp=4, schedule="gpipe"),
    Mesh(pp=2, chunks=2),
    Mesh(pp=2, chunks=3),
    Mesh(pp=3),
    *(Mesh(2, 1, zero, pp=2) for zero in (0, 1, 2, 3)),
    *(Mesh(2, 1, zero, pp=2, chunks=2) for zero in (1, 2, 3)),
    Mesh(2, 1, 2, pp=2, schedule="gpipe"),
    Mesh(1, 2, pp=2),
    Mesh(1, 4, pp=2),
    Mesh(1, 2, pp=2, chunks=3),
    *(Mesh(2, 2, zero, pp=2) for zero in (0, 1, 2, 3)),
]


def pipeline_tests(bench, data, quick):
    masked = {"data.mask_documents": True}
    sets = {"untied": masked, "moe together": masked}
    cases = {name: Case(bench, f"deep {name}", model, data, 4, sets.get(name)) for name, model in DEEP.items()}
    if quick:
        found = checks(cases["dense"], Mesh(2, 1, 3, pp=2), "start", "curve", "again")
        found += checks(cases["untied"], Mesh(1, 2, pp=2, schedule="gpipe"), "start", "curve")
        found += checks(cases["moe"], Mesh(pp=2, chunks=2), "start", "curve")
        return found + checks(cases["moe together"], Mesh(pp=4), "start", "curve")
    found = []
    for case in cases.values():
        for mesh in PIPELINES:
            found += checks(case, mesh, "start", "curve", "again")
    for batch in (1, 2, 3, 5, 8):
        # Untied: sums have one rank's order then, and no rounding turns the choice of an expert.
        case = Case(bench, f"deep of {batch} micro-batches", {**DEEP["moe"], "tie_embeddings": False}, data, batch)
        for mesh in (Mesh(pp=2), Mesh(pp=4), Mesh(pp=4, schedule="gpipe")):
            found += checks(case, mesh, "start", "curve")
    case = Case(bench, "deep of 8 micro-batches on four stages", {**DEEP["untied"], "layers": 9}, data, 8)
    found += checks(case, Mesh(pp=4, chunks=2), "start", "curve") + checks(case, Mesh(2, 1, 3, pp=4, chunks=2), "curve")
    for mode in ("selective", "full"):
        for name in ("untied", "moe"):
            more = {"recompute.mode": mode, **masked}
            case = Case(bench, f"deep {name} recomputing {mode}", DEEP[name], data, 4, more)
            for mesh in (Mesh(pp=4), Mesh(2, 1, 3, pp=2, chunks=2), Mesh(1, 2, pp=2, schedule="gpipe")):
                found += checks(case, mesh, "start", "curve")
    spread = [Mesh(2, pp=2, ep=2), Mesh(2, 2, 3, ep=2, etp=2, pp=2), Mesh(1, 2, ep=2, pp=2, chunks=2)]
    spread += [Mesh(1, 2, cp=2, ep=2, pp=2), Mesh(cp=2, ep=2, pp=2, schedule="gpipe"), Mesh(2, 1, 3, ep=2, pp=2, chunks=2)]
    for name in ("moe", "moe together"):
        for mesh in spread:
            found += checks(cases[name], mesh, "start", "curve")
    for mesh in (Mesh(cp=2, pp=2), Mesh(cp=2, tp=2, pp=2, chunks=3), Mesh(2, 1, 3, cp=2, pp=2)):
        found += checks(cases["untied"], mesh, "start", "curve")
    case = Case(bench, "deep with a growing batch", DEEP["dense"], data, 4, {"train.batch_warmup_tokens": 2000})
    for mesh in (Mesh(pp=2), Mesh(pp=4, schedule="gpipe")):
        found += checks(case, mesh, "curve")
    return found


def tests(bench, quick):
    data = bench.data("data", 60)
    tokenizer = small_tokenizer(bench.path("tokenizer.json"))
    letters = bench.data("letters", 60, tokenizer)
    dense, moe = (Case(bench, name, MODELS[name], data, 4) for name in ("dense", "moe"))
    masked = {"data.mask_documents": True}
    many = Case(bench, "many-experts", MODELS["many-experts"], data, 4)
    # Room for the mean: the first step, or the evaluation before it, needs more.
    tight = {"parallelism.expert_headroom": 1}
    narrow = Case(bench, "many-experts without headroom", MODELS["many-experts"], data, 8, tight)
    first = {**tight, "eval.at_start": True}
    evaluated = Case(bench, "many-experts without headroom evaluated", MODELS["many-experts"], data, 8, first)
    untied, qk = (Case(bench, name, MODELS[name], data, 4, masked) for name in ("untied", "qk-norm"))
    wire = Case(bench, "moe with bf16 on the wire", MODELS["moe"], data, 4, {"parallelism.reduce_dtype": '"bfloat16"'})
    wire.wire = True
    if quick:
        found = checks(wire, Mesh(2, 1, 2), "start", "again") + checks(wire, Mesh(2, 2), "start")
        found += checks(dense, Mesh(2), "start", "curve") + checks(dense, Mesh(2, 2, 3), "start", "curve", "again")
        found += checks(moe, Mesh(2, 1, 2), "curve") + checks(moe, Mesh(1, 4), "start", "curve")
        found += checks(moe, Mesh(2, 2, 3, ep=2, etp=2), "start", "curve") + checks(moe, Mesh(4, ep=2), "curve")
        found += checks(many, Mesh(4, 1, 2, ep=4), "idle") + checks(narrow, Mesh(4, ep=4), "grow")
        found += checks(evaluated, Mesh(2, ep=2), "grow")
        found += checks(untied, Mesh(1, 2), "curve") + checks(qk, Mesh(2, 1, 1), "curve")
        fixture = Case(bench, "qwen3-moe-step", {"init": os.path.join(FIXTURES, "qwen3-moe-step")}, letters, 2)
        found += checks(fixture, Mesh(1, 2), "start") + checks(fixture, Mesh(pp=2), "start")
        return found + pipeline_tests(bench, data, quick)
    found = pipeline_tests(bench, data, quick)
    for case in (dense, untied, qk, moe):
        for mesh in MESHES:
            found += checks(case, mesh, "start", "curve", "again")
    for mesh in EXPERT_MESHES:
        found += checks(moe, mesh, "start", "curve", "again")
    for mesh in FOUR_SHARES:
        found += checks(many, mesh, "start", "idle") + checks(narrow, mesh, "grow", "again")
    deep = [Case(bench, name + " accumulating", MODELS[name], data, 16) for name in ("dense", "moe")]
    for case in deep:
        experts = (Mesh(4, ep=2), Mesh(4, 1, 2, ep=2), Mesh(2, 2, 3, ep=2)) if "moe" in case.name else ()
        for mesh in (Mesh(4), Mesh(4, 1, 1), Mesh(4, 1, 2), Mesh(4, 1, 3), Mesh(1, 4), Mesh(2, 2, 3), *experts):
            found += checks(case, mesh, "start", "curve")
    for mode in ("selective", "full"):
        for name in ("untied", "moe"):
            case = Case(bench, f"{name} recomputing {mode}", MODELS[name], data, 4, {"recompute.mode": mode, **masked})
            experts = (Mesh(4, ep=2), Mesh(2, 1, 3, ep=2), Mesh(2, 2, 3, ep=2, etp=2)) if name == "moe" else ()
            for mesh in (Mesh(2), Mesh(4, 1, 3), Mesh(1, 4), Mesh(2, 2, 3), *experts):
                found += checks(case, mesh, "start", "curve")
    warming = {"train.batch_warmup_tokens": 2000}
    case = Case(bench, "dense with a growing batch", MODELS["dense"], data, 4, warming, grow="micro_batch")
    for mesh in (Mesh(2), Mesh(4, 1, 3), Mesh(2, 2, 2), Mesh(1, 4)):
        found += checks(case, mesh, "curve")
    for mesh in MESHES:
        found += checks(wire, mesh, "start", "again") if mesh.dp > 1 else []
    for name in FIXTURE_NAMES:
        case = Case(bench, name, {"init": os.path.join(FIXTURES, name)}, letters, 4, {"train.seq": 36})
        for mesh in fixture_meshes(name):
            found += checks(case, mesh, "start", "curve")
    return found


if __name__ == "__main__":
    main(__doc__, tests)
