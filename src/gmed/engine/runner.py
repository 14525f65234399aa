"""Execute runs in this process: train, evaluate, write checkpoints."""

from __future__ import annotations

import gc
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gmed._version import __version__
from gmed.engine.batched import BatchedTrainer, free_bytes, max_group_size
from gmed.engine.benchmarks import get_stream
from gmed.engine.checkpoint import Checkpoint, PassCounts
from gmed.engine.config import DEFAULT_CONFIG, ExecutionConfig, resolve_device, tune_malloc
from gmed.engine.result import MemoryFootprint, RunResult
from gmed.engine.spec import RunSpec
from gmed.engine.training import Counts, train
from gmed.errors import DivergedError, GmedError, UsageError
from gmed.learners import Learner
from gmed.models import PassCounter
from gmed.rng import seeded_torch
from gmed.streams import Examples, Stream, to_float

CHUNK_SIZE = {"cpu": 800_000, "cuda": 8_000_000}
"""Number of input values to classify at a time: enough to keep a device busy, with memory left for activations."""

MIN_INPUT_ELEMENTS = 784
"""Smaller inputs count as this many values, since activations then take most of the memory."""

GROUPED_ON = {"cuda"}
"""Types of devices on which learners are trained together."""

BY_PREDICT = "by predict"
"""Marks prequential accuracy measured with ``predict``. Older results measured the model, whatever ``predict`` does."""

OnProgress = Callable[[int, int], None]
"""Called regularly with the number of examples seen and the total."""

OnEvaluated = Callable[[RunSpec, int, int, list[list[float]]], None]
"""Called at every point of evaluation of a run with the number of examples seen, the total, and the accuracies."""


def _noop(spec: RunSpec, seen: int, total: int, accuracy: list[list[float]]) -> None:
    """Do nothing."""


Outcome = RunResult | Exception
"""The result of a run, or the error that ended it."""


class Interrupted(KeyboardInterrupt):
    """Raised when runs were stopped; if they write checkpoints, they can be resumed.

    Attributes
    ----------
    outcomes_so_far
        The outcomes of runs that had ended, by their keys.
    """

    def __init__(self, outcomes_so_far: Mapping[str, Outcome] | None = None) -> None:
        super().__init__()
        self.outcomes_so_far = dict(outcomes_so_far or {})


def run_one(spec: RunSpec, config: ExecutionConfig = DEFAULT_CONFIG) -> RunResult:
    """Execute one run in this process.

    >>> result = run_one(RunSpec.make("split-mnist", "finetune", seed=0), ExecutionConfig(device="cpu"))
    >>> [len(row) for row in result.accuracy], result.steps
    ([5, 5, 5, 5, 5], 500)
    """
    (outcome,) = run_group([spec], config)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def run_group(
    specs: Sequence[RunSpec],
    config: ExecutionConfig,
    on_progress: OnProgress = lambda seen, total: None,
    stopping: Callable[[], bool] = lambda: False,
    on_evaluated: OnEvaluated = _noop,
) -> list[Outcome]:
    """Execute runs on one benchmark in this process, trained together: one method at several seeds, or methods that
    differ only in the values of floats.

    Each has the same result as on its own (on a GPU: with the same kernels); if one diverges, the others continue.

    Parameters
    ----------
    stopping
        Called regularly; once it returns true, checkpoints are written and :class:`Interrupted` is raised.

    Examples
    --------
    >>> specs = [RunSpec.make("split-mnist", "finetune", seed) for seed in (0, 1)]
    >>> [outcome.seed for outcome in run_group(specs, ExecutionConfig(device="cpu"))]
    [0, 1]
    """
    tune_malloc()
    saved = {spec.key: _load_checkpoint(spec, config) for spec in specs}
    outcomes: dict[str, Outcome] = {}
    for part in _split_by_memory(_group_by_progress(specs, saved), config):
        try:
            checkpoints = [saved[spec.key] for spec in part]
            part_outcomes = _run_or_split(part, checkpoints, config, on_progress, stopping, on_evaluated)
        except Interrupted as stopped:
            raise Interrupted(outcomes | stopped.outcomes_so_far) from None
        outcomes |= {spec.key: outcome for spec, outcome in zip(part, part_outcomes, strict=True)}
    return [outcomes[spec.key] for spec in specs]


