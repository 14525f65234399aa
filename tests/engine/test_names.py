"""Names read from stores, results, checkpoints and experiment files execute no code."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import gmed
from gmed.cli.app import app
from gmed.data.custom import CustomDataRef, load_custom
from gmed.engine import (
    BENCHMARKS,
    EDITS,
    METHODS,
    ExecutionConfig,
    RunResult,
    RunSpec,
    extensions,
    get_benchmark,
    resolve,
)
from gmed.engine.checkpoint import Checkpoints
from gmed.engine.custom_model import ModelRef
from gmed.engine.executors.protocol import Job
from gmed.errors import DataError, GmedError, UsageError
from gmed.experiment import Experiment, stored_results
from gmed.io.records import decode, encode
from gmed.io.state import write_state
from gmed.io.user_code import digest
from gmed.paper.probes import edit_history
from gmed.report import collect, watch_edits
from gmed.report.tables import csv_table, latex_table, markdown_tables
from gmed.results import Results, Store
from gmed.results.export import Document
from gmed.results.formatting import to_cli_args
from gmed.results.store import current_spec
from helpers import fuzzed


def of_source(module):
    return digest(Path(module.__file__).read_text(encoding="utf-8"))


def forged(mark):
    """Names whose digests are right, of what makes no model and leaves a mark when it is imported or called."""
    touch = f"touch {mark}"
    leave_mark = f"open({str(mark)!r}, 'w').close()"
    Path("evil.py").write_text(f"{leave_mark}\ndef net(): {leave_mark}\n", encoding="utf-8")
    models = [
        f"os:system(command='{touch}'),{of_source(os)}",
        f"os:path.os.system(command='{touch}'),{of_source(os)}",
        f"subprocess:getoutput(cmd='{touch}'),{of_source(subprocess)}",
        f"gmed.experiment:Path({str(mark)!r}).touch(),{of_source(gmed.experiment)}",
        f"gmed.experiment:default_store.__globals__(x={str(mark)!r}),{of_source(gmed.experiment)}",
        f"evil.py:net,{digest(Path('evil.py').read_text(encoding='utf-8'))}",
        f"evil:net,{digest(Path('evil.py').read_text(encoding='utf-8'))}",
    ]
    return [f"split-mnist[model={model}]" for model in models]


def results_of(benchmarks):
    made = [RunResult(name, "er+gmed", 0, [[0.5, 0.5]], 0.5, 0.5, 7, {"train": 1.0}, {}) for name in benchmarks]
    return Results(made)


def in_a_process(*words):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", *sys.path])}
    command = [sys.executable, "-m", "gmed.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def extended():
    """What a test registers is forgotten after it."""
    with suppress(KeyError), extensions._all_or_nothing():
        yield
        raise KeyError


@pytest.mark.slow
def test_results_document_executes_no_code(here):
    """It is merged and shown in every way there is, by processes that have just begun."""
    mark = here / "mark"
    results = results_of(forged(mark))
    Path("x.json").write_text(json.dumps(results.to_dict()), encoding="utf-8")
    merged = in_a_process("merge", "x.json", "--store", "s.db")
    assert merged.returncode == 0, merged.stderr
    made = in_a_process("report", "--gallery", "--store", "s.db")
    assert made.returncode == 0, made.stderr
    assert made.stderr.count("could not be rerun") == len(results.runs)
    assert not mark.exists()
    for words in (
        ("runs", "--store", "s.db"),
        ("runs", "--store", "s.db", "--json"),
        ("table", "--store", "s.db"),
        ("table", "--metrics", "--store", "s.db"),
        ("table", results.runs[0].benchmark, "er", "--store", "s.db"),
        ("table", "--baseline", "er+gmed", "--json", "--store", "s.db"),
        ("export", "again.json", "--store", "s.db"),
        ("doctor", "--store", "s.db"),
        ("report", "--format", "csv", "--store", "s.db"),
        ("run", results.runs[0].benchmark, "er", "--seeds", "1", "--store", "s.db"),
        ("bench", results.runs[0].benchmark, "er"),
        ("tune", results.runs[0].benchmark, "er+gmed", "--store", "s.db"),
    ):
        with suppress(UsageError):
            CliRunner().invoke(app, words)
        assert not mark.exists(), words


def test_foreign_store_executes_no_code(here):
    mark = here / "mark"
    with Store("theirs.db") as theirs:
        for run in results_of(forged(mark)).runs:
            theirs.add(RunSpec.make(run.benchmark, run.method, run.seed), run)
    with Store("ours.db") as ours, Store("theirs.db") as theirs:
        assert ours.merge(theirs).added == 7
    results, outdated = stored_results("ours.db")
    assert (len(results.runs), outdated) == (7, 0)
    assert len(watch_edits(results, "ours.db")) == 7
    collect(results, outdated, "ours.db")
    for table in (csv_table, latex_table, markdown_tables):
        table(results)
    with Document.read(written(results)).load_results() as again:
        assert len(again.runs()) == 7
    assert not mark.exists()


def written(results):
    Path("document.json").write_text(json.dumps(results.to_dict()), encoding="utf-8")
    return Path("document.json")


def test_checkpoint_executes_no_code(here):
    mark = here / "mark"
    Store("s.db").close()
    folder = Checkpoints(Path("s.db.unfinished"), 1.0).folder
    folder.mkdir()
    for number, name in enumerate(forged(mark)):
        labels = {"run": "0" * 32, "benchmark": name, "method": "er+gmed", "progress": "{}"}
        write_state(folder / f"{number}.safetensors", {"steps": torch.tensor(1)}, labels)
    shown = CliRunner().invoke(app, ["runs", "--store", "s.db"])
    assert "os:system" in shown.output.replace("\n", "")
    assert not mark.exists()


# ---------------------------------------------------------------------- models in experiment files

PACKAGE = {
    "__init__.py": "from mynets_of_a_test.inside import said, unsaid\nfrom os import system\nimport os\n",
    "inside.py": """
