"""Give each parameter in the reference its own type, also where a docstring describes several at once.

A docstring may say ``lr, seed`` and describe both in one text. The reference would show both with the type of the
first one.
"""

import re
from typing import Any

from griffe import Extension, Object

TOGETHER = re.compile(r"^(\w+(?:, \w+)+)\n((?: {4}.*\n?)+)", flags=re.MULTILINE)


class EachByItself(Extension):
    """Describe names that share a description one after the other."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of an object before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = TOGETHER.sub(_apart, obj.docstring.value)


def _apart(found: re.Match[str]) -> str:
    names, text = found.groups()
    return "".join(f"{name}\n{text.rstrip()}\n" for name in names.split(", "))
