"""What a learner leaves to chance: every number follows from its seed, the name of the draw and the step."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gmed.errors import UsageError
from gmed.learners.decisions import AsTheyCome, Decide, Decisions
from gmed.memory import Memory
from gmed.randomness import generator
from gmed.retrieval import uniform


class RandomDraws:
    """Random numbers of a learner's steps. No draw disturbs another, and draws can be made ahead of the steps."""

    model: nn.Module
    memory: Memory | None
    seed: int
    steps: int

    def __init__(self) -> None:
        self.decisions: Decisions = AsTheyCome()
        self._device: torch.device | None = None  # where the model is, during a step
        self._samples: dict[str, tuple[Tensor, Decide]] = {}  # the latest of each purpose, and how it is decided

    def random(self, purpose: str) -> np.random.Generator:
        """Return this step's random numbers for one purpose."""
        if not self.decisions.live:
            raise UsageError(f"{type(self).__name__} is declared foreseeable, but its step draws {purpose!r} unplanned")
        return generator(self.seed, purpose, self.steps)

    def torch_random(self, purpose: str) -> torch.Generator:
        """Return the same for many numbers at once, drawn on the model's device."""
        device = next(self.model.parameters()).device
        return torch.Generator(device).manual_seed(int(self.random(purpose).integers(2**63 - 1)))

    def planned(self, name: str, decide: Decide) -> Tensor:
        """Return what ``decide`` decides in this step, as a tensor where the model is.

        It may use this learner's random numbers and counters, nothing that the batch or the model computes: then
        many steps can be decided ahead, and a step computed without asking the host.
        """
        return self.decisions.take(name, decide, self._device or next(self.model.parameters()).device)

    def sample(self, count: int, purpose: str) -> Tensor:
        """Return slots of so many stored examples, uniformly. Learners that draw as many for one purpose draw alike."""
        decide = partial(self._drawn, count, purpose)
        drawn = self.planned(purpose, decide)
        self._samples[purpose] = drawn, decide
        return drawn

    def as_drawn(self, slots: Tensor) -> Decide | None:
        """Return how chance decides on slots, if :meth:`sample` gave them: for decisions that depend on them."""
        return next((decide for drawn, decide in self._samples.values() if drawn is slots), None)

    def _drawn(self, count: int, purpose: str) -> NDArray[np.int64]:
        return uniform(self._own_memory().filled(), count, self.random(purpose))

    def _own_memory(self) -> Memory:
        assert self.memory is not None
        return self.memory
