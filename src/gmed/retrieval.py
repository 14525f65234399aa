"""Retrieval: the choice of the stored examples to replay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from gmed.deprecated import old_attributes
from gmed.memory import Memory
from gmed.models import LookAhead

__path__: list[str] = []  # it was a package, whose modules are found by their old names


@old_attributes(foreseeable="capturable")
class Retrieval(ABC):
    """The base class of retrievals, which choose the stored examples to replay. By default they are drawn uniformly.

    Attributes
    ----------
    capturable
        Always false: the choice may depend on the model, so it cannot be made before the previous step has ended.
    """

    part_kind: ClassVar[str] = "retrieval"
    id: ClassVar[str] = "Retrieval"
    version: ClassVar[int] = 1
    capturable: ClassVar[bool] = False

    @abstractmethod
    def retrieve(self, memory: Memory, count: int, ahead: LookAhead, rng: np.random.Generator) -> Tensor:
        """Return the slots of up to ``count`` stored examples, without duplicates.

        Parameters
        ----------
        memory
            The stored examples, in the slots ``memory.occupied()``. It is never empty.
        count
            Number of examples that the learner replays in a step.
        ahead
            The look-ahead on the incoming batch, shared by everything in this step.
        rng
            This step's random generator for retrieval; no other generator may be used.
        """


def uniform(stored: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw ``count`` of the occupied slots uniformly without replacement; return all of them if there are fewer.

    >>> from gmed.rng import make_rng
    >>> sorted(uniform(np.arange(4), 10, make_rng(0, "replay")).tolist())
    [0, 1, 2, 3]
    """
    return rng.choice(stored, min(count, len(stored)), replace=False) if len(stored) else stored


@torch.no_grad()
def interference(ahead: LookAhead, x: Tensor, y: Tensor) -> Tensor:
    """Return by how much the look-ahead's step would increase each example's loss: ℓ(x, y; θ') - ℓ(x, y; θ)."""
    before, after = (cross_entropy(output, y, reduction="none") for output in ahead.outputs(x))
    return after - before


def most_interfered(memory: Memory, candidates: Tensor, count: int, ahead: LookAhead) -> Tensor:
    """Return the ``count`` candidate slots whose examples the incoming batch interferes with most.

    References
    ----------
    Aljundi et al., "Online continual learning with maximally interfered retrieval", NeurIPS 2019.
    """
    if len(candidates) <= count:
        return candidates
    scores = interference(ahead, *memory.examples(candidates))
    return candidates[scores.topk(count).indices]
