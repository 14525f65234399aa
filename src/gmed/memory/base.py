"""The base class of memories: slots of tensors that are written in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.deprecated import old_attributes, old_names
from gmed.errors import UsageError, check_int
from gmed.memory.pinned import as_cuda_view, should_pin

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


_INTEGERS = ("y", "edit_count", "stream_index")

STATE_NAMES = {"edit_count": "age", "stream_index": "origin"}
"""The names of renamed columns in saved states."""

REMOVED = -2
"""The stream_index of a slot whose example was removed on request; -1 is that of a slot that was never used."""


@old_attributes(
    admit="select_slots",
    filled="occupied",
    whole="is_contiguous",
    ready="is_allocated",
    lay_out="allocate",
    places="target_rows",
    next_origins="next_stream_indices",
    claim="bind",
    seen="num_seen",
    age="edit_count",
    origin="stream_index",
    foreseeable="capturable",
)
class Memory(ABC):
    """A fixed number of slots, stored as tensors that can be edited in place.

    A subclass decides which examples are stored (:meth:`select_slots`). The first batch allocates the tensors. Other
    values that are stored with examples (``insert(x, y, rng, logits=...)``) become columns too, attributes of that
    name: they are saved, restored, moved and rolled back with the others.

    Attributes
    ----------
    x, y
        The stored examples; :meth:`occupied` returns the slots that hold one.
    edit_count
        Number of edits of the example in a slot since it entered; 0 when a slot is overwritten.
    stream_index
        Position of the example in the stream: 0 is the first one ever observed. Negative for an empty slot.
    num_seen
        Number of examples offered so far.
    capturable
        Whether the choice of slots depends only on counters and random numbers, so that it can be made many steps in
        advance.
    """

    part_kind: ClassVar[str] = "memory"
    id: ClassVar[str] = "Memory"
    version = 1
    capturable: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = ("x", "y", "edit_count", "stream_index")  # those allocated by the first batch
    x: Tensor
    y: Tensor
    edit_count: Tensor
    stream_index: Tensor

    def __init__(self, capacity: int) -> None:
        self.capacity = check_int("memory capacity", capacity)
        self.num_seen = 0
        self._bound = False
        self._free_slots = np.zeros(0, dtype=np.int64)  # slots emptied on request, in ascending order
        self._rows: dict[str, Tensor] = {}  # the columns with one more row, to which rejected examples are written
        self._pinned: dict[str, Tensor] = {}  # columns too large for the GPU, as tensors of the host
        self._overwritten: list[tuple[str, Tensor, Tensor]] | None = None  # old values, during a transaction
        self._before: tuple[int, NDArray[np.int64], tuple[str, ...]] = 0, self._free_slots, ()

    @abstractmethod
    def select_slots(self, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> NDArray[np.int64]:
        """Return the slot for each example of the next batch; ``capacity`` or more means that it is not stored."""

    def occupied(self) -> NDArray[np.int64]:
        """Return the slots that hold an example."""
        slots = np.arange(min(self.num_seen, self.capacity))
        return slots if self.is_contiguous else np.setdiff1d(slots, self._free_slots)

    def examples(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of the examples in these slots: their inputs and labels."""
        return self.x.index_select(0, slots), self.y.index_select(0, slots)  # faster than indexing

    @property
    def is_contiguous(self) -> bool:
        """Whether all slots that were emptied on request have been filled again.

        Until then, the occupied slots depend on which examples have entered since, and not on counters alone, so draws
        are not made in advance.
        """
        return not len(self._free_slots)

    def __len__(self) -> int:
        return len(self.occupied())

    def class_counts(self, classes: int) -> list[int]:
        """Return the number of stored examples of each class.

        >>> from gmed.memory import Reservoir
        >>> memory = Reservoir(5)
        >>> memory.allocate(torch.zeros(3, 1), torch.tensor([0, 2, 2]))
        >>> memory.insert(torch.zeros(3, 1), torch.tensor([0, 2, 2]), np.random.default_rng(0))
        >>> memory.class_counts(4)
        [1, 0, 2, 0]
        """
        stored = (
            self.y.cpu()[torch.from_numpy(self.occupied())] if self.is_allocated else torch.zeros(0, dtype=torch.int64)
        )
        counts: list[int] = torch.bincount(stored, minlength=classes).tolist()
        return counts

    @property
    def is_allocated(self) -> bool:
        """Whether the tensors have been allocated."""
        return hasattr(self, "x")

    def allocate(self, x: Tensor, y: Tensor) -> None:
        """Allocate the tensors for examples of this shape and dtype."""
        self.add_column("x", x.dtype, x.device, x.shape[1:])
        self.add_column("y", y.dtype, x.device)
        self.add_column("edit_count", torch.int64, x.device)
        self.add_column("stream_index", torch.int64, x.device, fill=-1)

    def add_column(
        self, name: str, dtype: torch.dtype, device: torch.device, shape: tuple[int, ...] = (), fill: float = 0
    ) -> None:
        """Add a column: a value that is stored with every example, as an attribute of this name."""
        self._check_name(name)
        try:
            self._set_column(name, torch.full((self.capacity + 1, *shape), fill, dtype=dtype), device)
        except (RuntimeError, TypeError, MemoryError) as error:  # torch raises any of these if memory is insufficient
            raise UsageError(
                f"a memory of {self.capacity} examples of shape {tuple(shape)} does not fit on {device}; "
                "choose a smaller capacity"
            ) from error

    def has_column(self, name: str) -> bool:
        """Return whether there is a column of this name."""
        return name in self._rows

    def check_columns(self, columns: Mapping[str, Tensor]) -> None:
        """Raise an error for a column that cannot be stored: its name is taken, or its shape has changed."""
        for name, values in columns.items():
            if name not in self._rows:
                self._check_name(name)
            elif values.shape[1:] != (shape := self._rows[name].shape[1:]):
                shapes = f"{tuple(shape)} for each example, not {tuple(values.shape[1:])}"
                raise UsageError(f"the column {name!r} in memory has the shape {shapes}; use another name for these")

    def _check_name(self, name: str) -> None:
        """Raise an error if the name of a column is taken by something else."""
        taken = hasattr(type(self), name) or (name in vars(self) and name not in self._rows)
        taken = taken or name in STATE_NAMES.values() or name == "seen"  # in saved states
        if name not in self.columns and (taken or not name.isidentifier()):
            raise UsageError(f"a column of memory cannot be named {name!r}; choose another name")

    def insert(self, x: Tensor, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> None:
        """Offer a batch of examples, with the values of their other columns. New examples have edit count 0."""
        slots = torch.from_numpy(self.target_rows(self.select_slots(y, rng, **columns))).to(self.x.device)
        self.store(slots, torch.from_numpy(self.next_stream_indices(len(y))).to(self.x.device), x=x, y=y, **columns)

    def target_rows(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row that each example is written to: its slot, or the extra last row if it is not stored.

        Of several examples of a batch with the same slot, the last one is stored.
        """
        as_list, unused = slots.tolist(), self.capacity
        if len(set(as_list)) == len(as_list):
            return np.minimum(slots, unused)
        last = {slot: index for index, slot in enumerate(as_list)}
        is_stored = [last[slot] == index and slot < unused for index, slot in enumerate(as_list)]
        return np.where(is_stored, slots, unused).astype(np.int64)

    def next_stream_indices(self, count: int) -> NDArray[np.int64]:
        """Return the positions in the stream of the next examples."""
        return self.num_seen + np.arange(count)

    def store(self, target_rows: Tensor, stream_index: Tensor, **columns: Tensor) -> None:
        """Write a batch of examples to the rows that :meth:`target_rows` returned."""
        if target_rows.is_cpu and columns.keys() <= self._rows.keys() and int(target_rows.min()) == self.capacity:
            self.check_columns(columns)  # none of them is stored
        else:
            self.write(target_rows, **columns, edit_count=torch.zeros_like(stream_index), stream_index=stream_index)
        self.num_seen += len(stream_index)
        if not self.is_contiguous:
            self._free_slots = np.setdiff1d(self._free_slots, target_rows.cpu().numpy())

    def replace(self, slots: Tensor | NDArray[np.int64], x: Tensor) -> None:
        """Write edited examples back and count the edit. One that is not finite is not written."""
        slots = torch.as_tensor(slots, device=self.y.device)
        stored, edit_count = self.x.index_select(0, slots), self.edit_count.index_select(0, slots)
        self.write(slots, x=where_finite(x, stored), edit_count=edit_count + 1)

    def write(self, slots: Tensor, **columns: Tensor) -> None:
        """Overwrite some columns of some slots in place. A new column is zero in all other slots."""
        self.check_columns(columns)
        for name, values in columns.items():
            if name not in self._rows:
                self.add_column(name, values.dtype, self.y.device, values.shape[1:])
            rows = self._rows[name]
            if self._overwritten is not None:
                self._overwritten.append((name, slots, rows.index_select(0, slots)))
            rows.index_copy_(0, slots, values.detach().to(rows.dtype))

    def remove(self, slots: NDArray[np.int64]) -> None:
        """Empty some of the occupied slots: every column is overwritten there.

        This does not change which examples are stored later: a subclass decides that as before (:meth:`select_slots`).
        In a reservoir every other example is then stored with the same probability as without the removal.

        >>> import torch
        >>> from gmed.memory import Reservoir
        >>> from gmed.rng import make_rng
        >>> memory, x, y = Reservoir(3), torch.tensor([[5.0], [6.0], [7.0]]), torch.tensor([0, 1, 1])
        >>> memory.allocate(x, y)
        >>> memory.insert(x, y, make_rng(0, "reservoir"))
        >>> memory.remove(np.array([1]))
        >>> len(memory), memory.occupied().tolist(), memory.x.flatten().tolist(), memory.stream_index.tolist()
        (2, [0, 2], [5.0, 0.0, 7.0], [0, -2, 2])
        """
        slots = np.unique(slots)
        if not np.isin(slots, self.occupied()).all():
            raise UsageError("only slots that hold an example can be emptied; memory.occupied() returns these")
        if not len(slots):
            return
        emptied = torch.from_numpy(np.append(slots, self.capacity))  # also the extra row, with examples not stored
        for name, rows in self._rows.items():
            rows[emptied.to(rows.device)] = REMOVED if name == "stream_index" else 0
        self._free_slots = np.union1d(self._free_slots, slots)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Undo all writes in the block if it raises an error."""
        self.begin_transaction()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def begin_transaction(self) -> None:
        """Begin a transaction: record overwritten values until :meth:`commit` or :meth:`rollback`."""
        self._before = self.num_seen, self._free_slots, tuple(self._rows)
        self._overwritten = []

    def commit(self) -> None:
        """End the transaction and keep what it has written."""
        self._overwritten = None

    def rollback(self) -> None:
        """End the transaction and undo what it has written."""
        for name, slots, values in reversed(self._overwritten or ()):
            self._rows[name][slots] = values
        self.num_seen, self._free_slots, names = self._before
        for name in self._rows.keys() - set(names):
            self._drop(name)
        self._overwritten = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the whole state as named tensors."""
        state = {"seen": torch.tensor(self.num_seen)}
        if self.is_allocated:
            state |= {STATE_NAMES.get(name, name): self._values(name) for name in self._rows}
        return state

    def _values(self, name: str) -> Tensor:
        """Return a column, on the host if it is pinned there: a GPU may have no room for a copy."""
        if name in self._pinned:
            torch.cuda.synchronize(self._rows[name].device)
            return self._pinned[name][: self.capacity]
        values: Tensor = getattr(self, name)
        return values

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load a state, which must have the same number of slots."""
        names = {saved: name for name, saved in STATE_NAMES.items()}
        columns = {names.get(name, name): tensor for name, tensor in state.items() if name != "seen"}
        num_seen = int(state["seen"])
        if (columns or num_seen) and (missing := [name for name in self.columns if name not in columns]):
            raise UsageError(
                f"the memory in this state has no {missing[0]}: it is corrupt, or was saved by another kind of memory"
            )
        for name, tensor in columns.items():
            self._check_name(name)
            slots = len(tensor) if tensor.ndim else 0
            if slots != self.capacity:
                raise UsageError(f"the memory in this state has {slots} slots ({name}), this one {self.capacity}")
            is_integer = tensor.dtype == torch.int64
            if name in self.columns and (is_integer != (name in _INTEGERS) or (name != "x" and tensor.ndim != 1)):
                raise UsageError(f"corrupt memory state: {name} is {tensor.dtype} {tuple(tensor.shape)}")
        if columns and bool(
            (columns["edit_count"] < 0).any()
            | (columns["stream_index"] < REMOVED).any()
            | (columns["stream_index"] >= num_seen).any()
        ):
            raise UsageError("corrupt memory state: an edit_count is negative, or a stream_index not below num_seen")
        before = dict(self._rows), dict(self._pinned), self.num_seen, self._free_slots
        self.clear()
        for name, tensor in columns.items():
            self._set_column(name, torch.cat([tensor, torch.zeros_like(tensor[-1:])]), tensor.device)
        self.num_seen = num_seen
        if columns:
            self._free_slots = np.flatnonzero((self.stream_index == REMOVED).cpu().numpy())
        if columns and bool((self.stream_index.cpu()[torch.from_numpy(self.occupied())] < 0).any()):
            self.clear()
            rows, pinned, self.num_seen, self._free_slots = before
            for name, tensor in rows.items():
                self._set_column(name, tensor, tensor.device)
            self._pinned = pinned
            raise UsageError("corrupt memory state: it has fewer examples than num_seen implies")

    def __getstate__(self) -> dict[str, Any]:
        """Return the copied or pickled state: the rows, but not the columns, which are views of them."""
        return {name: value for name, value in vars(self).items() if name not in self._rows} | {"_pinned": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for name, rows in self._rows.items():
            setattr(self, name, rows[: self.capacity])

    def clear(self) -> None:
        """Remove all examples and columns; the next batch allocates them again."""
        for name in tuple(self._rows):
            self._drop(name)
        self._free_slots = np.zeros(0, dtype=np.int64)
        self.num_seen = 0

    def _drop(self, name: str) -> None:
        """Remove a column."""
        self._pinned.pop(name, None)
        del self._rows[name]
        delattr(self, name)

    def bind(self) -> None:
        """Mark the memory as used by a learner; no other learner may use it."""
        if self._bound:
            raise UsageError("this memory is used by another learner; create a new one")
        self._bound = True

    def to(self, like: Tensor) -> None:
        """Move the stored examples to the device of ``like``, and convert ``x`` to its dtype."""
        for name, rows in self._rows.items():
            if rows.device != like.device or (name == "x" and rows.dtype != like.dtype):
                self._set_column(name, rows.to(like.dtype) if name == "x" else rows, like.device)

    def _set_column(self, name: str, rows: Tensor, device: torch.device) -> None:
        """Set a column, on the device or, if it is too large, in pinned memory of the host."""
        self._pinned.pop(name, None)
        if rows.device != device and should_pin(rows.nbytes, device):
            self._pinned[name] = rows.pin_memory()
            rows = as_cuda_view(self._pinned[name], device)
        self._rows[name] = rows = rows.to(device)
        setattr(self, name, rows[: self.capacity])


def where_finite(new: Tensor, old: Tensor) -> Tensor:
    """Return the new examples, with the old ones in place of those that are not finite.

    >>> where_finite(torch.tensor([[1.0], [float("nan")]]), torch.tensor([[5.0], [6.0]])).tolist()
    [[1.0], [6.0]]
    """
    if new.is_cpu and new.is_floating_point() and new.dtype == old.dtype and isfinite(new.norm().item()):
        return new
    finite = torch.isfinite(new).flatten(1).all(1)
    return torch.where(finite.reshape(-1, *[1] * (new.ndim - 1)), new, old)
