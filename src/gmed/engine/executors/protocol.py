"""Messages to and from worker processes: records, one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from gmed.engine.config import ExecutionConfig
from gmed.engine.custom_model import ModelRef, SentModel
from gmed.engine.extensions import ensure_all_loaded
from gmed.engine.result import RunResult
from gmed.engine.spec import RunSpec
from gmed.io.records import AnyText, Count, Share, decode, encode
from gmed.io.user_code import UserModule


@dataclass(frozen=True)
class MethodAndSeed:
    """One run of a job."""

    method: str
    seed: Count


@dataclass(frozen=True)
class Job:
    """Runs on one benchmark to execute together, with the user's modules that they need.

    >>> spec = RunSpec.make("split-mnist", "er+gmed(alpha=1)", 3)
    >>> Job.of([spec], ExecutionConfig()).specs() == [spec]
    True
    """

    benchmark: str
    runs: list[MethodAndSeed]
    sources: list[UserModule]
    model: SentModel | None
    config: ExecutionConfig

    @classmethod
    def of(cls, group: Sequence[RunSpec], config: ExecutionConfig) -> Job:
        """Return the job of these runs."""
        model = group[0].benchmark.model
        return cls(
            benchmark=group[0].benchmark.name,
            runs=[MethodAndSeed(spec.method.name, spec.seed) for spec in group],
            sources=list(group[0].sources()),
            model=SentModel(model.reference, model.source()) if isinstance(model, ModelRef) else None,
            config=config,
        )

    def specs(self) -> list[RunSpec]:
        """Load the modules of the job into this process, and return its runs."""
        ensure_all_loaded(tuple(self.sources))
        if self.model is not None:
            self.model.load()
        return [RunSpec.parse(self.benchmark, run.method, run.seed) for run in self.runs]


@dataclass(frozen=True)
class Progress:
    """The progress of the runs of the job."""

    seen: Count
    total: Count


@dataclass(frozen=True)
class Evaluated:
    """The accuracies of a run at a point of evaluation."""

    key: str
    seen: Count
    total: Count
    accuracy: list[list[Share]]


@dataclass(frozen=True)
class Warned:
    """A warning from the worker."""

    text: AnyText


@dataclass(frozen=True)
class Finished:
    """The result of the next run of the job."""

    result: RunResult


@dataclass(frozen=True)
class Failed:
    """The error of the next run of the job."""

    error: AnyText


Message = Progress | Evaluated | Warned | Finished | Failed
KINDS: dict[str, type[Message]] = {kind.__name__.lower(): kind for kind in get_args(Message)}


def write_message(message: Message) -> str:
    """Format a message as a line.

    >>> write_message(Progress(10, 500))
    '{"kind": "progress", "seen": 10, "total": 500}\\n'
    """
    return json.dumps({"kind": type(message).__name__.lower(), **encode(message)}) + "\n"


def read_message(line: str) -> Message:
    """Parse a message from a line.

    >>> read_message(write_message(Warned("no room")))
    Warned(text='no room')
    """
    content = json.loads(line)
    return decode(KINDS[content.pop("kind")], content)
