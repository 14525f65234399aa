from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.errors import UsageError, whole_number


class Memory(ABC):
    """A fixed number of slots, kept as tensors that can be edited in place.

    A subclass decides who enters (:meth:`admit`). The tensors are laid out by the first batch.

    Attributes
    ----------
    x, y
        The stored examples; :meth:`filled` says which slots hold one.
    age
        How often the example in a slot has been edited since it entered; 0 when a slot is overwritten.
    origin
        Which example of the stream it was: 0 for the first one ever observed.
    seen
        How many examples have been offered so far.
    foreseeable
        Whether who enters depends on counters and chance alone, so that it can be decided many steps ahead.
    """

    version = 1
    foreseeable: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = ("x", "y", "age", "origin")
    x: Tensor
    y: Tensor
    age: Tensor
    origin: Tensor

    def __init__(self, capacity: int) -> None:
        self.capacity = whole_number("memory capacity", capacity)
        self.seen = 0
        self._claimed = False
        self._rows: dict[str, Tensor] = {}  # the columns with one more row, where what is not stored is written
        self._overwritten: list[tuple[str, Tensor, Tensor]] | None = None

    @abstractmethod
    def admit(self, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> NDArray[np.int64]:
        """The slot for each example of the next batch; ``capacity`` or more means not stored."""

    def filled(self) -> NDArray[np.int64]:
        """The slots that hold an example."""
        return np.arange(min(self.seen, self.capacity))

    def __len__(self) -> int:
        return len(self.filled())

    def class_counts(self, classes: int) -> list[int]:
        """How many examples of each class are stored.

        >>> from gmed.memory import Reservoir
        >>> memory = Reservoir(5)
        >>> memory.lay_out(torch.zeros(3, 1), torch.tensor([0, 2, 2]))
        >>> memory.insert(torch.zeros(3, 1), torch.tensor([0, 2, 2]), np.random.default_rng(0))
        >>> memory.class_counts(4)
        [1, 0, 2, 0]
        """
        stored = self.y.cpu()[torch.from_numpy(self.filled())] if self.ready else torch.zeros(0, dtype=torch.int64)
        counts: list[int] = torch.bincount(stored, minlength=classes).tolist()
        return counts

    @property
    def ready(self) -> bool:
        """Whether the tensors have been laid out."""
        return hasattr(self, "x")

    def lay_out(self, x: Tensor, y: Tensor) -> None:
        """Make room for examples like these."""
        self.add_column("x", x.dtype, x.device, x.shape[1:])
        self.add_column("y", y.dtype, x.device)
        self.add_column("age", torch.int64, x.device)
        self.add_column("origin", torch.int64, x.device, fill=-1)

    def add_column(
        self, name: str, dtype: torch.dtype, device: torch.device, shape: tuple[int, ...] = (), fill: float = 0
    ) -> None:
        """Keep something more of every example."""
        try:
            rows = torch.full((self.capacity + 1, *shape), fill, dtype=dtype, device=device)
        except (RuntimeError, TypeError, MemoryError) as error:  # how torch says that there is not so much room
            raise UsageError(
                f"there is no room for a memory of {self.capacity} examples of shape {shape} on {device}; "
                "choose a smaller one"
            ) from error
        self._hold(name, rows)

    def insert(self, x: Tensor, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> None:
        """Offer a batch of examples, with what else the memory keeps of them. One that enters has age 0."""
        slots = torch.from_numpy(self.places(self.admit(y, rng, **columns))).to(self.x.device)
        self.store(slots, torch.from_numpy(self.next_origins(len(y))).to(self.x.device), x=x, y=y, **columns)

    def places(self, admitted: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row each example is written to: its slot, or the row behind the last for one that is not stored.

        Of two examples sent to one slot in the same batch, the later stays.
        """
        slots, outside = admitted.tolist(), self.capacity
        last = {slot: number for number, slot in enumerate(slots)}
        stays = [last[slot] == number and slot < outside for number, slot in enumerate(slots)]
        return np.where(stays, admitted, outside).astype(np.int64)

    def next_origins(self, count: int) -> NDArray[np.int64]:
        """Which examples of the stream the next ones are."""
        return self.seen + np.arange(count)

    def store(self, places: Tensor, origin: Tensor, **columns: Tensor) -> None:
        """Write a batch of examples where :meth:`places` says."""
        self.write(places, **columns, age=torch.zeros_like(origin), origin=origin)
        self.seen += len(origin)

    def replace(self, slots: Tensor, x: Tensor) -> None:
        """Write edited examples back and count the edit. One that is not finite leaves its slot as it was."""
        self.write(slots, x=keep_finite(x, self.x[slots]), age=self.age[slots] + 1)

    def write(self, slots: Tensor, **columns: Tensor) -> None:
        """Overwrite some columns of some slots, in place."""
        for name, values in columns.items():
            held = self._rows[name]
            if self._overwritten is not None:
                self._overwritten.append((name, slots, held[slots]))
            held[slots] = values

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Whatever is written inside is undone if something fails there."""
        seen, self._overwritten = self.seen, []
        try:
            yield
        except BaseException:
            for name, slots, values in reversed(self._overwritten):
                self._rows[name][slots] = values
            self.seen = seen
            raise
        finally:
            self._overwritten = None

    def state_dict(self) -> dict[str, Tensor]:
        """Everything the memory is, as named tensors."""
        state = {"seen": torch.tensor(self.seen)}
        if self.ready:
            state |= {name: getattr(self, name) for name in self.columns}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Become the memory whose state this is; it must have the same number of slots."""
        held = {name: state[name] for name in self.columns if name in state}
        seen = int(state["seen"])
        if (held or seen) and (missing := [name for name in self.columns if name not in state]):
            raise UsageError(f"the state's memory has no {missing[0]}: it is damaged, or of another kind of memory")
        for name, tensor in held.items():
            slots = len(tensor) if tensor.ndim else 0
            if slots != self.capacity:
                raise UsageError(f"the state's memory has {slots} slots ({name}), this one {self.capacity}")
            if (tensor.dtype == torch.int64) != (name in ("y", "age", "origin")) or (name != "x" and tensor.ndim != 1):
                raise UsageError(f"{name} of the state's memory is {tensor.dtype} {tuple(tensor.shape)}: it is damaged")
        if held and bool((held["age"] < 0).any() | (held["origin"] < -1).any() | (held["origin"] >= seen).any()):
            raise UsageError("the state's memory counts what never was: it is damaged")
        before = self._rows, self.seen
        self.clear()
        for name, tensor in held.items():
            self._hold(name, torch.cat([tensor, tensor[-1:]]))
        self.seen = seen
        if held and bool((self.origin.cpu()[torch.from_numpy(self.filled())] < 0).any()):
            self.clear()
            rows, self.seen = before
            for name, tensor in rows.items():
                self._hold(name, tensor)
            raise UsageError("the state's memory lacks examples that it counts: it is damaged")

    def clear(self) -> None:
        """Forget everything, and the shape of examples too."""
        for name in self.columns:
            vars(self).pop(name, None)
        self._rows = {}
        self.seen = 0

    def claim(self) -> None:
        """Belong to a learner; no other may have it."""
        if self._claimed:
            raise UsageError("this memory belongs to another learner; make a new one")
        self._claimed = True

    def to(self, like: Tensor) -> None:
        """Move the stored examples to where ``like`` is, in its type."""
        for name, rows in self._rows.items():
            if rows.device != like.device or (name == "x" and rows.dtype != like.dtype):
                self._hold(name, rows.to(like) if name == "x" else rows.to(like.device))

    def _hold(self, name: str, rows: Tensor) -> None:
        self._rows[name] = rows
        setattr(self, name, rows[: self.capacity])


def keep_finite(new: Tensor, old: Tensor) -> Tensor:
    """The new examples, but for those that are not finite the old ones.

    >>> keep_finite(torch.tensor([[1.0], [float("nan")]]), torch.tensor([[5.0], [6.0]])).tolist()
    [[1.0], [6.0]]
    """
    finite = torch.isfinite(new).flatten(1).all(1)
    return torch.where(finite.reshape(-1, *[1] * (new.ndim - 1)), new, old)
