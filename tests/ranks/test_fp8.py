"""FP8 on many ranks is FP8 on one: the scales are those of all tokens and of whole tensors, whatever a rank has of them."""

import json

from jobs import ONE, Failure, Mesh, curve_difference, main
from models import MODELS, config_text

STEPS = 8
# Data-parallel ranks add the same gradients in another order: 1e-7 of the norm, and of the loss less, until a weight of bf16
# falls to its other neighbour. With tensor parallelism products are parts of a sum, which bf16 rounds (2^-9) and FP8
# rounds again to the other neighbour (2^-4 of the number) where that crosses the middle of two codes: for one number in 2^5.
# With context parallelism so are the parts of attention's result and of the gradients of keys and values.
LOSS_BOUND = {"dp": 5e-6, "tp": 5e-4, "cp": 2e-3}


class Fp8:
    def __init__(self, bench):
        self.bench = bench
        self.config = bench.config("fp8", config_text(MODELS["dense"], bench.data("data", 60), STEPS))
        self.one = None

    def train(self, mesh, name):
        sets = {"train.precision": "fp8", "train.grad_accum": 4 // mesh.dp, "checkpoint.at_end": True}
        return self.bench.train(self.config, mesh, name, sets), sets

    def scales(self, run):
        with open(run.checkpoint(STEPS) + "/state.json") as file:
            return json.load(file)["fp8_scales"]

    def equal(self, mesh):
        if not self.one:
            self.one = self.train(ONE, "one")[0]
        run, sets = self.train(mesh, mesh.name.replace(" ", "-").replace("+", "-"))
        loss, norm = curve_difference(run, self.one)
        bound = LOSS_BOUND["tp" if mesh.tp > 1 else "cp" if mesh.cp > 1 else "dp"]
        if not loss <= bound:
            raise Failure(f"a loss differs by {loss:.2g}, and {bound:.2g} is allowed (norm: {norm:.2g})")
        ours, theirs = (sum(self.scales(r), []) for r in (run, self.one))
        other = sum(a != b for a, b in zip(ours, theirs))
        if len(ours) != len(theirs) or other > (len(theirs) // 8 if mesh.tp * mesh.cp > 1 else 0):  # a maximum near a power of two
            raise Failure(f"{other} of {len(theirs)} scales are not those of one rank")
        planned = self.bench.planned_bytes(self.config, mesh, sets)
        if run.memory_bytes() != planned:
            raise Failure(f"rank 0 has {run.memory_bytes():.0f} bytes, and {planned} were planned")
        return f"loss {loss:.1e}, norm {norm:.1e}, {other} other scales"


def tests(bench, quick):
    fp8 = Fp8(bench)
    meshes = [Mesh(2), Mesh(2, 1, 2), Mesh(1, 2)] + ([] if quick else [Mesh(4), Mesh(2, 2, 1), Mesh(2, 1, 1), Mesh(cp=2), Mesh(pp=2)])
    return [(f"{mesh.name} trains as one rank in FP8", fp8.equal, mesh) for mesh in meshes]


if __name__ == "__main__":
    main(__doc__, tests)
