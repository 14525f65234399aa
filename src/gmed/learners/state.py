"""Named tensors in a file: safetensors, written whole or not at all, read without running code."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gmed.errors import UsageError

FORMAT = "gmed-state/1"


def write_state(path: Path, state: dict[str, Tensor], labels: dict[str, str]) -> None:
    """Write a file of them, whole or not at all."""
    write_bytes(path, save({k: v.contiguous() for k, v in state.items()}, {"format": FORMAT, **labels}))


def write_bytes(path: Path, data: bytes) -> None:
    """Write to a temporary name beside ``path``, sync, then rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_labels(path: Path) -> dict[str, str]:
    """The labels of a file, without its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except SafetensorError as error:
        raise UsageError(f"{path}: not a sound state file ({error})") from None


def read_state(path: Path, labels: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and all labels of a file that was written with these."""
    metadata = read_labels(path)
    expected = {"format": FORMAT, **labels}
    wrong = [f"{k} is {metadata.get(k)!r}, not {v!r}" for k, v in expected.items() if metadata.get(k) != v]
    if wrong:
        raise UsageError(f"{path}: {'; '.join(wrong)}")
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
