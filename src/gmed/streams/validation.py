from __future__ import annotations

from dataclasses import replace

import torch

from gmed.randomness import generator
from gmed.streams.stream import Examples, Stream, ends


def held_out(stream: Stream, seed: int, *, tasks: int = 3, share: float = 0.05) -> Stream:
    """The first tasks alone, tested on a share of their own training examples that is held out of training.

    Hyper-parameters are chosen on it: neither later tasks nor any test example can be seen.

    >>> import torch
    >>> whole = Stream(torch.zeros(400, 2), torch.zeros(400, dtype=torch.int64), (), (100, 200, 300, 400), 2)
    >>> small = held_out(whole, seed=0)
    >>> len(small), [len(test.y) for test in small.tests]
    (285, [5, 5, 5])
    """
    chooser = generator(seed, "validation")
    kept, tests, start = [torch.arange(0)], [], 0
    for stop in stream.evaluate_after[:tasks]:
        places = torch.arange(start, stop)
        order = torch.from_numpy(chooser.permutation(stop - start))
        count = max(1, round(share * (stop - start)))
        out, stay = places[order[:count]], places[order[count:].sort().values]
        tests.append(Examples(stream.x[out], stream.y[out]))
        kept.append(stay)
        start = stop
    seen = torch.cat(kept)
    lengths = ends([len(k) for k in kept[1:]])
    return replace(stream, x=stream.x[seen], y=stream.y[seen], tests=tuple(tests), evaluate_after=lengths)
