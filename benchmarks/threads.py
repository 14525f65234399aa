"""Measure what torch's thread pool costs small products, alone and beside busy neighbors.

    python benchmarks/threads.py [--rows 20000] [--neighbors 2]

Fits a table, learns with the estimator, and makes the first steps of a learner: with one thread of torch, which is what
calls use, and with torch's own number (GMED_THREADS=0), each alone and beside processes that keep every core busy. Each
measurement is a process of its own. Prints seconds of wall time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

BUSY = "while True: sum(range(100_000))"

TIMED = """
import sys, time
import numpy as np, torch, gmed
from gmed.sklearn import GMEDClassifier
start = time.perf_counter()
{work}
print(time.perf_counter() - start)
"""

ESTIMATOR = """
rng = np.random.default_rng(0)
x = rng.normal(size=({rows}, 20)); y = (x[:, 0] > 0).astype(int)
model = GMEDClassifier(random_state=0)
for at in range(0, len(x), 100):
    model.partial_fit(x[at : at + 100], y[at : at + 100], classes=[0, 1])
"""

FIRST_LEARNER = """
learner = gmed.learners.ER(gmed.models.MLP(), lr=0.05, memory=gmed.memory.Reservoir(500), seed=0)
for _ in range(30):
    learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10))
"""


@contextmanager
def busy(neighbors: int) -> Iterator[None]:
    """Run processes inside that do nothing but compute."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(neighbors)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def seconds(work: str, threads: str | None) -> float:
    """Return the time that Python code takes in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k not in ("GMED_THREADS", "OMP_NUM_THREADS")}
    environment |= {} if threads is None else {"GMED_THREADS": threads}
    code = [sys.executable, "-c", TIMED.format(work=work)]
    return float(subprocess.run(code, env=environment, capture_output=True, text=True, check=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--neighbors", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table, model = Path(folder) / "rows.csv", Path(folder) / "model.gmed"
        x = np.random.default_rng(0).normal(size=(chosen.rows, 20))
        rows = np.column_stack([x, x[:, 0] > 0])
        names = ",".join([*(f"x{column}" for column in range(20)), "label"])
        np.savetxt(table, rows, fmt="%.6g", delimiter=",", header=names, comments="")
        fit = "from gmed.online.table_fit import TableFit, fit_table; from pathlib import Path\n"
        fit += f"fit_table(TableFit(Path({str(table)!r}), 'label', Path({str(model)!r})))"
        works = {
            f"fit of {chosen.rows:,} rows": fit,
            f"estimator, {chosen.rows // 10:,} rows": ESTIMATOR.format(rows=chosen.rows // 10),
            "first learner, 30 steps": FIRST_LEARNER,
        }
        beside = f"beside {chosen.neighbors}"
        print(f"| seconds | one thread, alone | {beside} | torch's threads, alone | {beside} |")
        print("|---|---:|---:|---:|---:|")
        for name, work in works.items():
            measured = []
            for threads in (None, "0"):
                for neighbors in (0, chosen.neighbors):
                    model.unlink(missing_ok=True)
                    with busy(neighbors):
                        measured.append(seconds(work, threads))
            print(f"| {name} | {' | '.join(f'{value:.2f}' for value in measured)} |", flush=True)


if __name__ == "__main__":
    main()
