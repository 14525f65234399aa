"""The package tree and the walk of a batch are as docs/architecture.md lists them."""

import re
import sys
from pathlib import Path

import gmed
from gmed.cli.app import app
from gmed.learners import Learner

ROOT = Path(gmed.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
STEP = 30  # by then memory holds examples, and nothing is done for the first time


def location(frame):
    """The file of this package that a frame is in, and its function; None for frames of others and for expressions."""
    path, function = Path(frame.f_code.co_filename), frame.f_code.co_qualname
    if ROOT not in path.parents or frame.f_code.co_name.startswith("<"):
        return None
    name = function.partition(".<locals>")[0]
    return path.relative_to(ROOT).as_posix(), re.sub(r"\.__\w+__$", "", name)


def callers(frame):
    """The places that led to a frame, the nearest first."""
    while frame is not None:
        if (found := location(frame)) is not None:
            yield found
        frame = frame.f_back


def walk(monkeypatch, *words):
    """The functions that are entered from another file on the way of one batch to memory, by file, in their order."""
    entered, original = {}, Learner.update

    def enter(called, caller):
        if called[0] != caller[0]:
            functions = entered.setdefault(called[0], [])
            if called[1] not in functions:
                functions.append(called[1])

    def profile(frame, event, arg):
        if event == "call" and (called := location(frame)) is not None:
            enter(called, next(callers(frame.f_back)))

    def update(learner, *batch):
        if learner.steps == STEP - 1:
            way = list(callers(sys._getframe(1)))[::-1]
            way = way[way.index(("cli/run.py", "run")) :]
            for called, caller in zip(way, [("", ""), *way], strict=False):
                enter(called, caller)
        done = original(learner, *batch)
        sys.setprofile(profile if learner.steps == STEP else None)  # from the end of a step to that of the next
        return done

    monkeypatch.setattr(Learner, "update", update)
    assert app(["run", *words], standalone_mode=False) == 0
    return entered


def documented():
    """The same as the page has it."""
    section = PAGE.read_text(encoding="utf-8").partition("## The walk of a batch\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (.*) \|$", section, flags=re.M)
    return {file: re.findall(r"`([\w.]+)`", functions) for file, functions in rows}


def test_documented_tree_equals_the_package():
    tree = PAGE.read_text(encoding="utf-8").partition("src/gmed/\n")[2].partition("```")[0]
    names = {name.strip("/") for line in tree.splitlines() for name in line.strip().partition("   ")[0].split()}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert names == packages | {path.stem for path in ROOT.glob("*.py") if not path.stem.startswith("_")}


def test_documented_walk_of_a_batch_equals_the_traced_one(monkeypatch, tmp_path):
    words = ("split-mnist", "er+gmed", "--seeds", "1", "--workers", "0", "--device", "cpu")
    try:
        found = walk(monkeypatch, *words, "--store", str(tmp_path / "store.db"))
    finally:
        sys.setprofile(None)
    rows = [f"| `{file}` | {', '.join(f'`{name}`' for name in functions)} |" for file, functions in found.items()]
    assert found == documented(), "\n".join([f"the table is to be, in {PAGE.name}:", *rows])
    count = f"{sum(map(len, found.values()))} functions in {len(found)} files"
    assert count in PAGE.read_text(encoding="utf-8"), count
