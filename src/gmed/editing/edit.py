from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor

from gmed.models import LookAhead


class Edit(Protocol):
    """What a learner asks of an edit: the examples it drew, changed."""

    version: ClassVar[int]

    def edit(
        self, x_m: Tensor, y_m: Tensor, age: Tensor, ahead: LookAhead, batch_size: int, rng: np.random.Generator
    ) -> Tensor:
        """The edited ``x_m``, a new tensor; nothing given is changed.

        Parameters
        ----------
        x_m, y_m, age
            Examples drawn from memory, and how often each was edited before.
        ahead
            The look-ahead on the incoming batch, shared by everything in this step.
        batch_size
            How many examples the learner replays per step when memory is full: the constant that strides
            are measured by.
        rng
            This step's random numbers for editing; no other generator may be used.
        """
        ...
