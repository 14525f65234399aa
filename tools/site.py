"""What the documentation site needs besides its pages: files from outside ``docs``, drawings, tidy docstrings.

Pages in ``docs`` link to the rest of the repository as it lies in a checkout, ``../benchmarks/README.md``. Those files
join the site under the same names, and links are shortened accordingly, so that both work: in a checkout and on the
site.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/*.md",
    "benchmarks/results/*",
    "examples/*",
)
DRAWING = re.compile(r'<img alt="[^"]*" src="(images/[\w-]+\.svg)" ?/?>')
DRAWINGS = re.compile(rf"<p>((?:{DRAWING.pattern}\s*)+)</p>")
SEARCHED_LATER = ("reference/", "benchmarks/", "architecture", "CHANGELOG", "renamed")
"""Pages that a search lists after the guides."""

ROLE = re.compile(r":(?:func|class|mod|meth|attr|data):(<code>)[~.]?")


def on_files(files: Any, config: Any) -> Any:
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links into ``docs`` from outside it, and out of it, become links within the site; commands get their colours."""
    if page.file.src_uri.startswith(SEARCHED_LATER):
        page.meta.setdefault("search", {"boost": 0.2})
    markdown = re.sub(r"^```console$", "```bash", markdown, flags=re.MULTILINE)  # "console" would expect prompts
    if page.file.abs_src_path and Path(page.file.abs_src_path).is_relative_to(ROOT / "docs"):
        return re.sub(r"\]\((\.\./)(?=(?:benchmarks|examples|CHANGELOG|CONTRIBUTING|SECURITY))", "](", markdown)
    return re.sub(r"\]\(((?:\.\./)?)docs/", r"](\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Drawings are put into the page itself, where they take its colours; roles of docstrings are left out."""

    def drawing(path: str) -> str:
        return (ROOT / "docs" / path).read_text(encoding="utf-8").replace("<svg ", '<svg role="img" ', 1)

    def figure(found: re.Match[str]) -> str:
        drawings = [drawing(path) for path in DRAWING.findall(found[1])]
        return f'<figure class="drawing{" pair" * (len(drawings) == 2)}">{"".join(drawings)}</figure>'

    return ROLE.sub(r"\1", DRAWINGS.sub(figure, html))
