"""Reservoir sampling (Vitter, 1985)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gmed.memory.base import Memory


class Reservoir(Memory):
    """Reservoir sampling: at any time, every example seen so far is stored with the same probability.

    The n-th example enters with probability capacity / n and overwrites a slot chosen uniformly.

    After examples are removed on request, later ones still enter with the same probability and into the same slots,
    empty or not: every example that was not removed is stored with probability capacity / n. (Filling empty slots at
    once would store the next examples with certainty and so bias the sample.) Slots are therefore filled slowly, and
    memory stays smaller meanwhile.

    Parameters
    ----------
    capacity
        Maximum number of stored examples.

    Examples
    --------
    >>> import torch
    >>> from gmed.rng import make_rng
    >>> memory = Reservoir(3)
    >>> x, y = torch.arange(5.0).unsqueeze(1), torch.arange(5)
    >>> memory.allocate(x, y)
    >>> memory.insert(x[:2], y[:2], make_rng(0, "reservoir", 0))
    >>> len(memory), memory.y[:2].tolist()
    (2, [0, 1])
    >>> memory.insert(x[2:], y[2:], make_rng(0, "reservoir", 1))
    >>> len(memory), memory.num_seen
    (3, 5)

    References
    ----------
    Vitter, "Random sampling with a reservoir", ACM Transactions on Mathematical Software 11(1), 1985.
    """

    capturable = True

    def select_slots(self, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> NDArray[np.int64]:
        nth = self.num_seen + np.arange(1, len(y) + 1)
        drawn = rng.integers(0, nth)
        return np.where(nth <= self.capacity, nth - 1, drawn)
