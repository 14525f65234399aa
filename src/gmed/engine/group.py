"""Runs that are computed together."""

from __future__ import annotations

from collections.abc import Sequence

from gmed.engine.spec import RunSpec

Group = tuple[RunSpec, ...]
"""Runs that are computed together: of one benchmark, and of methods that differ in real numbers at most."""

MOST_TOGETHER = 20


def computed_together(specs: Sequence[RunSpec]) -> list[Group]:
    """Seeds, and points of a grid, of one method on one benchmark, up to twenty at a time; a method that goes step by
    step alone.

    >>> grid = [f"er+gmed(alpha={alpha})" for alpha in (0.1, 1.0)]
    >>> specs = [RunSpec.make("split-mnist", method, seed) for method in ("er", *grid) for seed in (0, 1)]
    >>> [[(spec.method.name, spec.seed) for spec in group] for group in computed_together(specs)]
    [[('er', 0), ('er', 1)], \
[('er+gmed(alpha=0.1)', 0), ('er+gmed(alpha=0.1)', 1), ('er+gmed(alpha=1.0)', 0), ('er+gmed(alpha=1.0)', 1)]]
    """
    alike: dict[tuple[str, str], list[RunSpec]] = {}
    for spec in specs:
        alike.setdefault((spec.benchmark.name, spec.method.shape), []).append(spec)
    groups: list[Group] = []
    for same in alike.values():
        size = MOST_TOGETHER if same[0].is_capturable() else 1
        groups += [tuple(same[at : at + size]) for at in range(0, len(same), size)]
    return groups
