"""A stream of labeled examples, and the functions that build and read one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.data.dataset import Dataset
from gmed.errors import check_int

Indices = NDArray[np.int64]
"""Indices of examples in a data set."""

BATCHES_AT_ONCE = 50
"""Number of batches that are converted to floats at once."""

ALIGNMENT = 64
"""In bytes. The alignment of a matrix can affect the last bits of a product; torch aligns new tensors to this."""


class Examples(NamedTuple):
    """Inputs and their labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Stream:
    """A labeled stream that is seen once, in order, and the test set of each of its tasks.

    Attributes
    ----------
    x, y
        The training examples in the order in which they arrive. ``x`` is uint8 pixels or floats in [0, 1].
    tests
        One test set per task.
    eval_points
        Number of examples seen at each point of evaluation: the ends of the tasks.
    num_classes
        Number of classes of the whole stream; predictions choose among all of them.
    """

    x: Tensor
    y: Tensor
    tests: tuple[Examples, ...]
    eval_points: tuple[int, ...]
    num_classes: int

    def __len__(self) -> int:
        return len(self.y)

    def batches(self, batch_size: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches from example ``start`` to ``stop``, as model input. None crosses a point of evaluation.

        >>> flow = Stream(torch.zeros(7, 2), torch.arange(7), (), eval_points=(4, 7), num_classes=7)
        >>> for x, y in flow.batches(3, start=1):
        ...     print(y)
        tensor([1, 2, 3])
        tensor([4, 5, 6])
        """
        check_int("batch_size", batch_size)
        position, stop = start, len(self) if stop is None else stop
        for end in (*self.eval_points, len(self)):
            while position < min(end, stop):  # many batches are converted at once
                rows = slice(position, min(position + BATCHES_AT_ONCE * batch_size, end, stop))
                x, y = torch.split(to_float(self.x[rows]), batch_size), torch.split(self.y[rows], batch_size)
                yield from zip(map(aligned, x), y, strict=True)
                position = rows.stop

    def task_batches(self, batch_size: int) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
        """Yield the batches up to each point of evaluation, task by task."""
        check_int("batch_size", batch_size)
        for start, stop in pairwise((0, *self.eval_points)):
            yield self.batches(batch_size, start, stop)

    def to(self, device: torch.device) -> Stream:
        tests = tuple(Examples(t.x.to(device), t.y.to(device)) for t in self.tests)
        return replace(self, x=self.x.to(device), y=self.y.to(device), tests=tests)


def to_float(x: Tensor) -> Tensor:
    """Convert stored images to model input: uint8 becomes float32 in [0, 1], floats are unchanged.

    >>> to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x


def aligned(x: Tensor) -> Tensor:
    """Return these examples aligned like a new tensor, so that results do not depend on where a batch begins.

    >>> x = torch.rand(8, 3)
    >>> aligned(x) is x, aligned(x[1:]).data_ptr() % 64
    (True, 0)
    """
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def concat_tasks(data: Dataset, seen: Sequence[Indices], held: Sequence[Indices]) -> Stream:
    """Create the stream of these training examples and these test examples, each given task by task."""
    order = np.concatenate(seen)
    return Stream(
        x=torch.from_numpy(data.x_train[order]),
        y=torch.from_numpy(data.y_train[order]),
        tests=tuple(Examples(torch.from_numpy(data.x_test[t]), torch.from_numpy(data.y_test[t])) for t in held),
        eval_points=cumulative_lengths([len(indices) for indices in seen]),
        num_classes=data.num_classes,
    )


def cumulative_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the positions at which consecutive tasks of these lengths end.

    >>> cumulative_lengths([3, 2])
    (3, 5)
    """
    total, result = 0, []
    for length in lengths:
        total += length
        result.append(total)
    return tuple(result)
