"""Wheel and sdist: content and reproducible builds."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from gmed._version import __version__

ROOT = Path(__file__).parents[1]
pytest.importorskip("hatchling", reason="needs hatchling")
if shutil.which("git") is None or not (ROOT / ".git").exists():
    pytest.skip("needs a git checkout", allow_module_level=True)
SOURCES = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True
).stdout.split("\0")[:-1]
LOCAL = (
    "gmed.db",
    "src/gmed/gmed.db",
    "docs/notes.db",
    "src/gmed/__pycache__/x.pyc",
    "build/site/index.html",
    ".venv/x",
)
"""Files of a working folder that nobody means to publish."""


def build(folder, out):
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.suffix: path for path in out.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def built_elsewhere(tmp_path_factory):
    """From a copy, with other times and modes, among local files."""
    copy = tmp_path_factory.mktemp("copy")
    for name in SOURCES:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
            (copy / name).chmod(0o700 if os.access(ROOT / name, os.X_OK) else 0o600)
    for name in LOCAL:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("local")
    return build(copy, tmp_path_factory.mktemp("dist-elsewhere"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [".whl", ".gz"])
def test_builds_are_reproducible(built, built_elsewhere, kind):
    assert built[kind].name == built_elsewhere[kind].name
    assert built[kind].read_bytes() == built_elsewhere[kind].read_bytes()


@pytest.mark.slow
def test_wheel_holds_only_the_package(built):
    names = set(zipfile.ZipFile(built[".whl"]).namelist())
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == {name.removeprefix("src/") for name in SOURCES if name.startswith("src/gmed/")}
    digits = [f"gmed/data/mnist_files/{part}" for part in ("train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")]
    needed = ["gmed/py.typed", "gmed/results/results.schema.json", "gmed/paper/published.csv"]
    assert {*digits, *needed, "gmed/report/templates/report.html"} <= names
    folder = next(iter(about)).split("/")[0]
    licences = {f"licenses/{name}" for name in ("LICENSE", "src/gmed/data/mnist_files/NOTICE.md")}
    assert about == {f"{folder}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", *licences)}


@pytest.mark.slow
def test_sdist_holds_tracked_files_and_builds_the_site(built, tmp_path):
    with tarfile.open(built[".gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert names == {*SOURCES, "PKG-INFO"}
    pytest.importorskip("material", reason="needs gmed[docs]")
    (folder,) = tmp_path.iterdir()
    words = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_citation_names_this_version_and_the_paper():
    yaml = pytest.importorskip("yaml", reason="needs gmed[yaml]")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["type"], str(citation["version"])) == ("software", __version__)
    paper = citation["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == ["Jin", "Sadhu", "Du", "Ren"]
    assert (paper["type"], paper["year"]) == ("conference-paper", 2021)


def test_core_dependencies_are_few_and_dev_has_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = {line.split(">")[0] for line in project["dependencies"]}
    assert core == {"torch", "numpy", "scipy", "safetensors", "rich", "typer"}
    extras = project["optional-dependencies"]
    (everything,) = (line for line in extras["dev"] if line.startswith("gmed["))
    apart = {"dev", "avalanche", "fast"}  # which need another torchvision, and compute with other arithmetic
    assert set(everything[5:-1].split(",")) == set(extras) - apart


def test_readme_lists_requirements_extras_and_variables():
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = re.search(r"^Extras: (.*?)\.\s", page, flags=re.M | re.S)[1]
    assert set(re.findall(r"`(\w+)`", listed)) == set(project["optional-dependencies"]) - {"dev", "docs"}
    pythons = [line.split()[-1] for line in project["classifiers"] if line.startswith("Programming Language")]
    oldest = dict(line.split(">=") for line in project["dependencies"])
    said = f"Python {pythons[0]} to {pythons[-1]}, torch {oldest['torch']} or newer, NumPy {oldest['numpy']} or newer."
    assert said in page and project["requires-python"] == f">={pythons[0]}"
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert set(re.findall(r"environ\S*[\[(]\"(GMED_\w+)", code)) == set(
        re.findall(r"^\| `(GMED_\w+)`", page, flags=re.M)
    )


@pytest.mark.slow
def test_importing_needs_no_extra():
    """Whatever is not of the core is out of reach, and the package and its command line are imported all the same."""
    blocked = (
        "sklearn river altair vl_convert PIL jinja2 pyarrow distributed onnx tensorboard pandas polars yaml mkdocs"
    )
    program = (
        "import sys\n"
        f"for name in {blocked.split()!r}: sys.modules[name] = None\n"
        "import gmed, gmed.cli, gmed.evaluate\n"
        "gmed.run('split-mnist', 'finetune(lr=0.01)', seeds=1, store=None, workers=1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
