"""Which benchmark: a value, and the only place where it is written as text and read again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from gmed.data.custom import MAX_NAME_LENGTH, CustomDataRef
from gmed.engine.custom_model import ModelRef
from gmed.errors import UsageError

FUZZY = "-fuzzy"
TUNING = "-tuning"


@dataclass(frozen=True)
class BenchmarkId:
    """Which benchmark, and how it is varied.

    Reading one from text looks for nothing and runs nothing. Whether there is such a benchmark, and whether its data
    and model are here, shows when it is used.

    Attributes
    ----------
    base
        The name of a benchmark, or data of one's own.
    fuzzy
        Whether tasks fade into each other.
    tuning
        Whether it is what hyper-parameters are chosen on.
    model
        A model of one's own in place of the benchmark's.

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
        """Read what ``str`` writes."""
        return _parse(text)

    def __str__(self) -> str:
        base = self.base.name if isinstance(self.base, CustomDataRef) else self.base
        name = base + FUZZY * self.fuzzy + TUNING * self.tuning
        return name if self.model is None else self.model.qualify(name)

    @property
    def custom_data(self) -> CustomDataRef | None:
        """The data, if they are one's own."""
        return self.base if isinstance(self.base, CustomDataRef) else None

    def variant(self, *, fuzzy: bool = False, tuning: bool = False) -> BenchmarkId:
        """Return the same with sharp tasks, with fuzzy ones, or for tuning."""
        return replace(self, fuzzy=fuzzy, tuning=tuning)


def tuning_name(benchmark: str) -> str:
    """Return the name of what the hyper-parameters of a benchmark are chosen on.

    >>> tuning_name("split-mnist"), tuning_name("split-mnist-fuzzy")
    ('split-mnist-tuning', 'split-mnist-tuning')
    """
    return str(BenchmarkId.parse(benchmark).variant(tuning=True))


@lru_cache(maxsize=1024)
def _parse(text: str) -> BenchmarkId:
    if len(text) > MAX_NAME_LENGTH or not text.isprintable():
        raise UsageError(
            f"{text[:50]!r}...: not the name of a benchmark, which has at most {MAX_NAME_LENGTH:,} letters"
        )
    name, model = ModelRef.parse(text) or (text, None)
    if ModelRef.parse(name):
        raise UsageError(f"{text[:200]!r}: a benchmark is learned by one model, and this names two")
    ending = next((ending for ending in (FUZZY, TUNING) if name.endswith(ending)), "")
    base = name.removesuffix(ending)
    return BenchmarkId(CustomDataRef.parse(base) or base, ending == FUZZY, ending == TUNING, model)
