"""Extensions: naming, running, storing, sending to workers and versioning of custom components."""

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gmed
from gmed import registry
from gmed.engine import ExecutionConfig, RunSpec, extensions, get_benchmark, resolve, run_one
from gmed.engine.checkpoint import Checkpoints
from gmed.engine.runner import Interrupted, run_group
from gmed.errors import UsageError
from gmed.io.user_code import read_user_module
from gmed.testing import CHECKS, check_method
from helpers import run_command

DOCS = Path(__file__).parents[2] / "docs"
SPLIT = get_benchmark("split-mnist")

pytestmark = pytest.mark.usefixtures("registry_restored")

FADE = '''
import gmed
from dataclasses import dataclass

@gmed.register("fade")
@dataclass(frozen=True)
class Fade(gmed.editing.Edit):
    """Stored examples fade."""
    share: float = 0.1

    def __post_init__(self):
        if self.share > 1:
            raise ValueError("nothing would be left")

    def edit(self, x_m, y_m, edit_count, context):
        return x_m * (1 - self.share)
'''


@pytest.fixture
def fade(tmp_path):
    path = tmp_path / "fade.py"
    path.write_text(FADE)
    assert gmed.load_extension(path) == ("fade",)
    return path


def command(*words, folder, **environment):
    return run_command(*words, folder=folder, environment=environment)


# ---------------------------------------------------------------------- names


def test_extension_is_named_like_builtin_components(fade):
    method = resolve(SPLIT, " er(memory=50) + fade ( share = 0 ) ")
    assert (method.name, method.baseline_name) == ("er(memory=50)+fade(share=0.0)", "er(memory=50)")
    assert resolve(SPLIT, "mir+fade(share=0.1)").name == "mir+fade"
    learner = method.make_learner(torch.nn.Linear(1, 2), seed=0)
    assert learner.editing.share == 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("er+fade(shaer=1)", "did you mean 'share'"),
        ("er+fade(share=true)", "takes a number"),
        ("er+fade(share=2.0)", "ValueError: nothing would be left"),
        ("fade", "er[+]fade"),
        ("er+gmed+fade", "only one edit, not both gmed and fade"),
        ("er+fede", "did you mean 'fade'.*--extension"),
        ("fadding", "--extension"),
        ("er+mir", "mir is a method and must come first"),
        ("finetune+fade", "takes no edit; these do: er,"),
    ],
)
def test_unknown_names_are_refused(fade, text, message):
    with pytest.raises(UsageError, match=message):
        resolve(SPLIT, text)


def test_memory_and_retrieval_extensions_replace_the_defaults(tmp_path):
    gmed.load_extension(_block("my_parts.py", tmp_path))
    method = resolve(SPLIT, "er+gmed+hardest+latest", memory=30)
    assert method.name == "er(memory=30)+latest+hardest+gmed"
    assert method.baseline_name == "er(memory=30)+latest+hardest"
    assert resolve(SPLIT, "er+latest").baseline_name == "er"
    learner = method.make_learner(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)), seed=0)
    for step in range(7):
        learner.observe(torch.rand(10, 1, 28, 28), torch.full((10,), step))
    assert sorted(learner.memory.stream_index.tolist()) == list(range(40, 70))
    keys = {RunSpec.make("split-mnist", name, 0).key for name in ("er", "er+latest", "er+hardest", "er+latest+hardest")}
    assert len(keys) == 4
    for text, message in [
        ("finetune+latest", "stores no examples"),
        ("mir+hardest", "takes no retrieval; these do: er, er-aug, er-t, gss, two-steps"),
        ("er-t+latest", "LossAwareReservoir"),
        ("latest", "is a memory"),
        ("er+latest(size=3)", "unknown parameter of latest"),
    ]:
        with pytest.raises(UsageError, match=message):
            resolve(SPLIT, text)


def test_invalid_retrieval_is_refused(tmp_path):
    bad = {
        "[0, 0]": "distinct slots",
        "[500]": "hold an example",
        "[0.5]": "int64",
        "list(range(20))": "1 to 10",
        "[]": "1 to",
    }
    for number, (returned, message) in enumerate(bad.items()):
        path = tmp_path / f"odd{number}.py"
        path.write_text(
            f"import gmed\n@gmed.register('odd{number}')\nclass Odd(gmed.retrieval.Retrieval):\n"
            f"    def retrieve(self, memory, count, ahead, rng):\n        return {returned}\n"
        )
        gmed.load_extension(path)
        learner = resolve(SPLIT, f"er+odd{number}").make_learner(gmed.models.MLP(), seed=0)
        x, y = torch.rand(20, 1, 28, 28), torch.arange(20) % 10
        learner.observe(x, y)
        before = learner.state_dict()
        with pytest.raises(UsageError, match=message):
            learner.observe(x, y)
        assert all(torch.equal(before[name], t) for name, t in learner.state_dict().items())


