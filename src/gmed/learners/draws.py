"""Random draws of a step: made when the step needs them, or in advance for the many steps of a CUDA graph."""

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
"""Makes a draw of the current step from random numbers and counters alone, never from the batch or the model."""


class DrawSource(Protocol):
    """The source of a learner's draws, which also decides whether a step with this loss and gradient is allowed."""

    is_eager: bool
    """Whether the host takes part in every step and may draw random numbers."""

    def get(self, name: str, draw_fn: DrawFn, device: torch.device) -> Tensor:
        """Return this step's draw of that name."""
        ...

    def accept_step(self, loss: Tensor, grads: Iterable[Tensor]) -> bool:
        """Return whether a step is allowed, as far as is known; it is not if its loss or gradient is not finite."""
        ...


class EagerDraws:
    """Draws made when a step needs them. A step with a loss or gradient that is not finite is rejected at once.

    Attributes
    ----------
    rows
        Total number of rows of all draws so far.
    """

    is_eager = True

    def __init__(self) -> None:
        self.rows = 0

    def get(self, name: str, draw_fn: DrawFn, device: torch.device) -> Tensor:
        drawn = draw_fn()
        self.rows += len(drawn)
        return torch.from_numpy(drawn).to(device)

    def accept_step(self, loss: Tensor, grads: Iterable[Tensor]) -> bool:
        return all_finite([loss, *grads])


class RecordingDraws(EagerDraws):
    """Draws made when a step needs them, and a record of the draws that a step requested.

    Attributes
    ----------
    requested
        By name, the function that made a draw, and its shape.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requested: dict[str, tuple[DrawFn, tuple[int, ...]]] = {}

    def get(self, name: str, draw_fn: DrawFn, device: torch.device) -> Tensor:
        if name in self.requested:
            raise UsageError(f"a step makes two draws called {name!r}; give them different names")
        drawn = draw_fn()
        self.requested[name] = draw_fn, drawn.shape
        return torch.from_numpy(drawn).to(device)


class PrecomputedDraws:
    """The draws of a block of steps, made before it begins, so that no step in it needs the host.

    Each draw is a table on the device with one row per step (those of one dtype are concatenated into one table), and
    a counter on the device is the index of the current row. Losses are recorded in a table too: a step that should not
    have been taken is found there afterwards, by its loss or by that of the next step.

    Parameters
    ----------
    length
        Maximum number of rows.
    rows
        The draws by name: arrays whose first axis is the step. The tables get their shapes and dtypes.
    step_index
        The counter, shared by all learners of the block.
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
            dtype: torch.from_numpy(self._pack(rows, names)[:1]).to(step_index.device).repeat(length, 1)
            for dtype, names in self.dtypes.items()
        }
        self._row: dict[str, Tensor] = {}

    def next_row(self) -> None:
        """Begin a step: read the current row of every table."""
        for dtype, names in self.dtypes.items():
            row = self.tables[dtype].index_select(0, self.step_index)[0]
            parts = torch.split(row, [prod(self.shapes[name]) for name in names])
            self._row |= {name: part.view(self.shapes[name]) for name, part in zip(names, parts, strict=True)}

    def get(self, name: str, draw_fn: DrawFn, device: torch.device) -> Tensor:
        return self.row(name)

    def row(self, name: str) -> Tensor:
        """Return this step's row of a table."""
        return self._row[name]

    def accept_step(self, loss: Tensor, grads: Iterable[Tensor]) -> bool:
        self.losses.index_copy_(0, self.step_index, loss.detach().reshape(1).to(self.losses.dtype))
        return True

    def load(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Copy the draws of the next block into the same tables."""
        for dtype, names in self.dtypes.items():
            packed = torch.from_numpy(self._pack(rows, names))
            table = self.tables[dtype]
            table[: len(packed)].copy_(packed.pin_memory() if table.is_cuda else packed, non_blocking=True)

    def _pack(self, rows: Mapping[str, NDArray[Any]], names: Sequence[str]) -> NDArray[Any]:
        return np.concatenate([rows[name].reshape(len(rows[name]), -1) for name in names], axis=1)


SMALL = 2**14
"""Tensors with no more elements are checked together: copying them costs less than a call for each."""


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether no tensor contains NaN or infinity.

    >>> all_finite([torch.ones(2), torch.tensor([1.0, float("nan")])]), all_finite([torch.tensor([1e30])])
    (False, True)
    """
    tensors = [tensor.detach() for tensor in tensors]
    # sums and norms overflow for very large finite values, so confirm a failure with the maximum norm
    if all(tensor.is_cpu for tensor in tensors):
        small = [t.reshape(-1) for t in tensors if t.numel() <= SMALL]  # often many, as those of batch-norm
        joined = [torch.cat(small)] if len(small) > 8 else small
        finite = all(isfinite(t.sum().item()) for t in (*joined, *(t for t in tensors if t.numel() > SMALL)))
    else:
        finite = bool(torch.isfinite(get_total_norm(tensors)))
    return finite or bool(torch.isfinite(get_total_norm(tensors, norm_type=inf)))


class RandomDraws:
    """The random numbers of a learner's steps. Draws are independent of each other, and can be made in advance."""

    model: nn.Module
    memory: Memory | None
    seed: int
    steps: int

    def __init__(self) -> None:
        self.draw_source: DrawSource = EagerDraws()
        self._device: torch.device | None = None  # the model's device, during a step
        self._samples: dict[str, tuple[Tensor, DrawFn]] = {}  # the latest of each purpose, with its draw function

    def random(self, purpose: str) -> np.random.Generator:
        """Return this step's random generator for one purpose."""
        if not self.draw_source.is_eager:
            raise UsageError(
                f"{type(self).__name__} is declared capturable, but its step draws {purpose!r} outside of draw()"
            )
        return make_rng(self.seed, purpose, self.steps)

    def torch_random(self, purpose: str) -> torch.Generator:
        """Return this step's generator for one purpose on the model's device, for many numbers at once."""
        device = next(self.model.parameters()).device
        return torch.Generator(device).manual_seed(int(self.random(purpose).integers(2**63 - 1)))

    def draw(self, name: str, draw_fn: DrawFn) -> Tensor:
        """Return the draw that ``draw_fn`` makes in this step, as a tensor on the model's device.

        The function may use this learner's random numbers and counters, but nothing computed from the batch or the
        model: then the draws of many steps can be made in advance, and a step needs nothing from the host.
        """
        return self.draw_source.get(name, draw_fn, self._device or next(self.model.parameters()).device)

    def sample_memory(self, count: int, purpose: str) -> Tensor:
        """Draw slots of ``count`` stored examples uniformly; learners of one seed draw the same for one purpose."""
        draw_fn = partial(self._sample_uniform, count, purpose)
        drawn = self.draw(purpose, draw_fn)
        self._samples[purpose] = drawn, draw_fn
        return drawn

    def draw_fn_of(self, slots: Tensor) -> DrawFn | None:
        """Return the function that drew slots, if :meth:`sample_memory` did: for draws that depend on them."""
        return next((draw_fn for drawn, draw_fn in self._samples.values() if drawn is slots), None)

    def _sample_uniform(self, count: int, purpose: str) -> NDArray[np.int64]:
        return uniform(self._require_memory().occupied(), count, self.random(purpose))

    def _require_memory(self) -> Memory:
        assert self.memory is not None
        return self.memory
