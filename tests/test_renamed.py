"""Deprecated names work, warn with the new ones, and are documented."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import gmed
from gmed.deprecated import MOVED, RENAMED
from gmed.learners import MIR, CompCL
from gmed.memory import Reservoir
from gmed.models import MLP
from gmed.results import Results

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_page_of_deprecated_names_is_up_to_date():
    """In a process of its own: the tests declare old names too."""
    code = "import runpy; print(runpy.run_path('tools/renamed.py')['page'](), end='')"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == (ROOT / "docs" / "renamed.md").read_text(encoding="utf-8"), "run: python tools/renamed.py"


@pytest.mark.parametrize("old", MOVED)
def test_modules_are_importable_by_deprecated_names(old):
    if MOVED[old].endswith((".worker", ".triton_kernels", "_autograd")):
        pytest.importorskip("triton")
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}"):
        assert importlib.import_module(old) is importlib.import_module(MOVED[old])


@pytest.mark.parametrize(("module", "old"), [(module, old) for module in RENAMED for old in RENAMED[module]])
def test_functions_and_classes_are_available_by_deprecated_names(module, old):
    new = RENAMED[module][old]
    vars(importlib.import_module(module)).pop(old, None)  # a module of that name, imported by another test
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is now {module}.{new}"):
        assert getattr(importlib.import_module(module), old) is getattr(importlib.import_module(module), new)


def test_parameters_are_accepted_by_deprecated_names():
    with pytest.warns(DeprecationWarning, match="subsample"):
        learner = MIR(MLP(), lr=0.1, memory=Reservoir(10), candidates=7)
    with pytest.warns(DeprecationWarning, match="subsample"):
        assert learner.candidates == learner.subsample == 7
    with pytest.warns(DeprecationWarning, match="task_at_test"):
        assert CompCL(MLP(), told=True).task_at_test
    with pytest.warns(DeprecationWarning, match="baseline"):
        results = Results(over="er")
    with pytest.warns(DeprecationWarning, match="baseline"):
        assert results.over == results.baseline == "er"


def test_method_names_accept_deprecated_parameters():
    resolve, benchmark = gmed.engine.resolve, gmed.engine.get_benchmark("split-mnist")
    assert resolve(benchmark, "mir(candidates=20)").name == "mir(subsample=20)"
    assert (
        resolve(benchmark, "prog-nn(told=true)").config() == resolve(benchmark, "prog-nn(task_at_test=true)").config()
    )
