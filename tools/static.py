"""Write src/gmed/cli/static.json: what the command line answers without importing torch.

python tools/static.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.main import get_command

from gmed.cli.app import app
from gmed.cli.completion import SCRIPTS, _visit

TARGET = Path(__file__).resolve().parents[1] / "src" / "gmed" / "cli" / "static.json"


def texts() -> dict[str, Any]:
    """Return the texts of the full program."""
    program: Any = get_command(app)
    (version,) = (option for option in program.params if option.name == "version")
    return {
        "help": program.help,
        "epilog": program.epilog,
        "version": version.help,
        "commands": {name: program.commands[name].help for name in program.list_commands(None)},
        "completion": {shell.value: script(dict(_visit(program))) for shell, script in SCRIPTS.items()},
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(texts(), indent=1) + "\n", encoding="utf-8")
