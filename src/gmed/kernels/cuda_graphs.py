"""CUDA graphs: a step is captured once and launched again and again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gmed.kernels.pass_counter import counted_as

WARM_UP = 2
"""Steps made before a graph is captured, in which libraries set themselves up."""


def replay_steps(step: Callable[[Tensor], None], rows: Tensor) -> None:
    """Make the same step with each row of a table: on a GPU as a CUDA graph, launched again and again.

    Nothing in the step may wait for the device.

    >>> seen = []
    >>> replay_steps(lambda row: seen.append(row.tolist()), torch.arange(4).reshape(2, 2))
    >>> seen
    [[0, 1], [2, 3]]
    """
    at_first = min(WARM_UP, len(rows)) if rows.is_cuda else len(rows)
    for row in rows[:at_first]:
        step(row)
    if at_first < len(rows):
        due = rows[at_first].clone()
        with torch.cuda.device(rows.device):
            with counted_as(len(rows) - at_first):
                graph = capture(lambda: step(due))
            for row in rows[at_first:]:
                due.copy_(row)
                graph.replay()


def capture(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A step as a CUDA graph, which has not been launched yet."""
    graph, trunk = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            step()
    finally:
        torch.cuda.set_stream(trunk)  # whatever happened inside
    return graph
