"""Loss-aware balanced reservoir sampling (Buzzega et al., 2020)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gmed.memory.base import Memory


class LossAwareReservoir(Memory):
    """Loss-aware balanced reservoir: examples enter as in a reservoir, but replace those of frequent classes and low
    loss.

    An example that enters a full memory replaces that of slot i with probability proportional to
    S_i = a * (stored examples of its class) - loss_i, where a gives the two terms equal weight (negative values are set
    to 0; the paper leaves this open). While there are slots that were emptied on request, an example that enters takes
    one of these, and none is replaced.

    Attributes
    ----------
    loss
        The loss of a stored example when it was last replayed or, before that, when it entered.

    References
    ----------
    Buzzega, Boschini, Porrello, Calderara, "Rethinking experience replay: a bag of tricks for continual
    learning", ICPR 2020.
    """

    columns: ClassVar[tuple[str, ...]] = (*Memory.columns, "loss")
    loss: Tensor

    def allocate(self, x: Tensor, y: Tensor) -> None:
        super().allocate(x, y)
        self.add_column("loss", x.dtype, x.device)

    def select_slots(self, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> NDArray[np.int64]:
        nth = self.num_seen + np.arange(1, len(y) + 1)
        enters = (nth <= self.capacity) | (rng.integers(0, nth) < self.capacity)
        labels, losses = self.y.cpu().numpy().copy(), self.loss.cpu().numpy().astype(np.float64)
        slots = np.full(len(y), self.capacity)
        free = self._free_slots.tolist()
        for row in np.flatnonzero(enters):
            if nth[row] <= self.capacity:
                slots[row] = nth[row] - 1
            elif free:
                slots[row] = free.pop(0)
            else:
                slots[row] = rng.choice(self.capacity, p=eviction_probabilities(labels, losses))
            labels[slots[row]] = int(y[row])
            losses[slots[row]] = float(columns["loss"][row])
        return slots


def eviction_probabilities(labels: NDArray[np.int64], losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of each stored example to be replaced.

    >>> eviction_probabilities(np.array([0, 0, 0, 1]), np.array([1.0, 1.0, 1.0, 1.0])).round(3).tolist()
    [0.333, 0.333, 0.333, 0.0]
    """
    class_counts = np.bincount(labels, minlength=int(labels.max()) + 1)[labels].astype(np.float64)
    score = class_counts * (np.abs(losses).sum() / class_counts.sum()) - losses
    score = np.maximum(score, 0.0)
    total = score.sum()
    return score / total if total > 0 else np.full(len(score), 1 / len(score))