def _load_checkpoint(spec: RunSpec, config: ExecutionConfig) -> Checkpoint | None:
    """Return the run's checkpoint, if there is one with all requested metrics."""
    checkpoint = config.checkpoints.load(spec) if config.checkpoints else None
    return None if checkpoint and config.prequential and checkpoint.right is None else checkpoint


def _run_or_split(
    specs: Sequence[RunSpec],
    checkpoints: Sequence[Checkpoint | None],
    config: ExecutionConfig,
    on_progress: OnProgress,
    stopping: Callable[[], bool],
    on_evaluated: OnEvaluated,
) -> list[Outcome]:
    """Return the outcome of each run, in two halves if the device runs out of memory or one of several methods fails.

    An error of a group that is not split further is the outcome of all its runs.
    """
    try:
        with _default_dtype(torch.float32), _deterministic_cudnn(config.deterministic):
            return _GroupRunner(specs, checkpoints, config).run(on_progress, stopping, on_evaluated)
    except Exception as error:
        same_method = len({spec.method.name for spec in specs}) == 1
        if len(specs) == 1 or (same_method and not _out_of_memory(error)):
            return [error] * len(specs)
    gc.collect()  # memory of the failed attempt is free only now that its error is gone
    torch.cuda.empty_cache()
    half = len(specs) // 2
    return [
        outcome
        for part in (slice(None, half), slice(half, None))
        for outcome in _run_or_split(specs[part], checkpoints[part], config, on_progress, stopping, on_evaluated)
    ]


def _out_of_memory(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, torch.OutOfMemoryError) or _out_of_memory(error.__context__))


