"""Measure the speed of learners: one in the training loop, several together, and each stage of a step."""

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
"""The stages of a step, with the methods of learners that each consists of."""

OTHER = "rest"
"""Time that belongs to no stage: around a step, and passes that a step makes directly."""


class StageProfiler:
    """Seconds that a learner spends in each stage of :meth:`~gmed.learners.Learner.update`.

    A look-ahead counts towards the stage that needs it first, a stage inside another towards the outer one. On a GPU
    the device is synchronized after every stage, so the stages add up to more than a step otherwise takes.

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
        learner.update = self._timed_update(learner.update)  # type: ignore[method-assign]

    def _timed(self, method: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return method(*args, **kwargs)
            self._inside, start = True, self._now()
            try:
                return method(*args, **kwargs)
            finally:
                self._inside = False
                self.seconds[stage] += self._now() - start

        return timed

    def _timed_update(self, update: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any) -> None:
            before, start = sum(self.seconds.values()) - self.seconds[OTHER], self._now()
            update(*args)
            in_stages = sum(self.seconds.values()) - self.seconds[OTHER] - before
            self.seconds[OTHER] += self._now() - start - in_stages

        return timed

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "mini-imagenet": (3, 84, 84)}
"""The shape of the images of each data set; speed does not depend on their content."""

WARM_UP = 200
"""Steps before timing starts, enough for a valid measurement."""


@dataclass(frozen=True)
class Speed:
    """The measured speed of one method.

    Attributes
    ----------
    replicas
        Number of learners that trained together; 0 is one learner in the training loop.
    milliseconds
        Milliseconds per step of one learner.
    ratio
        The speed relative to the training loop measured in the same process.
    peak_bytes
        Peak device memory in use; 0 on a CPU.
    captured
        Whether the steps ran as a CUDA graph.
    stages
        For the training loop, milliseconds per step by stage (:class:`StageProfiler`), measured separately.
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
    """Measure a method on random images of a benchmark's shape: in the training loop, then with several learners.

    The loop is run twice, the second time with every stage of a step timed, unless ``by_stage`` is false.

    Timing starts after ``warm_up`` steps, in which memory fills and libraries initialize. After ``max_seconds`` and at
    least two steps the measurement ends, and counts the last steps that were made.

    Parameters
    ----------
    replicas
        Numbers of learners that train together. By default one on a GPU, and none on a CPU, where runs use the loop.

    Examples
    --------
    >>> [speed.replicas for speed in bench("split-mnist", "finetune", steps=20, device="cpu")]
    [0]
    >>> [speed.milliseconds > 0 for speed in bench("split-mnist", "er", replicas=(), steps=10**4, max_seconds=0.0)]
    [True]
    """
    tune_malloc()
    torch_device = resolve_device(device)
    stream = _random_stream(get_benchmark(benchmark), (warm_up, warm_up + steps), torch_device)
    spec, speeds = RunSpec.make(benchmark, method, 0), list[Speed]()
    counts = ((1,) if torch_device.type == "cuda" else ()) if replicas is None else replicas
    for count in (0, *counts):
        _reset_peak(torch_device)
        seconds, captured = _seconds(spec, count, stream, (warm_up, steps), torch_device, max_seconds)
        each = 1000 * seconds / steps / max(count, 1)
        ratio = speeds[0].milliseconds / each if speeds else 1.0
        stages = None if count or not by_stage else _stage_times(spec, stream, (warm_up, steps), torch_device)
        speeds.append(Speed(benchmark, method, count, each, ratio, _peak(torch_device), captured, stages))
    return speeds


def seconds_to_predict(benchmark: str, method: str, *, device: str = "auto", examples: int = 1000) -> float:
    """Return the seconds that a method takes to classify one of many examples."""
    spec, torch_device = RunSpec.make(benchmark, method, 0), resolve_device(device)
    learner = make_learner(spec, torch_device)
    x = to_float(_random_stream(spec.benchmark, (examples // spec.benchmark.batch_size,), torch_device).x)
    times = []
    for _ in range(2):  # libraries initialize in the first
        _wait(torch_device)
        start = time.perf_counter()
        learner.predict(x)
        _wait(torch_device)
        times.append(time.perf_counter() - start)
    return min(times) / len(x)


def environment_of(device: str) -> dict[str, str]:
    """Return the hardware and the versions of the software."""
    return collect_environment(resolve_device(device))


def _seconds(
    spec: RunSpec, replicas: int, stream: Stream, steps: tuple[int, int], device: torch.device, max_seconds: float
) -> tuple[float, bool]:
    """Return the seconds that the second number of steps takes after the first, and whether a CUDA graph was used.

    The steps are made without a pause, as in a run, where the host draws for the next ones while the device computes.
    """
    size = spec.benchmark.batch_size
    learners = [make_learner(RunSpec(spec.benchmark, spec.method, seed), device) for seed in range(max(replicas, 1))]
    group = BatchedTrainer(learners, [stream] * len(learners), size)

    before, timed = steps

    def train_steps() -> Iterator[int]:
        """Train, and yield the number of examples seen so far."""
        if not replicas:
            yield from train(learners[0], stream, size)
        for task, (start, stop) in enumerate(pairwise((0, *stream.eval_points)) if replicas else ()):
            yield from group.train(start, stop, *((task,) if learners[0].task_aware else ()))
            for failure in group.failures.values():
                raise failure

    marks = [(0, time.perf_counter())]
    for seen in train_steps():
        _wait(device)
        marks.append((seen // size, time.perf_counter()))
        if len(marks) > 2 and marks[-1][1] - marks[0][1] > max_seconds:
            break
    *earlier, (last, end) = marks
    first, start = next((mark for mark in earlier if mark[0] >= before), earlier[-1])
    return (end - start) * timed / (last - first), group.captured


def _stage_times(spec: RunSpec, stream: Stream, steps: tuple[int, int], device: torch.device) -> dict[str, float]:
    """Return the milliseconds per step in each stage, over the second number of steps after the first."""
    learner, size, (before, timed) = make_learner(spec, device), spec.benchmark.batch_size, steps
    stages = StageProfiler(learner)
    for seen in train(learner, stream, size):
        if seen == before * size:
            stages.seconds = dict.fromkeys(stages.seconds, 0.0)
    return {stage: 1000 * seconds / timed for stage, seconds in stages.seconds.items()}


def _random_stream(benchmark: Benchmark, steps: Sequence[int], device: torch.device) -> Stream:
    """Return a stream of random images in which a task ends after each number of batches in ``steps``."""
    generator = torch.Generator().manual_seed(0)
    ends = tuple(step * benchmark.batch_size for step in steps)
    count = ends[-1]
    custom = benchmark.id.custom_data
    shape, classes = (custom.shape, custom.classes) if custom else (SHAPES[benchmark.data], 10)
    x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    return Stream(x, torch.randint(classes, (count,), generator=generator), (), ends, classes).to(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
