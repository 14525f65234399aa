"""Variants of a stream: with fuzzy task boundaries, shuffled, and for hyper-parameter tuning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from gmed.errors import check_int
from gmed.rng import make_rng
from gmed.streams.stream import Examples, Stream, cumulative_lengths


def fuzzy(stream: Stream, seed: int) -> Stream:
    """Return the stream with fuzzy boundaries: each task fades linearly into the next.

    The share of the next task rises from 0 in the middle of a task through 1/2 at the boundary to 1 in the middle of
    the next. Examples are exchanged, so each is still seen exactly once; the first half of the first task and the
    second half of the last task stay pure, and the test sets are unchanged. If two tasks differ in length, the fade in
    the longer one is weaker, so that both exchange the same number of examples.

    >>> import torch
    >>> sharp = Stream(torch.zeros(80, 1), torch.arange(2).repeat_interleave(40), (), (40, 80), 2)
    >>> mixed = fuzzy(sharp, seed=0).y
    >>> int(mixed[:20].sum()), int(mixed[20:40].sum()), int(mixed[40:60].sum()), int(mixed[60:].sum())
    (0, 5, 15, 20)
    """
    rng = make_rng(seed, "fuzzy")
    indices = np.arange(len(stream))
    starts = (0, *stream.eval_points)
    middles = [start + (stop - start) // 2 for start, stop in zip(starts, stream.eval_points, strict=False)]
    for first, boundary, last in zip(middles, stream.eval_points, middles[1:], strict=False):
        before, after = boundary - first, last - boundary
        exchanged = min(before, after) // 4
        early = first + systematic_sample(_ramp(before), exchanged, rng)
        late = last - 1 - systematic_sample(_ramp(after), exchanged, rng)
        indices[early], indices[late] = rng.permutation(indices[late]), rng.permutation(indices[early])
    order = torch.from_numpy(indices)
    return replace(stream, x=stream.x[order], y=stream.y[order])


def systematic_sample(weights: NDArray[np.float64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Sample indices with probabilities exactly proportional to weights: systematic sampling in random order.

    References
    ----------
    Madow, "On the theory of systematic sampling, II", Annals of Mathematical Statistics 20(3), 1949.
    """
    order = rng.permutation(len(weights))
    cumulative = np.cumsum(weights[order]) * (size / weights.sum()) if size else np.zeros(len(weights))
    cumulative[-1:] = size
    marks = rng.random() + np.arange(size)
    return order[np.searchsorted(cumulative, marks, side="right")]


def _ramp(length: int) -> NDArray[np.float64]:
    """Return weights that rise linearly from 0, evaluated at the middle of each index."""
    return np.arange(length, dtype=np.float64) + 0.5


MAX_PASSES = 1_000
"""Maximum number of passes over a stream, as all of them are held in memory at once."""


def iid(stream: Stream, seed: int, *, passes: int = 1) -> Stream:
    """Return the stream shuffled, without drift.

    A single pass has the points of evaluation of the stream; several passes are evaluated after each pass.

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
    """Return the stream of the first tasks, tested on a share of their training examples held out of training.

    It is used to tune hyper-parameters without seeing later tasks or any test example.

    >>> import torch
    >>> full = Stream(torch.zeros(400, 2), torch.zeros(400, dtype=torch.int64), (), (100, 200, 300, 400), 2)
    >>> small = validation_stream(full, seed=0)
    >>> len(small), [len(test.y) for test in small.tests]
    (285, [5, 5, 5])
    """
    rng = make_rng(seed, "validation")
    train, tests, start = [torch.arange(0)], [], 0
    for stop in stream.eval_points[:tasks]:
        indices = torch.arange(start, stop)
        order = torch.from_numpy(rng.permutation(stop - start))
        count = max(1, round(share * (stop - start)))
        held_out = indices[order[:count]]
        tests.append(Examples(stream.x[held_out], stream.y[held_out]))
        train.append(indices[order[count:].sort().values])
        start = stop
    seen = torch.cat(train)
    eval_points = cumulative_lengths([len(indices) for indices in train[1:]])
    return replace(stream, x=stream.x[seen], y=stream.y[seen], tests=tuple(tests), eval_points=eval_points)
