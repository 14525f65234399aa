from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gmed.memory import Memory
from gmed.models import LookAhead


@torch.no_grad()
def interference(ahead: LookAhead, x: Tensor, y: Tensor) -> Tensor:
    """How much each example's loss would rise by the look-ahead's step: ℓ(x, y; θ') - ℓ(x, y; θ)."""
    before, after = (cross_entropy(output, y, reduction="none") for output in ahead.outputs(x))
    return after - before


def most_interfered(memory: Memory, candidates: Tensor, count: int, ahead: LookAhead) -> Tensor:
    """Of the candidate slots, the ``count`` whose examples the incoming batch interferes with most.

    References
    ----------
    Aljundi et al., "Online continual learning with maximally interfered retrieval", NeurIPS 2019.
    """
    if len(candidates) <= count:
        return candidates
    rise = interference(ahead, memory.x[candidates], memory.y[candidates])
    return candidates[rise.topk(count).indices]
