"""The base class of edits, and the context that an edit is given."""

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
    """Every example observed so far: an oracle that no online learner has, only for analysis."""

    x: Tensor
    y: Tensor


@old_attributes(ahead="lookahead", planned="draw")
@dataclass(frozen=True)
class EditContext:
    """The information about the current step that an edit may use.

    Attributes
    ----------
    lookahead
        The look-ahead on the incoming batch, shared by everything in this step.
    batch_size
        Number of examples that the learner replays per step when memory is full: it defines the scale of strides.
    random
        Returns this step's random generator for editing; no other generator may be used.
    history
        All earlier examples, only for edits that declare ``needs_history``.
    draw
        Returns the array of a function that uses only :attr:`random`, as a tensor; call it at most once per edit.
        An edit that draws its random numbers this way, and needs nothing else from the host, can be captured as part of
        a CUDA graph (:attr:`Edit.capturable`).
    """

    lookahead: LookAhead
    batch_size: int
    random: Callable[[], np.random.Generator] = lambda: np.random.default_rng(0)
    history: History | None = None
    draw: Callable[[Callable[[], NDArray[Any]]], Tensor] = lambda draw_fn: torch.from_numpy(draw_fn())


@old_attributes(foreseeable="capturable", oracle="needs_history")
class Edit(ABC):
    """The base class of edits, which change examples drawn from memory.

    Attributes
    ----------
    extra
        Number of further examples that a learner draws only for editing.
    write_back
        Whether edited examples are written back to memory.
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
        """Whether the edit can be captured: all it needs from the host it gets by :attr:`EditContext.draw`."""
        return False

    @abstractmethod
    def edit(self, x_m: Tensor, y_m: Tensor, edit_count: Tensor, context: EditContext) -> Tensor:
        """Return the edited ``x_m`` as a new tensor; no argument is changed.

        Parameters
        ----------
        x_m, y_m, edit_count
            Examples drawn from memory, and the number of earlier edits of each.
        context
            Further information about the step.
        """
