"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from gmed.learners import Learner

STAGES = {
    "draw": ("retrieve", "retrieve_interfered", "sample"),
    "augment": ("augmented",),
    "edit": ("edit",),
    "update": ("sgd_step", "apply_gradients"),
    "memory": ("write_back", "update_memory", "add_to_memory"),
}
"""What a step is made of, and the methods of learners that each stage is the work of."""

REST = "rest"
"""What belongs to no stage: what is around a step, and passes that a step makes by itself."""


class Stages:
    """Seconds that a learner spends in each stage of :meth:`~gmed.learners.Learner.update`.

    What a look-ahead computes counts for the stage that first asks for it; a stage inside another counts for the outer
    one. On a GPU every stage is waited for, so that they add up to more than a step takes otherwise.

    >>> import gmed
    >>> learner = gmed.learners.ER(gmed.models.MLP(), lr=0.05, memory=gmed.memory.Reservoir(500))
    >>> stages = Stages(learner)
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
        self.seconds[REST] = 0.0
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
            elsewhere, start = sum(self.seconds.values()) - self.seconds[REST], self._now()
            update(*given)
            elsewhere -= sum(self.seconds.values()) - self.seconds[REST]
            self.seconds[REST] += self._now() - start + elsewhere

        return whole

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
