"""Write docs/renamed.md: the old and the new names, from what gmed.deprecated declares.

python tools/renamed.py
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import gmed
from gmed.deprecated import ATTRIBUTES, MOVED, PARAMETERS, RENAMED
from gmed.errors import UsageError

TARGET = Path(__file__).resolve().parents[1] / "docs" / "renamed.md"

INTRODUCTION = """# Old and new names

Many names changed before the first release.
The old ones still work for one release, and each use gives a `DeprecationWarning`.
To find them in your code, run it with `python -W error::DeprecationWarning`.
Run keys and files do not depend on these names: old files are read, and stored runs are found.
Where a method is written as text, its old parameters stay valid: `mir(candidates=20)` is `mir(subsample=20)`.

- `Replay.draw(purpose)` is now `sample(purpose)`, and `sample(count, purpose)` is `sample_memory(count, purpose)`.
- `draw(name, fn)` makes a draw that can be made ahead of the step; it was `planned`.
- `--over` of `gmed run` and `gmed table` is now `--baseline`.
"""


def page() -> str:
    """Return the text of the page."""
    for module in pkgutil.walk_packages(gmed.__path__, "gmed."):  # whatever declares old names
        with contextlib.suppress(UsageError, ImportError):
            if not module.name.endswith((".__main__", ".worker", ".triton_kernels")):
                import_module(module.name)
    tables = (
        table("Attributes and methods", "class", ATTRIBUTES),
        table("Parameters", "function or class", PARAMETERS),
        table("Functions and classes", "module", RENAMED),
        "## Modules\n\n| old | new |\n|---|---|\n"
        + "".join(f"| `{old}` | `{MOVED[old]}` |\n" for old in sorted(MOVED)),
    )
    return "\n".join([INTRODUCTION, *tables])


def table(title: str, owner: str, names: Mapping[str, Mapping[str, str]]) -> str:
    """Return a table of renames by their owner, leaving out the doctests' own classes."""
    rows = [f"| `{name}` | `{old}` | `{new}` |\n" for name in sorted(names) for old, new in names[name].items()]
    return f"## {title}\n\n| {owner} | old | new |\n|---|---|---|\n" + "".join(rows)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
