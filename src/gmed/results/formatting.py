"""Format numbers for the terminal and Markdown, and benchmarks as arguments of the command line."""

from __future__ import annotations

import math
from dataclasses import replace

from gmed.data.custom import DEFAULT_SPLIT
from gmed.engine import BenchmarkId
from gmed.results.stats import Difference, Gain


def format_mean_std(mean: float, std: float | None) -> str:
    """Return a mean and its standard deviation, if there is one.

    >>> format_mean_std(81.068, 2.5), format_mean_std(81.068, None)
    ('81.07 ± 2.5', '81.07')
    """
    return f"{mean:.2f}" if std is None or math.isnan(std) else f"{mean:.2f} ± {std:.1f}"


def format_number(mean: float, std: float | None) -> str:
    """Return a number of any magnitude and its standard deviation, each if there is one.

    >>> format_number(0.42607, 0.0183), format_number(81.938, 4.01), format_number(21_288.7, 362.0)
    ('0.4261 ± 0.018', '81.94 ± 4.0', '21289 ± 362')
    >>> format_number(5.0, None), format_number(math.nan, None)
    ('5', '-')
    """
    if math.isnan(mean):
        return "-"
    center = f"{mean:.4g}" if abs(mean) < 1e4 else f"{mean:.0f}"
    if std is None or math.isnan(std):
        return center
    return f"{center} ± " + (f"{std:#.2g}".rstrip(".") if std < 100 else f"{std:.0f}")


def format_duration(seconds: float) -> str:
    """Return an approximate duration in a suitable unit.

    >>> format_duration(3.4), format_duration(200), format_duration(9000), format_duration(400_000)
    ('3 s', '3 min', '2.5 h', '4.6 days')
    """
    for unit, length, limit in (("s", 1, 100), ("min", 60, 6000), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}" if length < 3600 else f"{seconds / length:.1f} {unit}"
    return f"{seconds / 86_400:.1f} days"


def format_difference(difference: Difference | None) -> str:
    """Return the measured mean minus the published one, and its standard error.

    >>> nan = math.nan
    >>> format_difference(Difference(-1.7, 1.31, -4.3, 0.9)), format_difference(Difference(-1.7, nan, nan, nan))
    ('-1.70 ± 1.31', '-1.70')
    >>> format_difference(None)
    '-'
    """
    if difference is None:
        return "-"
    return f"{difference.mean:+.2f}" + ("" if math.isnan(difference.error) else f" ± {difference.error:.2f}")


def format_p(p: float) -> str:
    """Return a p-value with its relation.

    >>> format_p(0.03), format_p(1e-6)
    ('= 0.0300', '< 0.0001')
    """
    return "< 0.0001" if p < 0.0001 else f"= {p:.4f}"


def first_line(error: str) -> str:
    """Return the first line of an error, without control characters that a terminal would interpret.

    >>> first_line("DivergedError: too large\\nin step 3"), first_line("")
    ('DivergedError: too large', 'no reason was given')
    """
    first = next((line for line in error.splitlines() if line.strip()), "no reason was given")
    return "".join(character if character.isprintable() else " " for character in first)


def to_cli_args(benchmark: str, *methods: str) -> list[str]:
    """Return a benchmark and methods as arguments of the command line; custom data are named by their file.

    >>> to_cli_args("iris.csv[label=kind,drop=id,by-time,10 tasks,4->3,0123456789ab]-fuzzy", "er")
    ['iris.csv', 'er', '--label', 'kind', '--split', 'by-time', '--drop', 'id', '--fuzzy']
    >>> to_cli_args("split-mnist-fuzzy[model=net.py:small(width=64),0123456789ab]", "er")
    ['split-mnist-fuzzy', 'er', '--model', 'net.py:small(width=64)']
    """
    parsed = BenchmarkId.parse(benchmark)
    data = parsed.custom_data
    model_args = ["--model", parsed.model.reference] if parsed.model else []
    if data is None:
        return [str(replace(parsed, model=None)), *methods, *model_args]
    title = ["--name", data.title] if data.title is not None else []
    label = ["--label", data.label] if data.label is not None else []
    split = ["--split", data.split] if data.split != DEFAULT_SPLIT else []
    drop = [arg for column in data.drop for arg in ("--drop", column)]
    fuzzy = ["--fuzzy"] if parsed.fuzzy else []
    file = f"./{data.file}" if data.file.startswith("-") else data.file  # must not be parsed as an option
    return [file, *methods, *title, *label, *split, *drop, *fuzzy, *model_args]


def format_gain(gain: Gain, marks: str = "") -> str:
    r"""Return a paired gain as text, in lines of at most 80 columns.

    >>> print(format_gain(Gain(mean=1.6, low=0.7, high=2.5, p=0.0008, effect_size=0.83, n=20), "**"))
    +1.60** points,
      95% interval [+0.70, +2.50], p = 0.0008, d = 0.83, 20 seeds
    """
    if math.isnan(gain.p):
        reason = "one paired seed" if gain.n == 1 else f"the same at all {gain.n} paired seeds"
        return f"{gain.mean:+.2f} points ({reason}: no test)"
    platforms = f"\n  (at {gain.mixed} of them on different devices or versions of torch)" if gain.mixed else ""
    return (
        f"{gain.mean:+.2f}{marks} points,\n  95% interval [{gain.low:+.2f}, {gain.high:+.2f}], "
        f"p {format_p(gain.p)}, d = {gain.effect_size:.2f}, {gain.n} seeds{platforms}"
    )
