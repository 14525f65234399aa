"""The identity of a benchmark, and the only place where it is converted to text and back."""

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
        """What identifies it in run keys: its text without the name that people gave to custom data."""
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
            f"{text[:50]!r}...: not a benchmark name: a name has at most {MAX_NAME_LENGTH:,} printable characters"
        )
    name, model = ModelRef.parse(text) or (text, None)
    if ModelRef.parse(name):
        raise UsageError(f"{text[:200]!r}: this names two models; a benchmark takes one")
    suffix = next((suffix for suffix in (FUZZY, TUNING) if name.endswith(suffix)), "")
    base = name.removesuffix(suffix)
    return BenchmarkId(CustomDataRef.parse(base) or base, suffix == FUZZY, suffix == TUNING, model)
