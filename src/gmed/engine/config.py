"""Execution settings of runs: device, data folder, checkpoints."""

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
    """How runs are executed; accuracies do not depend on it.

    Attributes
    ----------
    device
        ``auto``, ``cpu`` or ``cuda``.
    data_dir
        The folder of the data set; by default the usual folders are searched.
    checkpoints
        Where checkpoints of unfinished runs are saved; by default they are not.
    deterministic
        Whether a GPU may use only deterministic kernels, which are slower. A CPU is always deterministic.
    prequential
        Whether every batch is predicted before the learner trains on it, which costs a forward pass.
    """

    device: str = "auto"
    data_dir: Path | None = None
    checkpoints: Checkpoints | None = None
    deterministic: bool = False
    prequential: bool = False


DEFAULT_CONFIG = ExecutionConfig()


def set_cuda_env() -> None:
    """Set the environment variables that CUDA reads on its first use in a process, even a check for a device.

    With more connections to the device, more branches of a graph run in parallel; the clients of NVIDIA's MPS share a
    small number of connections. cuBLAS can be deterministic only with workspaces of a fixed size.
    """
    shared = "CUDA_MPS_PIPE_DIRECTORY" in os.environ or Path("/tmp/nvidia-mps").exists()
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "8" if shared else "32")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@cache
def tune_malloc() -> None:
    """Make the C library reuse freed memory instead of returning it to the system, where it has such an option (glibc).

    A step allocates and frees megabytes. Returning them to the system and fetching them again page by page costs a
    tenth of a step of the MLP.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, 2**28)
        mallopt(_MMAP_THRESHOLD, 2**25)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from malloc.h


def check_device(name: str) -> None:
    """Raise an error unless this is the name of a device, on this machine or another."""
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"unknown device {name!r}; choose auto, cpu or cuda")


def resolve_device(name: str) -> torch.device:
    """Return the device that ``auto``, ``cpu`` or ``cuda`` means on this machine."""
    check_device(name)
    if name != "cpu":
        set_cuda_env()
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device cuda: torch finds no CUDA device. Use --device cpu.")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
