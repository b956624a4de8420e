"""Ranks that share sequences (context parallelism) train as one rank does, whatever else is cut, with documents that
begin and end in any chunk; the same bits when run again, as much memory as planned."""

from jobs import Mesh, main
from models import MODELS
from test_equal import Case, checks

MESHES = [
    Mesh(cp=2),
    Mesh(cp=4),
    Mesh(1, 2, cp=2),
    Mesh(2, cp=2),
    *(Mesh(1, 1, zero, cp=2) for zero in (1, 2, 3)),
    Mesh(2, 1, 3, cp=2),
    Mesh(2, 2, 1, cp=2),
    Mesh(1, 2, cp=4),
]


def tests(bench, quick):
    data = bench.data("data", 60)
    masked = {"data.mask_documents": True}
    dense, moe, wide, long = (
        Case(bench, name, MODELS[model], data, 2, {**sets, **masked})
        for name, model, sets in (
            ("dense", "dense", {"train.seq": 48}),
            ("moe", "moe", {}),
            ("qk-norm in pairs", "qk-norm", {"train.micro_batch": 2, "train.seq": 208}),
            ("long", "dense", {"train.seq": 1536}),  # some ten documents in a sequence
        )
    )
    if quick:
        found = checks(dense, Mesh(cp=2), "start", "curve", "again") + checks(moe, Mesh(1, 2, cp=2), "start", "curve")
        return found + checks(wide, Mesh(1, 1, 3, cp=4), "curve") + checks(long, Mesh(cp=2), "start")
    whole = Case(bench, "unmasked", MODELS["untied"], data, 2)
    found = []
    for case in (dense, moe, wide, whole):
        for mesh in MESHES:
            found += checks(case, mesh, "start", "curve", *(["again"] if mesh.size <= 4 else []))
    for name in ("dense", "moe", "qk-norm"):
        for mode in ("selective", "full"):
            sets = {"recompute.mode": mode, **masked}
            case = Case(bench, f"{name} recomputing {mode}", MODELS[name], data, 2, sets)
            for mesh in (Mesh(cp=2), Mesh(1, 2, 3, cp=2)):
                found += checks(case, mesh, "start", "curve")
    for mesh in (Mesh(cp=2), Mesh(cp=4), Mesh(1, 2, cp=4)):
        found += checks(long, mesh, "start", "curve")
    deep = Case(bench, "moe accumulating", MODELS["moe"], data, 8, masked)
    for mesh in (Mesh(cp=2), Mesh(2, 1, 2, cp=2)):
        found += checks(deep, mesh, "start", "curve")
    return found


if __name__ == "__main__":
    main(__doc__, tests)
