"""Analyses of runs, computed in parallel processes and cached in the store."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TypeVar, get_type_hints

from gmed.engine import RunSpec
from gmed.engine.config import resolve_device
from gmed.engine.executors.local import default_workers
from gmed.errors import check_int
from gmed.experiment import default_store
from gmed.io.records import RecordError, decode
from gmed.kernels.threads import limit_threads
from gmed.paper.artifacts.base import Request
from gmed.paper.plan import PlannedRuns
from gmed.results import Store
from gmed.results.store import DamagedRunWarning

T = TypeVar("T")

Job = tuple[str, str, int]
"""A benchmark, a method and a seed, from which another process can rebuild the run."""


Analysis = Callable[[RunSpec, str, Path | None], T]
"""A function that executes a run on a device, with data from a folder, and analyzes it (:mod:`gmed.paper.probes`)."""


def run_probe(analysis: Analysis[T], planned: PlannedRuns, request: Request, cache_as: str = "") -> list[T]:
    """Return the analysis of the run at every seed; a single run, or all with ``workers=0``, are done in this process.

    Parameters
    ----------
    cache_as
        The name under which the store caches the analysis of each run, which must be JSON-compatible. By default
        nothing is cached.

    >>> from gmed.paper.probes import prediction_change
    >>> planned = PlannedRuns("split-mnist", "er+gmed(alpha=0.0)", 1)
    >>> run_probe(prediction_change, planned, Request(options={"workers": 0}))
    [0.0]
    """
    workers = request.options.get("workers")
    if workers is not None:
        check_int("workers", workers, minimum=0)
    specs, callback = planned.specs(), request.callback()
    data_dir = request.options.get("data_dir")
    device_and_data = resolve_device(request.options.get("device", "auto")).type, Path(data_dir) if data_dir else None
    analyze = partial(_analyze, analysis, *device_and_data)
    workers = default_workers(device_and_data[0] == "cuda") if workers is None else workers
    with ExitStack() as stack:
        store = request.options.get("store", default_store()) if cache_as else None
        results_store = stack.enter_context(Store(store)) if store else None
        results = {
            spec: cached
            for spec in specs
            if results_store and (cached := _cached(results_store, spec, cache_as, analysis)) is not None
        }
        remaining = [spec for spec in specs if spec not in results]
        if remaining and results_store:
            results_store.require_writable()
        callback.on_start(remaining, len(results))
        for spec, result in zip(remaining, _map_parallel(analyze, remaining, workers), strict=True):
            callback.on_probe(spec)
            results[spec] = result
            if results_store:
                results_store.put_probe(spec, cache_as, result)
    return [results[spec] for spec in specs]


def _cached(store: Store, spec: RunSpec, what: str, analysis: Analysis[T]) -> T | None:
    """Return the stored analysis of a run; one of the wrong type is skipped with a warning."""
    found = store.get_probe(spec, what)
    if found is None:
        return None
    try:
        kind: type[T] = get_type_hints(analysis).get("return", object)
        return decode(kind, found)
    except RecordError as error:
        message = f"{store.path}: the stored analysis of {spec} is damaged and will be repeated ({error})"
        warnings.warn(message, DamagedRunWarning, stacklevel=3)
        return None


def _map_parallel(analyze: Callable[[Job], T], specs: Sequence[RunSpec], workers: int) -> Iterator[T]:
    jobs = [(spec.benchmark.name, spec.method.name, spec.seed) for spec in specs]
    if workers == 0 or len(jobs) < 2:
        yield from map(analyze, jobs)
        return
    before = set(active_children())
    pool = ProcessPoolExecutor(min(workers, len(jobs)), get_context("spawn"), _ignore_sigint)
    try:
        yield from pool.map(analyze, jobs)
    except BaseException:
        for process in set(active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends it


def _analyze(analysis: Analysis[T], device: str, data_dir: Path | None, job: Job) -> T:
    with limit_threads(1):  # the number of threads changes the order of sums
        return analysis(RunSpec.make(*job), device, data_dir)
