"""FP8 on many ranks is FP8 on one: the scales are those of all tokens and of whole tensors, whatever a rank has of them.
ZeRO 3, whose weights are whole for a while only, has the bits of ZeRO 2."""

import json
import shutil

from jobs import ONE, Failure, Mesh, Run, curve_difference, main, same_files
from models import DEEP, MODELS, config_text

STEPS, SAVED = 8, 4  # of a run; where it is taken up
EXPERTS = {name: {**models[name], "expert_ffn": 32} for name, models in (("moe", MODELS), ("moe together", DEEP))}  # in pieces of 16, also halved
# Data-parallel ranks add the same gradients in another order: 1e-7 of the norm, and of the loss less, until a weight of bf16
# falls to its other neighbour. With tensor parallelism products are parts of a sum, which bf16 rounds (2^-9) and FP8
# rounds again to the other neighbour (2^-4 of the number) where that crosses the middle of two codes: for one number in 2^5.
# Over eight seeds the worst of these steps was off by 3e-4 to 1e-3 with two ranks.
# So are the sums over a token's experts where these are spread over ranks. With context parallelism so are the parts of attention's result and of the gradients of keys and values.
# A token whose two best experts are about equal may then choose the other one and has another loss, by at most a tenth of it:
# two of the 128 tokens of a step. The balancing loss counts the 256 choices of a step, and is a few of them off.
LOSS_BOUND = {"dp": 5e-6, "tp": 1.5e-3, "cp": 2e-3, "experts": 5e-4 + 2 * 0.1 / 128}
CHOICES_BOUND = 5 / 256


def cuts_sums(mesh):
    return mesh.tp * mesh.ep * mesh.etp * mesh.cp > 1


