"""A cache of streams, so that the next method on the same stream need not create it again."""

from __future__ import annotations

from pathlib import Path

import torch

from gmed.engine.benchmarks import get_benchmark
from gmed.streams import Stream

CACHE_BYTES = {"cpu": 0, "cuda": 4 * 2**30}
"""Bytes of streams that are cached besides the latest. On a CPU all methods run at one seed before the next seed; on a
GPU one method runs at many seeds, and the next method uses the same streams."""

_streams: dict[tuple[str, int, Path | None], Stream] = {}


def get_stream(benchmark: str, seed: int, data_dir: Path | None, device: torch.device) -> Stream:
    """Return the stream of a benchmark at a seed, the same for every method.

    >>> cpu = torch.device("cpu")
    >>> get_stream("split-mnist", 0, None, cpu) is get_stream("split-mnist", 0, None, cpu)
    True
    """
    key = benchmark, seed, data_dir
    stream = _streams.pop(key, None)
    if stream is None:
        while _streams and sum(map(_size, _streams.values())) > CACHE_BYTES[device.type]:
            del _streams[next(iter(_streams))]  # the least recently used
        stream = get_benchmark(benchmark).make_stream(data_dir, seed)
    _streams[key] = stream
    return stream


def clear_stream_cache() -> None:
    """Empty the cache, because data have changed or memory is needed."""
    _streams.clear()


def _size(stream: Stream) -> int:
    return stream.x.nbytes + sum(test.x.nbytes for test in stream.tests)
