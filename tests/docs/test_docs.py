"""What the documentation shows, run as a reader would run it.

Every ``python`` and ``console`` block of every page is run, in order, in one folder for each page, with seed 0 alone
and one store for all of them. A block that is not run says so in its first line: ``# not run by the tests: why``. Its
commands are still checked to exist, with their options.
"""

import csv
import importlib
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import webbrowser
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import gmed
from gmed.cli.app import EXAMPLES, app
from gmed.engine import extensions

ROOT = Path(__file__).parents[2]
NOT_RUN = "# not run by the tests: "
ELSEWHERE = {"docs/avalanche.md"}  # run by test_avalanche.py, where Avalanche can be imported
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
}
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
CLASSIFIER = PAGES["docs/classifier.md"]
pytestmark = pytest.mark.docs
needs_benchmarks = pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="needs a checkout: benchmarks")


def blocks(page):
    return BLOCK.findall(PAGES[page])


def is_run(kind, code):
    return kind in ("python", "console") and not code.startswith(NOT_RUN)


def commands(code):
    """The command lines of a block, as words, without comments."""
    return [words for line in code.splitlines() if (words := shlex.split(line, comments=True))]


# ---------------------------------------------------------------------- what pages expect to find


def write_trees(path, seed, month=False):
    rng = np.random.default_rng(seed)
    kinds = rng.integers(3, size=150)
    lines = ["id,height,girth,leaves,kind"] if not month else ["month,height,girth,leaves,kind"]
    for number, kind in enumerate(kinds.tolist()):
        height, girth, leaves = rng.normal([10 + 5 * kind, 1, 1000 * kind], [1, 0.1, 300])
        first = number // 50 if month else f"t{number}"
        lines.append(f"{first},{height:.2f},{girth:.3f},{leaves:.0f},{('oak', 'elm', 'fir')[kind]}")
    path.write_text("\n".join(lines) + "\n")


def prepare(page):
    """Files in the current folder, and names."""
    if page == "docs/classifier.md":
        for seed, name in enumerate(("trees", "new", "more")):
            write_trees(Path(f"{name}.csv"), seed)
    if page == "docs/data.md":
        write_trees(Path("rows.csv"), 0, month=True)
    if page == "docs/results.md":
        gmed.run("split-mnist", ["er", "er+gmed"], seeds=1, workers=1)
    if page == "README.md":
        x, y = torch.rand(10, 1, 28, 28), torch.arange(10)
        model = gmed.models.MLP()
        return {"model": model, "x_mem": x, "y_mem": y, "x_stream": x, "y_stream": y}
    return {}


# ---------------------------------------------------------------------- running them


def run_python(code, names, page, folder):
    if name := re.match(r"# (\w+\.py)\n", code):
        (folder / name[1]).write_text(code, encoding="utf-8")
        return
    exec(compile(re.sub(r"\bseeds=\d+", "seeds=1", code), page, "exec"), names)


def run_command(words):
    program, *arguments = words
    if program != "gmed":
        check_command(words)
        return
    if "--seeds" in arguments:
        arguments[arguments.index("--seeds") + 1] = "1"
    found = CliRunner().invoke(app, [*arguments, *(["--workers", "1"] if arguments[0] == "run" else [])])
    assert found.exit_code == 0, (words, found.output, found.exception)


@cache
def known_options():
    """The options of every command, ``data fetch`` and the like included."""
    found = {}

    def visit(command, name):
        found[name] = {option for part in command.params for option in getattr(part, "opts", ())} | {"--help"}
        for inner, each in getattr(command, "commands", {}).items():
            visit(each, f"{name} {inner}".strip())

    visit(typer.main.get_command(app), "")
    return found


