"""What docs/estimator.md shows, run as a reader would run it."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gmed.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "estimator.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def write_trees(path, seed):
    rng = np.random.default_rng(seed)
    kinds = rng.integers(3, size=150)
    lines = ["id,height,girth,leaves,kind"]
    for number, kind in enumerate(kinds.tolist()):
        height, girth, leaves = rng.normal([10 + 5 * kind, 1, 1000 * kind], [1, 0.1, 300])
        lines.append(f"t{number},{height:.2f},{girth:.3f},{leaves:.0f},{('oak', 'elm', 'fir')[kind]}")
    path.write_text("\n".join(lines) + "\n")


def test_every_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("trees", "new", "more")):
        write_trees(Path(f"{name}.csv"), seed)
    names: dict[str, object] = {}
    kinds = [kind for kind, _ in BLOCKS]
    assert kinds.count("python") == 4 and kinds.count("console") == 1
    for kind, code in BLOCKS:
        if kind == "python":
            exec(compile(code, str(PAGE), "exec"), names)
        else:
            for line in code.strip().splitlines():
                program, *arguments = shlex.split(line)
                found = CliRunner().invoke(app, arguments)
                assert program == "gmed" and found.exit_code == 0, (line, found.output, found.exception)
    assert names["found"].accuracy > 0.7 and "yew" in names["again"].classes_
    assert len(Path("found.csv").read_text().splitlines()) == 151


@pytest.mark.parametrize(
    "setting", ["memory", "replay_size", "alpha", "beta", "learning_rate", "updates_per_batch", "batch_size", "hidden"]
)
def test_the_defaults_are_as_the_page_says(setting):
    from gmed.online import Settings
    from gmed.sklearn import GMEDClassifier

    said = re.search(rf"`{setting}=([\d.]+)`", PAGE.read_text(encoding="utf-8"))
    assert float(said[1]) == getattr(Settings(), setting) == GMEDClassifier().get_params()[setting]
