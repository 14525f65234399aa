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
    """Train a learner on a stream or a range of its examples; yield the number of examples seen after each batch.

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
    """Counters of passes and of correct predictions while a learner trains.

    Counting the passes of a model takes time. Of the steps of a capturable learner that make the same passes, only the
    first is observed: steps of one task with the same number of incoming examples, and with the same number of stored
    examples or more than a step draws.

    Attributes
    ----------
    passes
        Number of examples passed through the model; ``None`` if unknown or not requested.
    correct
        Number of examples predicted correctly before the learner trained on them; ``None`` if not requested.
    """

    def __init__(self, passes: PassCounter | None, correct: Tensor | None = None) -> None:
        self.passes, self.correct = passes, correct
        self._per_step = PassCounter()  # of the last step that was observed
        self._signature: tuple[int, ...] | None = None  # identifies the steps that make the same passes
        self._max_drawn = sys.maxsize  # stored examples that such a step draws
        self._static_graph = False

    @torch.no_grad()
    def predict(self, learner: Learner, x: Tensor, y: Tensor) -> None:
        """Count the correct predictions of a batch that the learner has not trained on yet."""
        if self.correct is not None:
            self.correct.add_((learner.predict(x) == y).sum())

    def begin_step(self, learner: Learner, batch_size: int, *task: int) -> None:
        """Prepare to count the passes of the next step, unless those of an identical step are known."""
        learner.passes = None
        if self.passes is None:
            return
        stored = 0 if learner.memory is None else len(learner.memory)
        if (batch_size, *task, min(stored, self._max_drawn)) != self._signature:
            self._signature, self._max_drawn = (batch_size, *task, stored), sys.maxsize
            self._static_graph = learner.has_static_graph()
            self._per_step = learner.passes = PassCounter()
            learner.draw_source = EagerDraws()

    def end_step(self, learner: Learner) -> None:
        """Add the passes of the step that was made."""
        if self.passes is None:
            return
        self.passes.add(self._per_step)
        if not learner.has_static_graph():
            self._signature = None
        elif learner.passes is not None and self._signature is not None:  # it was observed
            *kind, stored = self._signature
            drawn = learner.draw_source.rows if isinstance(learner.draw_source, EagerDraws) else stored
            if drawn < stored:
                self._max_drawn = drawn
            repeats = self._static_graph and learner.is_capturable()
            self._signature = (*kind, min(stored, self._max_drawn)) if repeats else None
