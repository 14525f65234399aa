"""How fast learners step: alone in the training loop, several together, and where the time of a step goes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

from gmed.engine.batched import BatchedTrainer
from gmed.engine.benchmarks import Benchmark, get_benchmark
from gmed.engine.config import resolve_device, tune_malloc
from gmed.engine.runner import collect_environment, make_learner
from gmed.engine.spec import RunSpec
from gmed.engine.training import train
from gmed.learners import Learner
from gmed.streams import Stream, to_float

STAGES = {
    "draw": ("retrieve", "retrieve_interfered", "sample"),
    "augment": ("augmented",),
    "edit": ("edit",),
    "update": ("sgd_step", "apply_gradients"),
    "memory": ("write_back", "update_memory", "add_to_memory"),
}
"""What a step is made of, and the methods of learners that each stage is the work of."""

OTHER = "rest"
"""What belongs to no stage: what is around a step, and passes that a step makes by itself."""


class StageProfiler:
    """Seconds that a learner spends in each stage of :meth:`~gmed.learners.Learner.update`.

    What a look-ahead computes counts for the stage that first asks for it; a stage inside another counts for the outer
    one. On a GPU every stage is waited for, so that they add up to more than a step takes otherwise.

    >>> import gmed
    >>> learner = gmed.learners.ER(gmed.models.MLP(), lr=0.05, memory=gmed.memory.Reservoir(500))
    >>> stages = StageProfiler(learner)
    >>> learner.update(torch.rand(10, 1, 28, 28), torch.arange(10))
    >>> list(stages.seconds), min(stages.seconds.values()) > 0
    (['draw', 'edit', 'update', 'memory', 'rest'], True)
    """

    def __init__(self, learner: Learner) -> None:
        self.device = next(learner.model.parameters()).device
        self.seconds: dict[str, float] = {}
        self._inside = False
        for stage, names in STAGES.items():
            for name in names:
                if hasattr(learner, name):
                    self.seconds[stage] = 0.0
                    setattr(learner, name, self._timed(getattr(learner, name), stage))
        self.seconds[OTHER] = 0.0
        learner.update = self._whole(learner.update)  # type: ignore[method-assign]

    def _timed(self, method: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            if self._inside:
                return method(*given, **named)
            self._inside, start = True, self._now()
            try:
                return method(*given, **named)
            finally:
                self._inside = False
                self.seconds[stage] += self._now() - start

        return timed

    def _whole(self, update: Callable[..., None]) -> Callable[..., None]:
        def whole(*given: Any) -> None:
            elsewhere, start = sum(self.seconds.values()) - self.seconds[OTHER], self._now()
            update(*given)
            elsewhere -= sum(self.seconds.values()) - self.seconds[OTHER]
            self.seconds[OTHER] += self._now() - start + elsewhere

        return whole

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "mini-imagenet": (3, 84, 84)}
"""The images of each data set; speed does not depend on what they show."""

WARM_UP = 200
"""Steps before the clock starts, where a sound measurement is wanted."""


@dataclass(frozen=True)
class Speed:
    """What was measured of one method.

    Attributes
    ----------
    replicas
        Learners that advanced together; 0 is one learner in the training loop.
    milliseconds
        Per step of one learner.
    ratio
        How many times as fast as the training loop measured in the same process.
    peak_bytes
        The most device memory in use; 0 on a CPU.
    captured
        Whether the steps ran as a CUDA graph.
    stages
        Of the training loop, milliseconds of a step by stage (:class:`~gmed.engine.bench.Stages`), measured apart.
    """

    benchmark: str
    method: str
    replicas: int
    milliseconds: float
    ratio: float
    peak_bytes: int
    captured: bool
    stages: dict[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    benchmark: str,
    method: str,
    *,
    replicas: Sequence[int] | None = None,
    steps: int = 400,
    warm_up: int = WARM_UP,
    device: str = "auto",
    by_stage: bool = True,
    max_seconds: float = math.inf,
) -> list[Speed]:
    """Measure a method on random images in the shape of a benchmark's, first in the training loop, then together.

    The loop is run twice, the second time with a clock at every stage of a step, unless that is not wanted.

    The clock starts after ``warm_up`` steps: memory fills and libraries set themselves up. After ``max_seconds``
    no further step is made if there were two, and the last ones are what was measured.

    Parameters
    ----------
    replicas
        How many learners advance together. By default one on a GPU, and none on a CPU, where runs are the loop.

    Examples
    --------
    >>> [speed.replicas for speed in bench("split-mnist", "finetune", steps=20, device="cpu")]
    [0]
    >>> [speed.milliseconds > 0 for speed in bench("split-mnist", "er", replicas=(), steps=10**4, max_seconds=0.0)]
    [True]
    """
    tune_malloc()
    found, where = get_benchmark(benchmark), resolve_device(device)
    stream = _random_stream(found, (warm_up, warm_up + steps), where)
    spec, speeds = RunSpec.make(benchmark, method, 0), list[Speed]()
    counts = ((1,) if where.type == "cuda" else ()) if replicas is None else replicas
    for count in (0, *counts):
        _reset_peak(where)
        seconds, captured = _seconds(spec, count, stream, (warm_up, steps), where, max_seconds)
        each = 1000 * seconds / steps / max(count, 1)
        ratio = speeds[0].milliseconds / each if speeds else 1.0
        stages = None if count or not by_stage else _stage_times(spec, stream, (warm_up, steps), where)
        speeds.append(Speed(benchmark, method, count, each, ratio, _peak(where), captured, stages))
    return speeds


def seconds_to_predict(benchmark: str, method: str, *, device: str = "auto", examples: int = 1000) -> float:
    """How long a method takes to classify an example here, among many."""
    spec, where = RunSpec.make(benchmark, method, 0), resolve_device(device)
    learner = make_learner(spec, where)
    x = to_float(_random_stream(spec.benchmark, (examples // spec.benchmark.batch_size,), where).x)
    found = []
    for _ in range(2):  # libraries set themselves up in the first
        _wait(where)
        start = time.perf_counter()
        learner.predict(x)
        _wait(where)
        found.append(time.perf_counter() - start)
    return min(found) / len(x)


def environment_of(device: str) -> dict[str, str]:
    """The hardware and the versions."""
    return collect_environment(resolve_device(device))


def _seconds(
    spec: RunSpec, replicas: int, stream: Stream, steps: tuple[int, int], where: torch.device, max_seconds: float
) -> tuple[float, bool]:
    """Seconds that the second number of steps takes after the first, and whether they ran as a CUDA graph.

    All are made in one go, as in a run, where the host decides on the next steps while the device makes the last ones.
    """
    size = spec.benchmark.batch_size
    learners = [make_learner(RunSpec(spec.benchmark, spec.method, seed), where) for seed in range(max(replicas, 1))]
    group = BatchedTrainer(learners, [stream] * len(learners), size)

    before, timed = steps

    def learn() -> Iterator[int]:
        """Yield how many examples have been learned from."""
        if not replicas:
            yield from train(learners[0], stream, size)
        for task, (start, stop) in enumerate(pairwise((0, *stream.eval_points)) if replicas else ()):
            yield from group.train(start, stop, *((task,) if learners[0].task_aware else ()))
            for failure in group.failures.values():
                raise failure

    marks = [(0, time.perf_counter())]
    for seen in learn():
        _wait(where)
        marks.append((seen // size, time.perf_counter()))
        if len(marks) > 2 and marks[-1][1] - marks[0][1] > max_seconds:
            break
    *earlier, (last, end) = marks
    made, start = next((mark for mark in earlier if mark[0] >= before), earlier[-1])
    return (end - start) * timed / (last - made), group.captured


def _stage_times(spec: RunSpec, stream: Stream, steps: tuple[int, int], where: torch.device) -> dict[str, float]:
    """Milliseconds by stage of the second number of steps after the first."""
    learner, size, (before, timed) = make_learner(spec, where), spec.benchmark.batch_size, steps
    stages = StageProfiler(learner)
    for seen in train(learner, stream, size):
        if seen == before * size:
            stages.seconds = dict.fromkeys(stages.seconds, 0.0)
    return {stage: 1000 * seconds / timed for stage, seconds in stages.seconds.items()}


def _random_stream(benchmark: Benchmark, steps: Sequence[int], where: torch.device) -> Stream:
    """Return a stream of as many batches as the last of ``steps`` says; tasks end after each of them."""
    generator = torch.Generator().manual_seed(0)
    ends = tuple(step * benchmark.batch_size for step in steps)
    count = ends[-1]
    own = benchmark.id.custom_data
    shape, classes = (own.shape, own.classes) if own else (SHAPES[benchmark.data], 10)
    x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    return Stream(x, torch.randint(classes, (count,), generator=generator), (), ends, classes).to(where)


def _wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize()


def _reset_peak(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak(where: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if where.type == "cuda" else 0
