"""The MNIST columns of the paper: every method here, 20 seeds, beside the published numbers.

    python benchmarks/mnist.py [--parts basics main ...] [--seeds 20] [--workers N] [--store benchmarks/mnist.db]

Finished runs are kept in the store, so it can be stopped and started again. Writes mnist.json (every run, in the
documented form of ``gmed run --json``) and mnist.md (the tables) to benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import gmed
from gmed.engine import BENCHMARKS
from gmed.experiment import stored_results
from gmed.results import Results, markdown

HERE = Path(__file__).parent

BASICS = ["finetune", "er", "er+gmed", "iid-online", "iid-offline"]
MAIN = ["mir", "mir+gmed", "er-aug", "er-aug+gmed", "er-t", "er-t+gmed", "er+random-edit", "er+adv-edit"]
TASK_AWARE = ["gem", "gem+gmed"]
TEN_SEEDS = ["agem", "gss", "gss+gmed", "bgd", "hal"]  # as many as the paper's
VARIANTS = [
    "er+optimal-edit",
    "mir+random-edit",
    "mir+adv-edit",
    *(f"mir(extra_batches={n})" for n in (1, 2)),
    *(f"er+gmed(gamma={gamma})" for gamma in (0.9, 0.99)),
    *(f"er+gmed(extra={n})" for n in (3, 5, 10, 50)),
]
PLAN = {  # in the order they are worth waiting for
    "basics": dict.fromkeys(("split-mnist", "permuted-mnist", "rotated-mnist"), BASICS)
    | {"split-mnist-full": ["er", "er+gmed"]},
    "main": dict.fromkeys(("split-mnist", "rotated-mnist", "permuted-mnist"), MAIN)
    | {"split-mnist-full": ["mir", "mir+gmed", "er-aug", "er-aug+gmed"]},
    "task-aware": dict.fromkeys(("split-mnist", "rotated-mnist", "permuted-mnist"), TASK_AWARE),
    "ten-seeds": dict.fromkeys(("split-mnist", "permuted-mnist", "rotated-mnist"), TEN_SEEDS),
    "variants": {
        "split-mnist": [
            *VARIANTS,
            "er+gmed(steps=3)",
            "er+gmed(steps=5)",
            "er+gmed(alpha=10.0,beta=0.1,write_back=false)",
        ],
        "rotated-mnist": [
            *VARIANTS,
            "er+gmed(alpha=0.05,steps=3)",
            "er+gmed(alpha=0.01,steps=5)",
            "er+gmed(alpha=10.0,write_back=false)",
        ],
        "permuted-mnist": [*VARIANTS, "er+gmed(alpha=5.0,beta=0.0,write_back=false)"],
    },
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--workers", type=int, default=None)
    options.add_argument("--device", default="cpu")
    options.add_argument("--store", type=Path, default=HERE / "mnist.db")
    options.add_argument("--parts", nargs="+", default=list(PLAN), choices=list(PLAN))
    options.add_argument("--benchmarks", nargs="+", default=None, choices=list(BENCHMARKS))
    options.add_argument("--out", type=Path, default=HERE / "results")
    chosen = options.parse_args()

    computed = Results()
    for part, benchmark in ((p, name) for p in chosen.parts for name in PLAN[p]):
        if chosen.benchmarks and benchmark not in chosen.benchmarks:
            continue
        start = time.perf_counter()
        results = gmed.run(
            benchmark,
            PLAN[part][benchmark],
            seeds=min(10, chosen.seeds) if part == "ten-seeds" else chosen.seeds,
            workers=chosen.workers,
            device=chosen.device,
            store=chosen.store,
        )
        computed.failures += results.failures
        print(f"{part} {benchmark}: {len(results.runs)} runs, {time.perf_counter() - start:.0f} s", flush=True)

    everything, _ = stored_results(chosen.store)
    everything.store = None
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "mnist.json").write_text(json.dumps(everything.to_dict()) + "\n")
    (chosen.out / "mnist.md").write_text(markdown(everything))
    print(markdown(everything))
    for failure in computed.failures:
        print("failed:", failure)
    environments = {json.dumps(run.environment) for run in everything.runs}
    print("computed on:", *sorted(environments), f"({os.cpu_count()} cores)", sep="\n  ")


if __name__ == "__main__":
    main()
