"""How many learners a device has room for."""

from __future__ import annotations

import torch

from gmed.engine.spec import RunSpec
from gmed.memory.pinned import should_pin
from gmed.streams import Stream

SHARE = 0.8
"""Of the free memory, what is planned with; other processes and caches want some too."""

WORK = 7_000
"""What a step of the largest model here takes besides data and memory, in examples held as floats: twice the 40 MB
measured for ER+GMED on ResNet-18 at 32 x 32."""


def free_bytes(where: torch.device) -> int | None:
    """Free memory of a GPU; on a CPU learners advance one by one, and nothing need be planned."""
    return torch.cuda.mem_get_info(where)[0] if where.type == "cuda" else None


def learners_that_fit(spec: RunSpec, stream: Stream, free: int) -> int:
    """How many runs like this one can advance together in so much memory, at least one.

    >>> spec = RunSpec.make("split-mnist", "er", seed=0)
    >>> stream = spec.benchmark.make_stream(None, 0)
    >>> learners_that_fit(spec, stream, free=2**30), learners_that_fit(spec, stream, free=2**20)
    (24, 1)
    """
    example = stream.x[0].numel()
    data = stream.x.nbytes + sum(test.x.nbytes for test in stream.tests)
    stored = 4 * example * int(spec.method.base.parameters.get("memory", 0))
    memory = 0 if should_pin(stored, stream.x.device) else stored
    return max(1, int(SHARE * free) // (data + memory + 4 * example * WORK))
