"""What there is to reproduce, what it needs, what of that is here, and how long the rest would take."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from gmed.engine import RunSpec, get_benchmark
from gmed.engine.batched import MAX_GROUP_SIZE
from gmed.engine.bench import SHAPES, bench, seconds_to_predict
from gmed.engine.config import resolve_device
from gmed.engine.methods import parse
from gmed.engine.runner import collect_environment
from gmed.experiment import default_store
from gmed.paper.artifacts.base import Artifact
from gmed.paper.plan import SLOW_METHODS
from gmed.results import Store
from gmed.results.store import Timing

WARM_UP, STEPS, AT_MOST = 5, 10, 0.5
"""Steps before and while the clock runs, where a speed is measured, and seconds after which it stops."""

PATIENCE = 40.0
"""Seconds after which no further speed is measured with images of one size."""

SPEED_NEUTRAL = {"memory", "told", "write_back"}
"""Parameters that do not change how long a step takes."""

Clock = Callable[[str, str], float | None]
"""Seconds that a run of a method takes on a benchmark, if they are known."""


@dataclass(frozen=True)
class ArtifactStatus:
    """How far a study has come.

    Attributes
    ----------
    stored, needed
        Runs that the store has, and all that it needs.
    kept
        Whether its runs are kept at all.
    data
        The data sets it needs, and whether each is here.
    seconds
        What the missing runs take here, as far as it is known, on all cores; only those whose data are here.
    unknown
        How many of them there are whose speed is not known.
    elsewhere
        How many more are missing whose data are not here.
    seeds
        At how many seeds a method is run: the fewest and the most.
    """

    study: Artifact
    stored: int
    needed: int
    kept: bool
    data: dict[str, bool]
    seconds: float
    unknown: int
    elsewhere: int
    seeds: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can carry it."""
        study = {"name": self.study.name, "title": self.study.title, "where": self.study.where}
        return {**study, **{name: value for name, value in vars(self).items() if name != "study"}}


def artifact_status(
    studies: Iterable[Artifact],
    *,
    store: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    measure: Callable[[str, str], None] | None = None,
) -> list[ArtifactStatus]:
    """How far each of them has come.

    Parameters
    ----------
    measure
        If given, speeds that the store does not have are measured, after it was told of which benchmark and method.
    """
    path, where = Path(store or default_store()), resolve_device(device)
    timings, stored = list[Timing](), dict[str, set[str]]()
    studies = list(studies)
    if path.exists():
        with Store(path) as opened:
            timings = opened.timings()
            stored = {what: opened.keys(what) for what in {study.observes for study in studies}}
    clock = recorded(timings, collect_environment(where)["device"])
    if measure is not None:
        clock = lru_cache(maxsize=None)(_measured(clock, device, data_dir, measure))
    at_once = 1 if where.type == "cuda" else os.cpu_count() or 1
    here = lru_cache(maxsize=None)(
        lambda name: get_benchmark(name).missing_data(Path(data_dir) if data_dir else None) is None
    )

    def standing(study: Artifact) -> ArtifactStatus:
        needed, kept, seconds, unknown, elsewhere = set[str](), 0, 0.0, 0, 0
        sets: dict[str, bool] = {}
        for planned in study.plan():
            sets.setdefault(get_benchmark(planned.benchmark).data, here(planned.benchmark))
            keys = {spec.key for spec in planned.specs()} - needed
            missing = keys - stored.get(study.observes, set()) if study.stored else keys
            needed |= keys
            kept += len(keys) - len(missing)
            if missing and here(planned.benchmark):
                each = clock(planned.benchmark, study.cost_proxy or planned.method)
                seconds += (each or 0.0) * len(missing) / at_once
                unknown += 0 if each else len(missing)
            elif missing:
                elsewhere += len(missing)
        seeds = [planned.seeds for planned in study.plan()]
        most = min(seeds), max(seeds)
        return ArtifactStatus(study, kept, len(needed), study.stored, sets, seconds, unknown, elsewhere, most)

    return [standing(study) for study in studies]