class _GroupRunner:
    """Runs that are trained together, resuming from their checkpoints: a single one, or several on a GPU."""

    def __init__(
        self, specs: Sequence[RunSpec], checkpoints: Sequence[Checkpoint | None], config: ExecutionConfig
    ) -> None:
        self.specs, self.config = specs, config
        self.device = resolve_device(config.device)
        self.clock = StageTimer()
        with self.clock("data"):
            self.streams = [make_stream(spec, self.device, config.data_dir) for spec in specs]
        self.learners = [make_learner(spec, self.device) for spec in specs]
        self.accuracy: list[list[list[float]]] = [[] for _ in specs]
        self.memory: list[list[list[int]] | None] = [
            None if learner.memory is None else [] for learner in self.learners
        ]
        self.seen = 0
        self.resumed_at: list[int] = []
        self.counts = [Counts(PassCounter(), _zero(self.device) if config.prequential else None) for _ in specs]
        self.failures: dict[int, GmedError] = {}
        self.group = None
        if self.device.type in GROUPED_ON and all(learner.is_capturable() for learner in self.learners):
            batch_size = specs[0].benchmark.batch_size
            self.group = BatchedTrainer(self.learners, self.streams, batch_size, self.counts, self.failures)
        elif len(specs) > 1:
            raise ValueError(
                "several runs can be trained together only on a GPU, and only if their steps can be captured"
            )
        self.untrained = [self._initial_accuracy(replica, checkpoint) for replica, checkpoint in enumerate(checkpoints)]
        for replica, checkpoint in enumerate(checkpoints):
            if checkpoint is not None:
                self._resume(replica, checkpoint)

    def _initial_accuracy(self, replica: int, checkpoint: Checkpoint | None) -> list[float]:
        if checkpoint is not None and checkpoint.untrained is not None:
            return checkpoint.untrained
        with self.clock("evaluate"):
            return evaluate_tasks(self.learners[replica], self.streams[replica].tests)

    def _resume(self, replica: int, checkpoint: Checkpoint) -> None:
        spec = self.specs[replica]
        try:
            self.learners[replica].load_state_dict(checkpoint.state)
        except (GmedError, KeyError, RuntimeError) as error:
            assert self.config.checkpoints is not None
            self.config.checkpoints.discard(spec)
            raise UsageError(
                f"{spec}: its checkpoint did not match the run and was discarded; run it again ({error})"
            ) from error
        self.accuracy[replica], self.memory[replica] = checkpoint.accuracy, checkpoint.memory
        counts = self.counts[replica]
        counts.passes = PassCounter(**checkpoint.passes) if checkpoint.passes else None
        if counts.correct is not None:
            counts.correct.fill_(checkpoint.right or 0)
        self.seen, self.resumed_at = checkpoint.seen, [*checkpoint.resumed_at, checkpoint.seen]
        for stage, seconds in checkpoint.seconds.items():
            self.clock.seconds[stage] = self.clock.seconds.get(stage, 0.0) + seconds

    def run(
        self, on_progress: OnProgress, stopping: Callable[[], bool], on_evaluated: OnEvaluated = _noop
    ) -> list[Outcome]:
        """Train and evaluate to the end of the stream."""
        for task, (start, stop) in enumerate(pairwise((0, *self.streams[0].eval_points))):
            if task >= len(self.accuracy[0]):
                for seen in self.clock.timed("train", self._train(task, max(start, self.seen), stop)):
                    self.seen = seen
                    on_progress(seen, len(self.streams[0]))
                    self._checkpoint_if_due(stopping())
                for replica in self._evaluate():
                    accuracy = list(self.accuracy[replica])
                    on_evaluated(self.specs[replica], stop, len(self.streams[replica]), accuracy)
        return [self.failures.get(replica) or self._result(replica) for replica in range(len(self.specs))]

    def _train(self, task: int, start: int, stop: int) -> Iterator[int]:
        """Train up to a point of evaluation; yield the number of examples seen from time to time."""
        if self.group is not None:
            yield from self.group.train(start, stop, *([task] if self.learners[0].task_aware else []))
        elif not self.failures:
            try:
                batch_size = self.specs[0].benchmark.batch_size
                yield from train(self.learners[0], self.streams[0], batch_size, start, stop, self.counts[0])
            except DivergedError as error:
                self.failures[0] = error

    def _evaluate(self) -> list[int]:
        """Evaluate the runs that have not failed, and return their indices."""
        active = [replica for replica in range(len(self.specs)) if replica not in self.failures]
        with self.clock("evaluate"):
            for replica in active:
                learner, stream, memory = self.learners[replica], self.streams[replica], self.memory[replica]
                self.accuracy[replica].append(evaluate_tasks(learner, stream.tests))
                if memory is not None and learner.memory is not None:
                    memory.append(learner.memory.class_counts(stream.num_classes))
        return active

    def _checkpoint_if_due(self, stopping: bool) -> None:
        checkpoints = self.config.checkpoints
        if checkpoints is not None and (stopping or checkpoints.is_due()):
            start = time.perf_counter()
            with self.clock("checkpoints"):
                for replica, spec in enumerate(self.specs):
                    if replica not in self.failures:
                        state = {k: t.cpu() for k, t in self.learners[replica].state_dict().items()}
                        progress = self.seen, self.accuracy[replica], self._time_per_run(), self.resumed_at
                        counts = self.untrained[replica], self._passes(replica), self._correct(replica)
                        checkpoints.save(spec, Checkpoint(*progress, state, *counts, self.memory[replica]))
            checkpoints.mark_written(time.perf_counter() - start)
        if stopping:
            raise Interrupted({self.specs[replica].key: error for replica, error in self.failures.items()})

    def _result(self, replica: int) -> RunResult:
        spec, rows = self.specs[replica], self.accuracy[replica]
        passes, correct, examples = self._passes(replica), self._correct(replica), len(self.streams[replica])
        environment = collect_environment(self.device) | {"arithmetic": self.learners[replica].arithmetic}
        if self.device.type == "cuda":
            environment["replicas"] = str(len(self.specs))
            environment["steps"] = "CUDA graph" if self.group is not None and self.group.captured else "step by step"
            environment["kernels"] = "deterministic" if self.config.deterministic else "fastest"
        if correct is not None:
            environment["prequential"] = BY_PREDICT
        if self.resumed_at:
            environment["resumed at example"] = ", ".join(map(str, self.resumed_at))
        return RunResult(
            benchmark=spec.benchmark.name,
            method=spec.method.name,
            seed=spec.seed,
            accuracy=rows,
            final_accuracy=float(np.mean(rows[-1])),
            pooled_accuracy=float(np.average(rows[-1], weights=[len(t.y) for t in self.streams[replica].tests])),
            steps=self.learners[replica].steps,
            timings=self._time_per_run(),
            environment=environment,
            untrained=self.untrained[replica],
            passes=None
            if passes is None
            else {"forward": passes["forward"] / examples, "backward": passes["backward"] / examples},
            prequential=None if correct is None else correct / examples,
            memory=self.memory[replica],
            overhead=MemoryFootprint.of(self.learners[replica], self.streams[replica].x[0].numel()).to_dict(),
        )

    def _passes(self, replica: int) -> PassCounts | None:
        passes = self.counts[replica].passes
        return None if passes is None else {"forward": passes.forward, "backward": passes.backward}

    def _correct(self, replica: int) -> int | None:
        correct = self.counts[replica].correct
        return None if correct is None else int(correct)

    def _time_per_run(self) -> dict[str, float]:
        """Return the time spent by stage, divided by the number of runs."""
        return {stage: round(seconds / len(self.specs), 4) for stage, seconds in self.clock.seconds.items()}


