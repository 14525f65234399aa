"""How much of a mean is the luck of the 1,000 training images per task?

    python benchmarks/data_choice.py [--choices 10] [--seeds 10] [--workers 2]

Our runs choose the images anew for every seed. Here a choice is held fixed while weights, order, reservoir and
draws follow the seed, for several choices; the variance is split into a part between choices and a part within them.
Whoever draws the images once and reports a standard deviation over runs sees the second part alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from gmed.engine import RunSpec
from gmed.engine.benchmarks import STREAMS
from gmed.engine.runner import evaluate_tasks
from gmed.rng import make_rng, seeded_torch

CASES = [("permuted-mnist", "er"), ("split-mnist", "iid-online"), ("split-mnist", "er")]


def final_accuracy(job: tuple[str, str, int, int]) -> float:
    """Percent, of one run whose images are those of seed ``choice``."""
    benchmark, method, choice, seed = job
    torch.set_num_threads(1)
    spec = RunSpec.make(benchmark, method, seed)
    module = sys.modules[STREAMS[spec.benchmark.stream.name].__module__]
    module.make_rng = lambda s, purpose, step=0: make_rng(choice if purpose == "data" else s, purpose, step)
    stream = spec.method.make_stream(spec.benchmark.make_stream(None, seed), seed)
    with seeded_torch(seed, "weights"):
        model = spec.benchmark.make_model()
    learner = spec.method.make_learner(model, seed)
    for stretch in stream.task_batches(spec.benchmark.batch_size):
        for x, y in stretch:
            learner.observe(x, y)
    return 100 * float(np.mean(evaluate_tasks(learner, stream.tests)))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--choices", type=int, default=10)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--workers", type=int, default=2)
    chosen = options.parse_args()

    found = []
    with ProcessPoolExecutor(chosen.workers, mp_context=get_context("spawn")) as pool:
        for benchmark, method in CASES:
            jobs = [(benchmark, method, c, s) for c, s in product(range(chosen.choices), range(chosen.seeds))]
            table = np.array(list(pool.map(final_accuracy, jobs))).reshape(chosen.choices, chosen.seeds)
            within = float(np.sqrt(table.var(axis=1, ddof=1).mean()))
            between = float(np.sqrt(max(0.0, table.mean(axis=1).var(ddof=1) - within**2 / chosen.seeds)))
            print(
                f"{benchmark} {method}: mean {table.mean():.2f}, means of the choices {table.mean(axis=1).min():.2f} "
                f"to {table.mean(axis=1).max():.2f}, s.d. between choices {between:.2f}, within {within:.2f}",
                flush=True,
            )
            found.append({
                "benchmark": benchmark, "method": method, "between": between, "within": within,
                "accuracy_by_choice_and_seed": table.round(4).tolist(),
            })  # fmt: skip
    out = Path(__file__).parent / "results" / "data_choice.json"
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
