"""What an edit is, and what it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.deprecated import old_attributes, old_names
from gmed.models import LookAhead

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


class History(NamedTuple):
    """Every example observed so far: an oracle no online learner has, for analysis alone."""

    x: Tensor
    y: Tensor


@old_attributes(ahead="lookahead", planned="draw")
@dataclass(frozen=True)
class EditContext:
    """What an edit may know of the step it is part of.

    Attributes
    ----------
    lookahead
        The look-ahead on the incoming batch, shared by everything in this step.
    batch_size
        How many examples the learner replays per step when memory is full: the constant that strides are
        measured by.
    random
        Gives this step's random numbers for editing; no other generator may be used.
    history
        All earlier examples, for edits that declare ``needs_history`` and for no other.
    draw
        Gives as a tensor what a function decides by :attr:`random` alone, at most once an edit. An edit that asks for
        its random numbers so, and asks the host for nothing else, can be decided ahead (:attr:`Edit.capturable`).
    """

    lookahead: LookAhead
    batch_size: int
    random: Callable[[], np.random.Generator] = lambda: np.random.default_rng(0)
    history: History | None = None
    draw: Callable[[Callable[[], NDArray[Any]]], Tensor] = lambda draw_fn: torch.from_numpy(draw_fn())


@old_attributes(foreseeable="capturable", oracle="needs_history")
class Edit(ABC):
    """How examples drawn from memory are changed.

    Attributes
    ----------
    extra
        How many further examples a learner draws for editing alone.
    write_back
        Whether the learner stores what was edited.
    needs_history
        Whether the edit needs :attr:`EditContext.history`.
    """

    part_kind: ClassVar[str] = "edit"
    id: ClassVar[str] = "Edit"
    version: ClassVar[int] = 1
    extra: int = 0
    write_back: bool = True
    needs_history: ClassVar[bool] = False

    @property
    def capturable(self) -> bool:
        """Whether an edit asks the host for nothing but what is planned: steps with it can be decided ahead."""
        return False

    @abstractmethod
    def edit(self, x_m: Tensor, y_m: Tensor, edit_count: Tensor, context: EditContext) -> Tensor:
        """The edited ``x_m``, a new tensor; nothing given is changed.

        Parameters
        ----------
        x_m, y_m, edit_count
            Examples drawn from memory, and how often each was edited before.
        context
            What else the edit may know.
        """
