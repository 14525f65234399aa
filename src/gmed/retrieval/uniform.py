from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def uniform(stored: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """``count`` of the slots that hold an example, all equally likely, none twice; all of them if they are fewer.

    >>> from gmed.randomness import generator
    >>> sorted(uniform(np.arange(4), 10, generator(0, "replay")).tolist())
    [0, 1, 2, 3]
    """
    return rng.choice(stored, min(count, len(stored)), replace=False) if len(stored) else stored
