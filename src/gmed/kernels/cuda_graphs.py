"""CUDA graphs: a step is captured once and replayed many times."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gmed.kernels.pass_counter import counted_as

WARM_UP = 2
"""Number of steps before a graph is captured, in which libraries initialize."""


def replay_steps(step: Callable[[Tensor], None], rows: Tensor) -> None:
    """Run the same step with each row of a table, on a GPU by replaying a CUDA graph.

    Nothing in the step may wait for the device.

    >>> seen = []
    >>> replay_steps(lambda row: seen.append(row.tolist()), torch.arange(4).reshape(2, 2))
    >>> seen
    [[0, 1], [2, 3]]
    """
    num_eager = min(WARM_UP, len(rows)) if rows.is_cuda else len(rows)
    for row in rows[:num_eager]:
        step(row)
    if num_eager < len(rows):
        current = rows[num_eager].clone()
        with torch.cuda.device(rows.device):
            with counted_as(len(rows) - num_eager):
                graph = capture(lambda: step(current))
            for row in rows[num_eager:]:
                current.copy_(row)
                graph.replay()


def capture(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Capture a step as a CUDA graph, without running it."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            step()
    finally:
        torch.cuda.set_stream(stream)  # also after an error in the capture
    return graph
