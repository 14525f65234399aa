"""Train several learners together on one device, on a GPU with CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.engine.spec import RunSpec
from gmed.engine.training import Counts
from gmed.errors import DivergedError, GmedError, UsageError
from gmed.kernels.conv_bn_relu import use_triton
from gmed.kernels.cuda_graphs import WARM_UP, capture
from gmed.learners import Learner
from gmed.learners.draws import EagerDraws, PrecomputedDraws, RecordingDraws, all_finite
from gmed.memory.pinned import should_pin
from gmed.models import PassCounter, eval_mode
from gmed.streams import Stream, to_float

MEMORY_FRACTION = 0.8
"""The share of free memory to use; other processes and caches need some too."""

WORKSPACE_EXAMPLES = 7_000
"""The memory of a step of the largest model here, besides data and stored examples, in examples as floats: twice the
40 MB measured for ER+GMED on ResNet-18 at 32 x 32."""


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a GPU; ``None`` on a CPU, where learners are trained one by one and need no limit."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def max_group_size(spec: RunSpec, stream: Stream, free: int) -> int:
    """Return how many runs like this one can be trained together in the free memory, at least one.

    >>> spec = RunSpec.make("split-mnist", "er", seed=0)
    >>> stream = spec.benchmark.make_stream(None, 0)
    >>> max_group_size(spec, stream, free=2**30), max_group_size(spec, stream, free=2**20)
    (24, 1)
    """
    example = stream.x[0].numel()
    data = stream.x.nbytes + sum(test.x.nbytes for test in stream.tests)
    stored = 4 * example * int(spec.method.base.parameters.get("memory", 0))
    memory = 0 if should_pin(stored, stream.x.device) else stored
    return max(1, int(MEMORY_FRACTION * free) // (data + memory + 4 * example * WORKSPACE_EXAMPLES))


Group = tuple[RunSpec, ...]
"""Runs that are trained together: on one benchmark, with methods that differ at most in the values of floats."""

MAX_GROUP_SIZE = 20


def group_runs(specs: Sequence[RunSpec]) -> list[Group]:
    """Group seeds, and points of a grid, of one method on one benchmark, up to twenty at a time.

    Runs of a method whose steps cannot be captured are groups of one.

    >>> grid = [f"er+gmed(alpha={alpha})" for alpha in (0.1, 1.0)]
    >>> specs = [RunSpec.make("split-mnist", method, seed) for method in ("er", *grid) for seed in (0, 1)]
    >>> [[(spec.method.name, spec.seed) for spec in group] for group in group_runs(specs)]
    [[('er', 0), ('er', 1)], \
[('er+gmed(alpha=0.1)', 0), ('er+gmed(alpha=0.1)', 1), ('er+gmed(alpha=1.0)', 0), ('er+gmed(alpha=1.0)', 1)]]
    """
    by_signature: dict[tuple[str, str], list[RunSpec]] = {}
    for spec in specs:
        by_signature.setdefault((spec.benchmark.name, spec.method.graph_signature), []).append(spec)
    groups: list[Group] = []
    for matching in by_signature.values():
        size = MAX_GROUP_SIZE if matching[0].is_capturable() else 1
        groups += [tuple(matching[start : start + size]) for start in range(0, len(matching), size)]
    return groups


NUM_STREAMS = 20
"""CUDA streams for the branches of a graph, one for each learner of the largest group."""

STEPS_PER_BLOCK = 100
"""Steps drawn at a time. Between two blocks a run can be stopped and saved."""

BATCH_INDICES = "examples of the incoming batch"
"""The name of the table with the indices of incoming examples."""

Tables = dict[int, dict[str, NDArray[Any]]]
"""For each learner by index, a table of every draw that a step requests, with a row per step."""


class BatchedTrainer:
    """Trains several learners together, each on its own stream; all streams have the same batches and tasks.

    A learner whose loss is no longer finite is recorded in :attr:`failures`; the others continue.

    Parameters
    ----------
    learners, streams
        The learners, which may differ in method, and the stream of each, on one device.
    batch_size
        Number of incoming examples per step.
    counts
        The counters of each learner.
    failures
        The errors of learners that failed, by index.
    rows
        Number of steps drawn at a time, by default :data:`STEPS_PER_BLOCK`.

    Attributes
    ----------
    graph, captured
        The step of all learners as a CUDA graph, and whether there has been one.
    """

    def __init__(
        self,
        learners: Sequence[Learner],
        streams: Sequence[Stream],
        batch_size: int,
        counts: Sequence[Counts] | None = None,
        failures: dict[int, GmedError] | None = None,
        rows: int | None = None,
    ) -> None:
        self.learners, self.streams, self.batch_size = learners, streams, batch_size
        self.device = streams[0].x.device
        self.capturable = all(learner.is_capturable() for learner in learners)
        self.counts = [Counts(PassCounter()) for _ in learners] if counts is None else counts
        self.failures = {} if failures is None else failures
        self.graph: torch.cuda.CUDAGraph | None = None
        self.captured = False
        self._rows = STEPS_PER_BLOCK if rows is None else rows
        self._active = list(range(len(learners)))
        self._recorded_draws: dict[int, dict[str, Any]] = {}  # of the last step of each learner that is like the next
        self._pass_counts: dict[int, PassCounter] = {}  # of that step, and of every later one with the same requests
        self._ahead: dict[int, PrecomputedDraws] = {}
        self._drawn: tuple[int, Tables] | None = None
        self._task: tuple[int, ...] = ()
        self._branches = [
            torch.cuda.Stream()  # type: ignore[no-untyped-call]
            for _ in range(NUM_STREAMS if self.device.type == "cuda" else 0)
        ]

    def train(self, start: int, stop: int, *task: int) -> Iterator[int]:
        """Train on examples ``start`` to ``stop`` of every stream; yield the position reached from time to time."""
        if task != self._task:  # a new task may change what a step is
            self._task, self._recorded_draws, self._drawn = task, {}, None
            self.graph, self._ahead = None, {}
        at = start
        while at < stop and self._active:
            steps = (stop - at) // self.batch_size
            is_drawn = self._drawn is not None and self._drawn[0] == at and self._memories_contiguous()
            with use_triton() if self.capturable else nullcontext():  # in every step, so that all use the same kernels
                if is_drawn or (steps > 1 and self._ready_to_capture(steps)):
                    at = self._graph_steps(at, stop)
                else:
                    end = min(at + self.batch_size, stop)
                    self._eager_step(at, end)
                    at = end
            yield at

    # ------------------------------------------------------------------ eager steps

    def _eager_step(self, at: int, end: int) -> None:
        full_batch = end - at == self.batch_size
        for replica in tuple(self._active):
            learner, stream = self.learners[replica], self.streams[replica]
            draw_source = RecordingDraws() if self.capturable else EagerDraws()
            passes = PassCounter()
            learner.draw_source, learner.passes = draw_source, passes
            x, y = to_float(stream.x[at:end]), stream.y[at:end]
            self._predict(replica, x, y)
            repeatable = full_batch and learner.has_static_graph()
            try:
                learner.update(x, y, *self._task)
            except DivergedError as error:
                self._fail(replica, error)
            self._count(replica, passes)
            if isinstance(draw_source, RecordingDraws) and repeatable and learner.has_static_graph():
                self._recorded_draws[replica], self._pass_counts[replica] = draw_source.requested, passes

    def _count(self, replica: int, passes: PassCounter, steps: int = 1) -> None:
        if (total := self.counts[replica].passes) is not None:
            total.add(passes, steps)

    @torch.no_grad()
    def _predict(self, replica: int, x: Tensor, y: Tensor) -> None:
        """Count the correct predictions of a batch that the learner has not trained on yet, if requested."""
        learner, counts = self.learners[replica], self.counts[replica]
        if counts.correct is not None and self.device.type == "cuda" and not learner.draw_source.is_eager:
            model = learner.prediction_model  # captured: the host may not be involved
            with eval_mode(model):
                counts.correct.add_((model(x).argmax(1) == y).sum())
        else:
            counts.predict(learner, x, y)

    # ------------------------------------------------------------------ blocks of steps, drawn ahead

    def _memories_contiguous(self) -> bool:
        """Return whether no memory has slots emptied on request: draws depend on when those are filled again."""
        memories = [self.learners[replica].memory for replica in self._active]
        return all(memory is None or memory.is_contiguous for memory in memories)

    def _ready_to_capture(self, steps: int) -> bool:
        """Return whether the next steps can be drawn ahead, and all request tensors of the same shapes."""
        if not self.capturable or not self._memories_contiguous():
            return False
        return all(self._ready(replica, steps) for replica in self._active)

    def _ready(self, replica: int, steps: int) -> bool:
        learner, requested = self.learners[replica], self._recorded_draws.get(replica)
        if requested is None or not learner.has_static_graph():
            return False
        learner.draw_source = EagerDraws()
        for offset in (0, steps - 1):
            with _shifted_counters(learner, offset, self.batch_size):
                if any(draw().shape != shape for draw, shape in requested.values()):
                    return False
        return True

    def _graph_steps(self, at: int, stop: int) -> int:
        """Make the next steps of every learner, at most one per row of the tables; return the position reached."""
        steps = min((stop - at) // self.batch_size, self._rows)
        after = at + steps * self.batch_size
        tables = self._drawn[1] if self._drawn and self._drawn[0] == at else self._draw_ahead(at, steps)
        active = [self.learners[replica] for replica in self._active]
        before = [(learner.steps, learner.memory.num_seen if learner.memory is not None else 0) for learner in active]
        self._load_tables(tables)
        self._replay_graph(steps)
        for learner, (step, seen) in zip(active, before, strict=True):
            learner.steps = step + steps
            if learner.memory is not None:
                learner.memory.num_seen = seen + steps * self.batch_size
        for replica in self._active:
            self._count(replica, self._pass_counts[replica], steps)
        following = min((stop - after) // self.batch_size, self._rows)
        self._drawn = (after, self._draw_ahead(after, following)) if following else None  # while the device computes
        self._record_divergence(steps)
        return after

    def _draw_ahead(self, at: int, steps: int) -> Tables:
        tables = {}
        for replica in self._active:
            learner, requested = self.learners[replica], self._recorded_draws[replica]
            learner.draw_source = EagerDraws()
            rows: dict[str, list[NDArray[Any]]] = {name: [] for name in requested}
            for step in range(steps):
                with _shifted_counters(learner, step, self.batch_size):
                    for name, (draw, _) in requested.items():
                        rows[name].append(draw())
            table = {name: np.stack(values) for name, values in rows.items()}
            table[BATCH_INDICES] = np.arange(at, at + steps * self.batch_size).reshape(steps, -1)
            tables[replica] = table
        return tables

    def _load_tables(self, tables: Tables) -> None:
        if not self._ahead:
            step_index = torch.zeros(1, dtype=torch.int64, device=self.device)
            self._ahead = {
                replica: PrecomputedDraws(self._rows, tables[replica], step_index) for replica in self._active
            }
        self._step_index.zero_()
        for replica, ahead in self._ahead.items():
            ahead.load(tables[replica])
            self.learners[replica].draw_source = ahead

    @property
    def _step_index(self) -> Tensor:
        return self._ahead[self._active[0]].step_index

    def _replay_graph(self, steps: int) -> None:
        if self.device.type != "cuda":
            for _ in range(steps):
                self._step_all()
            return
        if self.graph is None:
            for _ in range(min(WARM_UP, steps)):
                self._step_all()
            steps -= min(WARM_UP, steps)
            if steps:
                self.graph, self.captured = self._capture(), True
        for _ in range(steps):
            assert self.graph is not None
            self.graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph:
        try:
            return capture(self._step_all)
        except RuntimeError as error:
            kinds = " and ".join(sorted({type(self.learners[replica]).__name__ for replica in self._active}))
            raise UsageError(
                f"a step of {kinds} cannot be captured as a CUDA graph: {error}. A component is declared capturable, "
                "but reads a number from the device or draws random numbers on the host; set capturable = False"
            ) from error

    def _step_all(self) -> None:
        """Make the next step of every learner, each on its own branch of the graph on a GPU."""
        if self._branches:
            trunk = torch.cuda.current_stream()
            for branch in self._branches:
                branch.wait_stream(trunk)
            try:
                for index, replica in enumerate(self._active):
                    with torch.cuda.stream(self._branches[index % NUM_STREAMS]):
                        self._step(replica)
            finally:
                for branch in self._branches:
                    trunk.wait_stream(branch)
        else:
            for replica in self._active:
                self._step(replica)
        self._step_index.add_(1)

    @torch.enable_grad()
    def _step(self, replica: int) -> None:
        self._ahead[replica].next_row()
        stream, rows = self.streams[replica], self._ahead[replica].row(BATCH_INDICES)
        x, y = to_float(stream.x.index_select(0, rows)), stream.y.index_select(0, rows)
        self._predict(replica, x, y)
        self.learners[replica].step(x, y, *self._task)

    def _record_divergence(self, steps: int) -> None:
        for replica, ahead in tuple(self._ahead.items()):
            learner = self.learners[replica]
            finite = torch.isfinite(ahead.losses[:steps]).tolist()
            if not all(finite):
                message = f"at step {learner.steps - steps + finite.index(False)} the loss is not finite"
            elif not all_finite(learner.model.parameters()):
                message = f"after step {learner.steps - 1} the parameters are not finite"
            else:
                continue
            advice = f"Lower lr (now {learner.lr:g}) or the edit's stride, or scale the inputs down."
            self._fail(replica, DivergedError(f"{message}. {advice}"))

    def _fail(self, replica: int, error: GmedError) -> None:
        """Continue without this learner; a graph is captured again for the others."""
        self.failures[replica] = error
        self._active.remove(replica)
        self.graph, self._ahead = None, {}


@contextmanager
def _shifted_counters(learner: Learner, steps: int, batch_size: int) -> Iterator[None]:
    """Set the learner's counters inside the block to their values some steps later."""
    memory = learner.memory
    learner.steps += steps
    if memory is not None:
        memory.num_seen += steps * batch_size
    try:
        yield
    finally:
        learner.steps -= steps
        if memory is not None:
            memory.num_seen -= steps * batch_size
