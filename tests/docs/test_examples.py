"""The examples run, and their notebooks are up to date."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs
EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
SAYS = {
    "drifting_rows.py": r"^replay \+ GMED +\d+\.\d +\d+\.\d +\d+\.\d$",
    "frozen_backbone.py": r"^gain +[+-]\d+\.\d+ points, 95% interval",
    "own_loop.py": r"^replay \+ GMED +\d+\.\d %",
}


def with_seeds(text, number):
    short, changed = re.subn(r"^SEEDS = \d+$", f"SEEDS = {number}", text, flags=re.MULTILINE)
    assert changed == 1
    return short


def run(text, folder):
    (folder / "example.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, capture_output=True, text=True, timeout=300, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def cells(name, kind):
    document = json.loads((EXAMPLES / name).with_suffix(".ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_runs(name, tmp_path):
    seeds = 2 if name == "frozen_backbone.py" else 1
    said = run(with_seeds((EXAMPLES / name).read_text(encoding="utf-8"), seeds), tmp_path)
    assert re.search(SAYS[name], said, flags=re.MULTILINE), said


def test_replay_remembers_what_fine_tuning_forgets(tmp_path):
    """Of the notebook's own cells, run one after the other."""
    said = run(with_seeds("\n\n".join(cells("drifting_rows.py", "code")), 1), tmp_path)
    ends = {line.split("  ")[0].strip(): float(line.split()[-2]) for line in said.splitlines()[1:]}
    assert ends["no memory"] < 40 < 80 < ends["replay"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_notebook_equals_the_script(name):
    script = (EXAMPLES / name).read_text(encoding="utf-8")
    code = "\n".join(cells(name, "code")).splitlines()
    program = script[script.index('"""\n\n') + 4 :].replace('if __name__ == "__main__":\n    main()', "main()")
    assert [line for line in code if line] == [line for line in program.splitlines() if line]
    (text,) = cells(name, "markdown")
    assert text.startswith("# ") and f"python examples/{name}" in text


def test_notebooks_are_up_to_date():
    checker = EXAMPLES.parent / "tools" / "notebooks.py"
    done = subprocess.run([sys.executable, str(checker), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
