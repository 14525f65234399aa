"""Random draws of a step: made as the step comes, or for many steps ahead of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf, isfinite, prod
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from gmed.errors import UsageError
from gmed.memory import Memory
from gmed.retrieval import uniform
from gmed.rng import make_rng

DrawFn = Callable[[], NDArray[Any]]
"""What chance and counters decide in the step under way; nothing that a batch or the model computes may enter."""


class DrawSource(Protocol):
    """How a learner's draws reach its device, and how it is known that its steps are sound."""

    is_eager: bool
    """Whether the host takes part in every step, and may draw random numbers in it."""

    def get(self, name: str, draw_fn: DrawFn, device: torch.device) -> Tensor:
        """This step's decision of that name."""
        ...

    def accept_step(self, loss: Tensor, grads: Iterable[Tensor]) -> bool:
        """Whether a step may be taken, as far as it is known now: not if its loss or gradient is not finite."""
        ...


class EagerDraws:
    """Each decision is made when a step asks for it, and a step that must not be taken is known at once.

    Attributes
    ----------
    rows
        How many rows all draws so far had together.
    """

    is_eager = True

    def __init__(self) -> None:
        self.rows = 0

    def get(self, name: str, draw_fn: DrawFn, device: torch.device) -> Tensor:
        decided = draw_fn()
        self.rows += len(decided)
        return torch.from_numpy(decided).to(device)

    def accept_step(self, loss: Tensor, grads: Iterable[Tensor]) -> bool:
        return all_finite([loss, *grads])


class RecordingDraws(EagerDraws):
    """Decisions as they come, and a record of what a step asked for.

    Attributes
    ----------
    requested
        What was asked for, by name, and the shape of what was given.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requested: dict[str, tuple[DrawFn, tuple[int, ...]]] = {}

    def get(self, name: str, draw_fn: DrawFn, device: torch.device) -> Tensor:
        if name in self.requested:
            raise UsageError(f"a step asks twice for {name!r}; give the two draws different names")
        decided = draw_fn()
        self.requested[name] = draw_fn, decided.shape
        return torch.from_numpy(decided).to(device)


class PrecomputedDraws:
    """The draws of a stretch of steps, made before it begins: inside it nothing is asked of the host.

    Every decision is a table with one row per step, resident on the device (those of one type side by side in one
    table), and a counter on the device says which row is due. Losses are kept in a table too: a step that should not
    have been taken shows there afterwards, itself or by the loss of the next.

    Parameters
    ----------
    length
        The most rows there will be.
    rows
        What each step asks for, by name: an array whose first axis is the step. Tables are laid out like these.
    step_index
        The counter, shared by all who step together.
    """

    is_eager = False

    def __init__(self, length: int, rows: Mapping[str, NDArray[Any]], step_index: Tensor) -> None:
        self.step_index = step_index
        self.losses = torch.zeros(length, device=step_index.device)
        self.shapes = {name: table.shape[1:] for name, table in rows.items()}
        self.dtypes: dict[str, list[str]] = {}
        for name, table in rows.items():
            self.dtypes.setdefault(table.dtype.str, []).append(name)
        self.tables = {
            kind: torch.from_numpy(self._pack(rows, names)[:1]).to(step_index.device).repeat(length, 1)
            for kind, names in self.dtypes.items()
        }
        self._row: dict[str, Tensor] = {}

    def next_row(self) -> None:
        """Take the row that is due out of every table: a step begins."""
        for kind, names in self.dtypes.items():
            row = self.tables[kind].index_select(0, self.step_index)[0]
            parts = torch.split(row, [prod(self.shapes[name]) for name in names])
            self._row |= {name: part.view(self.shapes[name]) for name, part in zip(names, parts, strict=True)}

    def get(self, name: str, draw_fn: DrawFn, device: torch.device) -> Tensor:
        return self.row(name)

    def row(self, name: str) -> Tensor:
        """This step's row of a table."""
        return self._row[name]

    def accept_step(self, loss: Tensor, grads: Iterable[Tensor]) -> bool:
        self.losses.index_copy_(0, self.step_index, loss.detach().reshape(1).to(self.losses.dtype))
        return True

    def load(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """The draws of the next stretch, in the same places."""
        for kind, names in self.dtypes.items():
            fresh = torch.from_numpy(self._pack(rows, names))
            table = self.tables[kind]
            table[: len(fresh)].copy_(fresh.pin_memory() if table.is_cuda else fresh, non_blocking=True)

    def _pack(self, rows: Mapping[str, NDArray[Any]], names: Sequence[str]) -> NDArray[Any]:
        return np.concatenate([rows[name].reshape(len(rows[name]), -1) for name in names], axis=1)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether there is neither NaN nor infinity in any of them.

    >>> all_finite([torch.ones(2), torch.tensor([1.0, float("nan")])]), all_finite([torch.tensor([1e30])])
    (False, True)
    """
    tensors = [tensor.detach() for tensor in tensors]
    # the largest numbers have no finite sum or square, so a no may be wrong
    if all(tensor.is_cpu for tensor in tensors):
        quickly = all(isfinite(tensor.sum().item()) for tensor in tensors)
    else:
        quickly = bool(torch.isfinite(get_total_norm(tensors)))
    return quickly or bool(torch.isfinite(get_total_norm(tensors, norm_type=inf)))


class RandomDraws:
    """Random numbers of a learner's steps. No draw disturbs another, and draws can be made ahead of the steps."""

    model: nn.Module
    memory: Memory | None
    seed: int
    steps: int

    def __init__(self) -> None:
        self.draw_source: DrawSource = EagerDraws()
        self._device: torch.device | None = None  # where the model is, during a step
        self._samples: dict[str, tuple[Tensor, DrawFn]] = {}  # the latest of each purpose, and how it is decided

    def random(self, purpose: str) -> np.random.Generator:
        """Return this step's random numbers for one purpose."""
        if not self.draw_source.is_eager:
            raise UsageError(f"{type(self).__name__} is declared capturable, but its step draws {purpose!r} unplanned")
        return make_rng(self.seed, purpose, self.steps)

    def torch_random(self, purpose: str) -> torch.Generator:
        """Return the same for many numbers at once, drawn on the model's device."""
        device = next(self.model.parameters()).device
        return torch.Generator(device).manual_seed(int(self.random(purpose).integers(2**63 - 1)))

    def draw(self, name: str, draw_fn: DrawFn) -> Tensor:
        """Return what ``draw_fn`` decides in this step, as a tensor where the model is.

        It may use this learner's random numbers and counters, nothing that the batch or the model computes: then
        many steps can be decided ahead, and a step computed without asking the host.
        """
        return self.draw_source.get(name, draw_fn, self._device or next(self.model.parameters()).device)

    def sample_memory(self, count: int, purpose: str) -> Tensor:
        """Return slots of so many stored examples, uniformly. Learners that draw as many for one purpose draw alike."""
        draw_fn = partial(self._sample_uniform, count, purpose)
        drawn = self.draw(purpose, draw_fn)
        self._samples[purpose] = drawn, draw_fn
        return drawn

    def draw_fn_of(self, slots: Tensor) -> DrawFn | None:
        """Return how chance decides on slots, if :meth:`sample_memory` gave them: for draws that depend on them."""
        return next((draw_fn for drawn, draw_fn in self._samples.values() if drawn is slots), None)

    def _sample_uniform(self, count: int, purpose: str) -> NDArray[np.int64]:
        return uniform(self._own_memory().occupied(), count, self.random(purpose))

    def _own_memory(self) -> Memory:
        assert self.memory is not None
        return self.memory
