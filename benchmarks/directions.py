"""How far reduced precision turns GMED's edit directions.

    python benchmarks/directions.py [--device cuda] [--seeds 5] [--out FOLDER]

The direction of an edit is the slope of a difference of two losses that are nearly equal, so rounding could ruin it.
ER+GMED learns from Split CIFAR-10; at the end of every task the directions of its next edits are computed in float64,
in float32 and, where the device has it, in TF32 (convolutions with 10-bit mantissas, torch's default on NVIDIA GPUs),
from the same parameters and examples. Kept are the cosine to float64 and the ratio of lengths, example by example.
Writes results/directions-<device>.json.
"""

from __future__ import annotations

import argparse
import json
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch

from gmed.engine.batched import BatchedTrainer
from gmed.engine.bench import environment_of
from gmed.engine.config import resolve_device
from gmed.engine.runner import make_learner, make_stream
from gmed.engine.spec import RunSpec
from gmed.models import LookAhead
from gmed.streams import to_float

BATCHES = 10
"""Edits compared at the end of each task."""


@contextmanager
def tf32(allowed: bool):
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def normalized_gradient(learner, x, y, slots, dtype):
    """Return the gradient of the edit's objective at stored examples, flat and in float64."""
    model, memory = deepcopy(learner.model).to(dtype), learner.memory
    ahead = LookAhead(model, x.to(dtype), y, lr=learner.lr)
    drawn = memory.x[slots].to(dtype).requires_grad_()
    before, after = ahead.losses(drawn, memory.y[slots])
    objective = after - before - learner.editing.beta * before
    return torch.autograd.grad(objective, drawn)[0].double().flatten(1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default=resolve_device("auto").type)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--benchmark", default="split-cifar10")
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    chosen = options.parse_args()
    where = torch.device(chosen.device)
    specs = [RunSpec.make(chosen.benchmark, "er+gmed", seed) for seed in range(chosen.seeds)]
    streams = [make_stream(spec, where) for spec in specs]
    learners = [make_learner(spec, where) for spec in specs]
    size = specs[0].benchmark.batch_size
    group = BatchedTrainer(learners, streams, size)
    kinds = {"float32": (torch.float32, False)} | ({"TF32": (torch.float32, True)} if where.type == "cuda" else {})
    found = {kind: {"cosine": [], "length": []} for kind in kinds}
    start = 0
    for stop in streams[0].eval_points:
        last = min(stop, len(streams[0]) - BATCHES * size)
        for _ in group.learn(start, last):
            pass
        for learner, stream in zip(learners, streams, strict=True):
            for number in range(BATCHES):
                rows = slice(last + number * size, last + (number + 1) * size)
                x, y = to_float(stream.x[rows]), stream.y[rows]
                slots = torch.arange(number * size, (number + 1) * size, device=where) % len(learner.memory)
                exact = normalized_gradient(learner, x, y, slots, torch.float64)
                for kind, (dtype, allowed) in kinds.items():
                    with tf32(allowed):
                        rough = normalized_gradient(learner, x, y, slots, dtype)
                    found[kind]["cosine"] += torch.cosine_similarity(exact, rough).tolist()
                    found[kind]["length"] += (rough.norm(dim=1) / exact.norm(dim=1)).tolist()
        start = last
    summary = {
        kind: {
            name: {f"{q:g} %": float(np.nanpercentile(values, q)) for q in (0, 1, 5, 50, 95, 99, 100)}
            for name, values in measured.items()
        }
        | {"examples": len(measured["cosine"])}
        for kind, measured in found.items()
    }
    content = {"benchmark": chosen.benchmark, "seeds": chosen.seeds, "environment": environment_of(chosen.device)}
    chosen.out.mkdir(parents=True, exist_ok=True)
    path = chosen.out / f"directions-{chosen.device}.json"
    path.write_text(json.dumps(content | {"percentiles": summary}, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