def recorded(timings: Iterable[Timing], device: str) -> Clock:
    """What runs on this device took: of this very method, else of such that differ from it in parameters alone.

    >>> clock = recorded([Timing("k", "split-mnist", "er+gmed(alpha=1.0)", "cpu", 4.0)], "cpu")
    >>> clock("split-mnist", "er+gmed"), clock("split-mnist", "er")
    (4.0, None)
    """
    found: dict[tuple[str, str], list[float]] = {}
    for timing in timings:
        if timing.device == device:
            for name in {timing.method, family(timing.method)}:
                found.setdefault((timing.benchmark, name), []).append(timing.seconds)

    def clock(benchmark: str, method: str) -> float | None:
        seconds = found.get((benchmark, method)) or found.get((benchmark, family(method)))
        return mean(seconds) if seconds else None

    return clock


def family(method: str) -> str:
    """A method's name without its parameters.

    >>> family("er(memory=100)+gmed(alpha=1.0)")
    'er+gmed'
    """
    return "+".join(part.name for part in parse(method))


def _measured(known: Clock, device: str, data_dir: str | Path | None, tell: Callable[[str, str], None]) -> Clock:
    """The same clock where it knows; else some steps and predictions are timed, and multiplied, while patience lasts.

    Streams of images of one size are learned from at the same speed, as are methods of one shape.
    """
    timed: dict[tuple[Any, str], tuple[float, float]] = {}
    spent: dict[Any, float] = {}
    folder, sizes = Path(data_dir) if data_dir else None, dict[str, tuple[float, int]]()

    def clock(benchmark: str, method: str) -> float | None:
        if (seconds := known(benchmark, method)) is not None:
            return seconds
        spec = RunSpec.make(benchmark, method, seed=0)
        if spec.method.base.name == SLOW_METHODS:  # and most of its time goes into a few steps
            return None
        size = SHAPES.get(spec.benchmark.data, spec.benchmark.data)
        shape = size, _work(spec)
        if shape not in timed:
            if spent.get(size, 0.0) > PATIENCE:
                return None
            tell(benchmark, method)
            start = time.monotonic()
            timed[shape] = _seconds_each(spec, device)
            spent[size] = spent.get(size, 0.0) + time.monotonic() - start
        if benchmark not in sizes:
            stream = spec.benchmark.make_stream(folder, 0)
            evaluated = (len(stream.eval_points) + 1) * sum(len(test.y) for test in stream.tests)
            sizes[benchmark] = len(stream) / spec.benchmark.batch_size, evaluated
        (step, prediction), (steps, predictions) = timed[shape], sizes[benchmark]
        return step * steps * int(spec.method.base.parameters.get("passes", 1)) + prediction * predictions

    return clock


def _work(spec: RunSpec) -> str:
    """What a step of the method does, whatever its memory holds."""
    parts = json.loads(spec.method.shape).items()
    return json.dumps({kind: {k: v for k, v in part.items() if k not in SPEED_NEUTRAL} for kind, part in parts})


def _seconds_each(spec: RunSpec, device: str) -> tuple[float, float]:
    """How long a step and a prediction take, computed as runs are: one thread each, or many seeds together."""
    name = spec.benchmark.name, spec.method.name
    together = resolve_device(device).type == "cuda" and spec.is_capturable()
    how: dict[str, Any] = (
        {"replicas": (MAX_GROUP_SIZE,), "warm_up": 100, "steps": 200}
        if together
        else {"replicas": (), "max_seconds": AT_MOST}
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        settings = {"device": device, "by_stage": False, "warm_up": WARM_UP, "steps": STEPS, **how}
        speeds = [bench(*name, **settings)[-1] for _ in range(2)]  # libraries set themselves up in the first
        step = min(speed.milliseconds for speed in speeds) / 1000
        return step, seconds_to_predict(*name, device=device, examples=100)
    finally:
        torch.set_num_threads(threads)
