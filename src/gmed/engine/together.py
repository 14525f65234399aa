"""Learners of several seeds that advance together.

A step of a learner is a few hundred small kernels, and launching them one by one leaves a GPU almost idle. So what
chance decides is decided ahead for a stretch of steps (:class:`~gmed.learners.decisions.Ahead`), the step of every
learner is captured as a branch of one CUDA graph, and the stretch is that graph, launched again and again: the
learners' own code, unchanged, with no work for the host. Where a step asks the host for something (a quadratic
programme, a decision that depends on a gradient) its learner runs step by step instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gmed.errors import DivergedError
from gmed.learners import Learner
from gmed.learners.decisions import Ahead, AsTheyCome
from gmed.streams import Stream, pixels

BRANCHES = 8
"""Streams that branches of a graph are laid on: more do not run faster."""

ROWS = 500
"""Steps decided at a time."""


class Together:
    """Learners, each with a stream of its own, all streams cut alike.

    Parameters
    ----------
    learners, streams
        Learners of one method, and what each of them learns from, on one device.
    batch_size
        How many examples a step learns from.
    """

    def __init__(self, learners: Sequence[Learner], streams: Sequence[Stream], batch_size: int) -> None:
        self.learners, self.streams, self.batch_size = learners, streams, batch_size
        self.device = streams[0].x.device
        self.asked: list[dict[str, Any]] = [{} for _ in learners]
        self.ahead: list[Ahead] = []
        self.graph: torch.cuda.CUDAGraph | None = None
        self.branches = [
            torch.cuda.Stream()  # type: ignore[no-untyped-call]
            for _ in range(BRANCHES if self.device.type == "cuda" else 0)
        ]
        self.why_stepwise: str | None = None

    def learn(self, start: int, stop: int, *task: int) -> None:
        """Learn from the examples start .. stop of every stream."""
        at = start
        while at < stop:
            steps = (stop - at) // self.batch_size
            if steps > 1 and self._settled(at, steps):
                rows = min(steps, ROWS)
                self._stretch(at, rows)
                at += rows * self.batch_size
            else:
                end = min(at + self.batch_size, stop)
                self._one_step(at, end, *task)
                at = end

    def _one_step(self, at: int, end: int, *task: int) -> None:
        whole = end - at == self.batch_size
        for replica, (learner, stream) in enumerate(zip(self.learners, self.streams, strict=True)):
            learner.decisions = decisions = AsTheyCome()
            learner.observe(pixels(stream.x[at:end]), stream.y[at:end], *task)
            if whole:
                self.asked[replica] = decisions.asked

    def _settled(self, at: int, steps: int) -> bool:
        """Whether the next steps can be decided ahead, and ask for tensors of the same shapes from the first on."""
        learner, asked = self.learners[0], self.asked[0]
        if self.why_stepwise or learner.steps == 0:
            return False
        if not learner.can_be_decided_ahead():
            self.why_stepwise = "its steps depend on what they compute"
            return False
        learner.decisions = AsTheyCome()
        for later in (0, steps - 1):
            with _later(learner, later, self.batch_size):
                if any(decide().shape != shape for decide, shape in asked.values()):
                    return False
        return True

    def _stretch(self, at: int, steps: int) -> None:
        tables = [self._decided(i, at, steps) for i in range(len(self.learners))]
        if not self.ahead:
            due = torch.zeros(1, dtype=torch.int64, device=self.device)
            self.ahead = [Ahead(ROWS, rows, due) for rows in tables]
        self.ahead[0].due.zero_()
        before = [(learner.steps, learner.memory.seen if learner.memory else 0) for learner in self.learners]
        for learner, ahead, rows in zip(self.learners, self.ahead, tables, strict=True):
            ahead.refill(rows)
            learner.decisions = ahead
        done = 0
        if self.device.type == "cuda" and self.graph is None:
            for _ in range(min(2, steps)):  # libraries set themselves up outside the capture
                self._enqueue()
                done += 1
            if done < steps:
                self.graph = self._captured()
        for _ in range(steps - done):
            if self.graph is None:
                self._enqueue()
            else:
                self.graph.replay()
        self._account(before, steps)

    def _decided(self, replica: int, at: int, steps: int) -> dict[str, NDArray[Any]]:
        """A row for every step to come, of everything the last step asked for."""
        learner, asked = self.learners[replica], self.asked[replica]
        learner.decisions = AsTheyCome()
        rows: dict[str, list[NDArray[Any]]] = {name: [] for name in asked}
        for step in range(steps):
            with _later(learner, step, self.batch_size):
                for name, (decide, _) in asked.items():
                    rows[name].append(decide())
        tables = {name: np.stack(values) for name, values in rows.items()}
        tables["batch"] = np.arange(at, at + steps * self.batch_size).reshape(steps, -1)
        return tables

    def _enqueue(self) -> None:
        """The next step of every learner, on the device's own account."""
        if self.device.type == "cuda":
            self._branch_out()
        else:
            for replica in range(len(self.learners)):
                self._step(replica)
        self.ahead[0].due.add_(1)

    def _branch_out(self) -> None:
        trunk = torch.cuda.current_stream()
        for branch in self.branches:
            branch.wait_stream(trunk)
        for replica in range(len(self.learners)):
            with torch.cuda.stream(self.branches[replica % BRANCHES]):
                self._step(replica)
        for branch in self.branches:
            trunk.wait_stream(branch)

    def _step(self, replica: int) -> None:
        learner, stream = self.learners[replica], self.streams[replica]
        rows = self.ahead[replica].row("batch")
        with torch.enable_grad():
            learner.step(pixels(stream.x.index_select(0, rows)), stream.y.index_select(0, rows))

    def _captured(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._enqueue()
        return graph

    def _account(self, before: Sequence[tuple[int, int]], steps: int) -> None:
        """Bring the counters on the host up to date, and see whether every step was sound."""
        failed = torch.cat([ahead.failed for ahead in self.ahead]).tolist()
        for learner, first in zip(self.learners, failed, strict=True):
            if first >= 0:
                raise DivergedError(
                    f"at step {learner.steps + first} the loss or its gradient is not finite. "
                    f"Lower lr (now {learner.lr:g}) or the edit's stride, or scale the inputs down."
                )
        for learner, (steps_before, seen_before) in zip(self.learners, before, strict=True):
            learner.steps = steps_before + steps
            if learner.memory is not None:
                learner.memory.seen = seen_before + steps * self.batch_size


@contextmanager
def _later(learner: Learner, steps: int, batch_size: int) -> Iterator[None]:
    """Inside, the learner's counters are those it will have so many steps later."""
    memory = learner.memory
    seen = memory.seen if memory is not None else 0
    learner.steps += steps
    if memory is not None:
        memory.seen += steps * batch_size
    try:
        yield
    finally:
        learner.steps -= steps
        if memory is not None:
            memory.seen = seen
