"""What a worker process reports: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import get_args

from gmed.engine.result import RunResult
from gmed.io.records import AnyText, Count, Share, decode, encode


@dataclass(frozen=True)
class Progress:
    """The runs of the job have come so far."""

    seen: Count
    total: Count


@dataclass(frozen=True)
class Evaluated:
    """A run has come to a point of evaluation."""

    key: str
    seen: Count
    total: Count
    accuracy: list[list[Share]]


@dataclass(frozen=True)
class Warned:
    """The worker has warned of something."""

    text: AnyText


@dataclass(frozen=True)
class Finished:
    """The next run of the job has ended well."""

    result: RunResult


@dataclass(frozen=True)
class Failed:
    """The next run of the job has ended in an error."""

    error: AnyText


Message = Progress | Evaluated | Warned | Finished | Failed
KINDS: dict[str, type[Message]] = {kind.__name__.lower(): kind for kind in get_args(Message)}


def write_message(message: Message) -> str:
    """Return a message as a line.

    >>> write_message(Progress(10, 500))
    '{"kind": "progress", "seen": 10, "total": 500}\\n'
    """
    return json.dumps({"kind": type(message).__name__.lower(), **encode(message)}) + "\n"


def read_message(line: str) -> Message:
    """Return the message of a line.

    >>> read_message(write_message(Warned("no room")))
    Warned(text='no room')
    """
    content = json.loads(line)
    return decode(KINDS[content.pop("kind")], content)
