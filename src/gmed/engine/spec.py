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
"""Raised whenever results change by what has no version of its own: look-ahead, retrieval, iid order, evaluation."""


@dataclass(frozen=True)
class RunSpec:
    """One run: a benchmark, a method on it and a seed. What it computes is a function of these alone.

    >>> spec = RunSpec.make("split-mnist", "er+gmed(alpha=5.0)", seed=3)
    >>> spec.method.name, spec.key == RunSpec.make("split-mnist", "er+gmed", seed=3).key
    ('er+gmed', True)
    """

    benchmark: Benchmark
    method: Method
    seed: int

    @classmethod
    def make(cls, benchmark: str, method: str, seed: int, memory: int | None = None) -> RunSpec:
        found = get_benchmark(benchmark)
        return cls(found, resolve(found, method, memory), seed)

    @classmethod
    def parse(cls, benchmark: str, method: str, seed: int) -> RunSpec:
        """The run that a file names. Nothing is made or tried for it: whether it can be computed shows when it is.

        >>> RunSpec.parse("split-mnist", "er+gmed", seed=3) == RunSpec.make("split-mnist", "er+gmed", seed=3)
        True
        """
        found = get_benchmark(benchmark)
        return cls(found, read_method(found, method), seed)

    def config(self) -> dict[str, Any]:
        """Everything that decides the result, but for the versions and the seed."""
        return {
            "benchmark": self.benchmark.name,
            **self.benchmark.config(),
            "method": self.method.config(),
        }

    def versions(self) -> dict[str, int | str]:
        """The version of every part that computes it; a part whose results change changes its version.

        A file of somebody's own is there by its name, with the digest of its text.
        """
        return {
            "engine": ENGINE_VERSION,
            self.benchmark.name: self.benchmark.version,
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
        """Return the same run at another seed, whose key takes no second look at what computes it.

        >>> spec = RunSpec.make("split-mnist", "er+gmed", seed=3)
        >>> spec.at_seed(4).key == RunSpec.make("split-mnist", "er+gmed", seed=4).key
        True
        """
        other = RunSpec(self.benchmark, self.method, seed)
        vars(other)["_parts"] = self._parts
        return other

    def sources(self) -> tuple[UserModule, ...]:
        """What of somebody's own computes it; who computes it elsewhere must have that too."""
        model = self.benchmark.model
        made_by = (model.source(),) if isinstance(model, ModelRef) and not model.is_instance else ()
        return tuple(dict.fromkeys((*self.method.sources(), *made_by)))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSpec) and self.key == other.key

    def is_capturable(self) -> bool:
        """Whether runs like it can advance together, with what chance decides decided for many steps ahead."""
        return self.method.make_learner(self.benchmark.make_model(), self.seed).is_capturable()

    def __str__(self) -> str:
        return f"{self.benchmark.name} {self.method.name} seed {self.seed}"
