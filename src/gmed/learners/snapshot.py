from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Snapshot:
    """Copies of tensors, made together: on a GPU in a kernel or two however many there are.

    >>> a, b = torch.zeros(2), torch.ones(3)
    >>> before = Snapshot([a, b])
    >>> _ = a.add_(5), b.mul_(7)
    >>> before.restore()
    >>> a.tolist(), b.tolist()
    ([0.0, 0.0], [1.0, 1.0, 1.0])
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
        self._held = [(alike, torch.cat([t.flatten() for t in alike])) for alike in kinds.values()]

    def restore(self) -> None:
        """Put everything back as it was."""
        for alike, copy in self._held:
            for tensor, part in zip(alike, copy.split([t.numel() for t in alike]), strict=True):  # type: ignore[no-untyped-call]
                tensor.copy_(part.view_as(tensor))
