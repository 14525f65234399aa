"""The training loop of one learner."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator

import torch
from torch import Tensor

from gmed.learners import Learner
from gmed.learners.draws import EagerDraws
from gmed.models import PassCounter
from gmed.streams import Stream


def train(
    learner: Learner,
    stream: Stream,
    batch_size: int,
    start: int = 0,
    stop: int | None = None,
    counts: Counts | None = None,
) -> Iterator[int]:
    """Train a learner on a stream, or from one example to another; yield after each batch how many it has seen.

    >>> import gmed
    >>> flow = Stream(torch.rand(25, 4), torch.arange(25) % 3, (), (25,), num_classes=3)
    >>> learner = gmed.learners.FineTune(gmed.models.MLP(4, 8, classes=3), lr=0.1)
    >>> list(train(learner, flow, batch_size=10)), learner.steps
    ([10, 20, 25], 3)
    """
    counts, seen = counts or Counts(passes=None), start
    for x, y in stream.batches(batch_size, start, stop):
        task = (bisect_right(stream.eval_points, seen),) if learner.task_aware else ()
        counts.predict(learner, x, y)
        counts.begin_step(learner, len(y), *task)
        learner.update(x, y, *task)
        counts.end_step(learner)
        seen += len(y)
        yield seen


class Counts:
    """What is counted while a learner trains.

    Watching a model takes time. Steps of a capturable learner that are alike make the same passes, so only the first of
    them is watched: steps of one task with as many incoming examples, and with as many stored ones or more than a step
    draws.

    Attributes
    ----------
    passes
        How many examples went through the model; ``None`` where that is not known or not wanted.
    correct
        How many examples were predicted correctly before they were learned from; ``None`` where that is not wanted.
    """

    def __init__(self, passes: PassCounter | None, correct: Tensor | None = None) -> None:
        self.passes, self.correct = passes, correct
        self._per_step = PassCounter()  # those of the last step that was watched
        self._alike: tuple[int, ...] | None = None  # what identifies the steps that make as many
        self._max_drawn = sys.maxsize  # by such a step, of the stored examples
        self._static_graph = False

    @torch.no_grad()
    def predict(self, learner: Learner, x: Tensor, y: Tensor) -> None:
        """Count what the learner gets right of a batch that it has not learned from yet."""
        if self.correct is not None:
            self.correct.add_((learner.predict(x) == y).sum())

    def begin_step(self, learner: Learner, batch_size: int, *task: int) -> None:
        """Watch the next step unless one like it has been watched."""
        learner.passes = None
        if self.passes is None:
            return
        stored = 0 if learner.memory is None else len(learner.memory)
        if (batch_size, *task, min(stored, self._max_drawn)) != self._alike:
            self._alike, self._max_drawn = (batch_size, *task, stored), sys.maxsize
            self._static_graph = learner.has_static_graph()
            self._per_step = learner.passes = PassCounter()
            learner.draw_source = EagerDraws()

    def end_step(self, learner: Learner) -> None:
        """Count the passes of the step that was taken."""
        if self.passes is None:
            return
        self.passes.add(self._per_step)
        if not learner.has_static_graph():
            self._alike = None
        elif learner.passes is not None and self._alike is not None:  # it was watched
            *kind, stored = self._alike
            drawn = learner.draw_source.rows if isinstance(learner.draw_source, EagerDraws) else stored
            if drawn < stored:
                self._max_drawn = drawn
            repeats = self._static_graph and learner.is_capturable()
            self._alike = (*kind, min(stored, self._max_drawn)) if repeats else None
