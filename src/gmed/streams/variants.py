"""Variants of a stream: fuzzy boundaries, shuffled, and for choosing hyper-parameters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from gmed.errors import check_int
from gmed.rng import make_rng
from gmed.streams.stream import Examples, Stream, cumulative_lengths


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
    rng = make_rng(seed, "fuzzy")
    places = np.arange(len(stream))
    starts = (0, *stream.eval_points)
    middles = [start + (stop - start) // 2 for start, stop in zip(starts, stream.eval_points, strict=False)]
    for leaving, boundary, settled in zip(middles, stream.eval_points, middles[1:], strict=False):
        before, after = boundary - leaving, settled - boundary
        exchanged = min(before, after) // 4
        early = leaving + systematic_sample(_ramp(before), exchanged, rng)
        late = settled - 1 - systematic_sample(_ramp(after), exchanged, rng)
        places[early], places[late] = rng.permutation(places[late]), rng.permutation(places[early])
    order = torch.from_numpy(places)
    return replace(stream, x=stream.x[order], y=stream.y[order])


def systematic_sample(weights: NDArray[np.float64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """So many places, each with a probability exactly proportional to its weight: systematic sampling in random order.

    References
    ----------
    Madow, "On the theory of systematic sampling, II", Annals of Mathematical Statistics 20(3), 1949.
    """
    order = rng.permutation(len(weights))
    cumulative_lengths = np.cumsum(weights[order]) * (size / weights.sum()) if size else np.zeros(len(weights))
    cumulative_lengths[-1:] = size
    marks = rng.random() + np.arange(size)
    return order[np.searchsorted(cumulative_lengths, marks, side="right")]


def _ramp(length: int) -> NDArray[np.float64]:
    """A straight line from 0 up, seen at the middle of each place."""
    return np.arange(length, dtype=np.float64) + 0.5


MAX_PASSES = 1_000
"""Passes over a stream. All of them are laid out at once."""


def iid(stream: Stream, seed: int, *, passes: int = 1) -> Stream:
    """The same examples shuffled: no drift. One pass is evaluated at as many points as the stream has tasks,
    several passes after each.

    >>> import torch
    >>> tasks = Stream(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]), (), (2, 4), 2)
    >>> shuffled = iid(tasks, seed=0, passes=3)
    >>> len(shuffled), shuffled.eval_points
    (12, (4, 8, 12))
    """
    check_int("passes", passes, maximum=MAX_PASSES)
    shuffle = make_rng(seed, "order", step=1)  # step 0 ordered the tasks themselves
    seen = torch.from_numpy(np.concatenate([shuffle.permutation(len(stream)) for _ in range(passes)]))
    points = stream.eval_points if passes == 1 else cumulative_lengths([len(stream)] * passes)
    return replace(stream, x=stream.x[seen], y=stream.y[seen], eval_points=points)


def validation_stream(stream: Stream, seed: int, *, tasks: int = 3, share: float = 0.05) -> Stream:
    """The first tasks alone, tested on a share of their own training examples that is held out of training.

    Hyper-parameters are chosen on it: neither later tasks nor any test example can be seen.

    >>> import torch
    >>> whole = Stream(torch.zeros(400, 2), torch.zeros(400, dtype=torch.int64), (), (100, 200, 300, 400), 2)
    >>> small = validation_stream(whole, seed=0)
    >>> len(small), [len(test.y) for test in small.tests]
    (285, [5, 5, 5])
    """
    chooser = make_rng(seed, "validation")
    kept, tests, start = [torch.arange(0)], [], 0
    for stop in stream.eval_points[:tasks]:
        places = torch.arange(start, stop)
        order = torch.from_numpy(chooser.permutation(stop - start))
        count = max(1, round(share * (stop - start)))
        out, stay = places[order[:count]], places[order[count:].sort().values]
        tests.append(Examples(stream.x[out], stream.y[out]))
        kept.append(stay)
        start = stop
    seen = torch.cat(kept)
    lengths = cumulative_lengths([len(k) for k in kept[1:]])
    return replace(stream, x=stream.x[seen], y=stream.y[seen], tests=tuple(tests), eval_points=lengths)
