"""The benchmarks: a data set, a stream created from it, a model, and the published settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from inspect import signature
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gmed.data import Dataset
from gmed.data.custom import MAX_NAME_LENGTH, CustomDataRef
from gmed.data.dataset import Progress, no_progress
from gmed.data.registry import get_dataset_info
from gmed.engine.custom_model import ModelRef
from gmed.engine.grammar import Component
from gmed.errors import DataError, UsageError, unknown
from gmed.models import MLP, ResNet18
from gmed.registry import parameter_ids
from gmed.streams import Stream, by_task, fuzzy, permuted, rotated, split, validation_stream

FUZZY = "-fuzzy"
TUNING = "-tuning"


@dataclass(frozen=True)
class BenchmarkId:
    """The identity of a benchmark and its variant.

    Parsing one from text reads no files and runs no code. Whether there is such a benchmark, and whether its data and
    model are available, is checked when it is used.

    Attributes
    ----------
    base
        The name of a benchmark, or a reference to custom data.
    fuzzy
        Whether task boundaries are fuzzy, so that each task fades into the next.
    tuning
        Whether it is the variant for tuning hyper-parameters.
    model
        A custom model in place of the benchmark's.

    Examples
    --------
    >>> BenchmarkId.parse("split-mnist-fuzzy[model=net.py:small,0123456789ab]")
    BenchmarkId(base='split-mnist', fuzzy=True, tuning=False, \
model=ModelRef(reference='net.py:small', digest='0123456789ab'))
    >>> str(BenchmarkId("split-mnist").variant(tuning=True))
    'split-mnist-tuning'
    """

    base: str | CustomDataRef
    fuzzy: bool = False
    tuning: bool = False
    model: ModelRef | None = None

    @classmethod
    def parse(cls, text: str) -> BenchmarkId:
        """Parse what ``str`` returns."""
        return _parse(text)

    def __str__(self) -> str:
        base = self.base.name if isinstance(self.base, CustomDataRef) else self.base
        name = base + FUZZY * self.fuzzy + TUNING * self.tuning
        return name if self.model is None else self.model.qualify(name)

    @property
    def identity(self) -> str:
        """What identifies it in run keys: its text without the name that users gave to custom data."""
        return str(replace(self, base=self.base.untitled)) if isinstance(self.base, CustomDataRef) else str(self)

    @property
    def custom_data(self) -> CustomDataRef | None:
        """The custom data, if any."""
        return self.base if isinstance(self.base, CustomDataRef) else None

    def variant(self, *, fuzzy: bool = False, tuning: bool = False) -> BenchmarkId:
        """Return another variant of the same benchmark: with sharp or fuzzy task boundaries, or for tuning."""
        return replace(self, fuzzy=fuzzy, tuning=tuning)


def tuning_name(benchmark: str) -> str:
    """Return the name of the variant on which the hyper-parameters of a benchmark are tuned.

    >>> tuning_name("split-mnist"), tuning_name("split-mnist-fuzzy")
    ('split-mnist-tuning', 'split-mnist-tuning')
    """
    return str(BenchmarkId.parse(benchmark).variant(tuning=True))


@lru_cache(maxsize=1024)
def _parse(text: str) -> BenchmarkId:
    if len(text) > MAX_NAME_LENGTH or not text.isprintable():
        raise UsageError(
            f"{text[:50]!r}...: not a benchmark name; names have at most {MAX_NAME_LENGTH:,} printable characters"
        )
    name, model = ModelRef.parse(text) or (text, None)
    if ModelRef.parse(name):
        raise UsageError(f"{text[:200]!r}: this names two models, but a benchmark takes only one")
    suffix = next((suffix for suffix in (FUZZY, TUNING) if name.endswith(suffix)), "")
    base = name.removesuffix(suffix)
    return BenchmarkId(CustomDataRef.parse(base) or base, suffix == FUZZY, suffix == TUNING, model)


MIN_RESNET_IMAGE = 25
"""The smallest side of an image, in pixels, that the ResNet accepts."""

PRELOADED: dict[str, Dataset] = {}
"""Data sets that this process has received, by name; they are not read from files."""

STREAMS: dict[str, Callable[..., Stream]] = {
    "split": split,
    "permuted": permuted,
    "rotated": rotated,
    "tasked": by_task,
}
"""Functions that create a stream from a data set and a seed, by their ids in run keys."""

MODELS: dict[str, Callable[..., nn.Module]] = {"MLP": MLP, "ResNet18": ResNet18}
"""Networks, by their ids in run keys."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, one column of the paper's tables.

    Attributes
    ----------
    id
        Its name and variant.
    data
        The name of its data set.
    stream, model
        How the stream of a seed is created from the data set, and the network to train: ids, with the parameters that
        differ from the defaults.
    settings
        Default parameters of all methods, by name: learning rate, memory size, tasks. Defaults of one method or edit
        are declared with it (:func:`gmed.register`).
    family
        Benchmarks that share defaults: ``mnist``, ``images``, or ``own`` for custom data.
    version
        Increased whenever a change to its data, stream or model changes results.
    """

    id: BenchmarkId
    summary: str
    data: str
    stream: Component
    model: Component | ModelRef
    settings: Mapping[str, Any]
    family: str
    batch_size: int = 10
    version: int = 1

    @property
    def name(self) -> str:
        return str(self.id)

    @property
    def fuzzy(self) -> bool:
        """Whether task boundaries are fuzzy, so that each task fades into the next."""
        return self.id.fuzzy

    @property
    def tuning(self) -> bool:
        """Whether it is the variant for tuning: the first three tasks, tested on held-out training examples."""
        return self.id.tuning

    @property
    def defaults_key(self) -> str:
        """The name under which defaults of its methods are declared."""
        return self.id.base if isinstance(self.id.base, str) else self.family

    def dataset(self, directory: Path | None = None, progress: Progress = no_progress) -> Dataset:
        """Return its data set, from a folder or by default from the usual folders."""
        if self.data in PRELOADED:
            return PRELOADED[self.data]
        custom = self.id.custom_data
        return custom.load(directory) if custom else get_dataset_info(self.data).load(directory, progress)

    def make_stream(self, directory: Path | None, seed: int) -> Stream:
        """Create the stream of one seed."""
        stream = STREAMS[self.stream.name](self.dataset(directory), seed, **self.stream.parameters)
        stream = validation_stream(stream, seed) if self.tuning else stream
        return fuzzy(stream, seed) if self.fuzzy else stream

    def make_model(self) -> nn.Module:
        """Create the network, with random weights."""
        if isinstance(self.model, ModelRef):
            return self.model()
        return MODELS[self.model.name](**self.model.parameters)

    def missing_data(self, directory: Path | None = None) -> str | None:
        """Return why the data set cannot be found, or ``None`` if it can."""
        try:
            get_dataset_info(self.data).find(directory)
        except DataError as error:
            return str(error)
        return None

    def config(self) -> dict[str, Any]:
        """Return the configuration of the stream and the model, by the ids used in run keys."""
        factory = STREAMS[self.stream.name]
        stream = {"name": self.stream.name, **_by_id(factory, {**_defaults(factory), **self.stream.parameters})}
        stream |= {"fuzzy": True} if self.fuzzy else {}
        stream |= {"tuning": True} if self.tuning else {}
        model: Any
        if isinstance(self.model, ModelRef):
            model = self.model.config()
        else:
            values = _by_id(MODELS[self.model.name], self.model.parameters)
            model = {"name": self.model.name, **values} if values else self.model.name
        return {"stream": stream, "model": model, "batch_size": self.batch_size}


@cache
def _defaults(factory: Callable[..., Any]) -> dict[str, Any]:
    return {k: p.default for k, p in signature(factory).parameters.items() if p.default is not p.empty}


def _by_id(factory: Callable[..., Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    ids = parameter_ids(factory)
    return {ids[name][0] if name in ids else name: value for name, value in parameters.items()}


_MNIST: dict[str, Any] = {"family": "mnist", "data": "mnist", "model": Component("MLP", {})}

_BASE = (
    Benchmark(
        id=BenchmarkId("split-mnist"),
        summary="digits 0/1, then 2/3, ... 8/9; 1,000 examples each",
        stream=Component("split", {}),
        settings={"lr": 0.05, "memory": 500, "tasks": 5},
        **_MNIST,
    ),
    Benchmark(
        id=BenchmarkId("split-mnist-full"),
        summary="digits 0/1, then 2/3, ... 8/9; all 60,000 examples",
        stream=Component("split", {"per_task": None}),
        settings={"lr": 0.05, "memory": 500, "tasks": 5},
        **_MNIST,
    ),
    Benchmark(
        id=BenchmarkId("permuted-mnist"),
        summary="10 pixel permutations; 1,000 examples each",
        stream=Component("permuted", {}),
        settings={"lr": 0.05, "memory": 500, "tasks": 10},
        **_MNIST,
    ),
    Benchmark(
        id=BenchmarkId("rotated-mnist"),
        summary="20 angles from 0 to 180 degrees; 1,000 examples each",
        stream=Component("rotated", {}),
        settings={"lr": 0.05, "memory": 500, "tasks": 20},
        **_MNIST,
    ),
    Benchmark(
        id=BenchmarkId("split-cifar10"),
        summary="10 classes of photographs, 2 at a time; 10,000 examples each",
        family="images",
        data="cifar10",
        stream=Component("split", {"per_task": None}),
        model=Component("ResNet18", {}),
        settings={"lr": 0.1, "memory": 500, "tasks": 5},
    ),
    Benchmark(
        id=BenchmarkId("split-cifar100"),
        summary="100 classes of photographs, 5 at a time; 2,500 examples each",
        family="images",
        data="cifar100",
        stream=Component("split", {"tasks": 20, "per_task": None}),
        model=Component("ResNet18", {"classes": 100}),
        settings={"lr": 0.03, "memory": 10_000, "tasks": 20},
    ),
    Benchmark(
        id=BenchmarkId("split-mini-imagenet"),
        summary="100 classes of 84 x 84 photographs, 5 at a time; 2,500 each",
        family="images",
        data="mini-imagenet",
        stream=Component("split", {"tasks": 20, "per_task": None}),
        model=Component("ResNet18", {"classes": 100, "size": 84}),
        settings={"lr": 0.1, "memory": 10_000, "tasks": 20},
    ),
)

BENCHMARKS = {
    str(benchmark.id): benchmark
    for variant in ({}, {"fuzzy": True}, {"tuning": True})
    for benchmark in (replace(b, id=b.id.variant(**variant)) for b in _BASE)
}
"""The benchmarks of the package, by name."""


@lru_cache(maxsize=1024)
def get_benchmark(name: str) -> Benchmark:
    """Return the benchmark with this name, or raise an error that suggests the most similar names."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    identity = BenchmarkId.parse(name)
    if identity.custom_data is not None:
        benchmark = _from_custom_data(identity.custom_data)
    elif (without_model := str(replace(identity, model=None))) in BENCHMARKS:
        benchmark = BENCHMARKS[without_model]
    else:
        raise unknown("benchmark", name[:200], (b.name for b in BENCHMARKS.values() if not b.tuning))
    return replace(benchmark, id=identity, model=identity.model or benchmark.model)


def _from_custom_data(data: CustomDataRef) -> Benchmark:
    """Return the benchmark on custom data, with the reduced ResNet-18 for photographs and the MLP for other data."""
    square = len(data.shape) == 3 and data.shape[0] == 3 and data.shape[1] == data.shape[2]
    if square and data.shape[1] >= MIN_RESNET_IMAGE:
        model = Component("ResNet18", {"classes": data.classes, "size": data.shape[1]})
    else:
        model = Component("MLP", {"inputs": prod(data.shape), "classes": data.classes})
    return Benchmark(
        id=BenchmarkId(data),
        summary=f"{data.tasks} tasks from {data.file}",
        data=data.name,
        stream=Component("tasked", {}),
        model=model,
        settings={"lr": 0.05, "memory": 500, "tasks": data.tasks},
        family="own",
    )


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
    """Clear the cache, because data have changed or memory is needed."""
    _streams.clear()


def _size(stream: Stream) -> int:
    return stream.x.nbytes + sum(test.x.nbytes for test in stream.tests)
