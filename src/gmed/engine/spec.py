"""The specification of a run, and the key that identifies it in a store."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gmed.engine.benchmarks import Benchmark, get_benchmark
from gmed.engine.custom_model import ModelRef
from gmed.engine.methods import Method, read_method, resolve
from gmed.io.user_code import UserModule

ENGINE_VERSION = 1
"""Increased whenever code without its own version changes results: look-ahead, retrieval, iid order, evaluation."""


@dataclass(frozen=True)
class RunSpec:
    """One run: a benchmark, a method and a seed, which fully determine its result.

    >>> spec = RunSpec.make("split-mnist", "er+gmed(alpha=5.0)", seed=3)
    >>> spec.method.name, spec.key == RunSpec.make("split-mnist", "er+gmed", seed=3).key
    ('er+gmed', True)
    """

    benchmark: Benchmark
    method: Method
    seed: int

    @classmethod
    def make(cls, benchmark: str, method: str, seed: int, memory: int | None = None) -> RunSpec:
        resolved = get_benchmark(benchmark)
        return cls(resolved, resolve(resolved, method, memory), seed)

    @classmethod
    def parse(cls, benchmark: str, method: str, seed: int) -> RunSpec:
        """Return the run that a file names, without creating its components; errors in them appear when it is executed.

        >>> RunSpec.parse("split-mnist", "er+gmed", seed=3) == RunSpec.make("split-mnist", "er+gmed", seed=3)
        True
        """
        resolved = get_benchmark(benchmark)
        return cls(resolved, read_method(resolved, method), seed)

    def config(self) -> dict[str, Any]:
        """Return everything that determines the result, except the versions and the seed."""
        return {
            "benchmark": self.benchmark.id.identity,
            **self.benchmark.config(),
            "method": self.method.config(),
        }

    def versions(self) -> dict[str, int | str]:
        """Return the version of each of its components; a version changes whenever results do.

        A user's file is listed by its name, with the digest of its text.
        """
        return {
            "engine": ENGINE_VERSION,
            self.benchmark.id.identity: self.benchmark.version,
            **self.method.versions(),
        }

    @cached_property
    def key(self) -> str:
        """The name of this run in a store: a hash of the configuration, the versions and the seed."""
        config, versions = self._parts
        identity = f'{{"config": {config}, "seed": {self.seed}, "versions": {versions}}}'
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    @cached_property
    def _parts(self) -> tuple[str, str]:
        return json.dumps(self.config(), sort_keys=True), json.dumps(self.versions(), sort_keys=True)

    def at_seed(self, seed: int) -> RunSpec:
        """Return the same run at another seed; the configuration and versions in its key are reused.

        >>> spec = RunSpec.make("split-mnist", "er+gmed", seed=3)
        >>> spec.at_seed(4).key == RunSpec.make("split-mnist", "er+gmed", seed=4).key
        True
        """
        other = RunSpec(self.benchmark, self.method, seed)
        vars(other)["_parts"] = self._parts
        return other

    def sources(self) -> tuple[UserModule, ...]:
        """Return the user's modules that it needs; another process must have them too."""
        model = self.benchmark.model
        model_source = (model.source(),) if isinstance(model, ModelRef) and not model.is_instance else ()
        return tuple(dict.fromkeys((*self.method.sources(), *model_source)))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSpec) and self.key == other.key

    def is_capturable(self) -> bool:
        """Return whether runs like it can be trained together, with random decisions drawn many steps ahead."""
        return self.method.make_learner(self.benchmark.make_model(), self.seed).is_capturable()

    def __str__(self) -> str:
        return f"{self.benchmark.name} {self.method.name} seed {self.seed}"
