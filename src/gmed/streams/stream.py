from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gmed.errors import whole_number


class Examples(NamedTuple):
    """Inputs and their labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Stream:
    """A labelled stream, seen once, front to back, and the test set of each of its tasks.

    Attributes
    ----------
    x, y
        The training examples in the order they arrive. ``x`` is uint8 pixels or floats in [0, 1].
    tests
        One test set per task.
    evaluate_after
        How many examples have gone by at each point of evaluation: the ends of the tasks.
    num_classes
        Classes over the whole stream; all of them compete at test time.
    """

    x: Tensor
    y: Tensor
    tests: tuple[Examples, ...]
    evaluate_after: tuple[int, ...]
    num_classes: int

    def __len__(self) -> int:
        return len(self.y)

    def stretches(self, batch_size: int) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
        """The batches up to each point of evaluation, ready for a learner. No batch crosses such a point."""
        whole_number("batch_size", batch_size)
        start = 0
        for stop in self.evaluate_after:
            yield self._batches(start, stop, batch_size)
            start = stop

    def _batches(self, start: int, stop: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for at in range(start, stop, size):
            end = min(at + size, stop)
            yield pixels(self.x[at:end]), self.y[at:end]

    def to(self, device: torch.device) -> Stream:
        tests = tuple(Examples(t.x.to(device), t.y.to(device)) for t in self.tests)
        return replace(self, x=self.x.to(device), y=self.y.to(device), tests=tests)


def pixels(x: Tensor) -> Tensor:
    """Stored images as model input: uint8 becomes float32 in [0, 1], floats stay as they are.

    >>> pixels(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x


def ends(lengths: Sequence[int]) -> tuple[int, ...]:
    """Where tasks of these lengths end, laid one after another.

    >>> ends([3, 2])
    (3, 5)
    """
    total, result = 0, []
    for length in lengths:
        total += length
        result.append(total)
    return tuple(result)
