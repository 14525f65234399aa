"""The MNIST columns of the paper: every method here, 20 seeds, beside the published numbers.

    python benchmarks/mnist.py [--seeds 20] [--workers N] [--device cpu] [--store benchmarks/mnist.db] [--out DIR]

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
from gmed.results import Results, markdown

HERE = Path(__file__).parent

PLAN = {
    "split-mnist": ["finetune", "er", "er+gmed", "iid-online", "iid-offline"],
    "permuted-mnist": ["finetune", "er", "er+gmed", "iid-online", "iid-offline"],
    "rotated-mnist": ["finetune", "er", "er+gmed", "iid-online", "iid-offline"],
    "split-mnist-full": ["er", "er+gmed"],
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--workers", type=int, default=None)
    options.add_argument("--device", default="cpu")
    options.add_argument("--store", type=Path, default=HERE / "mnist.db")
    options.add_argument("--out", type=Path, default=HERE / "results")
    chosen = options.parse_args()

    everything = Results()
    for benchmark, methods in PLAN.items():
        start = time.perf_counter()
        results = gmed.run(
            benchmark,
            methods,
            seeds=chosen.seeds,
            workers=chosen.workers,
            device=chosen.device,
            store=chosen.store,
        )
        everything.runs += results.runs
        everything.failures += results.failures
        everything.published = results.published
        print(f"{benchmark}: {len(results.runs)} runs, {time.perf_counter() - start:.0f} s", flush=True)

    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "mnist.json").write_text(json.dumps(everything.to_dict()) + "\n")
    (chosen.out / "mnist.md").write_text(markdown(everything))
    print(markdown(everything))
    for failure in everything.failures:
        print("failed:", failure)
    environments = {json.dumps(run.environment) for run in everything.runs}
    print("computed on:", *sorted(environments), f"({os.cpu_count()} cores)", sep="\n  ")


if __name__ == "__main__":
    main()
