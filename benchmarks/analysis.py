"""What edits do besides accuracy: Figure 3 and Table 16 of the paper on the MNIST streams.

    python benchmarks/analysis.py [--parts similarity change] [--seeds N]

Cosine similarity of GMED's edits to the optimal ones over training, and the share of stored examples whose predicted
class differs from their originals', 20 seeds each. Writes results/analysis.json.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from gmed.engine import RunSpec
from gmed.engine.run import environment
from gmed.paper.analysis import prediction_change, similarity_to_the_optimal_edit

BENCHMARKS = ("split-mnist", "rotated-mnist")
SEEDS = 20


def similarity(benchmark: str, seed: int) -> list[float]:
    torch.set_num_threads(1)
    return similarity_to_the_optimal_edit(RunSpec.make(benchmark, "er+gmed", seed))


def change(benchmark: str, seed: int) -> float:
    torch.set_num_threads(1)
    return prediction_change(RunSpec.make(benchmark, "er+gmed", seed))


PARTS = {"similarity": similarity, "change": change}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    options.add_argument("--seeds", type=int, default=SEEDS)
    options.add_argument("--workers", type=int, default=os.cpu_count())
    chosen = options.parse_args()
    out = Path(__file__).parent / "results" / "analysis.json"
    content = json.loads(out.read_text()) if out.exists() else {}
    content["environment"] = environment(torch.device("cpu"))
    with ProcessPoolExecutor(chosen.workers, mp_context=get_context("spawn")) as pool:
        for part in chosen.parts:
            for benchmark in BENCHMARKS:
                seeds = range(chosen.seeds)
                found = list(pool.map(partial(PARTS[part], benchmark), seeds))
                each = [float(np.mean(one)) for one in found]
                kept = {"by seed": each, "mean": float(np.mean(each)), "std": float(np.std(each, ddof=1))}
                if part == "similarity":
                    curve = np.mean([one[: min(map(len, found))] for one in found], axis=0)  # type: ignore[arg-type]
                    kept["over training"] = [round(float(c.mean()), 4) for c in np.array_split(curve, 20)]
                content.setdefault(part, {})[benchmark] = kept
                print(part, benchmark, f"{kept['mean']:.4f} ± {kept['std']:.4f} ({len(each)} seeds)", flush=True)
                out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