class Fp8:
    """One model, with so many micro-batches of a step over all ranks, and a vocabulary whose shares the LM head has in FP8 too."""

    def __init__(self, bench, model="dense", models=MODELS, batch=4):
        self.bench, self.model, self.batch = bench, model, batch
        self.label = f"{model}-{batch}".replace(" ", "-")
        self.config = bench.config("fp8-" + self.label, config_text({**models[model], "vocab": 320}, bench.data("data", 60), STEPS))
        self.trained = {}

    def sets(self, mesh, more):
        return {"train.precision": "fp8", "train.grad_accum": self.batch // mesh.dp, "checkpoint.every": SAVED, "checkpoint.keep_last": 9, **more}

    def train(self, mesh, more={}):
        """A mesh trains once with each of the settings."""
        name = "-".join([self.label, mesh.name, *more.values()]).replace(" ", "-").replace("+", "-")
        if name not in self.trained:
            self.trained[name] = self.bench.train(self.config, mesh, name, self.sets(mesh, more))
        return self.trained[name]

    def bound(self, mesh):
        if "moe" in self.model and cuts_sums(mesh):
            return LOSS_BOUND["experts"]
        return LOSS_BOUND["tp" if mesh.tp > 1 else "cp" if mesh.cp > 1 else "dp"]

    def compare(self, run, reference, bound):
        """Balancing loss and training loss have bounds of their own where a token may choose other experts."""
        loss, norm = curve_difference(run, reference, ("loss", "val_loss"))
        balance, _ = curve_difference(run, reference, ("loss_aux",))
        allowed = CHOICES_BOUND if bound == LOSS_BOUND["experts"] else bound
        if not (loss <= bound and balance <= allowed):
            raise Failure(f"a loss differs by {loss:.2g}, and {bound:.2g} is allowed; the balancing loss by {balance:.2g} of {allowed:.2g} (norm: {norm:.2g})")
        return f"loss {loss:.1e}, balance {balance:.1e}, norm {norm:.1e}"

    def scales(self, run):
        with open(run.checkpoint(STEPS) + "/state.json") as file:
            state = json.load(file)
            return [*state["fp8_scales"], [state["fp8_head_scale"]]]

    def has_planned_memory(self, run, mesh, more={}):
        planned = self.bench.planned_bytes(self.config, mesh, self.sets(mesh, more))
        if run.memory_bytes() != planned:
            raise Failure(f"rank 0 has {run.memory_bytes():.0f} bytes, and {planned} were planned")

    def equal(self, mesh):
        one, run = self.train(ONE), self.train(mesh)
        found = self.compare(run, one, self.bound(mesh))
        ours, theirs = (sum(self.scales(r), []) for r in (run, one))
        other = sum(a != b for a, b in zip(ours, theirs))
        if len(ours) != len(theirs) or other > (len(theirs) // 8 if cuts_sums(mesh) else 0):  # a maximum near a power of two
            raise Failure(f"{other} of {len(theirs)} scales are not those of one rank")
        self.has_planned_memory(run, mesh)
        return f"{found}, {other} other scales"

    def has_bits_of_zero_2(self, mesh, recompute):
        more = {"recompute.mode": recompute}
        run = self.train(Mesh(**mesh, zero=3), more)
        self.same_bits(run, self.train(Mesh(**mesh, zero=2), more))
        self.has_planned_memory(run, Mesh(**mesh, zero=3), more)

    def same_bits(self, run, other):
        if run.curve() != other.curve() or not same_files(run.checkpoint(STEPS), other.checkpoint(STEPS)):
            raise Failure(f"{run.path} and {other.path} have other bits")

    def runs_again(self, mesh):
        """With room for the mean alone there is too little when a first step looks for its scales, and when a checkpoint goes
        on: that step is refused, and what it noted of its numbers is not the next one's. It has more targets than the step
        before, so that its gradients are smaller and its scales would be finer."""
        rooms = [{"parallelism.expert_headroom": room} for room in ("1", "64")]
        whole = [self.train(mesh, room) for room in rooms]
        more = {"train.grad_accum": "16"}
        later = [self.go_on(whole[1], f"{self.label}-room-{i}", mesh, {**room, **more}) for i, room in enumerate(rooms)]
        for run, roomy in (whole, later):
            if not any(step.get("expert_rows_grown") for step in run.steps()) or any(step.get("expert_rows_grown") for step in roomy.steps()):
                raise Failure("no step ran again, or one that had room for all")
            self.same_bits(run, roomy)

    def repeats(self, mesh):
        self.same_bits(self.bench.train(self.config, mesh, self.label + "-again", self.sets(mesh, {})), self.train(mesh))

    def go_on(self, whole, name, mesh, more={}):
        """From the checkpoint before its last."""
        shutil.copytree(whole.path, self.bench.path(name))
        shutil.rmtree(Run(self.bench.path(name)).checkpoint(STEPS))
        return self.bench.resume(name, mesh, self.sets(mesh, more))

    def resumes(self, source, target):
        whole = self.train(source)
        name = f"{self.label}-{source.name}-to-{target.name}".replace(" ", "-").replace("+", "-")
        run = self.go_on(whole, name, target)
        if source.name == target.name:
            self.same_bits(run, whole)
        return self.compare(run, whole, max(self.bound(source), self.bound(target)))


def tests(bench, quick):
    dense, moe, deep, large = Fp8(bench), Fp8(bench, "moe", EXPERTS), Fp8(bench, "moe together", EXPERTS), Fp8(bench, batch=8)
    many = Fp8(bench, "many-experts", {"many-experts": {**MODELS["many-experts"], "expert_ffn": 16}})
    sharded = Mesh(2, 1, 3)
    meshes = [(dense, mesh) for mesh in [Mesh(2), Mesh(2, 1, 2), Mesh(1, 2), sharded]] + [(moe, mesh) for mesh in [Mesh(2), Mesh(2, ep=2)]]
    pairs = [(dense, sharded, sharded), (dense, sharded, ONE)]
    bits = [(dense, {"dp": 2}, "full"), (moe, {"dp": 2, "tp": 2}, "selective"), (large, {"dp": 2, "pp": 2}, "none")]
    if not quick:
        meshes += [(dense, mesh) for mesh in [Mesh(4), Mesh(2, 2, 1), Mesh(2, 1, 1), Mesh(cp=2), Mesh(pp=2)]]
        meshes += [(dense, mesh) for mesh in [Mesh(4, 1, 3), Mesh(2, 2, 3), Mesh(2, 1, 3, cp=2), Mesh(2, 1, 3, pp=2)]]
        meshes += [(large, mesh) for mesh in [sharded, Mesh(2, 2, 3), Mesh(2, 1, 3, pp=2)]]
        meshes += [(moe, mesh) for mesh in [sharded, Mesh(4, 1, 3), Mesh(2, 1, 3, pp=2), Mesh(2, 1, 1), Mesh(2, 1, 2), Mesh(pp=2)]]
        meshes += [(moe, mesh) for mesh in [Mesh(1, 2), Mesh(1, 2, etp=2), Mesh(2, 2, ep=2, etp=2), Mesh(2, 1, 3, ep=2)]]
        pairs += [(dense, Mesh(2, 2, 3), Mesh(2, 2, 3)), (moe, Mesh(4, 1, 3), Mesh(4, 1, 3)), (moe, Mesh(4, 1, 3), ONE)]
        pairs += [(dense, ONE, sharded), (dense, ONE, Mesh(2, 2, 3)), (moe, ONE, sharded), (dense, sharded, Mesh(2, 1, 3, pp=2))]
        degrees = [{"dp": 2}, {"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}, {"dp": 2, "cp": 2}]
        spread = [{"dp": 2, "ep": 2}, {"dp": 2, "tp": 2, "ep": 2, "etp": 2}, {"dp": 2, "pp": 2, "chunks": 2}]
        bits = [(job, mesh, recompute) for job in (dense, moe) for mesh in degrees for recompute in ("none", "full")]
        bits += [(large, mesh, "full") for mesh in degrees] + [(moe, degrees[0], "selective")]
        bits += [(deep, mesh, recompute) for mesh in spread for recompute in ("none", "full")]
    found = [(f"{job.label}: {mesh.name} trains as one rank in FP8", job.equal, mesh) for job, mesh in meshes]
    for job, mesh, recompute in bits:
        name = f"{job.label}: {Mesh(**mesh).name}, recompute {recompute}: ZeRO 3 has the bits of ZeRO 2"
        found.append((name, job.has_bits_of_zero_2, mesh, recompute))
    found.append((f"dense: {Mesh(2, 2, 3).name} has the same bits again", dense.repeats, Mesh(2, 2, 3)))
    found.append((f"many-experts: {Mesh(2, ep=2).name}: a step that runs again with more room has the bits of one that had it", many.runs_again, Mesh(2, ep=2)))
    return found + [(f"{job.label}: a checkpoint of {a.name} goes on on {b.name}", job.resumes, a, b) for job, a, b in pairs]


if __name__ == "__main__":
    main(__doc__, tests)
