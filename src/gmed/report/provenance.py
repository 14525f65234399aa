"""Provenance of results: environments and settings of the runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from gmed.engine import RunResult, RunSpec

PARTS = ("gmed", "python", "torch", "numpy", "device", "machine")


def environments(runs: Sequence[RunResult]) -> list[tuple[dict[str, str], int]]:
    """Return the environments of the runs, each with its number of runs, the most frequent first.

    >>> run = lambda seed: RunResult("b", "er", seed, [[1.0]], 1.0, 1.0, 1, {}, {"torch": "2.13", "device": "cpu"})
    >>> environments([run(0), run(1)])
    [({'torch': '2.13', 'device': 'cpu'}, 2)]
    """
    counts = Counter(tuple((name, run.environment[name]) for name in PARTS if name in run.environment) for run in runs)
    return [(dict(environment), count) for environment, count in counts.most_common()]


def settings(benchmark: str, method: str) -> str:
    """Return everything that determines a run except its seed, as text.

    >>> print(settings("split-mnist", "er").splitlines()[0])
    batch_size = 10
    """
    spec = RunSpec.parse(benchmark, method, 0)
    config = spec.config()
    parts = [(name, config[name]) for name in sorted(config) if name not in ("benchmark", "method")]
    parts += [(f"method.{part}", values) for part, values in config["method"].items()]
    parts.append(("versions", spec.versions()))
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in parts)
