"""What the benchmark scripts share: compute what a store lacks, then write every run and the tables.

What the written results hold is put into a new store, so that it goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import gmed
from gmed.engine import BENCHMARKS, RunResult, RunSpec
from gmed.experiment import stored_results
from gmed.results import Results, Store, markdown
from gmed.results.export import Document

HERE = Path(__file__).parent
SLOW = {"agem", "gss", "gss+gmed", "bgd", "hal"}  # ten seeds where others have twenty: as many as the paper's


def main(name: str, doc: str | None, plan: Mapping[str, Mapping[str, Sequence[str]]], device: str) -> None:
    """Compute the parts of a plan (benchmark and methods of each) and write results/<name>.json and .md."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--workers", type=int, default=None)
    options.add_argument("--device", default=device)
    options.add_argument("--store", type=Path, default=HERE / f"{name}.db")
    options.add_argument("--parts", nargs="*", default=list(plan), help="none: only write what the store has")
    options.add_argument("--benchmarks", nargs="+", default=None, choices=list(BENCHMARKS))
    options.add_argument("--out", type=Path, default=HERE / "results")
    chosen = options.parse_args()

    if not chosen.store.exists():
        take_in(chosen.store, chosen.out / f"{name}.json")
    computed = Results()
    for part, benchmark in ((p, b) for p in chosen.parts for b in plan[p]):
        if chosen.benchmarks and benchmark not in chosen.benchmarks:
            continue
        for slow in (False, True):
            methods = [m for m in plan[part][benchmark] if (m in SLOW) == slow]
            seeds = max(1, chosen.seeds // 2) if slow else chosen.seeds
            if not methods:
                continue
            start = time.perf_counter()
            results = gmed.run(
                benchmark, methods, seeds=seeds, workers=chosen.workers, device=chosen.device, store=chosen.store
            )
            computed.failures += results.failures
            seconds = time.perf_counter() - start
            print(f"{part} {benchmark}: {len(results.runs)} runs, {seconds:.0f} s", flush=True)

    everything, _ = stored_results(chosen.store)
    everything.store = None
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / f"{name}.json").write_text(json.dumps(everything.to_dict()) + "\n")
    (chosen.out / f"{name}.md").write_text(markdown(everything))
    print(markdown(everything))
    for failure in computed.failures:
        print("failed:", failure)
    environments = {json.dumps(run.environment) for run in everything.runs}
    print("computed on:", *sorted(environments), f"({os.cpu_count()} cores)", sep="\n  ")


def runs_in(file: Path) -> list[RunResult]:
    """Return the runs of a file of results, if there is one, by the current names of their methods."""
    runs = Document.read(file).runs if file.exists() else []
    return [replace(run, method=RunSpec.parse(run.benchmark, run.method, run.seed).method.name) for run in runs]


def take_in(store: Path, file: Path) -> None:
    """Put the runs of a file of results into a store, as far as today's code would compute the same."""
    with Store(store) as new:
        if file.exists():
            with Document.read(file).load_results() as kept:
                new.merge(kept)
