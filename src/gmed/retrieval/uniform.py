from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gmed.memory import Memory


def uniform(memory: Memory, count: int, rng: np.random.Generator) -> Tensor:
    """Slots of ``count`` stored examples, all equally likely, none twice; all of them if fewer are stored.

    >>> from gmed.memory import Reservoir
    >>> from gmed.randomness import generator
    >>> memory = Reservoir(100)
    >>> memory.lay_out(torch.zeros(4, 2), torch.zeros(4))
    >>> memory.insert(torch.zeros(4, 2), torch.zeros(4), generator(0, "reservoir"))
    >>> sorted(uniform(memory, 10, generator(0, "replay")).tolist())
    [0, 1, 2, 3]
    """
    stored = memory.filled()
    drawn = rng.choice(stored, min(count, len(stored)), replace=False) if len(stored) else stored
    return torch.from_numpy(drawn).to(memory.x.device)
