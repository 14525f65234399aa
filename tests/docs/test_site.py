"""The documentation site builds without warnings, is complete and works offline."""

import importlib
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gmed

ROOT = Path(__file__).parents[2]
pytest.importorskip("material", reason="needs gmed[docs]")
pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="needs a checkout: benchmarks"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_site_has_every_page_and_no_external_resources(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).exists()
    assert "edit_examples" in (site / "reference" / "index.html").read_text(encoding="utf-8")
    loads = re.compile(r"""(?:<script[^>]*\ssrc|<link[^>]*\shref|<img[^>]*\ssrc)=["']?(?:https?:)?//""")
    for page in site.rglob("*.html"):
        if page.name != "example-report.html":
            assert not loads.search(page.read_text(encoding="utf-8")), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


NOT_IN_THE_REFERENCE = {"gmed.cli", "gmed.integrations", "gmed.io", "gmed.kernels", "gmed.paper", "gmed.report"}
"""Packages that are internal, or used by typing commands, which pages of their own explain."""


def test_reference_has_every_public_name(site):
    pages = [page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html")]
    shown = {name for page in pages for name in re.findall(r'id="?(gmed\.[\w.]+)', page)}
    packages = [f"gmed.{found.name}" for found in pkgutil.iter_modules(gmed.__path__) if found.ispkg]
    for package in ["gmed", *sorted(set(packages) - NOT_IN_THE_REFERENCE)]:
        module = importlib.import_module(package)
        for name in set(module.__all__) - {"__version__"}:
            exported = getattr(module, name)
            spelled = {f"{package}.{name}", f"{package}.{name}.{name}"}  # a function in a module of its own name
            if getattr(gmed, name, None) is exported:
                spelled.add(f"gmed.{name}")
            assert isinstance(exported, ModuleType) or spelled & shown, f"{package}.{name}"
    executors = {"engine.executors.dask.DaskExecutor", "engine.executors.local.Executor"}
    also = {"avalanche.GMEDPlugin", "rng.seeded_torch", *executors}
    assert {f"gmed.{name}" for name in also} <= shown
    assert not {name for name in shown if "__" in name or re.fullmatch(r"gmed\.errors\.[a-z_]+", name)}


def test_parameters_that_are_described_together_have_their_own_types(site):
    """``x_train, x_test`` in a docstring is two entries, and ``lr`` beside ``model`` is a number."""
    for page, typed in {
        "learners": ["lr (float)", "seed (int, default: 0 )", "memory (Memory)"],
        "streams": ["x_train (NDArray[Any])", "y_test (NDArray[int64])"],
    }.items():
        text = " ".join(re.sub(r"<[^>]+>", "", (site / "reference" / f"{page}.html").read_text("utf-8")).split())
        assert all(f" {each} – " in text for each in typed), page
        assert {"model"} >= set(re.findall(r"(\w+) \(Module\)", text))


def test_reference_has_the_building_blocks_of_a_step(site):
    page = (site / "reference" / "learners.html").read_text(encoding="utf-8")
    shown = {name.rpartition(".")[2] for name in re.findall(r'id="?(gmed\.learners\.[\w.]+)', page)}
    used = {"look_ahead", "sgd_step", "apply_gradients", "random", "torch_random", "draw", "sample", "sample_memory"}
    assert used <= shown
    listed = " ".join(re.sub(r"<[^>]+>", "", page).split())
    assert "look_ahead for the parameters one step of SGD ahead" in listed


@pytest.mark.browser
def test_search_and_diagrams_work_offline(site):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page, asked, errors = browser.new_page(color_scheme="dark"), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((site / "reference" / "editing.html").as_uri())
        page.locator(".md-search__input").click()
        page.keyboard.type("reservoir")
        found = page.locator(".md-search-result__item", has_text="Reservoir sampling").first
        playwright.expect(found).to_contain_text("Memory and retrieval", timeout=20_000)
        page.goto((site / "index.html").as_uri())
        colours = page.evaluate("[...document.querySelectorAll('.drawing svg')].map(s => getComputedStyle(s).color)")
        assert len(colours) == 6 and len(set(colours)) == 1
        assert colours[0] == page.evaluate("getComputedStyle(document.body).color")  # light on dark, as the text
        browser.close()
    assert not errors and all(url.startswith(("file:", "data:", "about:")) for url in asked)
