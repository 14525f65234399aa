"""Choose hyper-parameters the paper does not give, by its own protocol.

    python benchmarks/tune.py [--seeds 10] [--workers 2] [--benchmarks split-mnist ...] [--families er-aug ...]
                              [--device cuda] [--out FOLDER]

5 % of the training examples of the first three tasks are held out; a candidate is trained on the rest of those three
tasks and scored by its mean accuracy over them on what was held out. No later task and no test example is seen.
The best mean over seeds wins.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from gmed.engine import RunSpec, get_benchmark
from gmed.engine.run import accuracy_on
from gmed.randomness import torch_seeded
from gmed.streams import Stream, held_out

ALPHAS = (0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
FAMILIES = {
    "er-aug": [
        f"er-aug(rotation={r},scaling={s},crop={c})"
        for r, s, c in product((0, 10, 20), (0, 0.1, 0.2), (0, 1, 2))
        if r or s or c
    ],
    "er-aug of photographs": [
        f"er-aug(rotation={r},scaling={s},crop={c},flip=true)"
        for r, s, c in ((0, 0, 2), (0, 0, 4), (0, 0.2, 4), (10, 0, 4), (10, 0.2, 4), (20, 0.2, 4), (15, 0.3, 6))
    ],
    "er+random-edit": [f"er+random-edit(stride={s})" for s in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)],
    "er+adv-edit": [f"er+adv-edit(stride={s})" for s in (0.0003, 0.001, 0.003, 0.01, 0.03)],
    "er+optimal-edit": [f"er+optimal-edit(alpha={a})" for a in (0.0003, 0.001, 0.003, 0.01, 0.03)],
    "er+gmed(steps=3)": [f"er+gmed(steps=3,alpha={a})" for a in (0.01, 0.03, *ALPHAS)],
    "er+gmed(steps=5)": [f"er+gmed(steps=5,alpha={a})" for a in (0.01, 0.03, *ALPHAS)],
    "er+gmed(write_back=false)": [
        f"er+gmed(write_back=false,alpha={a},beta={b})" for a, b in product(ALPHAS, (0, 0.001, 0.01, 0.1))
    ],
    "er-t+gmed": [f"er-t+gmed(alpha={a},beta={b})" for a, b in product(ALPHAS, (0, 0.01))],
}


@lru_cache(maxsize=1)
def small_stream(benchmark: str, seed: int) -> Stream:
    return held_out(get_benchmark(benchmark).make_stream(None, seed), seed)


def score(job: tuple[str, str, int, str]) -> float:
    """Held-out accuracy of one candidate at one seed, in percent; 0 if it diverges."""
    benchmark, method, seed, device = job
    torch.set_num_threads(1)
    spec, stream = RunSpec.make(benchmark, method, seed), small_stream(benchmark, seed).to(torch.device(device))
    with torch_seeded(seed, "weights"):
        learner = spec.method.make_learner(spec.benchmark.model().to(device), seed)
    try:
        for stretch in stream.stretches(spec.benchmark.batch_size):
            for x, y in stretch:
                learner.observe(x, y)
    except ArithmeticError:
        return 0.0
    return 100 * float(np.mean([accuracy_on(learner, test) for test in stream.tests]))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--benchmarks", nargs="+", default=["split-mnist", "rotated-mnist", "permuted-mnist"])
    options.add_argument("--families", nargs="+", default=[f for f in FAMILIES if "photographs" not in f])
    options.add_argument("--device", default="cpu")
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    chosen = options.parse_args()

    found = {}
    with ProcessPoolExecutor(chosen.workers, mp_context=get_context("spawn")) as pool:
        for benchmark, family in product(chosen.benchmarks, chosen.families):
            candidates = FAMILIES[family]
            jobs = [(benchmark, method, seed, chosen.device) for seed in range(chosen.seeds) for method in candidates]
            table = np.array(list(pool.map(score, jobs, chunksize=max(1, len(candidates) // 4))))
            means = table.reshape(chosen.seeds, len(candidates)).mean(0)
            found[f"{benchmark} {family}"] = dict(zip(candidates, means.round(3).tolist(), strict=True))
            best = int(means.argmax())
            print(f"{benchmark:15} {family:26} {candidates[best]}  {means[best]:.2f}", flush=True)
            chosen.out.mkdir(parents=True, exist_ok=True)
            (chosen.out / "tuning.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
