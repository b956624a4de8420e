"""fp16 on many ranks is fp16 on one: gradients that overflow on any rank refuse the step on all and halve the one loss
scale, whatever a rank has of tokens and tensors; and an FP8 loss is checked against the bf16 loss of all tokens."""

from jobs import ONE, Failure, Mesh, main, relative
from models import MODELS, config_text

STEPS = 14
SCALE = 2**26  # about six steps overflow before the first that does not
# Data-parallel ranks add the same gradients in another order: 1e-7 of the norm, and of the loss less, until a weight of f16
# falls to its other neighbour (2^-11 of it). With tensor and context parallelism products are parts of a sum, each of
# which f16 rounds, and with expert parallelism so are a token's experts.
LOSS_BOUND = {"data": 2e-5, "parts": 2e-4}
CHECK_EVERY = 3


def values(run, key):
    return [line.get(key) for line in run.steps()]


class Half:
    def __init__(self, bench):
        self.bench = bench
        self.configs = {name: bench.config(name, config_text(MODELS[name], bench.data("data", 60), STEPS)) for name in ("dense", "moe")}
        self.ones = {}

    def train(self, name, mesh, label, sets):
        sets = {**sets, "train.grad_accum": 4 // mesh.dp}
        return self.bench.train(self.configs[name], mesh, f"{label}-{name}-{mesh.name}".replace(" ", "-").replace("+", "-"), sets), sets

    def one(self, name, label, sets):
        if (name, label) not in self.ones:
            self.ones[name, label] = self.train(name, ONE, label, sets)[0]
        return self.ones[name, label]

    def equal(self, name, mesh):
        sets = {"train.precision": "fp16", "train.loss_scale": SCALE, "train.loss_scale_steps": 3}
        one = self.one(name, "fp16", sets)
        run, used = self.train(name, mesh, "fp16", sets)
        scales, skipped = values(run, "loss_scale"), values(run, "skipped")
        if scales != values(one, "loss_scale") or skipped != values(one, "skipped"):
            raise Failure(f"scales {scales}, skipped {skipped}; on one rank {values(one, 'loss_scale')}")
        if not any(skipped) or skipped[-1] and skipped[-2]:
            raise Failure(f"no step overflowed, or all did: {skipped}")
        loss = max(relative(a, b) for a, b in zip(values(run, "loss"), values(one, "loss")))
        bound = LOSS_BOUND["parts" if mesh.tp * mesh.cp * mesh.ep > 1 else "data"]
        if not loss <= bound:
            raise Failure(f"a loss differs by {loss:.2g}, and {bound:.2g} is allowed")
        planned = self.bench.planned_bytes(self.configs[name], mesh, used)
        if run.memory_bytes() != planned:
            raise Failure(f"rank 0 has {run.memory_bytes():.0f} bytes, and {planned} were planned")
        return f"loss {loss:.1e}, {sum(skipped)} steps skipped, scale {scales[-1]:.0f}"

    def check(self, mesh):
        sets = {"train.precision": "fp8", "train.loss_check_every": CHECK_EVERY}
        one = self.one("dense", "fp8", sets)
        run, _ = self.train("dense", mesh, "fp8", sets)
        taken, alone = values(run, "loss_bf16"), values(one, "loss_bf16")
        if [i + 1 for i, value in enumerate(taken) if value] != list(range(CHECK_EVERY, STEPS + 1, CHECK_EVERY)):
            raise Failure(f"taken on other steps: {taken}")
        # Of the weights that FP8 has trained so far, whose bounds are those of test_fp8.py.
        apart = max(abs(a - b) / b for a, b in zip(taken, alone) if b)
        if apart > 2e-3:
            raise Failure(f"the bf16 loss differs by {apart:.2g} from that of one rank")
        return f"bf16 loss {apart:.1e}"


def tests(bench, quick):
    half = Half(bench)
    dense = [Mesh(2), Mesh(2, 1, 2), Mesh(1, 2)] + ([] if quick else [Mesh(4), Mesh(2, 1, 1), Mesh(2, 1, 3), Mesh(cp=2), Mesh(pp=2), Mesh(2, 2, 1)])
    moe = [Mesh(2, ep=2)] + ([] if quick else [Mesh(pp=2), Mesh(2, 1, 2)])
    cases = [("dense", mesh) for mesh in dense] + [("moe", mesh) for mesh in moe]
    checks = [Mesh(2), Mesh(2, 1, 3)] + ([] if quick else [Mesh(1, 2), Mesh(cp=2), Mesh(pp=2), Mesh(2, 1, 2)])
    return [(f"{name}: {mesh.name} trains as one rank in fp16", half.equal, name, mesh) for name, mesh in cases] + [
        (f"{mesh.name} checks the loss of FP8 as one rank does", half.check, mesh) for mesh in checks
    ]


if __name__ == "__main__":
    main(__doc__, tests)
