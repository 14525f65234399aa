"""Rows of a memory that lie in the host's memory, where a GPU reads and writes them."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_GPU_FRACTION = 1 / 40
"""A memory that takes more than this of a GPU lies with the host: twenty learners want one each, and half the GPU."""


def should_pin(size: int, device: torch.device) -> bool:
    """Whether so many bytes are too many for one memory on this device.

    >>> should_pin(2**40, torch.device("cpu"))  # there already
    False
    """
    return device.type == "cuda" and size > MAX_GPU_FRACTION * torch.cuda.get_device_properties(device).total_memory


def as_cuda_view(rows: Tensor, device: torch.device) -> Tensor:
    """The same bytes as a tensor of the GPU's: of pinned memory, which both can address."""
    flat = rows.view(-1).view(torch.uint8)
    return torch.as_tensor(_CudaArray(flat), device=device).view(rows.dtype).view(rows.shape)


class _CudaArray:
    """Memory as torch takes it from others; it is kept for as long as a tensor of it is."""

    def __init__(self, flat: Tensor) -> None:
        self.flat = flat
        place = {"shape": tuple(flat.shape), "typestr": "|u1", "data": (flat.data_ptr(), False), "version": 3}
        self.__cuda_array_interface__ = place
