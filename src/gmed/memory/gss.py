"""The memory of GSS-Greedy: examples whose gradients differ."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.memory.base import Memory


class GSSGreedy(Memory):
    """Gradient-based sample selection, the greedy variant: it stores examples whose gradients differ.

    Each example has a score in 0 .. 2: one plus the largest cosine of its gradient with those of stored examples. If
    memory is full, a stored example i is drawn with probability proportional to its score, and replaced by the new one
    with probability score_i / (score_i + score). That is never for an infinite score, which the learner gives to a
    batch that is similar to the stored examples. A slot that was emptied on request is filled by the next example, as
    in a memory that is not full yet.

    References
    ----------
    Aljundi, Lin, Goujaud, Bengio, "Gradient based sample selection for online continual learning", NeurIPS 2019,
    Algorithm 2.
    """

    columns: ClassVar[tuple[str, ...]] = (*Memory.columns, "score")
    score: Tensor

    def allocate(self, x: Tensor, y: Tensor) -> None:
        super().allocate(x, y)
        self.add_column("score", torch.float64, x.device)

    def select_slots(self, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> NDArray[np.int64]:
        scores = self.score.cpu().numpy().copy()
        offered = columns["score"].cpu().numpy()
        slots = np.full(len(y), self.capacity)
        free = [*range(self.num_seen, self.capacity), *self._free_slots.tolist()]
        for row, score in enumerate(offered):
            if free:
                slots[row] = free.pop(0)
            else:
                redundancy = scores - scores.min() + 0.01
                victim = int(rng.choice(self.capacity, p=redundancy / redundancy.sum()))
                if rng.random() * (scores[victim] + score) < scores[victim]:
                    slots[row] = victim
            if slots[row] < self.capacity:
                scores[slots[row]] = score
        return slots