def test_an_edit_of_another_shape_is_refused(tmp_path):
    for number, returned in enumerate(("x_m[:1]", "x_m.double()", "None")):
        path = tmp_path / f"odd{number}.py"
        path.write_text(FADE.replace('"fade"', f'"odd{number}"').replace("x_m * (1 - self.share)", returned))
        gmed.load_extension(path)
        learner = resolve(SPLIT, f"er+odd{number}").make_learner(gmed.models.MLP(), seed=0)
        learner.observe(torch.rand(9, 1, 28, 28), torch.arange(9))
        with pytest.raises(UsageError, match=r"Fade\.edit must return a tensor like the examples"):
            learner.observe(torch.rand(9, 1, 28, 28), torch.arange(9))


# ---------------------------------------------------------------------- files that cannot be used

BAD_FILES = {
    "syntax": ("def f(:\n", "does not import: SyntaxError in line 1"),
    "name": ("import gmed\n\nclass A(gmed.Edit): pass\n", "does not import: AttributeError in line 3"),
    "import": ("import nowhere_to_be_found\n", "No module named 'nowhere_to_be_found'"),
    "exit": ("raise SystemExit(0)\n", "does not import: SystemExit"),
    "nothing": ("x = 1\n", "registers nothing; decorate a class with @gmed.register"),
    "taken": (FADE.replace('"fade"', '"gmed"'), "the name gmed is taken by this package"),
    "taken by a method": (FADE.replace('"fade"', '"mir"'), "the name mir is taken"),
    "odd name": (FADE.replace('"fade"', '"My Edit"'), "'My Edit' is not a valid name"),
    "twice": (FADE + FADE.replace("Fade", "Other"), "the name fade is taken by Fade in the same file"),
    "abstract": (FADE.replace("def edit", "def edits"), "Fade does not implement edit"),
    "no part": ("import gmed\n@gmed.register('f')\ndef f(): pass\n", "'f' must be a class derived from"),
    "options": (
        "import gmed\n@gmed.register('f')\nclass F(gmed.editing.Edit):\n    def __init__(self, **k): pass\n"
        "    def edit(self, x_m, y_m, edit_count, context): return x_m\n",
        r"takes \*\*k, which is not supported; list each parameter by name",
    ),
    "annotation": (
        FADE.replace("import gmed", "from __future__ import annotations\nimport gmed").replace("float", "floot"),
        "cannot read the signature",
    ),
    "no memory": ("import gmed\n@gmed.register('f')\nclass F(gmed.learners.ER): pass\n", "specify its class: register"),
    "a memory too many": (
        "import gmed\n@gmed.register('f', memory=gmed.memory.Reservoir)\nclass F(gmed.learners.BGD): pass\n",
        "takes no memory",
    ),
    "no capacity": (
        "import gmed\n@gmed.register('f')\nclass F(gmed.memory.Memory):\n    def __init__(self): pass\n"
        "    def select_slots(self, y, rng, **columns): pass\n",
        "must take capacity",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_unusable_extension_files_are_refused_without_side_effects(tmp_path, text, message):
    tables = registry.snapshot()
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(UsageError, match=message):
        gmed.load_extension(tmp_path / "bad.py")
    assert registry.snapshot() == tables


def test_missing_extension_files_are_reported(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere.py: no such file"):
        gmed.load_extension(tmp_path / "nowhere.py")
    with pytest.raises(UsageError, match=r"ends in .py"):
        gmed.load_extension(tmp_path)
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        gmed.load_extension(tmp_path / "bytes.py")


def test_name_registered_by_another_file_is_refused(fade, tmp_path):
    (tmp_path / "other.py").write_text(FADE + "\n# another file\n")
    with pytest.raises(UsageError, match=r"the name fade is taken by .*fade\.py"):
        gmed.load_extension(tmp_path / "other.py")


def test_the_source_must_be_readable():
    part = type("Part", (gmed.editing.GMED,), {"__module__": "a_notebook"})
    sys.modules["a_notebook"] = type(sys)("a_notebook")
    try:
        with pytest.raises(UsageError, match="move the definition to a separate file"):
            gmed.register("from-a-notebook")(part)
    finally:
        del sys.modules["a_notebook"]


# ---------------------------------------------------------------------- results


def test_key_follows_the_source_of_the_extension(fade, tmp_path):
    def key():
        gmed.load_extension(fade)
        return RunSpec.make("split-mnist", "er+fade", 0).key

    first = key()
    assert first == key()
    fade.write_text(FADE.replace("(1 - self.share)", "(1 - self.share / 2)"))
    assert key() != first
    fade.write_text(FADE.replace("class Fade", "class Renamed"))
    assert key() != first
    fade.write_text(FADE)
    assert key() == first
    assert RunSpec.make("split-mnist", "er", 0).versions() == {"engine": 1, "split-mnist": 1, "Learner": 1, "Memory": 1}


def test_reloaded_extension_may_change_its_kind(fade):
    fade.write_text(
        "import gmed\n@gmed.register('fade')\nclass Fade(gmed.memory.Memory):\n"
        "    def select_slots(self, y, rng, **columns):\n"
        "        return self.next_stream_indices(len(y)) % self.capacity\n"
    )
    gmed.load_extension(fade)
    method = resolve(SPLIT, "er+fade")
    assert method.edit is None
    assert method.memory.name == "fade"


def test_extension_error_names_file_and_line(fade):
    fade.write_text(FADE.replace("return", "nowhere\n        return", 1))
    gmed.load_extension(fade)
    line = fade.read_text().splitlines().index("        nowhere") + 1
    results = gmed.run("split-mnist", "er+fade", seeds=1, store=None, workers=0, device="cpu")
    assert (
        f"NameError: name 'nowhere' is not defined ({fade.name}:{line}, in "
        in results.failures[0].error.splitlines()[0]
    )


def test_reloading_removes_deleted_names(fade):
    fade.write_text(FADE.replace('"fade"', '"pale"'))
    assert gmed.load_extension(fade) == ("pale",)
    with pytest.raises(UsageError, match="unknown edit, memory or retrieval 'fade'"):
        resolve(SPLIT, "er+fade")


def test_worker_reloads_extensions_of_changing_clients(fade, tmp_path):
    """The file of one, then of another with the same name, then nobody's, then the first again."""
    first = read_user_module(fade)
    (tmp_path / "other.py").write_text(FADE.replace("1 - self", "1 + self"))
    other = read_user_module(tmp_path / "other.py")
    for sources in ((first,), (other,), (), (first,)):
        extensions.ensure_all_loaded(sources)
        if sources:
            assert registry.REGISTERED["fade"] == sources[0]
        assert RunSpec.make("split-mnist", "er+fade", 0)
    (tmp_path / "greedy.py").write_text(FADE.replace('"fade"', '"gmed"'))
    with pytest.raises(UsageError, match="the name gmed is taken"):
        extensions.ensure_all_loaded((read_user_module(tmp_path / "greedy.py"),))
    assert registry.REGISTERED["fade"] == first


def test_versions_include_the_files_of_base_classes(fade, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "basis_of_it.py").write_text(FADE.replace('@gmed.register("fade")', ""))
    (tmp_path / "heir.py").write_text(
        "import gmed\nfrom basis_of_it import Fade\n@gmed.register('heir')\nclass Heir(Fade): pass\n"
    )
    gmed.load_extension(tmp_path / "heir.py")
    try:
        versions = RunSpec.make("split-mnist", "er+heir", 0).versions()
        assert {"heir.py", "basis_of_it.py"} <= versions.keys()
    finally:
        del sys.modules["basis_of_it"]


@pytest.mark.slow
def test_extensions_run_in_workers_with_the_same_results(fade):
    here, there = (
        gmed.run("split-mnist", ["er+fade", "er"], seeds=1, store=None, device="cpu", workers=workers)
        for workers in (0, 1)
    )
    assert not there.failures, there.failures[0].error
    assert [run.accuracy for run in here.runs] == [run.accuracy for run in there.runs]
    assert here.runs[0].accuracy != here.runs[1].accuracy


@pytest.mark.slow
def test_stopped_run_with_extension_resumes_exactly(fade, tmp_path):
    spec = RunSpec.make("split-mnist", "er+fade", 3)
    kept = ExecutionConfig("cpu", checkpoints=Checkpoints(tmp_path / "unfinished", every=3600))
    reached = []
    with pytest.raises(Interrupted):
        run_group([spec], kept, lambda seen, total: reached.append(seen), lambda: reached[-1] > 2000)
    resumed = run_one(spec, kept)
    assert "resumed at example" in resumed.environment
    assert resumed.accuracy == run_one(spec, ExecutionConfig("cpu")).accuracy


@pytest.mark.slow
def test_extension_error_fails_only_its_run(tmp_path):
    (tmp_path / "bad.py").write_text(FADE.replace("x_m * (1 - self.share)", "undefined"))
    gmed.load_extension(tmp_path / "bad.py")
    results = gmed.run("split-mnist", ["er+fade", "finetune"], seeds=1, store=None, workers=1, device="cpu")
    assert [run.method for run in results.runs] == ["finetune"]
    assert "NameError: name 'undefined' is not defined" in results.failures[0].error


# ---------------------------------------------------------------------- promises


def test_check_method_reports_broken_contracts(tmp_path):
    broken = {
        "forgetful": ("x_m * (1 - self.share)", "x_m + 0.01 * torch.rand_like(x_m)", "two learners with the same seed"),
        "idle": ("x_m * (1 - self.share)", "x_m", "no stored example was edited"),
    }
    for name, (old, new, message) in broken.items():
        path = tmp_path / f"{name}.py"
        path.write_text("import torch\n" + FADE.replace('"fade"', f'"{name}"').replace(old, new))
        gmed.load_extension(path)
        with pytest.raises(AssertionError, match=f"er[+]{name}: .*{message}"):
            check_method(f"er+{name}")
    path = tmp_path / "hidden.py"
    path.write_text(
        "import gmed\nimport torch\n@gmed.register('hidden')\nclass Hidden(gmed.learners.FineTune):\n"
        "    momentum = 0.0\n    def step(self, x, y):\n        self.momentum += 0.1\n"
        "        super().step(x * (1 + self.momentum), y)\n"
    )
    gmed.load_extension(path)
    with pytest.raises(AssertionError, match="hidden: a learner, and one that was saved and loaded"):
        check_method("hidden")


WORDY = """
from dataclasses import dataclass
from typing import Literal
import gmed

@gmed.register("wordy")
@dataclass(frozen=True)
class Wordy(gmed.editing.Edit):
    norm: Literal["l1", "l2"] = "l1"
    note: str = "none yet"
    def edit(self, x_m, y_m, edit_count, context):
        return x_m
"""


def test_parameters_may_be_strings(tmp_path):
    (tmp_path / "wordy.py").write_text(WORDY)
    gmed.load_extension(tmp_path / "wordy.py")
    plain, quoted = (resolve(SPLIT, f"er+wordy(norm={word})") for word in ("l2", "'l2'"))
    assert plain == quoted
    assert (plain.name, plain.edit.parameters["norm"]) == ("er+wordy(norm=l2)", "l2")
    assert resolve(SPLIT, "er+wordy(norm=l1)").name == "er+wordy"
    for word in ("'none'", "'true'", "'False'"):
        assert repr(resolve(SPLIT, f"er+wordy(note={word})").edit.parameters["note"]) == word
    told = resolve(SPLIT, "er+wordy(note='two words')").name
    assert told == "er+wordy(note='two words')" and resolve(SPLIT, told).name == told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("er+wordy(norm=l3)", r"wordy\(norm=...\) takes l1 or l2, not l3"),
        ("er+wordy(norm=2)", r"takes l1 or l2, not 2"),
        ("er+wordy(note=3)", r"wordy\(note=...\) takes a string, not 3"),
        ("er+gmed(alpha=large)", r"gmed\(alpha=...\) takes a number, not large"),
        ("er+gmed(alpha=inf)", r"takes a number, not inf"),
        ("er(memory=many)", r"er\(memory=...\) takes an integer, not many"),
        ("er+gmed(alpha=2*3)", "cannot read"),
        ("er+gmed(alpha=2,alpha=3)", "gmed: alpha is given twice in"),
    ],
)
def test_bad_parameters_are_reported(tmp_path, text, message):
    (tmp_path / "wordy.py").write_text(WORDY)
    gmed.load_extension(tmp_path / "wordy.py")
    with pytest.raises(UsageError, match=message):
        resolve(SPLIT, text)


# ---------------------------------------------------------------------- the tutorial


def _blocks():
    return re.findall(r"^```python\n(.*?)^```", (DOCS / "own-method.md").read_text(), flags=re.M | re.S)


def _block(name, folder):
    (text,) = (block for block in _blocks() if block.startswith(f"# {name}\n"))
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.slow
def test_tutorial_runs_and_its_results_name_their_file(tmp_path):
    assert len(_blocks()[0].splitlines()) < 40
    _block("my_edit.py", tmp_path)
    done = command("run", "split-mnist", "er+sign-edit", "--seeds", "1", "--extension", "my_edit.py", folder=tmp_path)
    assert done.returncode == 0 and "sign-edit" in done.stdout, done.stderr
    outdated_note = command("table", folder=tmp_path)
    assert "1 stored result is left out" in outdated_note.stderr
    assert "--extension my_edit.py" in outdated_note.stderr


def test_tutorial_components_pass_the_contract_checks(tmp_path):
    gmed.load_extension(_block("my_parts.py", tmp_path))
    for check in CHECKS:
        for text in ("er+latest", "two-steps+hardest(candidates=15)+gmed"):
            check(text)
    assert resolve(SPLIT, "er+latest").make_learner(gmed.models.MLP(), 0).is_capturable()
    assert not resolve(SPLIT, "er+hardest").make_learner(gmed.models.MLP(), 0).is_capturable()


@pytest.mark.parametrize("name", ["my-er-ace", "my-derpp", "my-cls-er"])
def test_tutorial_methods_pass_the_contract_checks(tmp_path, name):
    path = _block("my_methods.py", tmp_path)
    assert all(len(part.splitlines()) < 50 for part in path.read_text().split("@gmed.register"))
    gmed.load_extension(path)
    for check in CHECKS:
        check(name)
        check(f"{name}+gmed")


# ---------------------------------------------------------------------- the command line and other processes


@pytest.mark.slow
def test_command_line_keeps_old_and_new_results(tmp_path):
    (tmp_path / "fade.py").write_text("print('hello')\n" + FADE)
    words = ["run", "split-mnist", "er+fade", "--seeds", "1", "--extension", "fade.py", "--json", "--device", "cpu"]
    done = command(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{")  # what the file prints is not among it
    assert "1 run already in the store" in command(*words, folder=tmp_path).stderr
    (tmp_path / "fade.py").write_text(FADE.replace("1 - self", "1 + self"))
    assert command(*words, folder=tmp_path).returncode == 0
    with sqlite3.connect(tmp_path / "gmed.db") as store:
        assert store.execute("SELECT count(*), count(DISTINCT final_accuracy) FROM runs").fetchone() == (2, 2)
    (tmp_path / "e.toml").write_text(
        'benchmark = "split-mnist"\nmethods = ["er+fade"]\nseeds = 1\nextensions = ["fade.py"]\n'
    )
    assert "1 run already in the store" in command("run", "e.toml", folder=tmp_path).stderr
    bad = command("run", "split-mnist", "er", "--extension", "nowhere.py", folder=tmp_path)
    assert (bad.returncode, bad.stderr) == (2, "gmed: nowhere.py: no such file\n")


@pytest.mark.slow
def test_installed_package_registers_by_entry_point(tmp_path):
    about = tmp_path / "faders-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: faders\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[gmed.extensions]\nfade = faders.edits\nbroken = nowhere_at_all\n")
    (tmp_path / "faders").mkdir()
    (tmp_path / "faders" / "__init__.py").write_text("")
    (tmp_path / "faders" / "edits.py").write_text("from .names import NAME\n" + FADE.replace('"fade"', "NAME"))
    (tmp_path / "faders" / "names.py").write_text("NAME = 'fade'\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    words = ["run", "split-mnist", "er+fade", "--seeds", "1", "--workers", "1", "--device", "cpu"]
    done = command(*words, folder=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "er+fade" in done.stdout
    assert "faders extends gmed, but the module nowhere_at_all does not import" in done.stderr
    assert "...+fade" in command("list", folder=tmp_path, PYTHONPATH=path).stdout


@pytest.mark.slow
def test_components_defined_in_the_main_script(tmp_path):
    script = (
        FADE + "\nr = gmed.run('split-mnist', 'er+fade', seeds=1, store=None, device='cpu', {})\nprint(len(r.runs))"
    )
    (tmp_path / "mine.py").write_text(script.format(""))
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "1\n", done.stderr
    (tmp_path / "mine.py").write_text(script.format("workers=2"))
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "move that code to a separate file and load it; or use workers=0" in done.stderr
