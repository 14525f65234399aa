"""Selection of stored examples to remove on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.errors import UsageError
from gmed.learners._validation import as_tensor


class StoredExamples(NamedTuple):
    """The examples that a learner stores, and their positions in the stream, if known."""

    x: Tensor
    y: Tensor
    stream_index: Tensor | None

    @classmethod
    def none(cls) -> StoredExamples:
        """Return no examples, for a learner that stores none."""
        return cls(torch.zeros(0), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def select_examples(
    stored: StoredExamples,
    *,
    stream_index: int | Sequence[int] | None = None,
    label: int | Sequence[int] | None = None,
    where: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> NDArray[np.bool_]:
    """Return a mask of the examples to remove (see :meth:`gmed.learners.Learner.remove_examples`).

    >>> select_examples(StoredExamples(torch.zeros(3, 2), torch.tensor([4, 5, 4]), None), label=4).tolist()
    [True, False, True]
    """
    if sum(criterion is not None for criterion in (stream_index, label, where)) != 1:
        raise UsageError("select the examples to remove by exactly one of stream_index, label and where")
    if where is not None:
        return _as_mask(where(stored.x, stored.y), len(stored.y)) if len(stored.y) else np.zeros(0, dtype=np.bool_)
    if label is not None:
        return np.isin(stored.y.cpu().numpy(), _as_integers("label", label))
    indices = _as_integers("stream_index", stream_index)
    if stored.stream_index is None:
        raise UsageError("this learner stores no stream_index of its examples; select them by label or where")
    return np.isin(stored.stream_index.cpu().numpy(), indices)


def _as_integers(name: str, given: Any) -> NDArray[np.int64]:
    integers = np.atleast_1d(as_tensor(name, given).cpu().numpy())
    if integers.size and not (np.issubdtype(integers.dtype, np.integer) and integers.ndim == 1):
        raise UsageError(f"{name} must be an integer or a sequence of integers, not {given!r}")
    return integers.astype(np.int64)


def _as_mask(given: Any, count: int) -> NDArray[np.bool_]:
    mask = as_tensor("the result of where", given)
    if mask.dtype != torch.bool or mask.shape != (count,):
        raise UsageError(
            f"where must return one bool for each of the {count} stored examples, not {mask.dtype} {tuple(mask.shape)}"
        )
    return np.asarray(mask.cpu().numpy(), dtype=np.bool_)
