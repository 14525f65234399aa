"""Status of the paper's tables and figures: the runs they need, those stored, and the time for the rest."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

from gmed.engine import RunSpec, get_benchmark
from gmed.engine.batched import MAX_GROUP_SIZE
from gmed.engine.bench import SHAPES, bench, seconds_to_predict
from gmed.engine.config import resolve_device
from gmed.engine.methods import parse
from gmed.engine.runner import collect_environment
from gmed.experiment import default_store
from gmed.kernels.threads import limit_threads
from gmed.paper.artifacts.base import Artifact
from gmed.paper.plan import SLOW_METHODS, PlannedRuns
from gmed.results import Store
from gmed.results.store import Timing

WARM_UP, STEPS, MAX_SECONDS = 5, 10, 0.5
"""Steps of warm-up and of measurement for a speed, and seconds after which the measurement stops."""

MAX_MEASURE_SECONDS = 40.0
"""Seconds after which no further speed is measured with images of one size."""

SPEED_NEUTRAL = {"memory", "task_at_test", "write_back"}
"""Parameters that do not change how long a step takes."""

RuntimeEstimate = Callable[[str, str], float | None]
"""Seconds that a run of a method takes on a benchmark, if they are known."""


@dataclass
class ArtifactStatus:
    """The status of a table or figure.

    Attributes
    ----------
    seeds
        The smallest and the largest number of seeds of a method.
    stored, needed
        Number of runs that the store has, and that are needed.
    data
        The data sets it needs, and whether each is available.
    seconds
        Estimated time of the missing runs whose data are available and whose speed is known, on all cores.
    unknown
        Number of missing runs whose data are available and whose speed is unknown.
    elsewhere
        Number of missing runs whose data are not available.
    """

    artifact: Artifact
    seeds: tuple[int, int]
    stored: int = 0
    needed: int = 0
    data: dict[str, bool] = field(default_factory=dict)
    seconds: float = 0.0
    unknown: int = 0
    elsewhere: int = 0

    @property
    def cached(self) -> bool:
        """Whether its runs are stored at all."""
        return self.artifact.cached

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON-compatible data."""
        return {
            "name": self.artifact.name,
            "title": self.artifact.title,
            "where": self.artifact.location,
            "stored": self.stored,
            "needed": self.needed,
            "kept": self.cached,
            "data": self.data,
            "seconds": self.seconds,
            "unknown": self.unknown,
            "elsewhere": self.elsewhere,
            "seeds": self.seeds,
        }


def artifact_status(
    artifacts: Iterable[Artifact],
    *,
    store: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    measure: Callable[[str, str], None] | None = None,
    plan: Callable[[Artifact], list[PlannedRuns]] = lambda artifact: artifact.plan(),
) -> list[ArtifactStatus]:
    """Return the status of each table or figure.

    Parameters
    ----------
    measure
        If given, speeds that the store lacks are measured; called before each measurement with the benchmark and the
        method.
    plan
        Returns the runs of a table or figure, by default all.
    """
    path, resolved_device = Path(store or default_store()), resolve_device(device)
    timings, stored = list[Timing](), dict[str, set[str]]()
    artifacts = list(artifacts)
    if path.exists():
        with Store(path) as results_store:
            timings = results_store.timings()
            stored = {what: results_store.keys(what) for what in {artifact.probe_version for artifact in artifacts}}
    estimate = from_timings(timings, collect_environment(resolved_device)["device"])
    if measure is not None:
        estimate = lru_cache(maxsize=None)(_with_measurements(estimate, device, data_dir, measure))
    parallel = 1 if resolved_device.type == "cuda" else os.cpu_count() or 1
    has_data = lru_cache(maxsize=None)(
        lambda name: get_benchmark(name).missing_data(Path(data_dir) if data_dir else None) is None
    )

    def status_of(artifact: Artifact) -> ArtifactStatus:
        runs, counted = plan(artifact), set[str]()
        seeds = [planned.seeds for planned in runs]
        status = ArtifactStatus(artifact, (min(seeds), max(seeds)))
        for planned in runs:
            is_available = has_data(planned.benchmark)
            status.data.setdefault(get_benchmark(planned.benchmark).data, is_available)
            keys = {spec.key for spec in planned.specs()} - counted
            missing = keys - stored.get(artifact.probe_version, set()) if artifact.cached else keys
            counted |= keys
            status.needed += len(keys)
            status.stored += len(keys) - len(missing)
            if missing and is_available:
                seconds_per_run = estimate(planned.benchmark, artifact.cost_proxy or planned.method)
                status.seconds += (seconds_per_run or 0.0) * len(missing) / parallel
                status.unknown += 0 if seconds_per_run else len(missing)
            else:
                status.elsewhere += len(missing)
        return status

    return [status_of(artifact) for artifact in artifacts]


