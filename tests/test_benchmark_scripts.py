"""Benchmark scripts reuse published results that are still current."""

import importlib.util
import json
import lzma
from pathlib import Path

import pytest

import gmed
from gmed.engine import RunSpec
from gmed.experiment import stored_results
from gmed.results import Store

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "kept.py"


@pytest.fixture
def kept(monkeypatch):
    spec = importlib.util.spec_from_file_location("kept", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def main(folder, *, seeds=2):
        plan = {"part": {"split-mnist": ["finetune"]}}
        given = [f"--out={folder}", f"--store={folder / 'kept.db'}", f"--seeds={seeds}", "--workers=1"]
        monkeypatch.setattr("sys.argv", ["script", *given])
        module.main("kept", "", plan, device="cpu")
        return json.loads(lzma.decompress((folder / "kept.json.xz").read_bytes()))

    module.run = main
    return module


def test_new_store_starts_from_the_published_results(kept, tmp_path, capsys):
    first = kept.run(tmp_path)
    (tmp_path / "kept.db").unlink()
    again = kept.run(tmp_path)
    assert again == first  # the times that computing took among the rest
    assert len(kept.run(tmp_path, seeds=3)["runs"]) == 3


def test_outdated_runs_are_left_out(kept, tmp_path, capsys):
    content = kept.run(tmp_path)
    content["keys"][0] = "of another version"
    content["runs"][1]["method"] = "a method of another time"
    (tmp_path / "kept.json.xz").write_bytes(lzma.compress(json.dumps(content).encode()))
    kept.take_in(tmp_path / "other.db", tmp_path / "kept.json.xz")
    assert stored_results(tmp_path / "other.db")[0].runs == []


def test_removed_runs_do_not_come_back(kept, tmp_path, capsys, monkeypatch):
    kept.run(tmp_path)
    with Store(tmp_path / "kept.db") as store:
        store.remove("split-mnist")
    monkeypatch.setattr(gmed, "run", lambda *given, **how: stored_results(how["store"])[0])
    assert kept.run(tmp_path)["runs"] == []
    with Store(tmp_path / "kept.db") as store:
        assert store.find(RunSpec.make("split-mnist", "finetune", 0)) is None
