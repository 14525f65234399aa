"""Runs that are made to be watched: several at once, each in a process of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from gmed.engine import RunSpec
from gmed.engine.config import resolve_device
from gmed.engine.executors.local import default_workers
from gmed.errors import check_int
from gmed.experiment import default_store
from gmed.paper.artifacts.base import Request
from gmed.paper.plan import PlannedRuns
from gmed.results import Store

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Job = tuple[str, str, int]
"""A benchmark, a method and a seed: what of a run can be sent to another process."""


class Analysis(Protocol[T_co]):
    """What is found by watching a run, such as those of :mod:`gmed.paper.probes`."""

    def __call__(self, spec: RunSpec, device: str, data_dir: Path | None) -> T_co: ...


def watched(analysis: Analysis[T], planned: PlannedRuns, asked: Request, cache_as: str = "") -> list[T]:
    """What the analysis finds at every seed: one run, or with no workers, in this process, else in several.

    Parameters
    ----------
    cache_as
        What the store keeps it as, run by run, and has it from another time; what is found must be as JSON can carry
        it. By default nothing is kept.

    >>> from gmed.paper.probes import prediction_change
    >>> watched(prediction_change, PlannedRuns("split-mnist", "er+gmed(alpha=0.0)", 1), Request(how={"workers": 0}))
    [0.0]
    """
    workers = asked.how.get("workers")
    if workers is not None:
        check_int("workers", workers, minimum=0)
    specs, watcher = planned.specs(), asked.watcher()
    data_dir = asked.how.get("data_dir")
    terms = resolve_device(asked.how.get("device", "auto")).type, Path(data_dir) if data_dir else None
    look = partial(_look, analysis, *terms)
    workers = default_workers(terms[0] == "cuda") if workers is None else workers
    with ExitStack() as stack:
        store = asked.how.get("store", default_store()) if cache_as else None
        opened = stack.enter_context(Store(store)) if store else None
        seen = {spec: kept for spec in specs if opened and (kept := opened.observed(spec, cache_as)) is not None}
        left = [spec for spec in specs if spec not in seen]
        if left and opened:
            opened.require_writable()
        watcher.start(left, len(seen))
        for spec, result in zip(left, _map_parallel(look, left, workers), strict=True):
            watcher.watched(spec)
            seen[spec] = result
            if opened:
                opened.put_probe(spec, cache_as, result)
    return [seen[spec] for spec in specs]


def _map_parallel(look: Callable[[Job], T], specs: Sequence[RunSpec], workers: int) -> Iterator[T]:
    jobs = [(spec.benchmark.name, spec.method.name, spec.seed) for spec in specs]
    if workers == 0 or len(jobs) < 2:
        yield from map(look, jobs)
        return
    before = set(active_children())
    pool = ProcessPoolExecutor(min(workers, len(jobs)), get_context("spawn"), _ignore_sigint)
    try:
        yield from pool.map(look, jobs)
    except BaseException:
        for process in set(active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it


def _look(analysis: Analysis[T], device: str, data_dir: Path | None, job: Job) -> T:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # their number changes the order of sums
    try:
        return analysis(RunSpec.make(*job), device, data_dir)
    finally:
        torch.set_num_threads(threads)
