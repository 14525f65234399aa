"""Streams that were made, for the next method that meets them."""

from __future__ import annotations

from pathlib import Path

import torch

from gmed.engine.benchmarks import get_benchmark
from gmed.streams import Stream

CACHE_BYTES = {"cpu": 0, "cuda": 4 * 2**30}
"""Bytes of streams kept besides the last. On a CPU all methods are run at one seed before the next seed; on a GPU one
method is run at many seeds, and the next meets the same streams."""

_streams: dict[tuple[str, int, Path | None], Stream] = {}


def get_stream(benchmark: str, seed: int, data_dir: Path | None, device: torch.device) -> Stream:
    """The stream that every method meets on this benchmark at this seed.

    >>> cpu = torch.device("cpu")
    >>> get_stream("split-mnist", 0, None, cpu) is get_stream("split-mnist", 0, None, cpu)
    True
    """
    key = benchmark, seed, data_dir
    stream = _streams.pop(key, None)
    if stream is None:
        while _streams and sum(map(_size, _streams.values())) > CACHE_BYTES[device.type]:
            del _streams[next(iter(_streams))]  # what was not asked for longest
        stream = get_benchmark(benchmark).make_stream(data_dir, seed)
    _streams[key] = stream
    return stream


def clear_stream_cache() -> None:
    """Keep none: where data have changed or room is wanted."""
    _streams.clear()


def _size(stream: Stream) -> int:
    return stream.x.nbytes + sum(test.x.nbytes for test in stream.tests)