from __future__ import annotations
from torch import nn

def said(classes=10) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))

def unsaid():
    return said()

def wrong() -> int:
    return said()

class Nets:
    @classmethod
    def small(cls) -> nn.Module:
        return said()
""",
    "__main__.py": "open('mark', 'w').close()\n",
}


@pytest.fixture
def package(here, monkeypatch):
    folder = here / "mynets_of_a_test"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(here)
    yield folder
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("os:system(command='touch mark')", "os is in Python's standard library"),
        ("subprocess:run(args=['touch','mark'])", "subprocess is in Python's standard library"),
        ("antigravity:fly", "antigravity is in Python's standard library"),
        ("builtins:exec(source='open(1)')", "builtins is in Python's standard library"),
        ("__main__:run", "not the name of an importable module"),
        ("mynets_of_a_test.__main__:net", "not the name of an importable module"),
        ("../net:small", "not the name of an importable module"),
        ("nets.py:system(command='touch mark')", "neither a function nor a class derived from torch.nn.Module"),
        ("nets.py:getoutput(cmd='touch mark')", "getoutput is defined in subprocess, not in nets.py"),
        ("nets.py:Path", "neither a function nor a class derived from torch.nn.Module"),
        ("nets.py:os.system(command='touch mark')", "no function or class os.system"),
        ("nets.py:small.__globals__", "no function or class"),
        ("nets.py:__import__(name='this')", "no function or class"),
        ("mynets_of_a_test:system(command='touch mark')", "neither a function nor a class"),
        ("mynets_of_a_test:os.system(command='touch mark')", "no function or class os.system"),
        ("mynets_of_a_test:unsaid", "must be annotated as returning a model"),
        ("mynets_of_a_test.inside:wrong", "must be annotated as returning a model"),
        ("torch.hub:load(repo_or_dir='a/b',model='c')", "a function of torch"),
        ("torch:load(f='weights.pt',weights_only=false)", "a function of torch"),
        (
            "torch.fx.graph_module:reduce_graph_module("
            r"body={'_code':'def forward(self, x): return x'},import_block='open(\"mark\",\"w\")\n')",
            "a function of torch",
        ),
        ("gmed.cli:main", "must be annotated as returning a model"),
    ],
)
def test_experiment_file_may_name_only_a_model(package, model, message):
    Path("nets.py").write_text(
        "import os\nfrom os import system\nfrom pathlib import Path\nfrom subprocess import getoutput\n"
        "def small(): ...\n",
        encoding="utf-8",
    )
    Path("e.toml").write_text(
        f'benchmark = "split-mnist"\nmethods = ["er"]\nseeds = 1\nmodel = {json.dumps(model)}\n', encoding="utf-8"
    )
    with pytest.raises(UsageError, match=message):
        Experiment.from_file(Path("e.toml")).run()
    assert not Path("mark").exists()


@pytest.mark.parametrize(
    "model",
    [
        "mynets_of_a_test:said(classes=10)",
        "mynets_of_a_test.inside:Nets.small",
        "nets.py:small",
        "nets.py:Nets.small",
        "nets.py:Own",
        "nets.py:Linear(in_features=3,out_features=10)",
        "torch.nn:Linear(in_features=3,out_features=10)",
        "gmed.models:MLP(hidden=8)",
    ],
)
def test_model_factories_are_found(package, model):
    Path("nets.py").write_text(
        "from torch import nn\nfrom torch.nn import Linear\ndef small(): return nn.Linear(784, 10)\n"
        "class Own(nn.Linear):\n    def __init__(self): super().__init__(784, 10)\n"
        "class Nets:\n    @staticmethod\n    def small(): return Own()\n",
        encoding="utf-8",
    )
    assert isinstance(ModelRef.from_user(model)(), nn.Module)


@pytest.mark.slow
def test_experiment_file_runs_in_a_subprocess(here):
    Path("e.toml").write_text(
        'benchmark = "split-mnist"\nmethods = ["er"]\nseeds = 1\nmodel = "os:system(command=\'touch mark\')"\n',
        encoding="utf-8",
    )
    done = in_a_process("run", "e.toml")
    assert done.returncode != 0
    assert "is in Python's standard library" in done.stderr
    assert not Path("mark").exists()


# ---------------------------------------------------------------------- what was given, and to whom


def test_only_the_given_model_is_built(here):
    Path("nets.py").write_text(
        "from torch import nn\ndef small(width=8): return nn.Linear(width, 10)\n"
        "def other(): open('mark', 'w').close()\n",
        encoding="utf-8",
    )
    model = ModelRef.from_user("nets.py:small")
    assert get_benchmark(model.qualify("split-mnist")).make_model().in_features == 8
    for reference in ("nets.py:other", "nets.py:small(width=9)", "nets:small", "nn.Linear"):
        forged_name = ModelRef(reference, model.digest).qualify("split-mnist")
        with pytest.raises(UsageError, match="is not loaded; pass it again"):
            get_benchmark(forged_name).make_model()
    assert not Path("mark").exists()


def test_worker_builds_only_the_model_it_was_sent(here, monkeypatch):
    Path("nets.py").write_text("from torch import nn\ndef small(): return nn.Linear(8, 10)\n", encoding="utf-8")
    model = ModelRef.from_user("nets.py:small")
    job = json.dumps(encode(Job.of([RunSpec.make(model.qualify("split-mnist"), "er", 0)], ExecutionConfig())))
    monkeypatch.setattr("gmed.engine.custom_model._FACTORIES", {})
    (spec,) = decode(Job, json.loads(job) | {"model": None}).specs()
    with pytest.raises(UsageError, match="is not loaded"):
        spec.benchmark.make_model()
    (spec,) = decode(Job, json.loads(job)).specs()
    assert spec.benchmark.make_model().in_features == 8


@pytest.mark.slow
def test_gallery_builds_the_given_model(here):
    Path("net.py").write_text(
        "from torch import nn\ndef small(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n", encoding="utf-8"
    )
    name = ModelRef("net.py:small", digest(Path("net.py").read_text(encoding="utf-8"))).qualify("split-mnist")
    with Store("s.db") as store:
        run = results_of([name]).runs[0]
        store.add(RunSpec.make(name, "er+gmed", 0), run)
    results, _ = stored_results("s.db")
    (error,) = watch_edits(results, "s.db").values()
    assert "if you trust it: --model net.py:small" in str(error)
    said = in_a_process("report", "--gallery", "--model", "net.py:small", "--device", "cpu", "--store", "s.db")
    assert said.returncode == 0, said.stderr
    assert "could not be rerun" not in said.stderr
    with Store("s.db") as store:
        assert store.keys("edits-1")


# ---------------------------------------------------------------------- what a name can ask for

OWN = "iris.csv[label=kind,by-class,2 tasks,4->3,0123456789ab]"


@pytest.mark.parametrize(
    ("benchmark", "method"),
    [
        ("split-mnist", "iid-offline(passes=999999999)"),
        ("split-mnist", "iid-online(passes=999999999999999999999999)"),
        ("split-mnist", "er-expanded(tasks=999999999)"),
        ("split-mnist", "gem(memory=99999999999,tasks=1000)"),
        ("split-mnist", "er(memory=99999999999999)"),
        ("split-mnist", "er(memory=0x" + "f" * 9_000 + ")"),
        ("split-mnist", "er(updates_per_batch=999999999)+gmed(steps=999999999,extra=999999999)"),
        ("split-mnist", "er+gmed(clamp=" + "[" * 9_000 + ")"),
        ("split-mnist", "er+gmed(clamp={1,2})"),
        ("split-mnist", "er+gmed(clamp=b'a')"),
        ("split-mnist", "er+gmed(clamp={1:2,'a':3})"),
        ("split-mnist", "er(" * 1_000_000),
        ("split-mnist", "+er(" * 3_000),
        ("split-mnist", "er(lr=\ud800)"),
        ("split-mnist" + "[model=a:b,0123456789ab]" * 3_000, "er"),
        ("x" * 10_000_000, "er"),
        ("\ud800", "er"),
        ("a\0.csv" + OWN[8:], "er"),
        (OWN.replace("4->", "9" * 5_000 + "->"), "er"),
        (OWN.replace("4->", "x".join(["9"] * 5_000) + "->"), "er"),
        (OWN.replace("2 tasks", "9" * 5_000 + " tasks"), "er"),
        ("[" * 200 + "label=a,drop=b," * 3_000 + "by-columns" * 1_000 + ",x,2 tasks,4->3,0123456789ab]", "er"),
        ("[label=" * 5_000 + ",drop=b" * 5_000 + ",by-colum=" * 2_000 + ",2 tasks,4->3,0123456789ab]", "er"),
    ],
    ids=range(23),
)
def test_excessive_sizes_in_names_are_refused_quickly(benchmark, method):
    began = time.perf_counter()
    assert current_spec(benchmark, method, 0) is None
    assert time.perf_counter() - began < 1


def test_largest_sensible_parameters_are_accepted(monkeypatch):
    names = ["iid-offline(passes=1000)", "er(memory=100000000)", "cn-dpm(generator_steps=100000)"]
    assert [resolve(get_benchmark("split-mnist"), name).name for name in names] == names


def test_parsing_names_builds_no_objects(here, extended, monkeypatch):
    def refused(*args, **named):
        raise AssertionError("something was made")

    Path("fading.py").write_text(
        "import gmed\nfrom dataclasses import dataclass\n@gmed.register('fading-of-a-test')\n@dataclass(frozen=True)\n"
        "class Fading(gmed.editing.Edit):\n    where: str = ''\n"
        "    def __post_init__(self): open(self.where or 'mark', 'w').close()\n"
        "    def edit(self, x_m, y_m, edit_count, context): return x_m\n",
        encoding="utf-8",
    )
    gmed.load_extension("fading.py")
    monkeypatch.setattr(nn.Module, "__init__", refused)
    monkeypatch.setattr("gmed.engine.methods.Method.make_learner", refused)
    for method in METHODS:
        for edit in ("", "+gmed", "+fading-of-a-test(where='mark')"):
            for benchmark in ("split-mnist", OWN):
                spec = current_spec(benchmark, method + edit, 0)
                assert spec is None or spec.key
    assert not Path("mark").exists()


def test_stored_text_parameters_are_not_passed_to_extensions(here, extended):
    Path("keeping.py").write_text(
        "import gmed\n@gmed.register('keeping-of-a-test')\nclass Keeping(gmed.memory.Reservoir):\n"
        "    def __init__(self, capacity, *, folder: str = ''):\n"
        "        super().__init__(capacity)\n        if folder == 'mark': open('mark', 'w').close()\n",
        encoding="utf-8",
    )
    gmed.load_extension("keeping.py")
    spec = RunSpec.parse("split-mnist", "er+keeping-of-a-test(folder='mark')+gmed", 0)
    run = RunResult("split-mnist", spec.method.name, 0, [[0.5]], 0.5, 0.5, 7, {"train": 1.0}, {})
    with Store("s.db") as store:
        store.add(spec, run)
    (error,) = watch_edits(stored_results("s.db")[0], "s.db").values()
    assert "custom methods with string parameters can only be run by gmed run" in str(error)
    assert not Path("mark").exists()


def test_edit_history_refuses_memory_larger_than_the_stream():
    spec = RunSpec.parse("split-mnist", "er(memory=99999999)+gmed", 0)
    with pytest.raises(UsageError, match="must not be larger than the stream, which has 5000 examples"):
        edit_history(spec)


# ---------------------------------------------------------------------- data of one's own

IRIS = "a,b,kind\n" + "".join(f"{i},{i * 7 % 5},{'xyz'[i % 3]}\n" for i in range(30))


@pytest.mark.parametrize(
    "file", ["../iris.csv", "/etc/passwd", "..", ".", "a/../iris.csv", r"..\iris.csv", "x" * 300 + ".csv"]
)
def test_data_name_cannot_point_outside_the_folder(file):
    assert CustomDataRef.parse(f"{file}[by-class,2 tasks,4->3,0123456789ab]") is None


def test_report_opens_only_the_named_data(here, monkeypatch):
    Path("iris.csv").write_text(IRIS, encoding="utf-8")
    own = CustomDataRef.from_path(here / "iris.csv", "kind", "none")
    assert own.class_names(here) == ("x", "y", "z")
    read = []
    monkeypatch.setattr("gmed.data.custom.load_custom", lambda *how: read.append(how) or load_custom(*how))
    other = CustomDataRef.parse(own.name.replace(own.digest, "0123456789ab"))
    assert other.class_names(here) == ()  # its bytes are others, which are not looked into further
    assert not read
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe.csv")
        waits = CustomDataRef.parse(own.name.replace("iris", "pipe"))
        assert waits.class_names(here) == ()
        with pytest.raises(DataError, match="neither a regular file nor a folder"):
            waits.load(here)


def test_wrong_data_size_in_a_name_is_refused_before_building_a_model(here, monkeypatch):
    Path("iris.csv").write_text(IRIS, encoding="utf-8")
    own = CustomDataRef.from_path(here / "iris.csv", "kind", "none")

    def refused(*args, **named):
        raise AssertionError("a model was made")

    monkeypatch.setattr(nn.Module, "__init__", refused)
    for said in ("999999999->3", "2->999999999"):
        lies = own.name.replace("2->3", said)
        assert lies != own.name
        with pytest.raises(DataError, match="are not those of the data"):
            edit_history(RunSpec.parse(lies, "er+gmed", 0), data_dir=here)


def test_file_named_like_an_option_is_quoted_as_a_path():
    typed = to_cli_args("--extension=evil.py[none,1 tasks,4->3,0123456789ab]", "er")
    assert typed[0] == "./--extension=evil.py"


@fuzzed(300, HealthCheck.function_scoped_fixture)
@given(
    st.from_regex(r"[a-z_][a-z0-9 ;=\-\[\]]{0,12}", fullmatch=True),
    st.none() | st.text(st.sampled_from("ab ,;=[]"), min_size=1, max_size=6),
    st.lists(st.text(st.sampled_from("ab =[]"), min_size=1, max_size=4), max_size=3, unique=True),
    st.sampled_from(["by-class", "by-class=5", "by-time=4", "by-column=a", "by-column=a,b", "none"]),
    st.none() | st.text(st.sampled_from("ab ,=[]"), min_size=1, max_size=6),
)
def test_whatever_data_are_called_their_name_says_or_is_refused(file, label, drop, split, title):
    """It is read back as it was, or as something else that is called the same, which data are never given."""
    own = CustomDataRef(file, label, split, 2, (3, 8, 8), 4, "0123456789ab", tuple(drop), title)
    found = CustomDataRef.parse(own.name)
    assert found is None or found.name == own.name
    plain = not {",", "[", "]", "="} & set("".join([file, label or "", *drop]))
    plain = plain and (title is None or (title == title.strip() and not {",", "[", "]", "="} & set(title)))
    assert found == own or not plain


words = st.sampled_from(
    [
        *METHODS, *EDITS, *BENCHMARKS, *"+()[],=.:'\"-_/\\{}", "[model=", ",0123456789ab]",
        "os:system(command='touch mark')", "memory=", "passes=", "tasks=", "steps=", "alpha=", "clamp=",
        "99999999999", "1e999", "true", "none", "[0,1]", "__import__", "lambda:0", "iris.csv[", "label=kind,",
        "by-class", "by-column=", ",2 tasks", ",4->3", "9" * 500, "\n", "\0",
    ]
)  # fmt: skip
names = st.lists(words | st.text(max_size=3), max_size=12).map("".join)


@fuzzed(300, HealthCheck.function_scoped_fixture)
@example("split-mnist", "iid-offline(passes=99999999)")
@example("split-mnist[model=os:system(command='touch mark'),0123456789ab]", "er")
@given(names | st.sampled_from(["split-mnist", OWN]), names)
def test_whatever_a_name_says_it_is_read_or_refused_at_once_and_nothing_is_made(benchmark, method):
    def refused(*args, **named):
        raise AssertionError("something was made")

    began = time.perf_counter()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nn.Module, "__init__", refused)
        patched.setattr("gmed.engine.methods.Method.make_learner", refused)
        patched.setattr("gmed.io.user_code.import_module", refused)
        patched.setattr("gmed.engine.methods.load_entry_points", lambda: None)
        try:
            spec = RunSpec.parse(benchmark, method, 0)
        except GmedError as error:
            assert len(str(error)) < 30_000
        else:
            assert len(spec.key) == 32
            assert RunSpec.parse(benchmark, spec.method.name, 0).key == spec.key
    assert time.perf_counter() - began < 1
    assert not Path("mark").exists()
