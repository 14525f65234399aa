"""The memory that all others derive from: slots of tensors, written in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
"""Columns whose name in saved states is not that of the attribute."""

REMOVED = -2
"""The origin of a slot whose example was removed on request; -1 is that of one that never held any."""


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
    """A fixed number of slots, kept as tensors that can be edited in place.

    A subclass decides which examples are stored (:meth:`select_slots`). The first batch allocates the tensors. Whatever
    else is stored with examples (``insert(x, y, rng, logits=...)``) becomes a column too, an attribute of its name:
    saved, restored, moved and rolled back with the others.

    Attributes
    ----------
    x, y
        The stored examples; :meth:`occupied` says which slots hold one.
    age
        How often the example in a slot has been edited since it entered; 0 when a slot is overwritten.
    origin
        Which example of the stream it was: 0 for the first one ever observed. Negative where there is none.
    seen
        How many examples have been offered so far.
    capturable
        Whether who enters depends on counters and chance alone, so that it can be decided many steps ahead.
    """

    part_kind: ClassVar[str] = "memory"
    id: ClassVar[str] = "Memory"
    version = 1
    capturable: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = (
        "x",
        "y",
        "edit_count",
        "stream_index",
    )  # those that there are from the first batch on
    x: Tensor
    y: Tensor
    edit_count: Tensor
    stream_index: Tensor

    def __init__(self, capacity: int) -> None:
        self.capacity = check_int("memory capacity", capacity)
        self.num_seen = 0
        self._bound = False
        self._free_slots = np.zeros(0, dtype=np.int64)  # slots emptied on request, in their order
        self._rows: dict[str, Tensor] = {}  # the columns with one more row, where what is not stored is written
        self._pinned: dict[str, Tensor] = {}  # those of them that a GPU has no room for, as the host sees them
        self._overwritten: list[tuple[str, Tensor, Tensor]] | None = None  # since a transaction began
        self._before: tuple[int, NDArray[np.int64], tuple[str, ...]] = 0, self._free_slots, ()

    @abstractmethod
    def select_slots(self, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> NDArray[np.int64]:
        """The slot for each example of the next batch; ``capacity`` or more means not stored."""

    def occupied(self) -> NDArray[np.int64]:
        """The slots that hold an example."""
        slots = np.arange(min(self.num_seen, self.capacity))
        return slots if self.is_contiguous else np.setdiff1d(slots, self._free_slots)

    @property
    def is_contiguous(self) -> bool:
        """Whether no slot is empty that was emptied on request.

        While one is, which slots are filled depends on who has entered since, and not on counters alone: steps are not
        decided ahead then.
        """
        return not len(self._free_slots)

    def __len__(self) -> int:
        return len(self.occupied())

    def class_counts(self, classes: int) -> list[int]:
        """How many examples of each class are stored.

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
        """Whether the tensors have been laid out."""
        return hasattr(self, "x")

    def allocate(self, x: Tensor, y: Tensor) -> None:
        """Make room for examples like these."""
        self.add_column("x", x.dtype, x.device, x.shape[1:])
        self.add_column("y", y.dtype, x.device)
        self.add_column("edit_count", torch.int64, x.device)
        self.add_column("stream_index", torch.int64, x.device, fill=-1)

    def add_column(
        self, name: str, dtype: torch.dtype, device: torch.device, shape: tuple[int, ...] = (), fill: float = 0
    ) -> None:
        """Keep something more of every example, as an attribute of this name."""
        self._check_name(name)
        try:
            self._set_column(name, torch.full((self.capacity + 1, *shape), fill, dtype=dtype), device)
        except (RuntimeError, TypeError, MemoryError) as error:  # how torch says that there is not so much room
            raise UsageError(
                f"there is no room for a memory of {self.capacity} examples of shape {shape} on {device}; "
                "choose a smaller one"
            ) from error

    def has_column(self, name: str) -> bool:
        """Whether something is stored with examples under this name."""
        return name in self._rows

    def check_columns(self, columns: Mapping[str, Tensor]) -> None:
        """Refuse what cannot be stored with examples: a name that is taken, or another shape than before."""
        for name, values in columns.items():
            if name not in self._rows:
                self._check_name(name)
            elif values.shape[1:] != (shape := self._rows[name].shape[1:]):
                shapes = f"{tuple(shape)} for each example, not {tuple(values.shape[1:])}"
                raise UsageError(f"{name!r} in memory has the shape {shapes}; store one shape under one name")

    def _check_name(self, name: str) -> None:
        """Refuse a column whose name is taken by something else."""
        taken = hasattr(type(self), name) or (name in vars(self) and name not in self._rows)
        taken = taken or name in STATE_NAMES.values() or name == "seen"  # in saved states
        if name not in self.columns and (taken or not name.isidentifier()):
            raise UsageError(f"a column of memory cannot be called {name!r}; choose another name")

    def insert(self, x: Tensor, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> None:
        """Offer a batch of examples, with what else the memory keeps of them. One that enters has age 0."""
        slots = torch.from_numpy(self.target_rows(self.select_slots(y, rng, **columns))).to(self.x.device)
        self.store(slots, torch.from_numpy(self.next_stream_indices(len(y))).to(self.x.device), x=x, y=y, **columns)

    def target_rows(self, admitted: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row each example is written to: its slot, or the row behind the last for one that is not stored.

        Of two examples sent to one slot in the same batch, the later stays.
        """
        slots, outside = admitted.tolist(), self.capacity
        if len(set(slots)) == len(slots):
            return np.minimum(admitted, outside)
        last = {slot: number for number, slot in enumerate(slots)}
        stays = [last[slot] == number and slot < outside for number, slot in enumerate(slots)]
        return np.where(stays, admitted, outside).astype(np.int64)

    def next_stream_indices(self, count: int) -> NDArray[np.int64]:
        """Which examples of the stream the next ones are."""
        return self.num_seen + np.arange(count)

    def store(self, places: Tensor, stream_index: Tensor, **columns: Tensor) -> None:
        """Write a batch of examples where :meth:`target_rows` says."""
        self.write(places, **columns, edit_count=torch.zeros_like(stream_index), stream_index=stream_index)
        self.num_seen += len(stream_index)
        if not self.is_contiguous:
            self._free_slots = np.setdiff1d(self._free_slots, places.cpu().numpy())

    def replace(self, slots: Tensor | NDArray[np.int64], x: Tensor) -> None:
        """Write edited examples back and count the edit. One that is not finite leaves its slot as it was."""
        slots = torch.as_tensor(slots, device=self.y.device)
        self.write(slots, x=where_finite(x, self.x[slots]), edit_count=self.edit_count[slots] + 1)

    def write(self, slots: Tensor, **columns: Tensor) -> None:
        """Overwrite some columns of some slots, in place. A column that is new is zero elsewhere."""
        self.check_columns(columns)
        for name, values in columns.items():
            if name not in self._rows:
                self.add_column(name, values.dtype, self.y.device, values.shape[1:])
            held = self._rows[name]
            if self._overwritten is not None:
                self._overwritten.append((name, slots, held.index_select(0, slots)))
            held.index_copy_(0, slots, values.detach().to(held.dtype))

    def remove(self, slots: NDArray[np.int64]) -> None:
        """Empty some of the filled slots: what they hold is overwritten, in every column.

        Removing changes nothing about who enters later, which a subclass decides as ever (:meth:`select_slots`). In a
        reservoir every other example is then stored with the probability it would have had.

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
            raise UsageError("only slots that hold an example can be emptied; memory.occupied() says which do")
        if not len(slots):
            return
        emptied = torch.from_numpy(np.append(slots, self.capacity))  # what was not stored lay behind the last
        for name, rows in self._rows.items():
            rows[emptied.to(rows.device)] = REMOVED if name == "stream_index" else 0
        self._free_slots = np.union1d(self._free_slots, slots)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Whatever is written inside is undone if something fails there."""
        self.begin_transaction()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def begin_transaction(self) -> None:
        """Remember from now on what is overwritten, until :meth:`commit` or :meth:`rollback`."""
        self._before = self.num_seen, self._free_slots, tuple(self._rows)
        self._overwritten = []

    def commit(self) -> None:
        """Keep what was written since the transaction began."""
        self._overwritten = None

    def rollback(self) -> None:
        """Undo what was written since the transaction began."""
        for name, slots, values in reversed(self._overwritten or ()):
            self._rows[name][slots] = values
        self.num_seen, self._free_slots, names = self._before
        for name in self._rows.keys() - set(names):
            self._drop(name)
        self._overwritten = None

    def state_dict(self) -> dict[str, Tensor]:
        """Everything the memory is, as named tensors."""
        state = {"seen": torch.tensor(self.num_seen)}
        if self.is_allocated:
            state |= {STATE_NAMES.get(name, name): self._values(name) for name in self._rows}
        return state

    def _values(self, name: str) -> Tensor:
        """A column, where there is room for a copy of it."""
        if name in self._pinned:
            torch.cuda.synchronize(self._rows[name].device)
            return self._pinned[name][: self.capacity]
        values: Tensor = getattr(self, name)
        return values

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Become the memory whose state this is; it must have the same number of slots."""
        names = {saved: name for name, saved in STATE_NAMES.items()}
        held = {names.get(name, name): tensor for name, tensor in state.items() if name != "seen"}
        seen = int(state["seen"])
        if (held or seen) and (missing := [name for name in self.columns if name not in held]):
            raise UsageError(f"the state's memory has no {missing[0]}: it is damaged, or of another kind of memory")
        for name, tensor in held.items():
            self._check_name(name)
            slots = len(tensor) if tensor.ndim else 0
            if slots != self.capacity:
                raise UsageError(f"the state's memory has {slots} slots ({name}), this one {self.capacity}")
            is_integer = tensor.dtype == torch.int64
            if name in self.columns and (is_integer != (name in _INTEGERS) or (name != "x" and tensor.ndim != 1)):
                raise UsageError(f"{name} of the state's memory is {tensor.dtype} {tuple(tensor.shape)}: it is damaged")
        if held and bool(
            (held["edit_count"] < 0).any()
            | (held["stream_index"] < REMOVED).any()
            | (held["stream_index"] >= seen).any()
        ):
            raise UsageError(
                "the state's memory is damaged: an edit_count is negative, or a stream_index not below num_seen"
            )
        before = dict(self._rows), dict(self._pinned), self.num_seen, self._free_slots
        self.clear()
        for name, tensor in held.items():
            self._set_column(name, torch.cat([tensor, torch.zeros_like(tensor[-1:])]), tensor.device)
        self.num_seen = seen
        if held:
            self._free_slots = np.flatnonzero((self.stream_index == REMOVED).cpu().numpy())
        if held and bool((self.stream_index.cpu()[torch.from_numpy(self.occupied())] < 0).any()):
            self.clear()
            rows, on_host, self.num_seen, self._free_slots = before
            for name, tensor in rows.items():
                self._set_column(name, tensor, tensor.device)
            self._pinned = on_host
            raise UsageError("the state's memory lacks examples that it counts: it is damaged")

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle is made of: the rows, not the columns that are views of them."""
        return {name: value for name, value in vars(self).items() if name not in self._rows} | {"_pinned": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for name, rows in self._rows.items():
            setattr(self, name, rows[: self.capacity])

    def clear(self) -> None:
        """Forget everything, and the shape of examples too."""
        for name in tuple(self._rows):
            self._drop(name)
        self._free_slots = np.zeros(0, dtype=np.int64)
        self.num_seen = 0

    def _drop(self, name: str) -> None:
        """Keep a column no longer."""
        self._pinned.pop(name, None)
        del self._rows[name]
        delattr(self, name)

    def bind(self) -> None:
        """Belong to a learner; no other may have it."""
        if self._bound:
            raise UsageError("this memory belongs to another learner; make a new one")
        self._bound = True

    def to(self, like: Tensor) -> None:
        """Move the stored examples to where ``like`` is, in its type."""
        for name, rows in self._rows.items():
            if rows.device != like.device or (name == "x" and rows.dtype != like.dtype):
                self._set_column(name, rows.to(like.dtype) if name == "x" else rows, like.device)

    def _set_column(self, name: str, rows: Tensor, device: torch.device) -> None:
        """Keep a column, on the device or where the device can reach it."""
        self._pinned.pop(name, None)
        if rows.device != device and should_pin(rows.nbytes, device):
            self._pinned[name] = rows.pin_memory()
            rows = as_cuda_view(self._pinned[name], device)
        self._rows[name] = rows = rows.to(device)
        setattr(self, name, rows[: self.capacity])


def where_finite(new: Tensor, old: Tensor) -> Tensor:
    """The new examples, but for those that are not finite the old ones.

    >>> where_finite(torch.tensor([[1.0], [float("nan")]]), torch.tensor([[5.0], [6.0]])).tolist()
    [[1.0], [6.0]]
    """
    if new.is_cpu and new.is_floating_point() and new.dtype == old.dtype and torch.isfinite(new.norm()):
        return new
    finite = torch.isfinite(new).flatten(1).all(1)
    return torch.where(finite.reshape(-1, *[1] * (new.ndim - 1)), new, old)
