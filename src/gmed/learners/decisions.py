"""Who decides what chance decides, and when: as each step comes, or many steps ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

Decide = Callable[[], NDArray[Any]]
"""What chance and counters decide in the step under way; nothing that a batch or the model computes may enter."""


class Decisions(Protocol):
    """How a learner's decisions reach its device."""

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
        What the last step asked for, by name.
    """

    def __init__(self) -> None:
        self.asked: dict[str, Decide] = {}

    def take(self, name: str, decide: Decide, device: torch.device) -> Tensor:
        self.asked[name] = decide
        return torch.from_numpy(decide()).to(device)

    def check(self, sound: Tensor) -> bool:
        return bool(torch.isfinite(sound))


class Ahead:
    """The decisions of a stretch of steps, made before it begins: inside it nothing is asked of the host.

    Every decision is a table with one row per step, resident on the device, and a counter on the device says which row
    is due. A step that should not have been taken is noted there and found afterwards.

    Parameters
    ----------
    rows
        What each step asks for, by name: an array whose first axis is the step.
    device
        Where the tables are kept.
    """

    def __init__(self, rows: dict[str, NDArray[Any]], device: torch.device) -> None:
        self.tables = {name: torch.from_numpy(table).to(device) for name, table in rows.items()}
        self.due = torch.zeros(1, dtype=torch.int64, device=device)
        self.failed = torch.full((1,), -1, dtype=torch.int64, device=device)

    def take(self, name: str, decide: Decide, device: torch.device) -> Tensor:
        return self.tables[name].index_select(0, self.due).squeeze(0)

    def check(self, sound: Tensor) -> bool:
        first = ~torch.isfinite(sound) & (self.failed < 0)
        self.failed.copy_(torch.where(first, self.due, self.failed))
        return True

    def refill(self, rows: dict[str, NDArray[Any]]) -> None:
        """The decisions of the next stretch, in the same places, from its first row on."""
        for name, table in self.tables.items():
            fresh = torch.from_numpy(rows[name])
            table[: len(fresh)].copy_(fresh.pin_memory() if table.is_cuda else fresh, non_blocking=True)
        self.due.zero_()
