"""How fast does the estimator learn, and does its memory stay as it is?

    python benchmarks/estimator.py [--rows 1000000] [--repeats 7]

Rows of 54 columns and 7 classes (the shape of the forest cover data) given to ``partial_fit`` a hundred at a time, on
one core: with replay and no editing, with GMED, without a memory; one update from each hundred rows (``batch_size=100,
updates_per_batch=1``), and as by default (steps of 10 rows, three updates each). Rates are in rows per second of the
processor's time, which other work on the machine disturbs less than that of the clock; both are kept. Then one
estimator learns from so many rows, and the memory its process resides in is read on the way.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from gmed.sklearn import GMEDClassifier

HERE = Path(__file__).parent
COLUMNS, CLASSES, BATCH = 54, 7, 100
QUICK = {"batch_size": BATCH, "updates_per_batch": 1}
CASES = {
    "replay": {"alpha": 0.0, **QUICK},
    "replay + GMED": QUICK,
    "no memory": {"memory": 0, **QUICK},
    "replay, default steps": {"alpha": 0.0},
    "replay + GMED, default steps": {},
}


def batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of rows that can be told apart by their features."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, COLUMNS))
    made = []
    for _ in range(count):
        y = rng.integers(CLASSES, size=BATCH)
        made.append((centres[y] + rng.normal(size=(BATCH, COLUMNS)), y))
    return made


def rate(parameters: dict[str, object], repeats: int) -> dict[str, float]:
    """Rows per second, best and median of some repeats."""
    calls = 200 if "batch_size" in parameters else 20
    model, stream = GMEDClassifier(hidden=64, random_state=0, **parameters), batches(calls)
    for x, y in stream:
        model.partial_fit(x, y, classes=range(CLASSES))
    processor, clock = [], []
    for _ in range(repeats):
        start = time.process_time(), time.perf_counter()
        for x, y in stream:
            model.partial_fit(x, y)
        processor.append(calls * BATCH / (time.process_time() - start[0]))
        clock.append(calls * BATCH / (time.perf_counter() - start[1]))
    return {
        "rows per second of processor time, best": max(processor),
        "rows per second of processor time, median": float(np.median(processor)),
        "rows per second, best": max(clock),
        "rows per second, median": float(np.median(clock)),
    }


def resident() -> float:
    """MiB of memory that this process resides in."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def residence(rows: int) -> list[tuple[int, float]]:
    """Memory resided in after every tenth of a stream."""
    model, stream, found = GMEDClassifier(hidden=64, random_state=0, **QUICK), batches(500), []
    for number in range(rows // BATCH):
        model.partial_fit(*stream[number % len(stream)])
        if (number + 1) % (rows // BATCH // 10) == 0:
            found.append(((number + 1) * BATCH, round(resident(), 1)))
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--out", type=Path, default=HERE / "results")
    chosen = options.parse_args()
    torch.set_num_threads(1)

    speeds = {}
    for name, parameters in CASES.items():
        speeds[name] = rate(parameters, chosen.repeats)
        print(name, *(f"{value:>9,.0f} {key}" for key, value in speeds[name].items()), sep="\n  ", flush=True)
    memory = residence(chosen.rows)
    print(*(f"{rows:>9,} rows {size:8.1f} MiB" for rows, size in memory), sep="\n")
    found = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores shared with other work, one thread",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "columns": COLUMNS,
        "rows in a call": BATCH,
        "speeds": {name: {key: round(value) for key, value in speed.items()} for name, speed in speeds.items()},
        "resident MiB after rows": memory,
    }
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "estimator.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
