"""Named tensors in a file: safetensors, written whole or not at all, read without running code."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gmed.errors import UsageError
from gmed.io.files import write_bytes

FORMAT = "gmed-state/1"


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
    """The labels of a file, without its tensors."""
    with _explained(path), safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def read_state(path: Path, labels: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and all labels of a file that was written with these."""
    metadata = read_labels(path)
    written = metadata.get("format", "")
    if re.fullmatch("gmed-state/[0-9]{1,9}", written) and written != FORMAT:
        raise UsageError(
            f"{path}: written by a newer gmed ({written}, this one reads {FORMAT}). Upgrade gmed to use it."
        )
    expected = {"format": FORMAT, **labels}
    wrong = [f"{k} is {metadata.get(k)!r}, not {v!r}" for k, v in expected.items() if metadata.get(k) != v]
    if wrong:
        raise UsageError(f"{path}: {'; '.join(wrong)}")
    with _explained(path), safe_open(path, framework="pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    known = metadata.pop("checksum", None)  # files of the first versions have none
    if known is not None and known != checksum(state, metadata):
        raise UsageError(f"{path}: damaged: it is not what was written. Use another copy.")
    return state, metadata


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what a reader says of a missing, unreadable or damaged file into an error that names it."""
    try:
        yield
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError) as error:
        raise UsageError(f"{path}: not a sound state file ({error})") from None