def check_command(words):
    """That it exists: a command with these options, an extra, a target of make."""
    program, *arguments = words
    if program == "pip":
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for extras in re.findall(r"\[(.*?)\]", " ".join(arguments)):
            assert set(extras.split(",")) <= set(declared), words
    elif program == "make":
        assert f"\n{arguments[0]}: " in (ROOT / "Makefile").read_text(), words
    elif program == "gmed":
        known, depth = known_options(), 1 + (" ".join(arguments[:2]) in known_options())
        name = " ".join(arguments[:depth])
        assert name in known, words
        assert {word for word in arguments if word.startswith("-")} <= known[name], words
    else:
        assert program in ("dask", "bash", "python"), words


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Runs that several pages ask for are computed once."""
    return tmp_path_factory.mktemp("pages") / "gmed.db"


@pytest.fixture
def _as_it_was(monkeypatch):
    """Names that a page registers and modules that it writes are taken back."""
    monkeypatch.delitem(sys.modules, "net", raising=False)
    with suppress(KeyError), extensions._all_or_nothing():
        yield
        sys.modules.pop("net", None)
        raise KeyError


@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in ELSEWHERE and any(is_run(*block) for block in blocks(page))]
)
def test_every_block_runs(page, tmp_path, store, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GMED_STORE", str(store))
    monkeypatch.setattr(webbrowser, "open", lambda address: True)
    names = prepare(page)
    for kind, code in blocks(page):
        if not is_run(kind, code):
            continue
        if kind == "python":
            run_python(code, names, page, tmp_path)
        else:
            for words in commands(code):
                run_command(words)
    check = AFTERWARDS.get(page)
    if check:
        check(names, capsys.readouterr().out)


def after_classifier(names, said):
    assert names["found"].accuracy > 0.7 and "yew" in names["again"].classes_
    assert len(Path("found.csv").read_text(encoding="utf-8").splitlines()) == 151


def after_index(names, said):
    assert said.strip().splitlines()[-1] == "tensor([0, 1, 2])"


AFTERWARDS = {
    "docs/classifier.md": after_classifier,
    "docs/index.md": after_index,
    "docs/results.md": lambda names, said: Path("out/report.html").stat().st_size > 100_000 or pytest.fail("no report"),
    "docs/editing.md": lambda names, said: "examples are left" in said or pytest.fail(said),
}


# ---------------------------------------------------------------------- checking the rest


@pytest.mark.parametrize("page", PAGES)
def test_skipped_blocks_say_why_and_their_commands_exist(page):
    for kind, code in blocks(page):
        assert kind, f"{page}: a block without a language:\n{code}"
        if kind == "toml":
            tomllib.loads(code)
        if code.startswith(NOT_RUN) and kind == "console":
            for words in commands(code):
                check_command(words)
        if code.startswith(NOT_RUN) and kind == "python":
            compile(code, page, "exec")
    outside = BLOCK.sub("", PAGES[page])
    indented = re.findall(r"\n\n    (\w.*)", outside)
    if "reference" not in page:
        assert not indented, f"{page}: a block that is not fenced is not run: {indented}"


@needs_benchmarks
@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md", "benchmarks/README.md"])
def test_links_resolve(page):
    folder, text = (ROOT / page).parent, (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", BLOCK.sub("", text)):
        if page.startswith("docs/") and target.startswith(("benchmarks/", "CONTRIBUTING")):
            pytest.fail(f"{page}: write ../{target}, which works in a checkout too")
        assert (folder / target).exists(), (page, target)


@pytest.mark.parametrize(
    "setting", ["memory", "replay_size", "alpha", "beta", "learning_rate", "updates_per_batch", "batch_size", "hidden"]
)
def test_documented_defaults_are_current(setting):
    from gmed.online import ClassifierConfig
    from gmed.sklearn import GMEDClassifier

    said = re.search(rf"`{setting}=([\d.]+)`", CLASSIFIER)
    assert float(said[1]) == getattr(ClassifierConfig(), setting) == GMEDClassifier().get_params()[setting]


@needs_benchmarks
def test_evidence_matches_the_stored_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "kept", raising=False)
    assert importlib.import_module("evidence").text() == PAGES["docs/evidence.md"]


@needs_benchmarks
def test_evidence_counts_are_current():
    evidence = PAGES["docs/evidence.md"]
    verdicts = re.findall(r"\| (\*\*replicated|not replicated|undecided)[^|]*\|$", evidence, flags=re.MULTILINE)
    claims, yes, no, open_ = (
        len(verdicts),
        *(verdicts.count(v) for v in ("**replicated", "not replicated", "undecided")),
    )
    assert f"Of {claims} claims, {yes} are replicated, {no} are not, and {open_} are undecided." in evidence
    stated, of_those = re.search(r"(\d+) claims are left, of which (\d+) are replicated", evidence).groups()
    counted = f"Of the paper's {claims} claims, {yes} replicate; of the {stated} also stated in its text, {of_those} do"
    assert counted in PAGES["README.md"]
    assert f"{claims} claims; {yes} replicated, {no} not, {open_} undecided" in PAGES["docs/reproducing.md"]
    assert f"one rule for all {claims} and" in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")


@needs_benchmarks
def test_gains_in_prose_match_the_stored_results():
    page, results = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8"), ROOT / "benchmarks" / "results"
    number = r"([+-]?\d+\.\d\d)"
    stored = re.findall(rf"{number} \[{number}, {number}\]", PAGES["docs/evidence.md"])
    for name in ("mnist.md", "mnist_again.md"):
        table = (results / name).read_text(encoding="utf-8")
        stored += re.findall(rf"\| {number} \| {number} to {number} \|", table)
    with (results / "sensitivity-split-mnist.csv").open(encoding="utf-8", newline="") as file:
        points = [[float(row[name]) for name in ("gain", "gain_low", "gain_high")] for row in csv.DictReader(file)]
    known = {tuple(round(float(end), 2) for end in gain) for gain in (*stored, *points)}
    known |= {(-mean, -high, -low) for mean, low, high in known}
    told = re.findall(rf"{number}(?: \(|, ){number}\s+to\s+{number}", page.partition("## Findings about editing")[2])
    assert len(told) > 10
    for gain in told:
        assert tuple(map(float, gain)) in known, gain


@needs_benchmarks
def test_faq_numbers_match_the_stored_results():
    page, results = PAGES["docs/faq.md"], ROOT / "benchmarks" / "results"
    stored = "".join((results / name).read_text(encoding="utf-8") for name in ("mnist.md", "cifar.md"))
    means = dict(re.findall(r"^\| ([\w-]+ \| [\w+-]+) \| \d+ \| ([\d.]+) ±", stored, flags=re.MULTILINE))
    columns = ["split-mnist", "rotated-mnist", "permuted-mnist", "split-cifar10", "split-cifar100"]
    rows = re.findall(r"^\| `([\w+-]+)` \| (.*) \|$", page, flags=re.MULTILINE)
    assert len(rows) == 8
    for method, cells in rows:
        for benchmark, cell in zip(columns, cells.replace("*", "").split(" | "), strict=True):
            assert means.get(f"{benchmark} | {method}", "-") == cell, (benchmark, method)
    titles = ("Split MNIST", "Rotated MNIST", "Permuted MNIST", "Split CIFAR-10")
    for title, benchmark in zip(titles, columns, strict=False):
        cells = " | ".join(means[f"{benchmark} | {method}"] for method in ("finetune", "er", "iid-online"))
        assert f"| {title} | {cells} |" in page
    evidence = PAGES["docs/evidence.md"]
    gains = re.findall(r"[+-]\d\.\d\d \[[+-]\d\.\d\d, [+-]\d\.\d\d\]", page)
    assert len(gains) == 9
    for gain in gains:
        assert f" {gain} | " in evidence, gain
    assert (
        "+1.28 points [+0.76, +1.79]" in page
        and "er+gmed over er+adv-edit | +1.37 (Table 4) | -1.28 [-1.79, -0.76]" in evidence
    )
    grown = (results / "expansion.md").read_text(encoding="utf-8")
    more = dict(re.findall(r"^\| ([\w-]+ \| \S+) \| \d+ \| ([\d.]+) ±", stored + grown, flags=re.MULTILINE))
    told = {
        "92.5 for `er` and 94.4 for": ["split-mnist-full | er(memory=2581)", "split-mnist-full | er(memory=2581)+gmed"],
        "against 59.9 and 57.6 (": ["split-cifar10 | er(memory=6024)", "split-cifar10 | er(memory=6024)+gmed"],
        "93.2 on all of MNIST": ["split-mnist-full | cn-dpm"],
        "44.4 on CIFAR-10": ["split-cifar10 | cn-dpm"],
        "(27.2 and 18.3 on Split MNIST)": ["split-mnist | agem", "split-mnist | bgd"],
        "reaches 72.1, 76.9 and": ["split-mnist | er(memory=100)", "split-mnist | er(memory=200)"],
        "61.7, 69.3 and 76.3 on Rotated": [
            f"rotated-mnist | {each}" for each in ("er(memory=100)", "er(memory=200)", "er")
        ],
    }
    for text, names in told.items():
        numbers = re.findall(r"\d\d\.\d", text)
        assert text in page and all(
            abs(float(n) - float(more[each])) < 0.051 for n, each in zip(numbers, names, strict=True)
        ), text


@needs_benchmarks
def test_readme_numbers_match_the_stored_results():
    results = ROOT / "benchmarks" / "results"
    stored = "".join((results / name).read_text(encoding="utf-8") for name in ("mnist.md", "cifar.md"))
    evidence = PAGES["docs/evidence.md"]
    rows = re.findall(r"^\| ((?:Split|Rotated|Permuted) [\w-]+) \| (.*) \|$", PAGES["README.md"], flags=re.MULTILINE)
    assert len(rows) == 5
    for title, cells in rows:
        benchmark = title.lower().replace(" ", "-").replace("cifar-", "cifar")
        er, edited, gain, published, seeds, _ = cells.replace("*", "").split(" | ")
        for method, mean in {"er": er, "er+gmed": edited}.items():
            assert f"\n| {benchmark} | {method} | {seeds} | {mean} ± " in stored, (benchmark, method)
        assert f"\n| {benchmark} | er+gmed over er | {published} (Table 1)" in evidence, benchmark
        assert f" | {gain} | " in evidence and f" | {seeds} | " in evidence, benchmark
    small = {"split-mnist": "4.39", "rotated-mnist": "0.65"}
    assert f"{small['split-mnist']} points on Split MNIST and {small['rotated-mnist']} on Rotated" in PAGES["README.md"]
    for benchmark, gain in small.items():
        found = rf"^\| {benchmark} \| er\(memory=100\)\+gmed over er\(memory=100\) \|.*\| \+{gain} \["
        assert re.search(found, evidence, flags=re.MULTILINE), benchmark


@needs_benchmarks
def test_figures_match_the_stored_results():
    for name, text in runpy.run_path(str(ROOT / "tools" / "picture.py"))["pictures"]().items():
        assert (ROOT / "docs" / "images" / name).read_text(encoding="utf-8") == text, "run: python tools/picture.py"


def test_command_line_page_is_up_to_date():
    """In a process of its own: extensions of the tests change nothing there."""
    code = "import runpy; print(runpy.run_path('tools/commands.py')['page'](), end='')"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    assert found.stdout == PAGES["docs/reference/commands.md"], "run: python tools/commands.py"
    assert re.findall(r"^## gmed (.*)$", found.stdout, flags=re.MULTILINE) == list(EXAMPLES)[1:]


def test_guarantees_name_existing_tests():
    named = set(re.findall(r"`((?:\w+/)?test_\w+\.py)`", PAGES["docs/guarantees.md"]))
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / "tests" / name).is_file()]
