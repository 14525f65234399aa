from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from torch import Tensor

from gmed.memory import Memory
from gmed.models import LookAhead


class Retrieval(ABC):
    """Which stored examples a learner replays; without one, it draws them uniformly.

    Attributes
    ----------
    foreseeable
        Always false: what is retrieved may depend on the model, so a step has to be made before the next is decided.
    """

    part_kind: ClassVar[str] = "retrieval"
    id: ClassVar[str] = "Retrieval"
    version: ClassVar[int] = 1
    foreseeable: ClassVar[bool] = False

    @abstractmethod
    def retrieve(self, memory: Memory, count: int, ahead: LookAhead, rng: np.random.Generator) -> Tensor:
        """The slots of up to ``count`` stored examples, none twice.

        Parameters
        ----------
        memory
            What is stored; ``memory.filled()`` says in which slots. It is never empty.
        count
            How many examples the learner replays in a step.
        ahead
            The look-ahead on the incoming batch, shared by everything in this step.
        rng
            This step's random numbers for retrieval; no other generator may be used.
        """
