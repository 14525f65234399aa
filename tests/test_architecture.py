"""The package tree in docs/architecture.md is the actual one."""

from pathlib import Path

import gmed

ROOT = Path(gmed.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def test_documented_tree_equals_the_package():
    tree = PAGE.read_text(encoding="utf-8").partition("src/gmed/\n")[2].partition("```")[0]
    names = {name.strip("/") for line in tree.splitlines() for name in line.strip().partition("   ")[0].split()}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert names == packages | {path.stem for path in ROOT.glob("*.py") if not path.stem.startswith("_")}