def _zero(device: torch.device) -> Tensor:
    return torch.zeros((), dtype=torch.int64, device=device)


def _group_by_progress(specs: Sequence[RunSpec], checkpoints: Mapping[str, Checkpoint | None]) -> list[list[RunSpec]]:
    """Group runs that have seen equally many examples, and can be trained together."""
    parts: dict[int, list[RunSpec]] = {}
    for spec in specs:
        checkpoint = checkpoints[spec.key]
        parts.setdefault(checkpoint.seen if checkpoint else 0, []).append(spec)
    return list(parts.values())


def _split_by_memory(parts: list[list[RunSpec]], config: ExecutionConfig) -> Iterator[list[RunSpec]]:
    """Split groups into parts to train one after another: on a GPU as large as memory allows, else single runs."""
    device = resolve_device(config.device)
    for part in parts:
        size = 1
        if len(part) > 1 and device.type in GROUPED_ON and part[0].is_capturable():
            size, free = len(part), free_bytes(device)
            if free is not None:
                stream = get_stream(part[0].benchmark.name, part[0].seed, config.data_dir, device)
                size = max_group_size(part[0], stream, free)
        yield from (part[start : start + size] for start in range(0, len(part), size))


def make_stream(spec: RunSpec, device: torch.device, data_dir: Path | None = None) -> Stream:
    """Return the stream of a run in the order in which its method sees it."""
    stream = get_stream(spec.benchmark.name, spec.seed, data_dir, device)
    return spec.method.make_stream(stream, spec.seed).to(device)


def make_learner(spec: RunSpec, device: torch.device) -> Learner:
    """Return the learner of a run before its first step."""
    with seeded_torch(spec.seed, "weights"):
        model = spec.benchmark.make_model()
    return spec.method.make_learner(model.to(device), spec.seed)


def format_error(error: Exception) -> str:
    """Format the error of a failed run: the reason on one line, then a traceback unless it was raised on purpose."""
    reason = f"{type(error).__name__}: {error}".replace("\n", " ")
    if isinstance(error, GmedError):
        return reason
    location = _user_frame(error)
    return f"{reason}{location}\n{''.join(traceback.format_exception(error))}"


def _user_frame(error: Exception) -> str:
    """Return where in a user's file an error was raised, if it was."""
    inside = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), str(Path(np.__file__).parent), "<")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(inside)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""


def evaluate_tasks(learner: Learner, tests: Sequence[Examples]) -> list[float]:
    """Return the accuracy of a learner on each test set."""
    tasks = [(task,) if learner.task_at_test else () for task in range(len(tests))]
    counts = [_count_correct(learner, *pair) for pair in zip(tests, tasks, strict=True)]
    correct = torch.stack(counts).tolist()  # synchronizes with a GPU only once
    return [count / len(test.y) for count, test in zip(correct, tests, strict=True)]


def _count_correct(learner: Learner, test: Examples, task: tuple[int, ...]) -> Tensor:
    chunk = max(1, CHUNK_SIZE[test.x.device.type] // max(test.x[0].numel(), MIN_INPUT_ELEMENTS))
    chunks = zip(torch.split(test.x, chunk), torch.split(test.y, chunk), strict=True)
    return torch.stack([(learner.predict(to_float(x), *task) == y).sum() for x, y in chunks]).sum()


def collect_environment(device: torch.device) -> dict[str, str]:
    """Return the hardware and software on which a result depends besides its specification."""
    environment = {
        "gmed": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "machine": f"{platform.system()} {platform.machine()}",
    }
    if device.type == "cuda" and find_spec("triton") is not None:
        environment["triton"] = version("triton")
    return environment


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _deterministic_cudnn(deterministic: bool) -> Iterator[None]:
    """Restrict cuDNN to deterministic algorithms inside the block, if requested."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = deterministic or before
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


class StageTimer:
    """A timer that adds up seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def timed(self, stage: str, steps: Iterator[int]) -> Iterator[int]:
        """Yield from ``steps``, and count the time that it takes for a stage."""
        seen: int | None = 0
        while seen is not None:
            with self(stage):
                seen = next(steps, None)
            if seen is not None:
                yield seen
