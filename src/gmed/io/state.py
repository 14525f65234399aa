"""Named tensors in a file: safetensors, written whole or not at all, read without running code."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from gmed.errors import UsageError
from gmed.io.files import read_bytes, write_bytes

FORMAT = "gmed-state/2"
"""What is written: always with a checksum."""
FIRST_FORMAT = "gmed-state/1"
"""With a checksum too, but for files of the first versions, which had no other labels than these."""
FIRST_METADATA = {"format", "learner", "run", "name", "benchmark", "method", "progress"}


def write_state(path: Path, state: dict[str, Tensor], labels: dict[str, str]) -> None:
    """Write a file of them, whole or not at all."""
    state = {name: tensor.contiguous() for name, tensor in state.items()}
    labels = {"format": FORMAT, **labels}
    write_bytes(path, save(state, {**labels, "checksum": checksum(state, labels)}))


def checksum(state: Mapping[str, Tensor], labels: Mapping[str, str]) -> str:
    """The SHA-256 of everything that a file tells."""
    digest = hashlib.sha256(json.dumps(labels, sort_keys=True).encode())
    for name in sorted(state):
        tensor = state[name].detach().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_labels(path: Path) -> dict[str, str]:
    """The labels of a file, without its tensors, as they are."""
    with _opened(path) as file:
        return file.metadata() or {}


def read_state(path: Path, labels: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and all labels of a file that was written with these.

    The file is opened once: another may take its place meanwhile.
    """
    with _explained(path):
        content = read_bytes(path)  # safe_open would open it twice, once for the header and once for the tensors
        state = load(content)
        metadata: dict[str, str] = _header(content).get("__metadata__", {})
    _check_labels(path, metadata, labels)
    written = metadata.pop("checksum", None)
    if written is None and (metadata["format"] != FIRST_FORMAT or not metadata.keys() <= FIRST_METADATA):
        raise UsageError(f"{path}: damaged: it has lost its checksum. Use another copy.")
    if written is not None and written != checksum(state, metadata):
        raise UsageError(f"{path}: damaged: it is not what was written. Use another copy.")
    return state, metadata


def _check_labels(path: Path, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    format_ = found.get("format", "")
    if re.fullmatch("gmed-state/[0-9]{1,9}", format_) and format_ not in (FORMAT, FIRST_FORMAT):
        raise UsageError(
            f"{path}: written by a newer gmed ({format_}, this one reads {FORMAT}). Upgrade gmed to use it."
        )
    wrong = [f"{k} is {found.get(k)!r}, not {v!r}" for k, v in expected.items() if found.get(k) != v]
    if format_ not in (FORMAT, FIRST_FORMAT):
        wrong = [f"format is {found.get('format')!r}, not {FORMAT!r}", *wrong]
    if wrong:
        raise UsageError(f"{path}: {'; '.join(wrong)}")


def _header(content: bytes) -> dict[str, Any]:
    """What safetensors, which has read it before, says ahead of the tensors."""
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    return header


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of tensors, opened for reading."""
    with _explained(path):
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "this is no file")
        with safe_open(path, framework="pt") as file:
            yield file


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what a reader says of a missing, unreadable or damaged file into an error that names it."""
    try:
        yield
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UsageError:
        raise
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError) as error:
        raise UsageError(f"{path}: not a sound state file ({error})") from None
