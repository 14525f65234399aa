"""Does replaying only examples of earlier tasks explain the published ER numbers?

    python benchmarks/earlier_tasks.py [--workers 2] [--first-seed 0] [--benchmarks split-mnist ...]

Task-free ER replays any stored example. Code this field builds on leaves out those of the task under way, which needs
task ids: the paper says so of MIR's official implementation, and that it was undone there. Here ER does the same.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gmed.engine import RunSpec
from gmed.engine.runner import evaluate_tasks
from gmed.learners import ER
from gmed.paper.published import published
from gmed.results import difference
from gmed.rng import seeded_torch

CASES = {"split-mnist": 40, "permuted-mnist": 20, "rotated-mnist": 20}  # seeds
TASK_LENGTH = 1000


class EarlierTasksER(ER):
    """ER that replays nothing of the task under way."""

    def step(self, x: Tensor, y: Tensor) -> None:
        begun = self.memory.num_seen // TASK_LENGTH * TASK_LENGTH
        earlier = np.flatnonzero(self.memory.stream_index[: len(self.memory)].numpy() < begun)
        count = min(self.replay_size, len(earlier))
        drawn = torch.from_numpy(self.random("replay").choice(earlier, count, replace=False) if count else earlier)
        self.sgd_step(self.look_ahead(x, y), self.memory.x[drawn], self.memory.y[drawn])
        self.memory.insert(x, y, self.random("reservoir"))


def final_accuracy(job: tuple[str, bool, int]) -> float:
    """Percent, of one run."""
    benchmark, filtered, seed = job
    torch.set_num_threads(1)
    spec = RunSpec.make(benchmark, "er", seed)
    stream = spec.benchmark.make_stream(None, seed)
    with seeded_torch(seed, "weights"):
        learner = spec.method.make_learner(spec.benchmark.make_model(), seed)
    if filtered:
        learner.__class__ = EarlierTasksER
    for stretch in stream.task_batches(spec.benchmark.batch_size):
        for x, y in stretch:
            learner.observe(x, y)
    return 100 * float(np.mean(evaluate_tasks(learner, stream.tests)))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--benchmarks", nargs="+", default=list(CASES), choices=list(CASES))
    chosen = options.parse_args()

    found = []
    with ProcessPoolExecutor(chosen.workers, mp_context=get_context("spawn")) as pool:
        for benchmark in chosen.benchmarks:
            seeds = range(chosen.first_seed, chosen.first_seed + CASES[benchmark])
            paper = published(benchmark, "er")
            assert paper is not None
            for filtered in (False, True):
                values = list(pool.map(final_accuracy, [(benchmark, filtered, seed) for seed in seeds]))
                apart = difference(values, paper.mean, paper.std, paper.n)
                what = "earlier tasks only" if filtered else "all of memory"
                print(
                    f"{benchmark} er, replay of {what}: {np.mean(values):.2f} ± {np.std(values, ddof=1):.1f} "
                    f"(seeds {seeds[0]} to {seeds[-1]}); published {paper.mean}, "
                    f"difference {apart.mean:+.2f} ± {apart.error:.2f}",
                    flush=True,
                )
                found.append({"benchmark": benchmark, "replay": what, "accuracy": [round(v, 4) for v in values]})
    out = Path(__file__).parent / "results" / f"earlier_tasks_from_seed_{chosen.first_seed}.json"
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
