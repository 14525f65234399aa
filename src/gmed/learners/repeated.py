from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 3
"""Steps made before a graph is captured, in which libraries set themselves up."""


def repeat(step: Callable[[Tensor], None], rows: Tensor) -> None:
    """Make the same step with each row of a table: on a GPU as a CUDA graph, launched again and again.

    Nothing in the step may wait for the device.

    >>> seen = []
    >>> repeat(lambda row: seen.append(row.tolist()), torch.arange(4).reshape(2, 2))
    >>> seen
    [[0, 1], [2, 3]]
    """
    at_once = len(rows) if rows.device.type != "cuda" else min(WARM_UP, len(rows))
    for row in rows[:at_once]:
        step(row)
    if at_once < len(rows):
        due, graph = rows[at_once].clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(due)
        for row in rows[at_once:]:
            due.copy_(row)
            graph.replay()
