"""What edits do besides accuracy: Figure 3 and Table 16 of the paper.

    python benchmarks/analysis.py [--parts similarity change] [--seeds 20] [--benchmarks split-mnist rotated-mnist]
    GMED_DATA=FOLDER python benchmarks/analysis.py --parts change --benchmarks split-cifar10 --seeds 7

Cosine similarity of GMED's edits to the optimal ones, mean over training, and the share of stored examples whose
predicted class differs from their originals', on a CPU. Writes results/analysis.json after every seed, and goes on from
what that has.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from gmed.engine import RunSpec
from gmed.engine.runner import collect_environment
from gmed.paper.probes import prediction_change, similarity_to_optimal_edit


def similarity(benchmark: str, seed: int) -> float:
    torch.set_num_threads(1)
    return float(np.mean(similarity_to_optimal_edit(RunSpec.make(benchmark, "er+gmed", seed))))


def change(benchmark: str, seed: int) -> float:
    torch.set_num_threads(1)
    return prediction_change(RunSpec.make(benchmark, "er+gmed", seed))


PARTS = {"similarity": similarity, "change": change}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    options.add_argument("--benchmarks", nargs="+", default=["split-mnist", "rotated-mnist"])
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--workers", type=int, default=os.cpu_count())
    chosen = options.parse_args()
    out = Path(__file__).parent / "results" / "analysis.json"
    content = json.loads(out.read_text()) if out.exists() else {}
    content["environment"] = collect_environment(torch.device("cpu"))
    with ProcessPoolExecutor(chosen.workers, mp_context=get_context("spawn")) as pool:
        for part, benchmark in product(chosen.parts, chosen.benchmarks):
            kept = content.setdefault(part, {}).setdefault(benchmark, {"by seed": []})
            each = kept["by seed"]
            for found in pool.map(partial(PARTS[part], benchmark), range(len(each), chosen.seeds)):
                each.append(found)
                kept |= {"mean": float(np.mean(each)), "std": float(np.std(each, ddof=1)) if len(each) > 1 else None}
                out.write_text(json.dumps(content, indent=1) + "\n")
                print(part, benchmark, f"{kept['mean']:.4f} ({len(each)} seeds)", flush=True)


if __name__ == "__main__":
    main()
