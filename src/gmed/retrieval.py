"""Which stored examples are replayed."""

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
    """Which stored examples a learner replays; without one, it draws them uniformly.

    Attributes
    ----------
    capturable
        Always false: what is retrieved may depend on the model, so a step has to be made before the next is decided.
    """

    part_kind: ClassVar[str] = "retrieval"
    id: ClassVar[str] = "Retrieval"
    version: ClassVar[int] = 1
    capturable: ClassVar[bool] = False

    @abstractmethod
    def retrieve(self, memory: Memory, count: int, ahead: LookAhead, rng: np.random.Generator) -> Tensor:
        """The slots of up to ``count`` stored examples, none twice.

        Parameters
        ----------
        memory
            What is stored; ``memory.occupied()`` says in which slots. It is never empty.
        count
            How many examples the learner replays in a step.
        ahead
            The look-ahead on the incoming batch, shared by everything in this step.
        rng
            This step's random numbers for retrieval; no other generator may be used.
        """


def uniform(stored: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """``count`` of the slots that hold an example, all equally likely, none twice; all of them if they are fewer.

    >>> from gmed.rng import make_rng
    >>> sorted(uniform(np.arange(4), 10, make_rng(0, "replay")).tolist())
    [0, 1, 2, 3]
    """
    return rng.choice(stored, min(count, len(stored)), replace=False) if len(stored) else stored


@torch.no_grad()
def interference(ahead: LookAhead, x: Tensor, y: Tensor) -> Tensor:
    """How much each example's loss would rise by the look-ahead's step: ℓ(x, y; θ') - ℓ(x, y; θ)."""
    before, after = (cross_entropy(output, y, reduction="none") for output in ahead.outputs(x))
    return after - before


def most_interfered(memory: Memory, candidates: Tensor, count: int, ahead: LookAhead) -> Tensor:
    """Of the candidate slots, the ``count`` whose examples the incoming batch interferes with most.

    References
    ----------
    Aljundi et al., "Online continual learning with maximally interfered retrieval", NeurIPS 2019.
    """
    if len(candidates) <= count:
        return candidates
    rise = interference(ahead, memory.x[candidates], memory.y[candidates])
    return candidates[rise.topk(count).indices]
