"""How much of an accuracy is noise in batch-norm's running statistics?

    GMED_DATA=FOLDER python benchmarks/running_statistics.py [--seeds 1] [--device cuda]

Trains iid-online on Split CIFAR-10 and, at some of the last steps, evaluates it twice: with the running statistics of
the last batches of ten images, and with statistics estimated anew on 2,000 training images. Only evaluation differs.
"""

from __future__ import annotations

import argparse
import copy

import numpy as np
import torch
from torch import nn

from gmed.engine import RunSpec
from gmed.engine.runner import evaluate_tasks, make_learner, make_stream
from gmed.learners import Learner
from gmed.streams import Stream, to_float

LOOKED_AT = (4000, 4900, 4940, 4970, 4980, 4990, 5000)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--device", default="cpu")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
        spec = RunSpec.make("split-cifar10", "iid-online", seed)
        where = torch.device(chosen.device)
        stream = make_stream(spec, where)
        learner = make_learner(spec, where)
        for step in range(1, LOOKED_AT[-1] + 1):
            rows = slice(10 * (step - 1), 10 * step)
            learner.observe(to_float(stream.x[rows]), stream.y[rows])
            if step in LOOKED_AT:
                anew = accuracy(estimated_anew(learner, stream), stream)
                print(
                    f"seed {seed} step {step}: {accuracy(learner, stream):.2f}, estimated anew {anew:.2f}", flush=True
                )


def accuracy(learner: Learner, stream: Stream) -> float:
    return 100 * float(np.mean(evaluate_tasks(learner, stream.tests)))


@torch.no_grad()
def estimated_anew(learner: Learner, stream: Stream) -> Learner:
    """Return a copy whose running statistics are the plain average over twenty batches of a hundred training images."""
    twin = copy.deepcopy(learner)
    norms = [module for module in twin.model.modules() if isinstance(module, nn.BatchNorm2d)]
    for number, at in enumerate(range(0, 2000, 100)):
        for norm in norms:
            norm.momentum = 1 / (1 + number)
        twin.model(to_float(stream.x[at : at + 100]))
    return twin


if __name__ == "__main__":
    main()
