"""Text is UTF-8 everywhere: files do not depend on the language that a system is set to."""

import ast
from pathlib import Path

import pytest

import gmed

NOT_TEXT = {"webbrowser.open", "tarfile.open", "Image.open", "os.open", "archive.open"}


def leaves_the_encoding_to_the_system(call):
    """Whether a call opens, reads or writes text and does not say in which encoding."""
    name, arguments = ast.unparse(call.func), {each.arg for each in call.keywords}
    last = name.rpartition(".")[2]
    if "encoding" in arguments or name in NOT_TEXT:
        return False
    if last == "read_text":
        return not call.args
    if last == "write_text":
        return len(call.args) < 2
    if last in ("Popen", "run", "check_output"):
        return "text" in arguments
    if last not in ("open", "fdopen", "TextIOWrapper"):
        return False
    modes = [each.value for each in ast.walk(call) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return not any("b" in mode and set(mode) <= set("rwxab+") for mode in modes)


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("p.read_text()", True),
        ("p.read_text('utf-8')", False),
        ("p.write_text(text)", True),
        ("p.write_text(text, encoding='utf-8')", False),
        ("open(p)", True),
        ("p.open('w', newline='')", True),
        ("p.open('ab' if more else 'wb')", False),
        ("os.fdopen(1, 'w')", True),
        ("subprocess.run(words, text=True)", True),
    ],
)
def test_it_is_seen(code, wrong):
    assert leaves_the_encoding_to_the_system(ast.parse(code).body[0].value) == wrong


def test_every_text_says_its_encoding():
    found = []
    for path in sorted(Path(gmed.__file__).parent.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        found += [f"{path}:{call.lineno}" for call in calls if leaves_the_encoding_to_the_system(call)]
    assert not found
