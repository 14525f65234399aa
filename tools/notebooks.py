"""Notebooks from the scripts in ``examples``: a cell for the docstring and one for each part of the program.

    python tools/notebooks.py            # write them
    python tools/notebooks.py --check    # exit with 1 where one is not what its script gives

The scripts are the originals; notebooks hold no output.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"


def notebook(script: str) -> str:
    """Return the text of the notebook of a script."""
    tree, lines = ast.parse(script), script.splitlines()
    title, _, text = (ast.get_docstring(tree) or "").partition("\n")
    cells = [_cell(0, "markdown", f"# {title.rstrip('.')}\n{text}")]
    parts: list[list[str]] = [[]]
    for node, after in zip(tree.body[1:], [*tree.body[2:], None], strict=True):
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        last = node.end_lineno or node.lineno
        apart = isinstance(node, ast.FunctionDef | ast.ClassDef)
        if apart and parts[-1]:
            parts.append([])
        if isinstance(node, ast.If):  # if __name__ == "__main__": a notebook just calls it
            parts += [[ast.unparse(each) for each in node.body]]
        else:
            gap = after.lineno - last - 1 if after is not None and not apart else 0
            parts[-1] += [*lines[first - 1 : last], *[""] * min(gap, 1)]
        if apart:
            parts.append([])
    code = ["\n".join(part).strip() for part in parts if part]
    cells += [_cell(number, "code", each) for number, each in enumerate(code, 1)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    document = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "id": f"part-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
    return cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}


def main() -> int:
    out_of_step = 0
    for script in sorted(EXAMPLES.glob("*.py")):
        made, file = notebook(script.read_text(encoding="utf-8")), script.with_suffix(".ipynb")
        if file.exists() and file.read_text(encoding="utf-8") == made:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{file.name} is not what {script.name} gives; run: python tools/notebooks.py")
            out_of_step = 1
        else:
            file.write_text(made, encoding="utf-8")
    return out_of_step


if __name__ == "__main__":
    sys.exit(main())
