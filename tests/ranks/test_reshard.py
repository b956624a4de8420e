"""A run goes on from its checkpoints on any other mesh with the same batch: the curve is that of the run that was never
stopped, to the bit on the same mesh; also after kills, across the edge of an epoch."""

import json
import os
import shutil

from jobs import LOSS_BOUND, NORM_BOUND, ONE, Failure, Mesh, Missed, Run
from jobs import curve_difference, kill_job, main, same_files, until_met, wait_until
from models import DEEP, MODELS, SEQ, config_text

STEPS, SAVED = 24, 12  # of a run; where it is taken up
BATCH = 4
MESHES = [ONE, Mesh(4), Mesh(4, 1, 3), Mesh(1, 4), Mesh(2, 2), Mesh(2, 1, 2, pp=2)]


def batch_sets(mesh):
    return {"train.grad_accum": BATCH // mesh.dp}


def file_name(text):
    return text.replace(" ", "-").replace("+", "-")


class Resharding:
    """One model; its undisturbed run on each mesh is trained once."""

    def __init__(self, bench, model, models=MODELS):
        self.bench, self.model = bench, model
        # Fewer tokens than the run takes, and the edge between SAVED and STEPS: a loader that starts over would show.
        data = bench.data("few", 3)
        with open(os.path.join(data, "dataset.json")) as file:
            tokens = json.load(file)["splits"]["train"]["tokens"]
        assert SAVED < tokens / (BATCH * SEQ) < STEPS, tokens
        more = "[data]\nmask_documents = true\n"
        self.config = bench.config("reshard-" + file_name(model), config_text(models[model], data, STEPS).replace("[data]\n", more))
        self.whole = {}

    def undisturbed(self, mesh):
        if mesh.name not in self.whole:
            sets = {**batch_sets(mesh), "checkpoint.every": SAVED, "checkpoint.keep_last": 9, "eval.every": 6}
            name = file_name(f"{self.model}-whole-{mesh.name}")
            self.whole[mesh.name] = self.bench.train(self.config, mesh, name, sets)
        return self.whole[mesh.name]

    def compare(self, run, reference, same_mesh):
        loss, norm = curve_difference(run, reference)
        if not (loss <= LOSS_BOUND and norm <= NORM_BOUND):
            raise Failure(f"loss differs by {loss:.2g}, norm by {norm:.2g}")
        if same_mesh and run.curve() != reference.curve():
            raise Failure("the curve on the same mesh has other bits")
        if same_mesh and not same_files(run.checkpoint(STEPS), reference.checkpoint(STEPS)):
            raise Failure("the weights on the same mesh have other bits")
        return f"loss {loss:.1e}, norm {norm:.1e}"

    def resumes(self, source, target):
        whole = self.undisturbed(source)
        name = file_name(f"{self.model}-{source.name}-to-{target.name}")
        path = self.bench.path(name)
        shutil.copytree(whole.path, path)
        shutil.rmtree(Run(path).checkpoint(STEPS))
        run = self.bench.resume(name, target, batch_sets(target))  # fails on any warning
        return self.compare(run, whole, source.name == target.name)

    def survives_kills(self, meshes):
        """Each mesh but the last is killed with all of its ranks; the next one goes on."""
        same = all(mesh.name == meshes[0].name for mesh in meshes)
        reference = self.undisturbed(meshes[0] if same else ONE)
        name = file_name("killed-" + "-".join(mesh.name for mesh in meshes))
        path, step = self.bench.path(name), 0
        shutil.rmtree(path, ignore_errors=True)
        more = {"checkpoint.every": 2, "checkpoint.keep_last": 3, "eval.every": 6}
        for i, mesh in enumerate(meshes):
            words = ["train", "--resume", "--run", path] if i else ["train", self.config, "--run", path]
            job = self.bench.start(words, mesh.size, {**mesh.sets(), **batch_sets(mesh), **more}, name + ".log")
            if i + 1 < len(meshes):
                step += STEPS // len(meshes)
                wait_until(lambda: Run(path).last_step() >= step, f"step {step}", job)
                kill_job(job)
                if Run(path).last_step() >= STEPS:
                    raise Missed("it had ended before it could be killed")
            elif self.bench.wait(job):
                raise Failure(self.bench.log(name + ".log"))
        if not os.path.exists(Run(path).checkpoint(STEPS)):
            raise Failure("there is no last checkpoint")
        return self.compare(Run(path), reference, same)


def tests(bench, quick):
    dense, moe = Resharding(bench, "dense"), Resharding(bench, "moe")
    pairs = [(dense, source, target) for source in MESHES for target in MESHES]
    deep = Resharding(bench, "moe together", DEEP)
    interleaved = Mesh(1, 2, pp=2, chunks=2)
    pairs += [(deep, source, target) for source in (Mesh(pp=4), interleaved) for target in (Mesh(4, 1, 3), interleaved, ONE)]
    pairs += [(deep, Mesh(2, 2), interleaved), (deep, ONE, Mesh(pp=4))]
    pairs += [(moe, Mesh(4, 1, 3), Mesh(1, 4)), (moe, Mesh(2, 2), ONE), (moe, Mesh(1, 4), Mesh(2, 2, 3))]
    spread = Mesh(2, 2, 3, ep=2, etp=2)
    pairs += [(moe, Mesh(4, ep=2), Mesh(4)), (moe, Mesh(4), Mesh(1, 2, ep=2)), (moe, Mesh(1, 4), spread), (moe, spread, ONE)]
    pairs += [(moe, spread, spread), (moe, ONE, Mesh(2, 1, 3, ep=2)), (moe, Mesh(2, 1, 3, ep=2), Mesh(4, 1, 1, ep=2))]
    if quick:
        pairs = [(moe, spread, Mesh(4, ep=2))]
        pairs += [(dense, Mesh(4, 1, 3), Mesh(4, 1, 3)), (dense, Mesh(4, 1, 3), Mesh(1, 4)), (moe, Mesh(2, 2), ONE)]
        pairs += [(deep, interleaved, Mesh(4, 1, 3)), (deep, Mesh(2, 2), interleaved)]
    found = [
        (f"{job.model}: a checkpoint of {source.name} goes on on {target.name}", job.resumes, source, target)
        for job, source, target in pairs
    ]
    chains = [[Mesh(4, 1, 3), Mesh(1, 4), Mesh(2, 2)]] if quick else [[mesh] * 3 for mesh in MESHES]
    if not quick:
        chains += [[Mesh(4, 1, 3), Mesh(1, 4), Mesh(2, 2)], [ONE, Mesh(2, 2), Mesh(4)], [Mesh(1, 4), ONE, Mesh(4, 1, 3)]]
    found += [(", killed, ".join(mesh.name for mesh in chain), until_met, dense.survives_kills, chain) for chain in chains]
    return found


if __name__ == "__main__":
    main(__doc__, tests)
