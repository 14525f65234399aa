"""Write src/gmed/cli/static.json: what the command line answers without importing torch.

python tools/static.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.main import get_command

from gmed.cli import WIDTH
from gmed.cli.app import app
from gmed.cli.completion import SCRIPTS, _visit

TARGET = Path(__file__).resolve().parents[1] / "src" / "gmed" / "cli" / "static.json"


def texts() -> dict[str, Any]:
    """Return the texts of the full program."""
    program: Any = get_command(app)
    with program.make_context("gmed", [], resilient_parsing=True, terminal_width=WIDTH - 2) as context:
        text = program.get_help(context)
    return {
        "help": text,
        "completion": {shell.value: script(dict(_visit(program))) for shell, script in SCRIPTS.items()},
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(texts(), indent=1) + "\n", encoding="utf-8")
