from __future__ import annotations

import platform
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gmed.engine.benchmarks import get_benchmark
from gmed.engine.spec import RunSpec
from gmed.engine.together import Together
from gmed.errors import GmedError, UsageError
from gmed.learners import Learner
from gmed.randomness import torch_seeded
from gmed.streams import Examples, Stream, pixels
from gmed.version import __version__

OnProgress = Callable[[int, int], None]
"""Called now and then with the examples seen and the examples there are."""


@dataclass(frozen=True)
class RunResult:
    """What one run found.

    Attributes
    ----------
    accuracy
        accuracy[i][j]: test accuracy on task j at the i-th point of evaluation, in 0 .. 1. All classes
        compete; no task ids.
    final_accuracy
        The mean over tasks of the last row: the number the paper reports.
    pooled_accuracy
        The same over all test examples at once.
    timings
        Seconds spent on data, training and evaluation; of runs computed together, each one's share.
    environment
        The device and the versions of everything that computed it.
    """

    benchmark: str
    method: str
    seed: int
    accuracy: list[list[float]]
    final_accuracy: float
    pooled_accuracy: float
    steps: int
    timings: dict[str, float]
    environment: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_one(
    spec: RunSpec,
    *,
    device: str = "auto",
    data_dir: Path | None = None,
    on_progress: OnProgress = lambda seen, total: None,
) -> RunResult:
    """Compute one run in this process.

    >>> result = run_one(RunSpec.make("split-mnist", "finetune", seed=0), device="cpu")
    >>> [len(row) for row in result.accuracy], result.steps
    ([5, 5, 5, 5, 5], 500)
    """
    (outcome,) = run_together([spec], device=device, data_dir=data_dir, on_progress=on_progress)
    if isinstance(outcome, GmedError):
        raise outcome
    return outcome


def run_together(
    specs: Sequence[RunSpec],
    *,
    device: str = "auto",
    data_dir: Path | None = None,
    on_progress: OnProgress = lambda seen, total: None,
) -> list[RunResult | GmedError]:
    """Compute runs of one method on one benchmark at several seeds in this process, all advancing together.

    Each comes out as it would alone; one that fails does not stop the others.

    >>> specs = [RunSpec.make("split-mnist", "finetune", seed) for seed in (0, 1)]
    >>> [outcome.seed for outcome in run_together(specs, device="cpu")]
    [0, 1]
    """
    where = pick_device(device)
    with _default_dtype(torch.float32):
        try:
            return _run(specs, where, data_dir, on_progress)
        except torch.OutOfMemoryError:
            if len(specs) == 1:
                raise
    torch.cuda.empty_cache()
    half = len(specs) // 2
    parts = specs[:half], specs[half:]
    return [o for part in parts for o in run_together(part, device=device, data_dir=data_dir, on_progress=on_progress)]


def _run(
    specs: Sequence[RunSpec], where: torch.device, data_dir: Path | None, on_progress: OnProgress
) -> list[RunResult | GmedError]:
    clock = _Clock()
    with clock("data"):
        streams = [
            spec.method.make_stream(_stream(spec.benchmark.name, spec.seed, data_dir), spec.seed).to(where)
            for spec in specs
        ]
    learners = [make_learner(spec, where) for spec in specs]
    together = Together(learners, streams, specs[0].benchmark.batch_size)

    accuracy: list[list[list[float]]] = [[] for _ in specs]
    start = 0
    for number, stop in enumerate(streams[0].evaluate_after):
        task = (number,) if learners[0].task_aware else ()
        with clock("train"):
            for seen in together.learn(start, stop, *task):
                on_progress(seen, len(streams[0]))
        with clock("evaluate"):
            for rows, learner, stream in zip(accuracy, learners, streams, strict=True):
                rows.append([accuracy_on(learner, test) for test in stream.tests])
        start = stop

    conditions = {"replicas": str(len(specs)), "steps": "CUDA graph" if together.graph else "step by step"}
    shared = {name: round(seconds / len(specs), 4) for name, seconds in clock.seconds.items()}
    return [
        together.failures.get(replica)
        or RunResult(
            benchmark=spec.benchmark.name,
            method=spec.method.name,
            seed=spec.seed,
            accuracy=accuracy[replica],
            final_accuracy=float(np.mean(accuracy[replica][-1])),
            pooled_accuracy=float(
                np.average(accuracy[replica][-1], weights=[len(t.y) for t in streams[replica].tests])
            ),
            steps=learners[replica].steps,
            timings=shared,
            environment=environment(where) | (conditions if where.type == "cuda" else {}),
        )
        for replica, spec in enumerate(specs)
    ]


def make_learner(spec: RunSpec, where: torch.device) -> Learner:
    """The learner of a run before its first step."""
    with torch_seeded(spec.seed, "weights"):
        model = spec.benchmark.model()
    return spec.method.make_learner(model.to(where), spec.seed)


def explain(error: Exception) -> str:
    """What a failed run says: the reason on the first line, then where, unless it was raised on purpose."""
    reason = f"{type(error).__name__}: {error}".replace("\n", " ")
    return reason if isinstance(error, GmedError) else f"{reason}\n{''.join(traceback.format_exception(error))}"


def accuracy_on(learner: Learner, test: Examples, chunk: int = 1000) -> float:
    """The share of a test set that the learner classifies rightly."""
    right = 0
    for at in range(0, len(test.y), chunk):
        x, y = test.x[at : at + chunk], test.y[at : at + chunk]
        right += int((learner.predict(pixels(x)) == y).sum())
    return right / len(test.y)


def pick_device(name: str) -> torch.device:
    """The device that ``auto``, ``cpu`` or ``cuda`` means here."""
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"unknown device {name!r}: auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda: torch sees no CUDA device here. Use --device cpu.")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def environment(device: torch.device) -> dict[str, str]:
    """What a result depends on besides its specification."""
    return {
        "gmed": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "machine": f"{platform.system()} {platform.machine()}",
    }


@lru_cache(maxsize=1)
def _stream(benchmark: str, seed: int, data_dir: Path | None) -> Stream:
    """Every method at one seed meets the same stream; the last one made is kept."""
    return get_benchmark(benchmark).make_stream(data_dir, seed)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
