"""Large memories in pinned memory of the host, which a GPU reads and writes directly."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_GPU_FRACTION = 1 / 40
"""The largest fraction of a GPU for one memory; larger ones stay on the host. Those of twenty learners fill half."""


def should_pin(size: int, device: torch.device) -> bool:
    """Return whether a memory of this many bytes is too large for the device, and should be pinned on the host.

    >>> should_pin(2**40, torch.device("cpu"))  # it is already on the host
    False
    """
    return device.type == "cuda" and size > MAX_GPU_FRACTION * torch.cuda.get_device_properties(device).total_memory


def as_cuda_view(rows: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the GPU that shares the bytes of a pinned tensor."""
    flat = rows.view(-1).view(torch.uint8)
    return torch.as_tensor(_CudaArray(flat), device=device).view(rows.dtype).view(rows.shape)


class _CudaArray:
    """An array that torch imports by its CUDA array interface; a tensor of it keeps the pinned memory alive."""

    def __init__(self, flat: Tensor) -> None:
        self.flat = flat
        interface = {"shape": tuple(flat.shape), "typestr": "|u1", "data": (flat.data_ptr(), False), "version": 3}
        self.__cuda_array_interface__ = interface
