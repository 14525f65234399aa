"""Prequential accuracy of runs: optional, and without effect on learning."""

from dataclasses import replace

import pytest

import gmed
from gmed.engine import ExecutionConfig, RunSpec, run_one
from gmed.experiment import Experiment
from gmed.results import Store


@pytest.mark.slow
def test_prequential_accuracy_is_optional_and_changes_nothing_else():
    spec = RunSpec.make("split-mnist", "er", 4)
    asked, plain = run_one(spec, ExecutionConfig("cpu", prequential=True)), run_one(spec, ExecutionConfig("cpu"))
    assert plain.prequential is None
    assert 0.5 < asked.prequential < 1
    assert round(asked.prequential * 5000) == pytest.approx(asked.prequential * 5000)  # of 5000 examples
    assert (asked.accuracy, asked.untrained, asked.passes) == (plain.accuracy, plain.untrained, plain.passes)


@pytest.mark.slow
def test_stored_run_is_recomputed_only_if_prequential_is_missing(tmp_path):
    path, how = tmp_path / "r.db", {"seeds": 1, "device": "cpu", "workers": 0}
    plain = gmed.run("split-mnist", "finetune", store=path, **how).runs[0]
    asked = gmed.run("split-mnist", "finetune", store=path, prequential=True, **how).runs[0]
    assert plain.prequential is None and asked.accuracy == plain.accuracy
    with Store(path) as store:
        assert store.runs() == [asked]
    for prequential in (True, False):
        again = gmed.run("split-mnist", "finetune", store=path, prequential=prequential, executor=nobody, **how)
        assert again.runs == [asked]


@pytest.mark.slow
def test_recomputed_run_keeps_its_prequential_accuracy(tmp_path):
    how = {"seeds": 1, "workers": 0, "device": "cpu", "store": tmp_path / "r.db"}
    asked = gmed.run("split-mnist", "finetune", prequential=True, **how).runs[0]
    assert gmed.run("split-mnist", "finetune", rerun=True, **how).runs[0].prequential is None
    with Store(tmp_path / "r.db") as store:
        assert [run.prequential for run in store.runs()] == [asked.prequential]


@pytest.mark.slow
def test_prequential_option_reaches_workers_and_files(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text('benchmark = "split-mnist"\nmethods = ["finetune"]\nseeds = 1\nprequential = true\n')
    experiment = Experiment.from_file(file, store=str(tmp_path / "r.db"), device="cpu", workers=1)
    assert experiment.run().runs[0].prequential > 0.5
    with pytest.raises(gmed.errors.UsageError, match="prequential must be true or false"):
        Experiment("split-mnist", ["er"], prequential=1)


def nobody(specs, config):
    raise AssertionError("nothing was left to compute")
    yield


CONTRARY = """
import gmed
from gmed.learners import FineTune

@gmed.register("contrary")
class Contrary(FineTune):
    def predict(self, x):
        return 1 - super().predict(x).clamp(max=1)
"""


@pytest.mark.usefixtures("registry_restored")
def test_prequential_uses_the_learners_predict(tmp_path):
    (tmp_path / "contrary.py").write_text(CONTRARY)
    gmed.load_extension(tmp_path / "contrary.py")
    config = ExecutionConfig("cpu", prequential=True)
    plain, contrary = (run_one(RunSpec.make("split-mnist", m, 0), config) for m in ("finetune", "contrary"))
    assert plain.prequential > 0.7
    assert contrary.prequential < 0.2
    assert contrary.environment["prequential"] == "by predict"


@pytest.mark.slow
@pytest.mark.usefixtures("registry_restored")
def test_prequential_of_an_older_definition_is_recomputed(tmp_path):
    (tmp_path / "contrary.py").write_text(CONTRARY)
    gmed.load_extension(tmp_path / "contrary.py")
    path, how = tmp_path / "r.db", {"seeds": 1, "device": "cpu", "workers": 0, "prequential": True}
    methods = ["finetune", "contrary"]
    gmed.run("split-mnist", methods, store=path, **how)
    with Store(path) as store:
        for run in store.runs():
            environment = {name: text for name, text in run.environment.items() if name != "prequential"}
            spec = RunSpec.make(run.benchmark, run.method, run.seed)
            store.add(spec, replace(run, environment=environment, prequential=0.5))
    again = {run.method: run.prequential for run in gmed.run("split-mnist", methods, store=path, **how).runs}
    assert again["finetune"] == 0.5  # as stored: its model predicts
    assert again["contrary"] < 0.2