def from_timings(timings: Iterable[Timing], device: str) -> RuntimeEstimate:
    """Return an estimate from the recorded times on this device: of the method, or of others with the same parts.

    >>> estimate = from_timings([Timing("k", "split-mnist", "er+gmed(alpha=1.0)", "cpu", 4.0)], "cpu")
    >>> estimate("split-mnist", "er+gmed"), estimate("split-mnist", "er")
    (4.0, None)
    """
    recorded_seconds: dict[tuple[str, str], list[float]] = {}
    for timing in timings:
        if timing.device == device:
            for name in {timing.method, strip_parameters(timing.method)}:
                recorded_seconds.setdefault((timing.benchmark, name), []).append(timing.seconds)

    def estimate(benchmark: str, method: str) -> float | None:
        seconds = recorded_seconds.get((benchmark, method)) or recorded_seconds.get(
            (benchmark, strip_parameters(method))
        )
        return mean(seconds) if seconds else None

    return estimate


def strip_parameters(method: str) -> str:
    """Return a method's name without its parameters.

    >>> strip_parameters("er(memory=100)+gmed(alpha=1.0)")
    'er+gmed'
    """
    return "+".join(part.name for part in parse(method))


def _with_measurements(
    known: RuntimeEstimate, device: str, data_dir: str | Path | None, on_measure: Callable[[str, str], None]
) -> RuntimeEstimate:
    """Return an estimate that times some steps and predictions where the given one has no time, within a budget.

    Images of the same size and methods of the same shape are assumed to take the same time per step.
    """
    timed: dict[tuple[Any, str], tuple[float, float]] = {}
    spent: dict[Any, float] = {}
    folder, sizes = Path(data_dir) if data_dir else None, dict[str, tuple[float, int]]()

    def estimate(benchmark: str, method: str) -> float | None:
        if (seconds := known(benchmark, method)) is not None:
            return seconds
        spec = RunSpec.make(benchmark, method, seed=0)
        if spec.method.base.name == SLOW_METHODS:  # most of its time is spent in a few steps
            return None
        size = SHAPES.get(spec.benchmark.data, spec.benchmark.data)
        shape = size, _step_cost_key(spec)
        if shape not in timed:
            if spent.get(size, 0.0) > MAX_MEASURE_SECONDS:
                return None
            on_measure(benchmark, method)
            start = time.monotonic()
            timed[shape] = _seconds_per_item(spec, device)
            spent[size] = spent.get(size, 0.0) + time.monotonic() - start
        if benchmark not in sizes:
            stream = spec.benchmark.make_stream(folder, 0)
            evaluated = (len(stream.eval_points) + 1) * sum(len(test.y) for test in stream.tests)
            sizes[benchmark] = len(stream) / spec.benchmark.batch_size, evaluated
        (step, prediction), (steps, predictions) = timed[shape], sizes[benchmark]
        return step * steps * int(spec.method.base.parameters.get("passes", 1)) + prediction * predictions

    return estimate


def _step_cost_key(spec: RunSpec) -> str:
    """Return a key that methods share if their steps cost the same, whatever their memory holds."""
    parts = json.loads(spec.method.graph_signature).items()
    return json.dumps({kind: {k: v for k, v in part.items() if k not in SPEED_NEUTRAL} for kind, part in parts})


def _seconds_per_item(spec: RunSpec, device: str) -> tuple[float, float]:
    """Return the seconds of a step and of a prediction, measured as in runs: single-threaded, or batched on a GPU."""
    names = spec.benchmark.name, spec.method.name
    batched = resolve_device(device).type == "cuda" and spec.is_capturable()
    overrides: dict[str, Any] = (
        {"replicas": (MAX_GROUP_SIZE,), "warm_up": 100, "steps": 200}
        if batched
        else {"replicas": (), "max_seconds": MAX_SECONDS}
    )
    with limit_threads(1):
        settings = {"device": device, "by_stage": False, "warm_up": WARM_UP, "steps": STEPS, **overrides}
        speeds = [bench(*names, **settings)[-1] for _ in range(2)]  # libraries initialize in the first
        step = min(speed.milliseconds for speed in speeds) / 1000
        return step, seconds_to_predict(*names, device=device, examples=100)
