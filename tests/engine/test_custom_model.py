"""Custom models: validation, identity, weights, resuming and export to ONNX."""

import importlib.util
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

import gmed
from gmed.engine import ExecutionConfig, RunSpec, get_benchmark, run_one
from gmed.engine.checkpoint import Checkpoints
from gmed.engine.custom_model import ModelRef, check_model_compatible
from gmed.engine.runner import Interrupted, run_group
from gmed.errors import InputError, UsageError
from gmed.experiment import Experiment
from gmed.models import MLP, ResNet18, export_onnx

ROOT = Path(__file__).parents[2]

NETS = """
import torch
from torch import nn
from torch.nn.functional import dropout

def small(width=16, chance=0.0, classes=10):
    layers = nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Dropout(chance), nn.Linear(width, classes)
    return nn.Sequential(*layers)

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(784, 10)
    def forward(self, x):
        return self.inside(dropout(x.flatten(1), 0.3, self.training))

def normed():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8), nn.GroupNorm(2, 8), nn.Linear(8, 10))
def text(): return "no model"
def fails(): raise OSError("no weights here")
def empty(): return nn.Flatten()
def frozen(): return small().requires_grad_(False)
def images(): return nn.Conv2d(1, 3, 3)
def pair():
    class Pair(Own):
        def forward(self, x): return super().forward(x), 0
    return Pair()
def constant():
    class Constant(Own):
        def forward(self, x): return super().forward(x).detach()
    return Constant()
def infinite():
    model = small()
    nn.init.constant_(model[-1].bias, float("inf"))
    return model
number = 5
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path / "nets.py"


def has_come_to(stop, reached):
    return reached[-1] > stop


def top_level():
    return MLP(hidden=8)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nets.py:small(classes=7)", "it returns 7 logits for each input, but there are 10 classes"),
        ("nets.py:small(classes=1000)", "1000 logits"),
        ("nets.py:images", r"a \(2, classes\) tensor of logits for 2 inputs, not one of shape \(2, 3, 26, 26\)"),
        ("nets.py:pair", "tensor of logits for 2 inputs, not tuple"),
        ("nets.py:infinite", "not finite before training"),
        ("nets.py:constant", "does not depend on any trainable parameter"),
        ("nets.py:frozen", "all parameters of the model are frozen"),
        ("nets.py:empty", "parameters to train"),
        ("nets.py:text", "must return a torch.nn.Module, not str"),
        ("nets.py:fails", "cannot be created: OSError: no weights here"),
        ("nets.py:small(widht=3)", "cannot be created: TypeError: .*widht"),
        ("nets.py:small(width=wide)", "cannot be created: TypeError"),
        ("nets.py:smal", "no function or class smal"),
        ("nets.py:number", "no function or class number"),
        ("nets.py", "write it as net.py:small"),
        ("nowhere.py:small", "nowhere.py: no such file"),
        ("nowhere_at_all:small", "does not import: ModuleNotFoundError.*nowhere_at_all.py"),
        ("torch.nn:Linear(in_features=3,out_features=10)", r"does not accept inputs of shape \(2, 1, 28, 28\)"),
        (lambda: MLP(), "at the top level of a file"),
        (5, "at the top level of a file"),
    ],
)
def test_unsuitable_model_is_refused_before_any_run(nets, model, message):
    with pytest.raises(UsageError, match=message):
        gmed.run("split-mnist", "finetune", seeds=1, model=model, device="cpu", workers=0)
    assert not (nets.parent / "gmed.db").exists()


def test_a_path_may_have_a_colon_as_on_windows(nets):
    file = nets.parent / r"C:\nets.py"  # here a name like any other
    try:
        file.write_text(NETS, encoding="utf-8")
    except OSError:
        pytest.skip("files cannot be called that here")
    model = ModelRef.from_user(rf"{file}:small(width=8)")
    assert model.reference.endswith("nets.py:small(width=8)")
    assert str(model()) == str(ModelRef.from_user("nets.py:small(width=8)")())


def test_key_depends_on_the_source_of_the_model(nets):
    def key(model, benchmark="split-mnist"):
        return RunSpec.make(ModelRef.from_user(model).qualify(benchmark), "er", 0).key

    first = key("nets.py:small")
    others = [key("nets.py:small(width=8)"), key("nets.py:Own"), key("nets.py:small", "split-mnist-fuzzy")]
    assert len({first, *others, RunSpec.make("split-mnist", "er", 0).key}) == 5
    nets.write_text(NETS.replace("nn.ReLU()", "nn.Tanh()"))
    assert key("nets.py:small") != first
    nets.write_text(NETS)
    assert key("nets.py:small") == first
    assert key(top_level) == key(top_level) != first
    one, two = MLP(hidden=8), MLP(hidden=8)
    assert key(one) == key(one) != key(two)


def test_benchmark_name_describes_the_model_without_its_file(nets):
    name = ModelRef.from_user("nets.py:small(width=8)").qualify("split-mnist-fuzzy")
    found = get_benchmark(name)
    assert found.fuzzy
    assert isinstance(found.make_model()[1], nn.Linear) and found.make_model()[1].out_features == 8
    absent = get_benchmark(name[:-2] + "0]" if name[-2] != "0" else name[:-2] + "1]")
    with pytest.raises(UsageError, match="is not loaded; pass it again with --model"):
        absent.make_model()
    assert RunSpec.make(absent.name, "er", 0).config()["model"]["name"] == "nets.py:small(width=8)"


def test_weights_differ_by_seed_and_modules_are_copied(nets):
    from gmed.engine.runner import make_learner

    cpu = torch.device("cpu")

    def first_weights(model, seed, method="er"):
        spec = RunSpec.make(ModelRef.from_user(model).qualify("split-mnist"), method, seed)
        return make_learner(spec, cpu).model[1].weight

    assert torch.equal(first_weights("nets.py:small", 3), first_weights("nets.py:small", 3, "er+gmed"))
    assert not torch.equal(first_weights("nets.py:small", 3), first_weights("nets.py:small", 4))
    given = MLP(hidden=8)
    before = {name: t.clone() for name, t in given.state_dict().items()}
    assert torch.equal(first_weights(given, 3), first_weights(given, 4))
    gmed.run("split-mnist", "finetune", seeds=1, model=given, store=None, device="cpu")
    assert all(torch.equal(before[name], t) for name, t in given.state_dict().items())


@pytest.mark.slow
def test_workers_build_the_same_model(nets):
    here, there = (
        gmed.run("split-mnist", "er", seeds=1, model="nets.py:small(chance=0.2)", store=None, device="cpu", workers=w)
        for w in (0, 1)
    )
    assert not there.failures, there.failures[0].error
    assert here.runs[0].accuracy == there.runs[0].accuracy
    assert here.runs[0].benchmark == ModelRef.from_user("nets.py:small(chance=0.2)").qualify("split-mnist")
    with pytest.raises(UsageError, match="the model is an object"):
        gmed.run("split-mnist", "finetune", seeds=1, model=MLP(hidden=8), store=None, device="cpu", workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["nets.py:small(chance=0.5)", "nets.py:Own", "nets.py:normed"])
def test_random_or_stateful_model_resumes_exactly(nets, model, tmp_path):
    """Dropout as a layer and as a function, batch-norm: stopped twice, and never stopped."""
    spec = RunSpec.make(ModelRef.from_user(model).qualify("split-mnist"), "er+gmed", 1)
    kept = ExecutionConfig("cpu", checkpoints=Checkpoints(tmp_path / "unfinished", every=3600))
    reached = [0]
    for stop in (1500, 3300):
        with pytest.raises(Interrupted):
            run_group([spec], kept, lambda seen, total: reached.append(seen), partial(has_come_to, stop, reached))
    torch.manual_seed(99)
    resumed = run_one(spec, kept)
    assert resumed.environment["resumed at example"].count(",") == 1
    torch.manual_seed(7)
    assert resumed.accuracy == run_one(spec, ExecutionConfig("cpu")).accuracy


def test_dropout_masks_differ_by_step_and_agree_within_one():
    drawn = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(16, 4)

        def forward(self, x):
            x = x.flatten(1)
            if self.training and len(x) == 10:
                drawn.append(dropout(torch.ones(16), 0.5))
            return self.out(x)

    learner = gmed.learners.ER(
        Spy(), lr=0.1, memory=gmed.memory.Reservoir(50), editing=gmed.editing.GMED(alpha=1.0, beta=0.1)
    )
    learner.observe(torch.rand(10, 16), torch.arange(10) % 4)
    first = drawn[0]
    for _ in range(2):
        drawn.clear()
        learner.observe(torch.rand(10, 16), torch.arange(10) % 4)
        assert len(drawn) == 3  # the look-ahead, then the edit before and after
        assert all(torch.equal(drawn[0], mask) for mask in drawn)
        assert not torch.equal(first, drawn[0])


@pytest.mark.slow
def test_experiment_files_and_the_command_line(nets):
    (nets.parent / "e.toml").write_text(
        'benchmark = "split-mnist"\nmethods = ["finetune"]\nseeds = 1\nmodel = "nets.py:small(width=8)"\n'
    )
    specs = Experiment.from_file(nets.parent / "e.toml").specs()
    words = ["run", "split-mnist", "finetune", "--model", "nets.py:small(width=8)", "--seeds", "1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "gmed.cli", *words, "--device", "cpu"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [run["benchmark"] for run in document["runs"]] == [specs[0].benchmark.name]
    assert document["summary"][0]["published"] is None
    nets.unlink()  # what is stored is shown without the model
    results, outdated = gmed.experiment.stored_results("gmed.db")
    assert (len(results.runs), outdated) == (1, 0)


def test_compatibility_check_uses_the_shape_of_the_data():
    class Tiny:
        x_train, y_train, num_classes = np.zeros((4, 5), dtype=np.float32), np.zeros(4, dtype=np.int64), 3

    with pytest.raises(UsageError, match="does not accept inputs"):
        check_model_compatible(get_benchmark("split-mnist"), Tiny)


# ---------------------------------------------------------------------- ONNX

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs gmed[onnx]",
)


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize(("make", "shape"), [(MLP, (1, 28, 28)), (ResNet18, (3, 32, 32))])
def test_onnx_predicts_what_the_learner_predicts(make, shape, tmp_path):
    import onnxruntime

    torch.manual_seed(0)
    learner = gmed.learners.ER(make(), lr=0.05, memory=gmed.memory.Reservoir(20))
    for _ in range(3):
        learner.observe(torch.rand(10, *shape), torch.arange(10))
    before = learner.state_dict()
    x = torch.rand(7, *shape)
    apart = export_onnx(learner.model, tmp_path / "model.onnx", x[:3])
    assert all(torch.equal(before[name], t) for name, t in learner.state_dict().items())
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(None, {"x": x.numpy()})
    assert torch.equal(torch.from_numpy(logits).argmax(1), learner.predict(x))
    assert np.abs(logits - learner.logits(x).numpy()).max() < 1e-4 > apart


@pytest.mark.slow
@needs_onnx
def test_inexact_onnx_export_is_refused(tmp_path, monkeypatch):
    from gmed.models import onnx_export

    x, path = torch.rand(3, 1, 28, 28), tmp_path / "model.onnx"
    real = onnx_export._export
    monkeypatch.setattr(onnx_export, "_export", lambda model, x: real(MLP(), x))  # of another model
    with pytest.raises(UsageError, match="onnxruntime's logits differ"):
        export_onnx(MLP(), path, x)
    assert not path.exists()
    with pytest.raises(InputError, match="at least two"):
        export_onnx(MLP(), path, x[:1])


def test_an_estimator_is_not_exported(monkeypatch, tmp_path):
    """It is told apart before anything else is asked for."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for model in (gmed.sklearn.GMEDClassifier(), gmed.sklearn.GMEDClassifier):
        with pytest.raises(InputError, match=r"such as learner\.model, not GMEDClassifier; an estimator cannot"):
            export_onnx(model, tmp_path / "model.onnx", np.zeros((3, 4)))


def test_missing_onnx_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"pip install 'gmed\[onnx\]'"):
        export_onnx(MLP(), tmp_path / "model.onnx", torch.rand(3, 1, 28, 28))
