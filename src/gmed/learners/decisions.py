"""Who decides what chance decides, and when: as each step comes, or many steps ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

Decide = Callable[[], NDArray[Any]]
"""What chance and counters decide in the step under way; nothing that a batch or the model computes may enter."""


class Decisions(Protocol):
    """How a learner's decisions reach its device."""

    live: bool
    """Whether the host takes part in every step, and may draw random numbers in it."""

    def take(self, name: str, decide: Decide, device: torch.device) -> Tensor:
        """This step's decision of that name."""
        ...

    def check(self, sound: Tensor) -> bool:
        """Whether a step may be taken, as far as it is known now; ``sound`` is finite if it may."""
        ...


class AsTheyCome:
    """Each decision is made when a step asks for it, and a step that must not be taken is known at once.

    Attributes
    ----------
    asked
        What the last step asked for, by name, and the shape of what it was given.
    """

    live = True

    def __init__(self) -> None:
        self.asked: dict[str, tuple[Decide, tuple[int, ...]]] = {}

    def take(self, name: str, decide: Decide, device: torch.device) -> Tensor:
        decided = decide()
        self.asked[name] = decide, decided.shape
        return torch.from_numpy(decided).to(device)

    def check(self, sound: Tensor) -> bool:
        return bool(torch.isfinite(sound))


class Ahead:
    """The decisions of a stretch of steps, made before it begins: inside it nothing is asked of the host.

    Every decision is a table with one row per step, resident on the device, and a counter on the device says which row
    is due. A step that should not have been taken is noted there and found afterwards.

    Parameters
    ----------
    length
        The most rows there will be.
    rows
        What each step asks for, by name: an array whose first axis is the step. Tables are laid out like these.
    due
        The counter, shared by all who step together.
    """

    live = False

    def __init__(self, length: int, rows: Mapping[str, NDArray[Any]], due: Tensor) -> None:
        self.due = due
        self.failed = torch.full_like(due, -1)
        self.tables = {
            name: torch.empty((length, *table.shape[1:]), dtype=torch.from_numpy(table).dtype, device=due.device)
            for name, table in rows.items()
        }

    def take(self, name: str, decide: Decide, device: torch.device) -> Tensor:
        return self.row(name)

    def row(self, name: str) -> Tensor:
        """The row of a table that is due."""
        return self.tables[name].index_select(0, self.due).squeeze(0)

    def check(self, sound: Tensor) -> bool:
        first = ~torch.isfinite(sound) & (self.failed < 0)
        self.failed.copy_(torch.where(first, self.due, self.failed))
        return True

    def refill(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """The decisions of the next stretch, in the same places."""
        for name, table in self.tables.items():
            fresh = torch.from_numpy(rows[name])
            table[: len(fresh)].copy_(fresh.pin_memory() if table.is_cuda else fresh, non_blocking=True)
