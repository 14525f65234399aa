"""What an edit is, and what it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.models import LookAhead


class History(NamedTuple):
    """Every example observed so far: an oracle no online learner has, for analysis alone."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Moment:
    """What an edit may know of the step it is part of.

    Attributes
    ----------
    ahead
        The look-ahead on the incoming batch, shared by everything in this step.
    batch_size
        How many examples the learner replays per step when memory is full: the constant that strides are
        measured by.
    random
        Gives this step's random numbers for editing; no other generator may be used.
    history
        All earlier examples, for edits that declare ``oracle`` and for no other.
    planned
        Gives as a tensor what a function decides by :attr:`random` alone, at most once an edit. An edit that asks for
        its random numbers so, and asks the host for nothing else, can be decided ahead (:attr:`Edit.capturable`).
    """

    ahead: LookAhead
    batch_size: int
    random: Callable[[], np.random.Generator] = lambda: np.random.default_rng(0)
    history: History | None = None
    planned: Callable[[Callable[[], NDArray[Any]]], Tensor] = lambda decide: torch.from_numpy(decide())


class Edit(ABC):
    """How examples drawn from memory are changed.

    Attributes
    ----------
    extra
        How many further examples a learner draws for editing alone.
    write_back
        Whether the learner stores what was edited.
    oracle
        Whether the edit needs :attr:`Moment.history`.
    """

    part_kind: ClassVar[str] = "edit"
    id: ClassVar[str] = "Edit"
    version: ClassVar[int] = 1
    extra: int = 0
    write_back: bool = True
    oracle: ClassVar[bool] = False

    @property
    def capturable(self) -> bool:
        """Whether an edit asks the host for nothing but what is planned: steps with it can be decided ahead."""
        return False

    @abstractmethod
    def edit(self, x_m: Tensor, y_m: Tensor, age: Tensor, moment: Moment) -> Tensor:
        """The edited ``x_m``, a new tensor; nothing given is changed.

        Parameters
        ----------
        x_m, y_m, age
            Examples drawn from memory, and how often each was edited before.
        moment
            What else the edit may know.
        """
