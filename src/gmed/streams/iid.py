from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from gmed.errors import whole_number
from gmed.randomness import generator
from gmed.streams.stream import Stream, ends

MOST_PASSES = 1_000
"""Passes over a stream. All of them are laid out at once."""


def iid(stream: Stream, seed: int, *, passes: int = 1) -> Stream:
    """The same examples shuffled: no drift. One pass is evaluated at as many points as the stream has tasks,
    several passes after each.

    >>> import torch
    >>> tasks = Stream(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]), (), (2, 4), 2)
    >>> shuffled = iid(tasks, seed=0, passes=3)
    >>> len(shuffled), shuffled.evaluate_after
    (12, (4, 8, 12))
    """
    whole_number("passes", passes, most=MOST_PASSES)
    shuffle = generator(seed, "order", step=1)  # step 0 ordered the tasks themselves
    seen = torch.from_numpy(np.concatenate([shuffle.permutation(len(stream)) for _ in range(passes)]))
    points = stream.evaluate_after if passes == 1 else ends([len(stream)] * passes)
    return replace(stream, x=stream.x[seen], y=stream.y[seen], evaluate_after=points)
