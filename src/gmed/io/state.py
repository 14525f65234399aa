"""State files: named tensors and metadata as safetensors, written atomically and read without executing code."""

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
"""The format that is written, always with a checksum."""

FIRST_FORMAT = "gmed-state/1"
"""The first format. Its files may lack the checksum if they have no metadata besides :data:`FIRST_METADATA`."""

FIRST_METADATA = {"format", "learner", "run", "name", "benchmark", "method", "progress"}


def write_state(path: Path, state: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata to a file atomically."""
    state = {name: tensor.contiguous() for name, tensor in state.items()}
    metadata = {"format": FORMAT, **metadata}
    write_bytes(path, _sort_metadata(save(state, {**metadata, "checksum": checksum(state, metadata)})))


def _sort_metadata(content: bytes) -> bytes:
    """Return a file with its metadata sorted: the library writes them in random order, so equal states would differ."""
    header, end = _header(content), 8 + int.from_bytes(content[:8], "little")
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors are aligned
    return len(text).to_bytes(8, "little") + text + content[end:]


def checksum(state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of tensors and metadata."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(state):
        tensor = state[name].detach().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a file without reading its tensors or checking anything."""
    with _wrap_errors(path):
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "this is not a file")
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}


def read_state(path: Path, expected: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and all metadata of a file that has the expected metadata.

    The file is opened only once, because it may be replaced at any time.
    """
    with _wrap_errors(path):
        content = read_bytes(path)  # safe_open would open it twice, once for the header and once for the tensors
        state = load(content)
        metadata: dict[str, str] = _header(content).get("__metadata__", {})
    _check_metadata(path, metadata, expected)
    written = metadata.pop("checksum", None)
    if written is None and (metadata["format"] != FIRST_FORMAT or not metadata.keys() <= FIRST_METADATA):
        raise UsageError(f"{path}: damaged: its checksum is missing. Use another copy.")
    if written is not None and written != checksum(state, metadata):
        raise UsageError(f"{path}: damaged: its checksum does not match. Use another copy.")
    return state, metadata


def _check_metadata(path: Path, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
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
    """Return the header of a safetensors file that has been read successfully."""
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    return header


@contextmanager
def _wrap_errors(path: Path) -> Iterator[None]:
    """Raise an error that names the file if it is missing, unreadable or damaged."""
    try:
        yield
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UsageError:
        raise
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError) as error:
        raise UsageError(f"{path}: not a valid state file ({error})") from None
