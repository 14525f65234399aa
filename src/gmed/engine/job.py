"""What a process is asked to compute, as JSON carries it there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gmed.engine.extensions import have_all
from gmed.engine.own_model import GivenModel, OwnModel
from gmed.engine.spec import RunSpec
from gmed.engine.terms import Terms
from gmed.io.records import Count
from gmed.io.user_code import Source


@dataclass(frozen=True)
class MethodAndSeed:
    """One run of a job."""

    method: str
    seed: Count


@dataclass(frozen=True)
class Job:
    """Runs on one benchmark to compute together, with the user's own code that they need.

    >>> spec = RunSpec.make("split-mnist", "er+gmed(alpha=1)", 3)
    >>> Job.of([spec], Terms()).specs() == [spec]
    True
    """

    benchmark: str
    runs: list[MethodAndSeed]
    sources: list[Source]
    model: GivenModel | None
    terms: Terms

    @classmethod
    def of(cls, group: Sequence[RunSpec], terms: Terms) -> Job:
        """Return the job of computing these runs."""
        model = group[0].benchmark.model
        return cls(
            benchmark=group[0].benchmark.name,
            runs=[MethodAndSeed(spec.method.name, spec.seed) for spec in group],
            sources=list(group[0].sources()),
            model=GivenModel(model.reference, model.source()) if isinstance(model, OwnModel) else None,
            terms=terms,
        )

    def specs(self) -> list[RunSpec]:
        """Load the code that the job carries into this process, and return its runs."""
        have_all(tuple(self.sources))
        if self.model is not None:
            self.model.load()
        return [RunSpec.named(self.benchmark, run.method, run.seed) for run in self.runs]
