"""What it costs never to lose a result: checkpoints, the store, and tasks on a cluster.

    python benchmarks/durability.py [--parts checkpoints store cluster]

Checkpoints: how long one takes to write, and their share of a run that asks for them ten times a second. Store: results
a second into one file, each synced to disk before it counts. Cluster: tasks a second through one scheduler on this
machine with checkpoints of the size that runs have. Writes results/durability.json.

The kill test with 200 kills instead of 10: GMED_KILLS=200 python -m pytest tests/engine/test_crash_recovery.py
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from gmed.engine import ExecutionConfig, RunResult, RunSpec, run_one
from gmed.engine.checkpoint import Checkpoint, Checkpoints
from gmed.engine.runner import collect_environment, make_learner
from gmed.results import Store

SHAPES = {"split-mnist": (1, 28, 28), "split-cifar10": (3, 32, 32), "split-mini-imagenet": (3, 84, 84)}


def checkpoints(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for benchmark, shape in SHAPES.items():
        spec = RunSpec.make(benchmark, "er+gmed", 0)
        learner = make_learner(spec, torch.device("cpu"))
        learner.observe(torch.rand(10, *shape), torch.randint(10, (10,)))
        kept = Checkpoints(folder / benchmark, every=60)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            kept.save(spec, Checkpoint(10, [], {}, [], learner.state_dict()))
            times.append(time.perf_counter() - start)
        size = len(kept.file(spec) or b"")
        found[f"one of {benchmark}"] = {"bytes": size, "median seconds": sorted(times)[2]}
    for method in ("er", "er+gmed"):
        kept = Checkpoints(folder / method, every=0.1)
        result = run_one(RunSpec.make("rotated-mnist", method, 0), ExecutionConfig("cpu", checkpoints=kept))
        seconds = sum(result.timings.values())
        found[f"share of rotated-mnist {method}"] = result.timings.get("checkpoints", 0.0) / seconds
    return found


def store(folder: Path) -> dict[str, Any]:
    accuracy = [[0.1 * task for task in range(5)] for _ in range(5)]
    pairs = []
    for seed in range(5000):
        timings, conditions = {"data": 0.1, "train": 1.0, "evaluate": 0.2}, {"device": "cpu", "torch": "2.13"}
        result = RunResult("split-mnist", "er", seed, accuracy, 0.2, 0.2, 500, timings, conditions)
        pairs.append((RunSpec.make("split-mnist", "er", seed), result))
        _ = pairs[-1][0].key
    found: dict[str, Any] = {}
    with Store(folder / "rate.db") as opened:
        found["synchronous"] = opened.database.execute("PRAGMA synchronous").fetchone()[0]  # 2 is FULL
        for size, count in ((1, 500), (20, 1000), (100, 3000)):
            start = time.perf_counter()
            for at in range(0, count, size):
                opened.add_all(pairs[at : at + size])
            found[f"results/s, {size} a transaction"] = round(count / (time.perf_counter() - start))
    return found


def cluster(folder: Path) -> dict[str, Any]:
    from distributed import Client, LocalCluster, as_completed

    found = {}
    here = {"host": "127.0.0.1", "dashboard_address": None, "local_directory": str(folder)}
    with LocalCluster(n_workers=2, threads_per_worker=1, **here) as local, Client(local) as client:
        for size, count in ((0, 2000), (1_600_000, 200), (10_600_000, 50)):
            start = time.perf_counter()
            futures = [client.submit(_echo, {"number": n}, b"\0" * size, pure=False) for n in range(count)]
            for future in as_completed(futures):
                future.result()
                future.release()
            seconds = time.perf_counter() - start
            found[f"{size} bytes out and back"] = {"tasks/s": round(count / seconds), "ms": 1000 * seconds / count}
    return found


def _echo(job: dict[str, int], kept: bytes) -> bytes:
    return kept


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {"checkpoints": checkpoints, "store": store, "cluster": cluster}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    chosen = options.parse_args()
    torch.set_num_threads(1)
    out = Path(__file__).parent / "results" / "durability.json"
    content = json.loads(out.read_text()) if out.exists() else {}
    content["environment"] = collect_environment(torch.device("cpu"))
    for part in chosen.parts:
        with TemporaryDirectory(dir=Path(__file__).parent) as folder:
            content[part] = PARTS[part](Path(folder))
        print(part, json.dumps(content[part], indent=1), flush=True)
    out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
