"""What to type, at the end of each command's help."""

from __future__ import annotations

import typer

EXAMPLES = {
    "run": ["gmed run split-mnist er er+gmed --seeds 20", "gmed run rows.csv er 'er+gmed(alpha=0.1)' --label kind"],
    "table": ["gmed table split-mnist er er+gmed", "gmed table --metrics"],
    "bench": ["gmed bench split-mnist er er+gmed", "gmed bench split-cifar10 er --replicas 1,20 --device cuda"],
    "list": ["gmed list", "gmed list --extension my_edit.py"],
    "runs": ["gmed runs", "gmed runs split-mnist --failed"],
    "rm": ["gmed rm split-mnist 'er+gmed(alpha=1.0)'", "gmed rm split-mnist --failed"],
    "export": ["gmed export runs.csv", "gmed export runs.parquet split-mnist"],
    "merge": ["gmed merge server.db", "gmed merge server.db --store all.db"],
    "report": ["gmed report --open", "gmed report split-mnist er er+gmed --format latex -o paper"],
    "reproduce": ["gmed reproduce --list", "gmed reproduce main --benchmarks split-mnist"],
    "tune": ["gmed tune split-mnist er+gmed", "gmed run split-mnist er 'er+gmed(tuned)'"],
    "doctor": ["gmed doctor", "gmed doctor --json"],
    "watch": ["gmed watch", "gmed watch --once"],
    "fit": [
        "gmed fit rows.csv --label kind -o model.gmed",
        "gmed fit more.csv --label kind --from model.gmed -o new.gmed",
    ],
    "predict": ["gmed predict model.gmed new.csv", "gmed predict model.gmed new.csv --proba -o found.csv"],
    "completion": ["source <(gmed completion bash)", "gmed completion fish > ~/.config/fish/completions/gmed.fish"],
}


def add_examples(app: typer.Typer) -> None:
    """Put them below the help of the commands that the program has."""
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        if name in EXAMPLES:
            command.epilog = "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in EXAMPLES[name])])
