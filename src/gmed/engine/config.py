"""How runs are computed: device, data, checkpoints."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from gmed.engine.checkpoint import Checkpoints
from gmed.errors import UsageError


@dataclass(frozen=True)
class ExecutionConfig:
    """How runs are computed; the accuracies they find do not depend on it.

    Attributes
    ----------
    device
        ``auto``, ``cpu`` or ``cuda``.
    data_dir
        Where the data set is, unless where it is by default.
    checkpoints
        Where half-finished runs are kept, if they are.
    deterministic
        Whether a GPU may use only kernels whose results are the same every time, which are slower. A CPU always does.
    prequential
        Whether every batch is predicted before it is learned from, which costs a forward pass.
    """

    device: str = "auto"
    data_dir: Path | None = None
    checkpoints: Checkpoints | None = None
    deterministic: bool = False
    prequential: bool = False


DEFAULT_CONFIG = ExecutionConfig()


def set_cuda_env() -> None:
    """Settings that CUDA reads when it is first used in a process, if only to ask whether it is there.

    More branches of a graph run at once with more connections to the device, of which the clients of NVIDIA's MPS have
    few between them. cuBLAS can be deterministic only with workspaces of a fixed size.
    """
    shared = "CUDA_MPS_PIPE_DIRECTORY" in os.environ or Path("/tmp/nvidia-mps").exists()
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "8" if shared else "32")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@cache
def tune_malloc() -> None:
    """Tell the C library to keep what is freed for the next to ask, where it can be told (glibc).

    A step allocates and frees megabytes. Given back to the system every time and fetched again page by page, they cost
    a tenth of a step of the MLP.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 2**28)
        mallopt(_MMAP_THRESHOLD, 2**25)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def check_device(name: str) -> None:
    """Refuse what is not the name of a device, here or elsewhere."""
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"unknown device {name!r}: auto, cpu or cuda")


def resolve_device(name: str) -> torch.device:
    """The device that ``auto``, ``cpu`` or ``cuda`` means here."""
    check_device(name)
    if name != "cpu":
        set_cuda_env()
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda: torch sees no CUDA device here. Use --device cpu.")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
