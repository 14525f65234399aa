"""The training loop of one learner."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gmed.learners import Learner
from gmed.models import Passes
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
        task = (bisect_right(stream.evaluate_after, seen),) if learner.task_aware else ()
        counts.predict(learner, x, y)
        counts.begin_step(learner, len(y), *task)
        learner.update(x, y, *task)
        counts.end_step(learner)
        seen += len(y)
        yield seen


@dataclass
class Counts:
    """What is counted while a learner trains.

    Attributes
    ----------
    passes
        How many examples went through the model; ``None`` where that is not known or not wanted.
    correct
        How many examples were predicted correctly before they were learned from; ``None`` where that is not wanted.
    """

    passes: Passes | None = field(default_factory=Passes)
    correct: Tensor | None = None
    _of_a_step: Passes = field(default_factory=Passes)  # as counted in the last step that was watched
    _repeats: tuple[int, ...] | None = None  # what steps are like that make the same passes again

    @torch.no_grad()
    def predict(self, learner: Learner, x: Tensor, y: Tensor) -> None:
        """Count what the learner gets right of a batch that it has not learned from yet, if that is wanted."""
        if self.correct is not None:
            self.correct.add_((learner.predict(x) == y).sum())

    def begin_step(self, learner: Learner, batch_size: int, *task: int) -> None:
        """Have the next step's passes counted.

        Watching a model takes time. Steps of a capturable learner that are alike make the same passes, so that only the
        first of them is watched.
        """
        learner.passes = None
        if self.passes is None:
            return
        like = batch_size, *task, *(() if learner.memory is None else (len(learner.memory),))
        if like != self._repeats:
            self._of_a_step = learner.passes = Passes()
            self._repeats = like if learner.can_be_decided_ahead() and learner.steady() else None

    def end_step(self, learner: Learner) -> None:
        """Add what the step has made."""
        if self.passes is not None:
            self.passes.add(self._of_a_step)
            if not learner.steady():  # from here on steps are others
                self._repeats = None
