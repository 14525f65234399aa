from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from gmed.randomness import generator
from gmed.streams.stream import Stream


def fuzzy(stream: Stream, seed: int) -> Stream:
    """The same stream without sharp boundaries: each task fades linearly into the next.

    The share of the next task rises from 0 in the middle of a task through 1/2 at the boundary to 1 in the middle of
    the next. Examples change places, so each is seen exactly once; the first half of the first task and the second
    half of the last stay pure, and the test sets are untouched. Where two tasks differ in length, the fade in the
    longer one is weaker, so that as many examples go as come.

    >>> import torch
    >>> sharp = Stream(torch.zeros(80, 1), torch.arange(2).repeat_interleave(40), (), (40, 80), 2)
    >>> mixed = fuzzy(sharp, seed=0).y
    >>> int(mixed[:20].sum()), int(mixed[20:40].sum()), int(mixed[40:60].sum()), int(mixed[60:].sum())
    (0, 5, 15, 20)
    """
    rng = generator(seed, "fuzzy")
    places = np.arange(len(stream))
    starts = (0, *stream.evaluate_after)
    middles = [start + (stop - start) // 2 for start, stop in zip(starts, stream.evaluate_after, strict=False)]
    for leaving, boundary, settled in zip(middles, stream.evaluate_after, middles[1:], strict=False):
        before, after = boundary - leaving, settled - boundary
        exchanged = min(before, after) // 4
        early = leaving + fixed_size_sample(_ramp(before), exchanged, rng)
        late = settled - 1 - fixed_size_sample(_ramp(after), exchanged, rng)
        places[early], places[late] = rng.permutation(places[late]), rng.permutation(places[early])
    order = torch.from_numpy(places)
    return replace(stream, x=stream.x[order], y=stream.y[order])


def fixed_size_sample(weights: NDArray[np.float64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """So many places, each with a probability exactly proportional to its weight: systematic sampling in random order.

    References
    ----------
    Madow, "On the theory of systematic sampling, II", Annals of Mathematical Statistics 20(3), 1949.
    """
    order = rng.permutation(len(weights))
    ends = np.cumsum(weights[order]) * (size / weights.sum()) if size else np.zeros(len(weights))
    ends[-1:] = size
    marks = rng.random() + np.arange(size)
    return order[np.searchsorted(ends, marks, side="right")]


def _ramp(length: int) -> NDArray[np.float64]:
    """A straight line from 0 up, seen at the middle of each place."""
    return np.arange(length, dtype=np.float64) + 0.5
