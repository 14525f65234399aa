"""Removal of stored examples on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.deprecated import old_parameters
from gmed.errors import UsageError
from gmed.learners._locking import Lock, exclusive
from gmed.learners._validation import as_tensor
from gmed.memory import Memory


class StoredExamples(NamedTuple):
    """The examples that a learner stores, and their positions in the stream, if known."""

    x: Tensor
    y: Tensor
    stream_index: Tensor | None

    @classmethod
    def none(cls) -> StoredExamples:
        """Return no examples, for a learner that stores none."""
        return cls(torch.zeros(0), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


class ExampleRemoval:
    """The examples that a learner stores, and their removal."""

    memory: Memory | None
    _lock: Lock

    @exclusive
    @old_parameters(origin="stream_index")
    def remove_examples(
        self,
        *,
        stream_index: int | Sequence[int] | None = None,
        label: int | Sequence[int] | None = None,
        where: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> int:
        """Remove stored examples from memory, and return how many were removed.

        Their values are overwritten in memory's tensors, so no state or checkpoint written from now on contains them;
        older files still do, and so may memory that the process has freed. What the model has learned from them
        remains: neither the model's parameters nor what a method derives from many examples (the anchors and mean
        embeddings of HAL) change. The stream continues as before; how freed slots are filled depends on the memory.

        Give exactly one of the three arguments. Selecting examples that are not stored is not an error: they are
        ignored.

        Parameters
        ----------
        stream_index
            Positions of the examples in the stream: 0 is the first one ever observed. This finds edited examples too.
        label
            Classes of the examples.
        where
            A function of all stored examples ``(x, y)`` as they are now, edited or not, that returns a mask of those to
            remove.

        Examples
        --------
        >>> import torch, gmed
        >>> learner = gmed.learners.ER(gmed.models.MLP(), lr=0.05, memory=gmed.memory.Reservoir(500))
        >>> learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10))
        >>> learner.remove_examples(stream_index=[0, 7]), learner.remove_examples(label=3)
        (2, 1)
        >>> learner.remove_examples(where=lambda x, y: y > 7)
        2
        >>> learner.memory.y[learner.memory.occupied()].tolist()
        [1, 2, 4, 5, 6]
        """
        mask = select_examples(self.stored_examples(), stream_index=stream_index, label=label, where=where)
        if mask.any():
            self.drop_examples(mask)
        return int(mask.sum())

    def stored_examples(self) -> StoredExamples:
        """Return the stored examples, from which :meth:`remove_examples` selects."""
        memory = self.memory
        if memory is None or not memory.is_allocated:
            return StoredExamples.none()
        slots = torch.from_numpy(memory.occupied()).to(memory.y.device)
        return StoredExamples(memory.x[slots], memory.y[slots], memory.stream_index[slots])

    def drop_examples(self, mask: NDArray[np.bool_]) -> None:
        """Remove the examples of :meth:`stored_examples` that the mask selects."""
        assert self.memory is not None
        self.memory.remove(self.memory.occupied()[mask])


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
