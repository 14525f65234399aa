"""How many learners a device has room for."""

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
"""Of the free memory, what is planned with; other processes and caches want some too."""

WORKSPACE_EXAMPLES = 7_000
"""What a step of the largest model here takes besides data and memory, in examples held as floats: twice the 40 MB
measured for ER+GMED on ResNet-18 at 32 x 32."""


def free_bytes(where: torch.device) -> int | None:
    """Free memory of a GPU; on a CPU learners advance one by one, and nothing need be planned."""
    return torch.cuda.mem_get_info(where)[0] if where.type == "cuda" else None


def max_group_size(spec: RunSpec, stream: Stream, free: int) -> int:
    """How many runs like this one can advance together in so much memory, at least one.

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
"""Runs that are computed together: of one benchmark, and of methods that differ in real numbers at most."""

MAX_GROUP_SIZE = 20


def group_runs(specs: Sequence[RunSpec]) -> list[Group]:
    """Seeds, and points of a grid, of one method on one benchmark, up to twenty at a time; a method that goes step by
    step alone.

    >>> grid = [f"er+gmed(alpha={alpha})" for alpha in (0.1, 1.0)]
    >>> specs = [RunSpec.make("split-mnist", method, seed) for method in ("er", *grid) for seed in (0, 1)]
    >>> [[(spec.method.name, spec.seed) for spec in group] for group in group_runs(specs)]
    [[('er', 0), ('er', 1)], \
[('er+gmed(alpha=0.1)', 0), ('er+gmed(alpha=0.1)', 1), ('er+gmed(alpha=1.0)', 0), ('er+gmed(alpha=1.0)', 1)]]
    """
    alike: dict[tuple[str, str], list[RunSpec]] = {}
    for spec in specs:
        alike.setdefault((spec.benchmark.name, spec.method.graph_signature), []).append(spec)
    groups: list[Group] = []
    for same in alike.values():
        size = MAX_GROUP_SIZE if same[0].is_capturable() else 1
        groups += [tuple(same[at : at + size]) for at in range(0, len(same), size)]
    return groups


NUM_STREAMS = 20
"""Streams that the branches of a graph are laid on: one for each of the most learners that advance together."""

STEPS_PER_BLOCK = 100
"""Steps decided at a time. Between two stretches a run can be stopped and kept."""

BATCH_INDICES = "examples of the incoming batch"
"""The table of what a step learns from."""

Tables = dict[int, dict[str, NDArray[Any]]]
"""For each learner by its number, a row for every step of everything a step asks for."""


class BatchedTrainer:
    """Learners, each with a stream of its own, all streams cut alike.

    A learner whose loss is not finite any more is noted in :attr:`failures`; the others go on.

    Parameters
    ----------
    learners, streams
        Learners, which may differ in method, and what each of them learns from, on one device.
    batch_size
        How many examples a step learns from.
    counts
        What is counted of each learner.
    failures
        Where it is noted why a learner failed, by its number.
    rows
        How many steps are decided at a time, by default :data:`STEPS_PER_BLOCK`.

    Attributes
    ----------
    graph, captured
        The step of all as a CUDA graph, and whether there has been one.
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
        self._recorded_draws: dict[int, dict[str, Any]] = {}  # by the last step of each learner that is like the next
        self._pass_counts: dict[
            int, PassCounter
        ] = {}  # the passes of that step, and of every later one that asks for the like
        self._ahead: dict[int, PrecomputedDraws] = {}
        self._drawn: tuple[int, Tables] | None = None
        self._task: tuple[int, ...] = ()
        self._branches = [
            torch.cuda.Stream()  # type: ignore[no-untyped-call]
            for _ in range(NUM_STREAMS if self.device.type == "cuda" else 0)
        ]

    def train(self, start: int, stop: int, *task: int) -> Iterator[int]:
        """Learn from the examples start .. stop of every stream; tells now and then how far it has come."""
        if task != self._task:  # a new task may change what a step is
            self._task, self._recorded_draws, self._drawn = task, {}, None
            self.graph, self._ahead = None, {}
        at = start
        while at < stop and self._active:
            steps = (stop - at) // self.batch_size
            decided = self._drawn is not None and self._drawn[0] == at and self._whole()
            with use_triton() if self.capturable else nullcontext():  # in every step, for all to be computed alike
                if decided or (steps > 1 and self._ready_to_capture(steps)):
                    at = self._graph_steps(at, stop)
                else:
                    end = min(at + self.batch_size, stop)
                    self._eager_step(at, end)
                    at = end
            yield at

    # ------------------------------------------------------------------ step by step

    def _eager_step(self, at: int, end: int) -> None:
        whole = end - at == self.batch_size
        for replica in tuple(self._active):
            learner, stream = self.learners[replica], self.streams[replica]
            draw_source = RecordingDraws() if self.capturable else EagerDraws()
            made = PassCounter()
            learner.draw_source, learner.passes = draw_source, made
            x, y = to_float(stream.x[at:end]), stream.y[at:end]
            self._predict(replica, x, y)
            like_the_next = whole and learner.has_static_graph()
            try:
                learner.update(x, y, *self._task)
            except DivergedError as error:
                self._fail(replica, error)
            self._count(replica, made)
            if isinstance(draw_source, RecordingDraws) and like_the_next and learner.has_static_graph():
                self._recorded_draws[replica], self._pass_counts[replica] = draw_source.requested, made

    def _count(self, replica: int, made: PassCounter, steps: int = 1) -> None:
        if (passes := self.counts[replica].passes) is not None:
            passes.add(made, steps)

    @torch.no_grad()
    def _predict(self, replica: int, x: Tensor, y: Tensor) -> None:
        """Count what the learner would get right of a batch that it has not learned from yet, if that is wanted."""
        learner, counts = self.learners[replica], self.counts[replica]
        if counts.correct is not None and self.device.type == "cuda" and not learner.draw_source.is_eager:
            model = learner.prediction_model  # captured: nothing may be asked of the host
            with eval_mode(model):
                counts.correct.add_((model(x).argmax(1) == y).sum())
        else:
            counts.predict(learner, x, y)

    # ------------------------------------------------------------------ a stretch of steps, decided ahead

    def _whole(self) -> bool:
        """Whether no memory has slots that were emptied on request: what is drawn depends on when those are filled."""
        memories = [self.learners[replica].memory for replica in self._active]
        return all(memory is None or memory.is_contiguous for memory in memories)

    def _ready_to_capture(self, steps: int) -> bool:
        """Whether the next steps can be decided ahead, and ask for tensors of the same shapes from the first on."""
        if not self.capturable or not self._whole():
            return False
        return all(self._ready(replica, steps) for replica in self._active)

    def _ready(self, replica: int, steps: int) -> bool:
        learner, asked = self.learners[replica], self._recorded_draws.get(replica)
        if asked is None or not learner.has_static_graph():
            return False
        learner.draw_source = EagerDraws()
        for later in (0, steps - 1):
            with _shifted_counters(learner, later, self.batch_size):
                if any(decide().shape != shape for decide, shape in asked.values()):
                    return False
        return True

    def _graph_steps(self, at: int, stop: int) -> int:
        """Make the next steps of every learner, up to as many as tables have rows; where that leads."""
        steps = min((stop - at) // self.batch_size, self._rows)
        after = at + steps * self.batch_size
        tables = self._drawn[1] if self._drawn and self._drawn[0] == at else self._draw_ahead(at, steps)
        sound = [self.learners[replica] for replica in self._active]
        before = [(learner.steps, learner.memory.num_seen if learner.memory is not None else 0) for learner in sound]
        self._load_tables(tables)
        self._replay_graph(steps)
        for learner, (made, seen) in zip(sound, before, strict=True):
            learner.steps = made + steps
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
            learner, asked = self.learners[replica], self._recorded_draws[replica]
            learner.draw_source = EagerDraws()
            rows: dict[str, list[NDArray[Any]]] = {name: [] for name in asked}
            for step in range(steps):
                with _shifted_counters(learner, step, self.batch_size):
                    for name, (decide, _) in asked.items():
                        rows[name].append(decide())
            table = {name: np.stack(values) for name, values in rows.items()}
            table[BATCH_INDICES] = np.arange(at, at + steps * self.batch_size).reshape(steps, -1)
            tables[replica] = table
        return tables

    def _load_tables(self, tables: Tables) -> None:
        if not self._ahead:
            due = torch.zeros(1, dtype=torch.int64, device=self.device)
            self._ahead = {replica: PrecomputedDraws(self._rows, tables[replica], due) for replica in self._active}
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
                f"a step of {kinds} cannot be captured as a CUDA graph: {error}. Every part of it is declared "
                "capturable; one that asks the device for a number, or the host for what is not planned, is not"
            ) from error

    def _step_all(self) -> None:
        """The next step of every learner, each on a branch of its own where there are branches."""
        if self._branches:
            trunk = torch.cuda.current_stream()
            for branch in self._branches:
                branch.wait_stream(trunk)
            try:
                for place, replica in enumerate(self._active):
                    with torch.cuda.stream(self._branches[place % NUM_STREAMS]):
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
            losses = torch.isfinite(ahead.losses[:steps]).tolist()
            if not all(losses):
                message = f"at step {learner.steps - steps + losses.index(False)} the loss is not finite"
            elif not all_finite(learner.model.parameters()):
                message = f"after step {learner.steps - 1} the parameters are not finite"
            else:
                continue
            advice = f"Lower lr (now {learner.lr:g}) or the edit's stride, or scale the inputs down."
            self._fail(replica, DivergedError(f"{message}. {advice}"))

    def _fail(self, replica: int, error: GmedError) -> None:
        """Go on without this learner: with a graph of the others, if there is one."""
        self.failures[replica] = error
        self._active.remove(replica)
        self.graph, self._ahead = None, {}


@contextmanager
def _shifted_counters(learner: Learner, steps: int, batch_size: int) -> Iterator[None]:
    """Inside, the learner's counters are those it will have so many steps later."""
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
